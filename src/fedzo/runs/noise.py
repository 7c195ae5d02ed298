"""The noise of evaluations: whether a result is better than the start, or a lucky value."""

import math
from typing import NamedTuple

import numpy as np

from fedzo.core.budget import Meter
from fedzo.core.types import Array
from fedzo.runs.history import mean_loss

REPEATS = 4  # fresh evaluations of a noisy result
SHARE = 10  # of a budget: one in so many queries is for them


class Noise(NamedTuple):
    """The mean of noisy evaluations of one model, and what is known of their noise.

    Examples
    --------
    >>> start = Noise.of_devices(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> start
    Noise(mean=3.5, repeats=2, deviation=0.7071067811865476, freedom=2)
    >>> better = Noise.of_devices(np.array([[0.0, 1.0], [0.2, 1.0]])).pooled(start)
    >>> better.is_below(start)
    True
    """

    mean: float = 0.0
    repeats: int = 0
    deviation: float = 0.0  # of one evaluation; 0 if they are not noisy
    freedom: int = 0  # the degrees of freedom of the deviation

    @classmethod
    def of_devices(cls, losses: Array) -> "Noise":
        """Return the noise of evaluations, shape (repeats, devices)."""
        repeats, devices = losses.shape
        deviation = deviation_of(losses) / devices
        return cls(mean_loss(losses.mean(axis=0)), repeats, deviation, devices * (repeats - 1))

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.deviation / math.sqrt(self.repeats)

    def pooled(self, other: "Noise") -> "Noise":
        """Return this mean with the deviation of both."""
        freedom = self.freedom + other.freedom
        parts = [math.sqrt(one.freedom / freedom) * one.deviation for one in (self, other)]
        return self._replace(deviation=math.hypot(*parts), freedom=freedom)

    def is_below(self, start: "Noise", chances: int = 1) -> bool:
        """Return whether this mean is below another by a t-test at 2.5 %, over all ``chances``."""
        from scipy.special import stdtrit

        limit = float(stdtrit(self.freedom, 1 - 0.025 / chances))
        error = self.deviation * math.sqrt(1 / self.repeats + 1 / start.repeats)
        return start.mean - self.mean > limit * error


def deviation_of(values: Array) -> float:
    """Return the root of the summed variances of columns, whose squares may be out of range.

    >>> deviation_of(np.array([[1e-300], [3e-300]]))
    1.4142135623730952e-300
    """
    unit = math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - 1)
    variances = (values / unit).var(axis=0, ddof=min(1, len(values) - 1))
    return unit * math.sqrt(float(variances.sum()))


def fresh_evaluations(meter: Meter, cost: int) -> int:
    """Return the number of fresh evaluations of a noisy result: fewer with a small budget.

    >>> fresh_evaluations(Meter(), 10), fresh_evaluations(Meter(200), 10)
    (4, 2)
    """
    if meter.max_queries is None:
        return REPEATS
    return min(REPEATS, math.ceil(meter.max_queries / (SHARE * max(1, cost))))
