"""A contest of points, by successive halving: many on few samples, the better ones on more.

In each stage the best quarter of those that are left goes on, to twice as many samples as before;
what was seen of it counts on. The samples of a stage are the same for all points, so that points
are compared and not samples.

References
----------
Z. Karnin, T. Koren and O. Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013;
K. Jamieson and A. Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FIRST = 10  # samples of the first stage
GOES_ON = 4  # one of so many


class Contest(NamedTuple):
    """How a contest stands; plain arrays, since a server step keeps it.

    Examples
    --------
    >>> contest = Contest.of(5)
    >>> contest.left, contest.samples
    (array([0, 1, 2, 3, 4]), 10)
    >>> contest = contest.heard(np.array([3.0, 1.0, 4.0, 1.5, 5.0]))
    >>> contest.left, contest.samples, contest.winner
    (array([1, 3]), 20, None)
    >>> contest.heard(np.array([2.0, 0.5])).winner  # 1 and 1.5 of ten, 2 and 0.5 of twenty
    3
    >>> cost(5, devices=10)  # 5 points on 10 samples, 2 on 20
    90
    """

    sums: Array  # of all values of each point; infinite once it is out
    stage: Array  # how many stages there were, (1,)

    @classmethod
    def of(cls, points: int) -> Contest:
        """Return a contest of so many points that has not begun."""
        return cls(np.zeros(points), np.zeros(1))

    @property
    def left(self) -> Array:
        """Which points are still in it."""
        return np.flatnonzero(np.isfinite(self.sums))

    @property
    def samples(self) -> int:
        """How many samples the next stage takes for each of them."""
        return FIRST << int(self.stage[0])

    @property
    def winner(self) -> int | None:
        """Which point has won, if there is only one left."""
        return int(self.left[0]) if len(self.left) == 1 else None

    def heard(self, values: Array) -> Contest:
        """Return how it stands after a stage, in which the points that were left had these means.

        A value that is not finite is the worst. Where nobody answered, the stage is not counted.
        """
        if not np.isfinite(values).any():
            return self
        left, sums = self.left, np.full(self.sums.shape, np.inf)
        worst = values[np.isfinite(values)].max()
        total = self.sums[left] + self.samples * np.where(np.isfinite(values), values, worst)
        best = np.argsort(total, kind="stable")[: _next(len(left))]
        sums[left[best]] = total[best]
        return Contest(sums, self.stage + 1)


def cost(points: int, devices: int) -> int:
    """Return how many values a contest of so many points takes."""
    total, contest = 0, Contest.of(points)
    while contest.winner is None:
        total += len(contest.left) * math.prod(shared_out(contest.samples, devices))
        contest = contest.heard(np.zeros(len(contest.left)))
    return total


def stages(points: int) -> int:
    """Return how many stages it has.

    >>> stages(391)  # 391, 98, 25, 7 and 2 points
    5
    """
    return 0 if points <= 1 else 1 + stages(_next(points))


def shared_out(samples: int, devices: int) -> tuple[int, int]:
    """Return how many devices a stage asks, and for how many samples each.

    >>> shared_out(10, devices=50), shared_out(40, devices=3)
    ((10, 1), (3, 14))
    """
    asked = min(samples, devices)
    return asked, math.ceil(samples / asked)


def _next(points: int) -> int:
    """Return how many of so many points go on."""
    return math.ceil(points / GOES_ON)
