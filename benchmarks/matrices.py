"""Server steps that know matrices, against Adam, at equal queries.

    python benchmarks/matrices.py [PAIR ...] [--methods METHOD ...] [--seeds 3] [--rounds 40]
                                  [--rates RATE ...] [--out FILE]

All methods have the devices, batches and number of directions of the plain call, and as many
queries. The rate is the best of a few by seed 0. Printed is the mean test accuracy over the seeds.

``adam`` is the server optimizer of the plain call. ``shared`` gives all devices the same
directions; ``mean, shared`` adds the mean update. ``spectral`` replaces the momentum of each matrix
by its nearest orthogonal matrix (Jordan et al., "Muon", 2024), scaled to the root mean square of a
step of Adam; vectors take Adam's steps. ``low rank`` perturbs and moves matrices in a random
subspace of rank 4 only, which changes every tenth of the run (Chen et al., "Enhancing Zeroth-order
Fine-tuning for Language Models with Low-rank Structures", LOZO, 2024), by Adam.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

import fedzo
import modules
from fedzo.algorithms.server.optimizers import Moved, ServerState
from fedzo.runs.minimize import default_algorithm
from fedzo.server import Adam, Mean
from results import Kept, percent

METHODS = ("adam", "adam, shared", "mean, shared", "spectral", "low rank")
PAIRS = ("guide", "wide mlp, teacher", "attention, majority")
RATES = (0.01, 0.03, 0.1)
RANK, SUBSPACES = 4, 10


@dataclass(frozen=True)
class Spectral(Adam):
    """Adam for vectors; for matrices of these places and shapes the orthogonal factor of m."""

    matrices: tuple[tuple[int, int, int], ...] = ()  # start, rows, columns

    def apply(self, t: int, state: ServerState, x: np.ndarray, delta: np.ndarray) -> Moved:
        after, moments = super().apply(t, state, x, delta)  # which has v for vectors only
        for start, rows, columns in self.matrices:
            part = slice(start, start + rows * columns)
            left, _, right = np.linalg.svd(
                moments[0][part].reshape(rows, columns), full_matrices=False
            )
            step = float(self.learning_rate) * max(rows, columns) ** 0.5 * (left @ right)
            after[part] = x[part] + step.ravel()
        return after, moments


class Subspace(nn.Module):
    """A matrix plus A V: V is drawn once, A is trained from zero."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(len(weight), RANK))
        self.register_buffer("v", torch.randn(RANK, weight[0].numel()) / RANK**0.5)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.a @ self.v).view_as(weight)


def in_subspaces(
    problem: fedzo.TorchProblem, algorithm: fedzo.FedZO, rounds: int, seed: int
) -> int:
    """Train in one random subspace after the other; return the queries."""
    module, queries = problem.module, 0
    layers = [
        (layer, name)
        for layer in list(module.modules())
        for name, one in list(layer.named_parameters(recurse=False))
        if one.ndim > 1 and one[0].numel() > RANK
    ]
    for number in range(SUBSPACES):
        torch.manual_seed(1000 * seed + number)
        for layer, name in layers:
            parametrize.register_parametrization(layer, name, Subspace(getattr(layer, name)))
            getattr(layer.parametrizations, name).original.requires_grad_(False)
        data = [samples.items for samples in problem.data]
        inner = fedzo.TorchProblem(module, modules.loss, data)
        smaller = replace(algorithm, smoothing=1e-3 * inner.dim**0.5)
        result = fedzo.minimize(
            inner, algorithm=smaller, rounds=rounds // SUBSPACES, seed=seed * 1000 + number
        )
        queries += result.queries
        for layer, name in layers:
            parametrize.remove_parametrizations(layer, name)
            getattr(layer, name).requires_grad_(True)
    return queries


def run(name: str, method: str, rate: float, seed: int, rounds: int) -> tuple[float, int]:
    """Return the test accuracy and the queries."""
    problem, accuracy = modules.problem_of(name, seed)
    algorithm = replace(
        default_algorithm(problem),
        server=Adam(learning_rate=rate),
        shared_directions="shared" in method,
    )
    if method == "low rank":
        queries = in_subspaces(problem, algorithm, rounds, seed)
        return accuracy(), queries
    if method.startswith("mean"):
        algorithm = replace(algorithm, server=Mean(), learning_rate=rate)
    if method == "spectral":
        matrices = tuple(
            (piece.start, len(piece.tensor), piece.tensor[0].numel())
            for piece in problem.pieces
            if piece.tensor.ndim > 1
        )
        algorithm = replace(algorithm, server=Spectral(learning_rate=rate, matrices=matrices))
    result = fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, seed=seed)
    return accuracy(), result.queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", nargs="*", metavar="PAIR", default=PAIRS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, metavar="RATE")
    parser.add_argument("--out", type=Path, help="where results are kept")
    given = parser.parse_args()
    found = Kept(run, given.out)
    print("| pair | method | rate | queries | test accuracy, mean (least to most) |")
    print("| --- " * 5 + "|", flush=True)
    for name in given.pairs:
        for method in given.methods:
            tried = {rate: found(name, method, rate, 0, given.rounds)[0] for rate in given.rates}
            rate = max(tried, key=tried.__getitem__)
            results = np.array(
                [found(name, method, rate, seed, given.rounds) for seed in range(given.seeds)]
            )
            span, queries = percent(results[:, 0]), results[:, 1].mean()
            print(f"| {name} | {method} | {rate} | {queries:,.0f} | {span} |", flush=True)


if __name__ == "__main__":
    main()
