"""The PyTorch quickstart of examples/flower-pytorch: FedAvg, and FedZO by its patch.

    python benchmarks/flower_quickstart.py 0 1 2     # seeds of the start

Accuracy is that of three rounds on the nodes' own test data, ten nodes, in one process; and of
FedAvg with as much CPU time as FedZO takes.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch.nn.functional import cross_entropy

import fedzo
from fedzo.flower import FedzoStrategy, InProcessGrid, torch_client

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower-pytorch"))
from quickstart.task import Net, load_data, test, train

NODES, ROUNDS = 10, 3


def accuracy(state: dict[str, torch.Tensor], loaders: list) -> float:
    net = Net()
    net.load_state_dict(state)
    return sum(test(net, own)[1] for _, own in loaders) / len(loaders)


def fedavg(
    state: dict[str, torch.Tensor], loaders: list, seconds: float = 0.0
) -> tuple[dict[str, torch.Tensor], int]:
    """Return the model after three rounds, or after so many seconds of CPU time, and the rounds."""
    began, rounds = time.process_time(), 0
    while rounds < ROUNDS or time.process_time() - began < seconds:
        rounds += 1
        found = []
        for own, _ in loaders:
            net = Net()
            net.load_state_dict(state)
            train(net, own, 1, 0.01)
            found.append(net.state_dict())
        state = {k: torch.stack([one[k] for one in found]).mean(0) for k in state}
    return state, rounds


def fedzo_patch(state: dict[str, torch.Tensor], loaders: list) -> dict[str, torch.Tensor]:
    app = torch_client(
        Net,
        loss=lambda net, batch: cross_entropy(net(batch[0]), batch[1], reduction="none"),
        data=lambda part, parts: loaders[part][0],
    )
    steps = fedzo.FedZO(learning_rate=0.1, directions=50, local_steps=20)
    strategy = FedzoStrategy(steps, fedzo.Seeds())
    result = strategy.start(InProcessGrid(app, NODES), ArrayRecord(state), num_rounds=ROUNDS)
    return result.arrays.to_torch_state_dict()


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    loaders = [load_data(i, NODES, 32) for i in range(NODES)]
    for seed in map(int, sys.argv[1:] or ["0"]):
        torch.manual_seed(seed)
        start = Net().state_dict()

        def measured(method: Callable[..., Any], *more: float) -> tuple[Any, float]:
            began = time.process_time()
            end = method({k: v.clone() for k, v in start.items()}, loaders, *more)  # noqa: B023
            return end, time.process_time() - began

        measured(fedavg)  # the first training of a process loads libraries
        (three, _), first = measured(fedavg)
        zo, seconds = measured(fedzo_patch)
        (equal, rounds), _ = measured(fedavg, seconds)
        print(
            f"seed {seed}: start {accuracy(start, loaders):.3f}, "
            f"FedAvg {accuracy(three, loaders):.3f} ({first:.1f} s of CPU time), "
            f"FedZO {accuracy(zo, loaders):.3f} ({seconds:.1f} s), "
            f"FedAvg in as many seconds {accuracy(equal, loaders):.3f} ({rounds} rounds)",
            flush=True,
        )


if __name__ == "__main__":
    main()
