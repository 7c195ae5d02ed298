"""The plain call on pairs of a module and a task, against the best of five fixed rates.

    python benchmarks/modules.py [PAIR ...] [--seeds 3] [--rounds 40] [--rates RATE ...]
                                 [--out FILE]
    python benchmarks/modules.py [PAIR ...] --directions KIND ... [--seeds 3] [--rounds 40]
                                 [--out FILE]

The plain call is ``fedzo.minimize(TorchProblem(module, loss, data))``. The others are the same
algorithm with ``Adam(learning_rate=rate)``, for five rates a factor of three apart, with as many
queries as the plain call has used, its probes included. All runs return the best of their
evaluated models. Printed is the mean test accuracy over the seeds, and which share of the best
rate's gain the plain call reaches. None of these pairs is an example of the repository. The rules
of :mod:`fedzo.algorithms.server_rate` were chosen on the first thirteen pairs; three further
ones were made and measured once, afterwards.

``--directions`` compares the plain call's directions instead: ±1 or uniform on the sphere, of each
device or shared by all devices of a round. The pair "guide" is the network of the guide.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedzo
from fedzo.runs.minimize import default_algorithm
from fedzo.server import Adam
from results import Kept

RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
DIRECTIONS = {
    f"{kind}{words}": {"direction_kind": kind, "shared_directions": shared}
    for kind in ("rademacher", "sphere")
    for words, shared in (("", False), (", shared", True))
}
Samples = tuple[torch.Tensor, torch.Tensor]


def loss(module: nn.Module, batch: Samples) -> torch.Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


@lru_cache(maxsize=4)
def tabular(name: str) -> tuple[Samples, Samples]:
    """Return a data set of scikit-learn with standardised columns, two thirds of it to train."""
    import sklearn.datasets

    data = getattr(sklearn.datasets, f"load_{name}")()
    order = np.random.default_rng(0).permutation(len(data.target))
    scaled = (data.data - data.data.mean(0)) / (data.data.std(0) + 1e-9)
    inputs = torch.tensor(scaled[order], dtype=torch.float32)
    labels, cut = torch.tensor(data.target[order]), 2 * len(order) // 3
    return (inputs[:cut], labels[:cut]), (inputs[cut:], labels[cut:])


@lru_cache(maxsize=1)
def whole_images() -> tuple[Samples, Samples]:
    data = fedzo.data.load("fashion-mnist-mini")

    def tensors(inputs: np.ndarray, labels: np.ndarray) -> Samples:
        pixels = torch.from_numpy(inputs).float().view(-1, 1, 28, 28) / 255
        return pixels, torch.from_numpy(labels)

    return (
        tensors(data.train_inputs, data.train_labels),
        tensors(data.test_inputs, data.test_labels),
    )


@lru_cache(maxsize=1)
def images() -> tuple[Samples, Samples]:
    train, test = ((nn.functional.avg_pool2d(x, 2), y) for x, y in whole_images())
    return train, test


@lru_cache(maxsize=1)
def tokens() -> tuple[Samples, Samples]:
    """Count how often a token occurs, up to three times."""
    inputs = torch.randint(0, 5, (2000, 10), generator=torch.Generator().manual_seed(1))
    labels = (inputs == 3).sum(1).clamp(max=3)
    return (inputs[:1500], labels[:1500]), (inputs[1500:], labels[1500:])


@lru_cache(maxsize=1)
def signals() -> tuple[Samples, Samples]:
    """Tell four shapes of waves apart, with noise and at any phase."""
    draw = np.random.default_rng(0)
    labels, phase = draw.integers(4, size=2000), draw.uniform(0, 1, 2000)
    time = (3 * np.linspace(0, 1, 64) + phase[:, None]) % 1
    square, ramp = np.sign(time - 0.5), 2 * time - 1
    shapes = np.stack([np.sin(2 * np.pi * time), square, ramp, 2 * np.abs(ramp) - 1])
    waves = shapes[labels, np.arange(2000)] + 0.3 * draw.standard_normal((2000, 64))
    inputs, targets = torch.tensor(waves[:, None], dtype=torch.float32), torch.tensor(labels)
    return (inputs[:1500], targets[:1500]), (inputs[1500:], targets[1500:])


@lru_cache(maxsize=1)
def raw_digits() -> tuple[Samples, Samples]:
    """Return digits as they come, with pixels from 0 to 16."""
    import sklearn.datasets

    data = sklearn.datasets.load_digits()
    inputs, labels = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    return (inputs[:1200], labels[:1200]), (inputs[1200:], labels[1200:])


@lru_cache(maxsize=1)
def sequences() -> tuple[Samples, Samples]:
    """Say which of three tokens came first, after eleven others."""
    inputs = torch.randint(0, 3, (2000, 12), generator=torch.Generator().manual_seed(2))
    labels = inputs[:, 0].clone()
    return (inputs[:1500], labels[:1500]), (inputs[1500:], labels[1500:])


@lru_cache(maxsize=1)
def teacher() -> tuple[Samples, Samples]:
    """Return the classes that a random network gives to normal inputs."""
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(2500, 24, generator=draw)
    first, second = torch.randn(24, 12, generator=draw), torch.randn(12, 5, generator=draw)
    labels = (torch.tanh(inputs @ first / 2) @ second).argmax(1)
    return (inputs[:1800], labels[:1800]), (inputs[1800:], labels[1800:])


@lru_cache(maxsize=1)
def majority() -> tuple[Samples, Samples]:
    """Say which of four tokens is the most frequent of eleven; the first one wins a tie."""
    inputs = torch.randint(0, 4, (2500, 11), generator=torch.Generator().manual_seed(4))
    labels = nn.functional.one_hot(inputs, 4).sum(1).argmax(1)
    return (inputs[:1800], labels[:1800]), (inputs[1800:], labels[1800:])


@lru_cache(maxsize=1)
def small_images() -> tuple[Samples, Samples]:
    """Return the digits as images of 8 by 8 pixels from 0 to 1."""
    return tuple((x.view(-1, 1, 8, 8) / 16, y) for x, y in raw_digits())  # type: ignore[return-value]


class Attention(nn.Module):
    """One layer of a transformer over tokens, with the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 16), nn.Linear(16, 4)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(x)).mean(1))


