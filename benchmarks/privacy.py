"""What differential privacy costs: accuracy against epsilon, and noise against dimension.

python benchmarks/privacy.py [--rounds 20] [--seeds 3]     prints two tables, and draws both in
                                                           build/privacy.png

Every epsilon here assumes the bound on what one record changes (fedzo.flower.privacy). No test on
neighbouring data sets shows it yet, so these numbers are not a privacy guarantee.

1. Softmax regression over ten devices of 400 records each, all of which take part in every round,
   with batches of 400. The noise is such that all steps of a device come to the epsilon of the row,
   at delta = 1e-5: on the b2 differences of a step, as a node does it, or, for comparison, on the d
   numbers of the step's update, whose records are clipped to the same length.
2. One step on a logistic regression of d weights and 200 records at epsilon = 1: the length of the
   noise over the length of the clipped update.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from dp_accounting import get_sigma_gaussian
from matplotlib.figure import Figure
from numpy.typing import NDArray

import fedzo
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.flower.privacy import Privacy, Private
from fedzo.plots.series import COLOURS
from fedzo.problems import softmax

Array = NDArray[Any]
OUT = Path(__file__).parents[1] / "build" / "privacy.png"
DELTA = 1e-5
STEPS, DIRECTIONS, BATCH, SMOOTHING = 5, 20, 400, 1e-3
CLIP = 1e-3  # about the length of a record's 20 differences at mu = 1e-3
EPSILONS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
DIMENSIONS = (100, 1000, 10_000, 100_000)
NOISELESS = 1e-9


def noise_for(epsilon: float, answers: int) -> float:
    """Return the noise multiplier at which so many answers come to epsilon."""
    return float(get_sigma_gaussian(epsilon, DELTA) * np.sqrt(answers))


def private(problem: fedzo.Objective, noise: float, clip: float = CLIP) -> Private:
    """Return a problem that is answered about with so much noise, without an end."""
    return Private(problem, Privacy(epsilon=1e9, noise=noise, difference_clip=clip, loss_clip=10.0))


def length_of_an_estimate(clip: float, dim: int, smoothing: float) -> float:
    """Return how long eq. (2) is for differences of length C: its directions are orthogonal."""
    return clip * dim / (smoothing * DIRECTIONS)


@dataclass(frozen=True, kw_only=True)
class NoisyUpdates(fedzo.FedZO):
    """FedZO with noise on each of the d numbers of a step's estimate."""

    deviation: float = 0.0

    def correction(self, x: Array, start: Array) -> Array:
        """Return the noise of one step."""
        return np.random.default_rng().normal(0, self.deviation, x.size).astype(x.dtype)


def accuracy(noise: float, rounds: int, seed: int, on_updates: bool = False) -> float:
    """Return the test accuracy of one run."""
    problem = softmax(devices=10, partition="iid")
    numbers: dict[str, Any] = {
        "learning_rate": 0.01,
        "batch_size": BATCH,
        "directions": DIRECTIONS,
        "local_steps": STEPS,
        "smoothing": SMOOTHING,
    }
    if on_updates:
        made = private(problem, NOISELESS)
        length = length_of_an_estimate(CLIP, problem.dim, SMOOTHING)
        deviation = noise * made.deviation(0, BATCH, length) / NOISELESS
        algorithm: fedzo.FedZO = NoisyUpdates(**numbers, deviation=deviation)
    else:
        made, algorithm = private(problem, noise), fedzo.FedZO(**numbers)
    result = fedzo.minimize(
        made,
        problem.initial(),
        algorithm=algorithm,
        rounds=rounds,
        evaluate_every=rounds,
        seed=seed,
    )
    return float(problem.metrics(result.last)["test_accuracy"])


class Logistic(fedzo.Objective):
    """Logistic regression on one device of 200 records, d numbers each, at random."""

    devices = 1

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.records = Draws(0, Stream.PROBLEM).normals(200, dim, dtype=np.float32) / np.sqrt(dim)

    def size(self, device: int) -> int:
        """Return the number of records."""
        return len(self.records)

    def batch(self, device: int, size: int, draws: Draws) -> Array:
        """Return all records."""
        return self.records

    def values(self, points: Array, batch: Array) -> Array:
        """Return the losses, (k, d) -> (k, b)."""
        return np.logaddexp(0.0, -(points @ batch.T).astype(np.float64))

    def losses(self, x: Array, devices: Array) -> Array:
        """Return the mean loss."""
        return np.full(len(devices), self.values(x[None], self.records).mean())


