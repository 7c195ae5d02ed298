"""Peak memory of training a network, against that of running it, and core-seconds per step.

    python benchmarks/memory.py [OPTION ...] [--weights 23000000] [--directions 20]

An OPTION is a server optimizer, in place or with x as a copy: ``mean``, ``"mean, copy"``, ...
Each case runs in a process of its own. A module of layers of width 1024 is built and run once: the
peak so far is that of inference. Then it is trained for three rounds of four devices, evaluated
after each round. Printed are the peaks in models' sizes. Core-seconds are those of a device's step
of two forward passes of one sample: nearly all of it is drawing and adding directions.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

WIDTH = 1024


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


OPTIONS = ("mean", "momentum", "adam", "adam, auto", "normalised")
OPTIONS = tuple(f"{name}{mode}" for mode in ("", ", copy") for name in OPTIONS)


def measure(option: str, weights: int, directions: int) -> None:
    import torch

    import fedzo
    from fedzo.server import Adam, Mean, Momentum, Normalised

    name, in_place = option.removesuffix(", copy"), not option.endswith(", copy")
    server = {
        "mean": Mean(),
        "momentum": Momentum(),
        "adam": Adam(1e-4),
        "adam, auto": Adam("auto"),
        "normalised": Normalised(),
    }[name]
    depth = -(-weights // WIDTH**2)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth)))
    data = [(torch.randn(16, WIDTH),) for _ in range(4)]

    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return module(batch[0]).square().mean(1)

    def train(module: torch.nn.Module, directions: int, rounds: int, batch: int = 16) -> None:
        problem = fedzo.TorchProblem(module, loss, data, in_place=in_place)
        algorithm = fedzo.FedZO(
            learning_rate=1e-4,
            smoothing=1.0,
            directions=directions,
            local_steps=1,
            batch_size=batch,
            direction_kind="rademacher",
            server=server,
        )
        options = {"uplink": fedzo.Seeds(), "rounds": rounds, "evaluate_every": min(rounds, 3)}
        fedzo.minimize(problem, algorithm=algorithm, **options)

    train(torch.nn.Linear(WIDTH, 1), directions, rounds=1)  # all code is compiled and loaded
    with torch.inference_mode():
        loss(module, data[0])
    model, inference = 4 * depth * WIDTH**2, peak()
    train(module, directions, rounds=3)
    grown = (peak() - inference) / model
    seconds = []
    for rounds in (2, 12):
        began = time.process_time()
        train(module, directions=1, rounds=rounds, batch=1)
        seconds.append(time.process_time() - began)
    step = (seconds[1] - seconds[0]) / (10 * len(data))
    print(f"| {option} | {grown:.2f} | {step:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("options", nargs="*", metavar="OPTION", default=OPTIONS)
    parser.add_argument("--weights", type=int, default=23 * 10**6)
    parser.add_argument("--directions", type=int, default=20)
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        measure(given.options[0], given.weights, given.directions)
        return
    print("| option | memory beyond inference, in models | core-seconds per step |")
    print("| --- | --- | --- |", flush=True)
    for option in given.options:
        case = ["--weights", str(given.weights), "--directions", str(given.directions)]
        subprocess.run([sys.executable, __file__, option, "--case", *case], check=True)


if __name__ == "__main__":
    main()