class Lstm(nn.Module):
    """A recurrent network that has to remember."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(3, 8), nn.Linear(16, 3)
        self.lstm = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Gru(nn.Module):
    """A recurrent network of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 8), nn.Linear(24, 4)
        self.gru = nn.GRU(8, 24, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embedding(x))[0][:, -1])


class Vit(nn.Module):
    """A transformer of 16 patches of digits."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches, self.head = nn.Linear(4, width), nn.Linear(width, 10)
        self.places = nn.Parameter(torch.randn(16, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 48, 0.0, nn.functional.silu, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cut = x.view(-1, 8, 8).unfold(1, 2, 2).unfold(2, 2, 2).flatten(3).flatten(1, 2)
        return self.head(self.encoder(self.patches(cut) + self.places).mean(1))


class Lora(nn.Module):
    """A frozen linear layer with adapters of rank 4."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.a.T @ self.b.T


def pretrained(module: nn.Module, samples: Samples, steps: int) -> nn.Module:
    """Train by gradients for a few steps."""
    optimiser, draw = torch.optim.Adam(module.parameters(), 3e-3), np.random.default_rng(0)
    for _ in range(steps):
        which = draw.integers(len(samples[1]), size=64)
        optimiser.zero_grad()
        loss(module, (samples[0][which], samples[1][which])).mean().backward()
        optimiser.step()
    return module


def cnn(kernel: int = 3, features: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, kernel, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, kernel, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 10),
    )


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 8, 7, stride=2),
        nn.ReLU(),
        nn.Conv1d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(64, 4),
    )


def pooled_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def mlp(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), activation()]
    return nn.Sequential(*layers[:-1])


def vit() -> nn.Module:
    """Half trained by gradients: from scratch no loss-only method moves it in so few queries."""
    return pretrained(Vit(), tabular("digits")[0], 40)


def lora() -> nn.Module:
    """Adapters and a head on a transformer that has learnt another task."""
    inputs, labels = tabular("digits")[0]
    module = pretrained(Vit(), (inputs, labels % 5), 120).requires_grad_(False)
    for layer in module.encoder.layers:
        layer.linear1, layer.linear2 = Lora(layer.linear1), Lora(layer.linear2)
    module.head.requires_grad_(True)
    return module


def frozen() -> nn.Module:
    """Return a new head on a trunk that has learnt half of the classes."""
    inputs, labels = images()[0]
    module = pretrained(cnn(), (inputs[labels < 5], labels[labels < 5]), 100).requires_grad_(False)
    module[-1] = nn.Linear(64, 10)
    return module


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(196, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 10)
    )