def noise_of_a_step(dim: int) -> tuple[float, float]:
    """Return the noise over the update, on b2 differences and on d numbers, at epsilon = 1."""
    problem, at = Logistic(dim), Draws(1, Stream.DIRECTIONS)
    estimator, x = Estimator(1e-2, DIRECTIONS), np.zeros(dim)
    buffer = estimator.buffer(dim, np.float64)
    clip = 1e-2 * 0.5 * np.sqrt(DIRECTIONS / dim)  # the length of a record's differences at zero

    def step(noise: float) -> Array:
        made = private(problem, noise, clip)
        coefficients, _ = estimator.estimate(made, x, problem.size(0), buffer, at)
        return np.asarray(coefficients @ buffer.rows)

    exact, noise = step(NOISELESS), noise_for(1.0, 1)
    length = length_of_an_estimate(clip, dim, estimator.smoothing)
    deviation = private(problem, noise).deviation(0, problem.size(0), length)
    on_scalars = fmean(float(np.linalg.norm(step(noise) - exact)) for _ in range(5))
    on_update = deviation * np.sqrt(dim)
    return on_scalars / np.linalg.norm(exact), on_update / np.linalg.norm(exact)


def mean_accuracy(seeds: int, of: Callable[[int], float]) -> float:
    """Return the mean over seeds."""
    return fmean(of(seed) for seed in range(seeds))


def main() -> None:
    """Print the tables, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rounds, seeds = arguments.rounds, arguments.seeds
    print("| ε of all steps, δ = 1e-5 | noise z | on b2 differences | on d numbers |")
    print("| --- | --- | --- | --- |")
    clipped = mean_accuracy(seeds, lambda seed: accuracy(NOISELESS, rounds, seed))
    print(f"| none, clipped only | 0 | {clipped:.3f} | {clipped:.3f} |", flush=True)
    found = []
    for epsilon in reversed(EPSILONS):
        noise = noise_for(epsilon, rounds * STEPS)
        pair = [
            mean_accuracy(seeds, lambda seed, on=on, z=noise: accuracy(z, rounds, seed, on))
            for on in (False, True)
        ]
        found.append(pair)
        print(f"| {epsilon:g} | {noise:.3g} | {pair[0]:.3f} | {pair[1]:.3f} |", flush=True)
    print("\n| d | noise / update, on b2 = 20 differences | on d numbers |\n| --- | --- | --- |")
    lengths = []
    for dim in DIMENSIONS:
        lengths.append(noise_of_a_step(dim))
        print(f"| {dim:,} | {lengths[-1][0]:.3g} | {lengths[-1][1]:.3g} |", flush=True)
    draw(clipped, np.array(found[::-1]), np.array(lengths))


def draw(clipped: float, accuracies: Array, lengths: Array) -> None:
    """Draw both tables."""
    picture = Figure(figsize=(10, 3.6), dpi=150, layout="constrained")
    left, right = picture.subplots(1, 2)
    names = ("noise on the b2 = 20 differences of a step", "noise on the d numbers of an update")
    for level, text, at in ((clipped, "clipped, no noise", 0), (0.1, "guessing", -1)):
        left.axhline(level, color="0.5", linestyle=":")
        side = "right" if at else "left"
        left.annotate(text, (EPSILONS[at], level + 0.008), ha=side, fontsize=8)
    for i, name in enumerate(names):
        left.plot(EPSILONS, accuracies[:, i], "os"[i] + "-", color=COLOURS[i], label=name)
        right.plot(DIMENSIONS, lengths[:, i], "os"[i] + "-", color=COLOURS[i], label=name)
    left.set(xscale="log", xlabel="ε of a whole run, δ = 1e-5", ylabel="test accuracy")
    left.set(title="Softmax regression, d = 7850", ylim=(0, clipped + 0.1))
    right.set(xscale="log", yscale="log", xlabel="d", ylabel="length of the noise / of the update")
    right.set(title="One step at ε = 1, 200 records")
    for axes in (left, right):
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    right.legend(frameon=False, fontsize=8)  # for both
    OUT.parent.mkdir(exist_ok=True)
    picture.savefig(OUT)


if __name__ == "__main__":
    main()
