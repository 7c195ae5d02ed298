"""A network from scratch by forward passes only: accuracy at equal queries, against the field.

    python benchmarks/networks.py [METHOD ...] [--seeds 5] [--passes 3000] [--out FILE]

A convolutional network of 96,938 weights on Fashion-MNIST (the 4,000 + 1,000 images that ship), a
tenth of the training images at each of ten devices. Each method has the same number of forward
passes of 32 images, and its rate is the best of a few on 500 training images that are kept apart
(seed 0); then the test accuracy is printed over the seeds, with the bytes of a device and round.

``mezo``, ``mezo, tidied`` and ``decomfl`` are those of ``benchmarks/mezo.py``; MeZO has all images
in one place. ``fedzo`` is FedZO with shared directions by seeds and scalars, b2 = 10, one local
step, with the server step that is named. ``adam by gradients`` is the first-order reference: Adam
on pooled images, where a forward and a backward pass count as three. Results are appended to FILE,
a line each, and found there again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedzo
from fedzo.algorithms.server import Adam, Mean, Momentum, Normalised, ServerStep
from mezo import METHODS
from results import Kept, percent

BATCH, DEVICES, DIRECTIONS, TAKING_PART = 32, 10, 10, 2

RATES = {
    "mezo": (3e-4, 1e-3, 3e-3),
    "mezo, tidied": (3e-4, 1e-3, 3e-3),
    "decomfl": (3e-4, 1e-3, 3e-3, 1e-2),
    "fedzo, mean": (3e-3, 1e-2, 3e-2),
    "fedzo, momentum": (1e-3, 3e-3, 1e-2),
    "fedzo, normalised": (0.1, 0.3, 1.0),
    "fedzo, adam": (0.003, 0.006, 0.012),
    "adam by gradients": (1e-3, 3e-3),
}
SERVERS: dict[str, Callable[[float], ServerStep]] = {
    "fedzo, mean": lambda rate: Mean(),
    "fedzo, momentum": lambda rate: Momentum(),
    "fedzo, normalised": lambda rate: Normalised(rate=rate),
    "fedzo, adam": lambda rate: Adam(rate=rate),
}


@lru_cache(maxsize=1)
def images() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs and labels to train, to choose the rate by, and to test."""
    data = fedzo.data.load("fashion-mnist-mini")

    def tensors(inputs: Any, labels: Any) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = torch.from_numpy(inputs).float().view(-1, 1, 28, 28) / 255
        return pixels, torch.from_numpy(labels)

    inputs, labels = tensors(data.train_inputs, data.train_labels)
    return {
        "train": (inputs[:3500], labels[:3500]),
        "validation": (inputs[3500:], labels[3500:]),
        "test": tensors(data.test_inputs, data.test_labels),
    }


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 160),
        torch.nn.ReLU(),
        torch.nn.Linear(160, 10),
    )


def loss(module: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def by_field(name: str, module: torch.nn.Module, rate: float, seed: int, passes: int) -> str:
    """Train by a step of the field: two passes a step; DeComFL averages over its devices."""
    inputs, labels = images()["train"]
    draw = np.random.default_rng(seed)
    parameters = list(module.parameters())
    taking_part = TAKING_PART if name == "decomfl" else 1
    for step in range(passes // (2 * taking_part)):
        # The same direction for all devices of a round: their mean slope is that of their batches.
        which = [draw.integers(len(labels), size=BATCH) for _ in range(taking_part)]
        if name == "decomfl":
            which = [
                DEVICES * draw.integers(len(labels) // DEVICES, size=BATCH) + device
                for device in draw.choice(DEVICES, taking_part, replace=False)
            ]
        batch = inputs[np.concatenate(which)], labels[np.concatenate(which)]

        @torch.inference_mode()
        def value(batch: tuple[torch.Tensor, ...] = batch) -> float:
            return loss(module, batch).mean().item()

        with torch.no_grad():
            METHODS[name](parameters, value, seed * 10**6 + step, rate)
    return "12" if name == "decomfl" else "no devices"  # a scalar and a seed


def by_fedzo(name: str, module: torch.nn.Module, rate: float, seed: int, passes: int) -> str:
    inputs, labels = images()["train"]
    data = [(inputs[i::DEVICES], labels[i::DEVICES]) for i in range(DEVICES)]
    problem = fedzo.TorchProblem(module, loss, data)
    rounds = passes // (TAKING_PART * (DIRECTIONS + 1))
    algorithm = fedzo.FedZO(
        learning_rate=1e-3 if name in ("fedzo, normalised", "fedzo, adam") else rate,
        smoothing=0.01,
        directions=DIRECTIONS,
        local_steps=1,
        batch_size=BATCH,
        participants=TAKING_PART,
        direction_kind="rademacher",
        shared_directions=True,
        server=SERVERS[name](rate),
    )
    result = fedzo.minimize(
        problem,
        algorithm=algorithm,
        uplink=fedzo.Seeds(),
        rounds=rounds,
        seed=seed,
        evaluate_every=rounds,
    )
    problem.place(result.last)
    return f"{result.uplink_bytes // (rounds * TAKING_PART)}"


def by_gradients(module: torch.nn.Module, rate: float, seed: int, passes: int) -> str:
    inputs, labels = images()["train"]
    draw, optimiser = np.random.default_rng(seed), torch.optim.Adam(module.parameters(), rate)
    for _ in range(passes // 3):
        which = draw.integers(len(labels), size=BATCH)
        optimiser.zero_grad()
        loss(module, (inputs[which], labels[which])).mean().backward()
        optimiser.step()
    return "no devices"


def accuracy(name: str, rate: float, seed: int, passes: int, split: str) -> tuple[float, str]:
    """Return a trained network's accuracy, and the bytes that a device sends in a round."""
    torch.manual_seed(seed)
    module = network()
    if name in METHODS:
        sent = by_field(name, module, rate, seed, passes)
    elif name in SERVERS:
        sent = by_fedzo(name, module, rate, seed, passes)
    else:
        sent = by_gradients(module, rate, seed, passes)
    inputs, labels = images()[split]
    with torch.inference_mode():
        return (module(inputs).argmax(1) == labels).float().mean().item(), sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=3000)
    parser.add_argument("--out", type=Path, help="where results are kept")
    given = parser.parse_args()
    found = Kept(accuracy, given.out)
    print(f"{'':20} {'rate':>8} {'test accuracy, mean (least to most)':>38} {'bytes':>12}")
    for name in given.methods:
        rates = RATES[name]
        rate = max(rates, key=lambda rate: found(name, rate, 0, given.passes, "validation")[0])
        results = [found(name, rate, seed, given.passes, "test") for seed in range(given.seeds)]
        span = percent([result[0] for result in results])
        print(f"{name:20} {rate:8g} {span:>38} {results[0][1]:>12}", flush=True)


if __name__ == "__main__":
    main()