Pair = tuple[Callable[[], nn.Module], Callable[[], tuple[Samples, Samples]], int]
PAIRS: dict[str, Pair] = {  # a module, its samples, and N
    "cnn, images": (cnn, images, 10),
    "mlp, digits": (lambda: mlp(64, 32, 32, 10), lambda: tabular("digits"), 5),
    "deep mlp, digits": (
        lambda: mlp(64, 48, 48, 48, 10, activation=nn.ReLU),
        lambda: tabular("digits"),
        30,
    ),
    "layer norm, images": (normed, images, 10),
    "vit, digits": (vit, lambda: tabular("digits"), 8),
    "gru, tokens": (Gru, tokens, 6),
    "mlp, wine": (lambda: mlp(13, 16, 3), lambda: tabular("wine"), 4),
    "mlp, breast cancer": (lambda: mlp(30, 64, 2), lambda: tabular("breast_cancer"), 1),
    "lora, digits": (lora, lambda: tabular("digits"), 8),
    "frozen trunk, images": (frozen, images, 20),
}
FRESH: dict[str, Pair] = {  # on these faults of the first rules were found
    "conv1d, signals": (conv1d, signals, 7),
    "lstm, sequences": (Lstm, sequences, 5),
    "mlp, raw digits": (lambda: mlp(64, 40, 10, activation=nn.GELU), raw_digits, 12),
}
LATER: dict[str, Pair] = {  # made and measured after the last change of the rules
    "wide mlp, teacher": (lambda: mlp(24, 96, 5, activation=nn.ReLU), teacher, 9),
    "attention, majority": (Attention, majority, 6),
    "pooled cnn, digits": (pooled_cnn, small_images, 15),
}
ALL = PAIRS | FRESH | LATER
GUIDE: dict[str, Pair] = {"guide": (lambda: cnn(5, 256), whole_images, 10)}


def problem_of(name: str, seed: int) -> tuple[fedzo.TorchProblem, Callable[[], float]]:
    """Return the problem of a pair, and the test accuracy of its module."""
    make, load, devices = (ALL | GUIDE)[name]
    (inputs, labels), test = load()
    torch.manual_seed(seed)
    module = make()
    data = [(inputs[i::devices], labels[i::devices]) for i in range(devices)]

    @torch.inference_mode()
    def accuracy() -> float:
        return (module.eval()(test[0]).argmax(1) == test[1]).float().mean().item()

    return fedzo.TorchProblem(module, loss, data), accuracy


def run(
    name: str, rate: float, seed: int, rounds: int, directions: str = "rademacher"
) -> tuple[float, float, float]:
    """Return the accuracy at the start and at the end, and the queries; 0 is the plain call."""
    problem, accuracy = problem_of(name, seed)
    before = accuracy()
    algorithm = replace(default_algorithm(problem), **DIRECTIONS[directions])
    if rate:
        algorithm = replace(algorithm, server=Adam(learning_rate=rate))
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, seed=seed)
    return before, accuracy(), result.queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="*", metavar="PAIR", default=list(ALL))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, metavar="RATE")
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, metavar="KIND")
    parser.add_argument("--out", type=Path, help="where results are kept")
    given = parser.parse_args()
    found = Kept(run, given.out)
    if given.directions:
        print(f"| pair | queries | {' | '.join(given.directions)} |")
        print("| --- " * (2 + len(given.directions)) + "|", flush=True)
        for name in given.pairs:
            means = [
                np.mean(
                    [found(name, 0.0, seed, given.rounds, kind) for seed in range(given.seeds)], 0
                )
                for kind in given.directions
            ]
            reached = " | ".join(f"{mean[1]:.1%}" for mean in means)
            print(f"| {name} | {means[0][2]:,.0f} | {reached} |", flush=True)
        return
    print("| pair | queries | start | plain call | best fixed rate | share of its gain |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in given.pairs:
        plain = np.array([found(name, 0.0, seed, given.rounds) for seed in range(given.seeds)])
        start, reached, queries = plain.mean(0)
        per_round = run_cost(name)
        fixed = {
            rate: np.mean(
                [
                    found(name, rate, seed, int(queries // per_round))[1]
                    for seed in range(given.seeds)
                ]
            )
            for rate in given.rates
        }
        best = max(fixed, key=fixed.__getitem__)
        share = (reached - start) / (fixed[best] - start)
        print(
            f"| {name} | {queries:,.0f} | {start:.1%} | {reached:.1%} | {fixed[best]:.1%} ({best})"
            f" | {share:.0%} |",
            flush=True,
        )


def run_cost(name: str) -> int:
    """Return the queries of a round of the default algorithm, without probes."""
    participants = min(ALL[name][2], 10)
    return participants * 16 * (max(10, 100 // participants) + 1)


if __name__ == "__main__":
    main()
