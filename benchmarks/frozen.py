"""What keeping the frozen part and batching the points bring, for a head on MiniLM.

    python benchmarks/frozen.py [--texts 64] [--tokens 32] [--directions 20] [--cpu]

A linear head of 770 weights on the mean of MiniLM's last layer, at one device: the time of a local
step of 16 texts and b2 + 1 points, with each of TorchProblem's two limits of memory and with both.
Every text is looked at once before, which fills what is kept. ``--cpu`` counts the seconds that
cores spent on it, for machines that are busy with other work. Needs the extra text.
"""

from __future__ import annotations

import argparse
import time

import torch

import fedzo
from mezo import load


class Classifier(torch.nn.Module):
    """MiniLM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = load("minilm-l6")
        self.head = torch.nn.Linear(384, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(ids)[0].mean(1))


def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--directions", type=int, default=20)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    module = Classifier().eval()
    ids = torch.arange(given.texts * given.tokens).view(given.texts, -1) % 30_000
    data = [(ids, torch.arange(given.texts) % 2)]
    algorithm = fedzo.FedZO(directions=given.directions, local_steps=1, batch_size=16)
    print(f"{'':32} {'seconds a step':>15}")
    for name, limits in {
        "one point after another": {},
        "batched_memory": {"batched_memory": 1 << 28},
        "frozen_memory": {"frozen_memory": 1 << 28},
        "both": {"batched_memory": 1 << 28, "frozen_memory": 1 << 28},
    }.items():
        problem = fedzo.TorchProblem(module, loss, data, "head", **limits)
        x, times = problem.initial(), []
        problem.losses(x, torch.arange(1).numpy())  # looks at every text once
        for step in range(4):
            began = clock()
            fedzo.LocalSteps(algorithm, x, algorithm.learning_rate, round=step).reply(problem, 0)
            times.append(clock() - began)
        print(f"{name:32} {sorted(times)[1]:15.4f}", flush=True)


if __name__ == "__main__":
    main()
