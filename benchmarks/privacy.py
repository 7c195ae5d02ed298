"""What differential privacy costs: accuracy against epsilon, and noise against dimension.

python benchmarks/privacy.py [--rounds 20] [--seeds 3]     prints two tables, and draws both in
                                                           build/privacy.png

1. Softmax regression over ten devices of 400 records each, all of which take part in every round,
   with batches of 40. The noise is such that all steps of a device come to the epsilon of the row,
   at delta = 1e-5: with batches that only the node knows ("poisson"), or that the server knows
   ("fixed").
2. One step on a logistic regression of d weights and 200 records at epsilon = 1: the length of the
   noise over the length of the clipped update.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import fedzo
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.core.style import COLOURS
from fedzo.flower.privacy import Privacy, Private
from fedzo.problems import softmax

Array = NDArray[Any]
OUT = Path(__file__).parents[1] / "build" / "privacy.png"
DELTA = 1e-5
STEPS, DIRECTIONS, BATCH, RECORDS, SMOOTHING = 5, 20, 40, 400, 1e-3
CLIP = 1e-3  # about the length of a record's 20 differences at mu = 1e-3
EPSILONS = (0.3, 1.0, 3.0, 10.0, 30.0)
DIMENSIONS = (100, 1000, 10_000, 100_000)
NOISELESS = 1e-9


def settings(noise: float, sampling: str = "fixed", clip: float = CLIP) -> Privacy:
    """Return the settings of a node without a budget."""
    numbers = {"noise": noise, "difference_clip": clip, "delta": DELTA}
    return Privacy(epsilon=1e9, loss_clip=10.0, sampling=sampling, **numbers)


def noise_for(epsilon: float, answers: int, rate: float = 1.0) -> float:
    """Return the noise multiplier at which so many answers come to epsilon, by bisection."""
    low, high = 1e-2, 1e4
    while high / low > 1.001:
        middle = float(np.sqrt(low * high))
        enough = settings(middle).spent(answers, rate) <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def length_of_an_estimate(clip: float, dim: int, smoothing: float) -> float:
    """Return how long eq. (2) is for differences of length C: its directions are orthogonal."""
    return clip * dim / (smoothing * DIRECTIONS)


def accuracy(noise: float, rounds: int, seed: int, sampling: str) -> float:
    """Return the test accuracy of one run."""
    problem = softmax(devices=10, partition="iid")
    numbers: dict[str, Any] = {
        "learning_rate": 0.01,
        "batch_size": BATCH,
        "directions": DIRECTIONS,
        "local_steps": STEPS,
        "smoothing": SMOOTHING,
    }
    result = fedzo.minimize(
        Private(problem, settings(noise, sampling)),
        problem.initial(),
        algorithm=fedzo.FedZO(**numbers),
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
        self.rows = Draws(0, Stream.PROBLEM).normals(200, dim, dtype=np.float32) / np.sqrt(dim)

    def size(self, device: int) -> int:
        """Return the number of records."""
        return len(self.rows)

    def batch(self, device: int, size: int, draws: Draws) -> Array:
        """Return all records."""
        return self.rows

    def records(self, batch: Array) -> Array:
        """Return a name for each record."""
        return np.arange(len(batch))

    def values(self, points: Array, batch: Array) -> Array:
        """Return the losses, (k, d) -> (k, b)."""
        return np.logaddexp(0.0, -(points @ batch.T).astype(np.float64))

    def losses(self, x: Array, devices: Array) -> Array:
        """Return the mean loss."""
        return np.full(len(devices), self.values(x[None], self.rows).mean())


def noise_of_a_step(dim: int) -> tuple[float, float]:
    """Return the noise over the update, on b2 differences and on d numbers, at epsilon = 1."""
    problem, at = Logistic(dim), Draws(1, Stream.DIRECTIONS)
    estimator, x = Estimator(1e-2, DIRECTIONS), np.zeros(dim)
    buffer = estimator.buffer(dim, np.float64)
    clip = 1e-2 * 0.5 * np.sqrt(DIRECTIONS / dim)  # the length of a record's differences at zero

    def step(noise: float) -> Array:
        made = Private(problem, settings(noise, clip=clip))
        coefficients, _ = estimator.estimate(made, x, problem.size(0), buffer, at)
        return np.asarray(coefficients @ buffer.rows)

    exact, noise = step(NOISELESS), noise_for(1.0, 1)
    length = length_of_an_estimate(clip, dim, estimator.smoothing)
    deviation = noise * 2 * length / problem.size(0)
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
    print("| ε of all steps | z, secret batches | accuracy | z, known batches | accuracy |")
    print("| --- | --- | --- | --- | --- |")
    clipped = mean_accuracy(seeds, lambda seed: accuracy(NOISELESS, rounds, seed, "fixed"))
    print(f"| no noise, clipped only | 0 | {clipped:.3f} | 0 | {clipped:.3f} |", flush=True)
    found = []
    for epsilon in reversed(EPSILONS):
        row, pair = f"| {epsilon:g} ", []
        for sampling, rate in (("poisson", BATCH / RECORDS), ("fixed", 1.0)):
            noise = noise_for(epsilon, rounds * STEPS, rate)
            pair.append(
                mean_accuracy(
                    seeds, lambda seed, z=noise, how=sampling: accuracy(z, rounds, seed, how)
                )
            )
            row += f"| {noise:.3g} | {pair[-1]:.3f} "
        found.append(pair)
        print(row + "|", flush=True)
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
    names = ("batches that only the node knows", "batches that the server knows")
    noised = ("noise on the b2 = 20 differences of a step", "noise on the d numbers of an update")
    for level, text, at in ((clipped, "clipped, no noise", 0), (0.1, "guessing", -1)):
        left.axhline(level, color="0.5", linestyle=":")
        side = "right" if at else "left"
        left.annotate(text, (EPSILONS[at], level + 0.008), ha=side, fontsize=8)
    for i, name in enumerate(names):
        left.plot(EPSILONS, accuracies[:, i], "os"[i] + "-", color=COLOURS[i], label=name)
        right.plot(DIMENSIONS, lengths[:, i], "os"[i] + "-", color=COLOURS[i], label=noised[i])
    left.set(xscale="log", xlabel="ε of a whole run, δ = 1e-5", ylabel="test accuracy")
    left.set(title="Softmax regression, d = 7850", ylim=(0, clipped + 0.1))
    right.set(xscale="log", yscale="log", xlabel="d", ylabel="length of the noise / of the update")
    right.set(title="One step at ε = 1, 200 records")
    for axes in (left, right):
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    OUT.parent.mkdir(exist_ok=True)
    picture.savefig(OUT)


if __name__ == "__main__":
    main()
