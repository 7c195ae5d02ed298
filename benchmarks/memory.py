"""Peak memory of training a network in place, against that of running it.

    python benchmarks/memory.py [--weights 10000000 23000000 130000000] [--directions 1 20]

Each case runs in a process of its own: a module of layers of width 1024 is built, run once (the
peak so far is that of inference), and then trained for three rounds, with and without an
evaluation that finds a better model. Printed are the peaks in models' sizes; the bar is the
peak of inference, the largest layer and a tenth of a model.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

WIDTH = 1024


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(weights: int, directions: int) -> None:
    import torch

    import fedzo

    depth = -(-weights // WIDTH**2)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth)))
    data = [(torch.randn(16, WIDTH),) for _ in range(4)]

    def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return module(batch[0]).square().mean(1)

    small = fedzo.TorchProblem(torch.nn.Linear(WIDTH, 1), loss, data, in_place=True)
    algorithm = fedzo.FedZO(
        learning_rate=1e-4,
        smoothing=1.0,
        directions=directions,
        local_steps=1,
        batch_size=16,
        direction_kind="rademacher",
    )
    fedzo.minimize(small, algorithm=algorithm, rounds=1)  # all code is compiled and loaded
    with torch.inference_mode():
        loss(module, data[0])
    model, inference = 4 * depth * WIDTH**2, peak()
    problem = fedzo.TorchProblem(module, loss, data, in_place=True)
    result = fedzo.minimize(
        problem, algorithm=algorithm, uplink=fedzo.Seeds(), rounds=3, evaluate_every=1
    )
    grown, bar = (peak() - inference) / model, 1 / depth + 0.1
    print(
        f"{model // 4:>12,} {directions:>10} {inference / 1e6:>12,.0f} {peak() / 1e6:>12,.0f}"
        f" {grown:>8.3f} {bar:>8.3f}   best of round {result.best.round}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=int, nargs="+", default=[10**7, 23 * 10**6, 13 * 10**7])
    parser.add_argument("--directions", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        measure(given.weights[0], given.directions[0])
        return
    print("     weights directions inference MB  training MB   models      bar")
    for weights in given.weights:
        for directions in given.directions:
            case = ["--case", "--weights", str(weights), "--directions", str(directions)]
            subprocess.run([sys.executable, __file__, *case], check=True)


if __name__ == "__main__":
    main()
