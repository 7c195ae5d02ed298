"""Successive halving: many points on few samples, then the better ones on more.

In each stage the best quarter of the remaining points continues, on twice as many samples as
before; earlier values count on. All points of a stage are evaluated on the same samples, so that
points are compared and not samples.

References
----------
Z. Karnin, T. Koren and O. Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013;
K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedzo.core.types import Array

FIRST = 10  # samples of the first stage, by default
CONTINUES = 4  # one of this many points


class CandidatePoints(NamedTuple):
    """Points to compare before the first step, and the number of samples for each, over devices."""

    points: Array  # (k, d)
    samples: int


class Halving(NamedTuple):
    """The points that remain, and their values so far; plain arrays, as a server state has.

    Examples
    --------
    >>> halving = Halving.of(5)
    >>> halving.left, halving.growth
    (array([0, 1, 2, 3, 4]), 1)
    >>> halving = halving.after(np.array([3.0, 1.0, 4.0, 1.5, 5.0]))
    >>> halving.left, halving.growth, halving.winner
    (array([1, 3]), 2, None)
    >>> halving.after(np.array([2.0, 0.5])).winner  # 1 and 1.5 on ten, 2 and 0.5 on twenty
    3
    >>> cost(5, devices=10)  # 5 points on 10 samples, 2 on 20
    90
    """

    sums: Array  # of all values of each point; infinite for points that do not remain
    stage: Array  # the number of stages so far, (1,)

    @classmethod
    def of(cls, points: int) -> Halving:
        """Return the state before the first stage."""
        return cls(np.zeros(points), np.zeros(1))

    @property
    def left(self) -> Array:
        """The points that remain."""
        return np.flatnonzero(np.isfinite(self.sums))

    @property
    def growth(self) -> int:
        """The number of samples of the next stage, in units of the first stage's."""
        return 1 << int(self.stage[0])

    @property
    def winner(self) -> int | None:
        """The last remaining point, if there is only one."""
        return int(self.left[0]) if len(self.left) == 1 else None

    def after(self, values: Array) -> Halving:
        """Return the state after a stage, from the mean value of each remaining point.

        A value that is not finite is the worst. If no device replied, the stage does not count.
        """
        if not np.isfinite(values).any():
            return self
        left, sums = self.left, np.full(self.sums.shape, np.inf)
        worst = values[np.isfinite(values)].max()
        total = self.sums[left] + self.growth * np.where(np.isfinite(values), values, worst)
        best = np.argsort(total, kind="stable")[: _next(len(left))]
        sums[left[best]] = total[best]
        return Halving(sums, self.stage + 1)


def cost(points: int, devices: int, first: int = FIRST) -> int:
    """Return how many values successive halving of this many points takes."""
    total, halving = 0, Halving.of(points)
    while halving.winner is None:
        total += len(halving.left) * math.prod(shared_out(first * halving.growth, devices))
        halving = halving.after(np.zeros(len(halving.left)))
    return total


def stages(points: int) -> int:
    """Return the number of stages.

    >>> stages(391)  # 391, 98, 25, 7 and 2 points
    5
    """
    return 0 if points <= 1 else 1 + stages(_next(points))


def shared_out(samples: int, devices: int) -> tuple[int, int]:
    """Return how many devices a stage asks, and the number of samples per device.

    >>> shared_out(10, devices=50), shared_out(40, devices=3)
    ((10, 1), (3, 14))
    """
    asked = min(samples, devices)
    return asked, math.ceil(samples / asked)


def _next(points: int) -> int:
    """Return how many of this many points continue."""
    return math.ceil(points / CONTINUES)
