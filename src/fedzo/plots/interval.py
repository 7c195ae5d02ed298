"""Means over seeds and their confidence intervals (Student's t), for tables and verdicts."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float

    def rounded(self) -> dict[str, float | None]:
        """Return the numbers by name, to six digits, for JSON: None if they are not finite."""
        return {key: rounded(value) for key, value in self._asdict().items()}


def rounded(number: float) -> float | None:
    """Return a number to six digits, for JSON: None if it is not finite."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


def interval(values: ArrayLike) -> Interval:
    """Return the mean of independent values and its 95 % confidence interval, Student's t.

    The interval is unbounded for a single value, and if a value is not a number. If all values
    are infinite, from runs that diverged or never reached a loss, so is the interval.

    Examples
    --------
    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484...)
    >>> interval([1.0])
    Interval(mean=1.0, low=-inf, high=inf)
    """
    from scipy.special import stdtrit

    numbers = np.asarray(values, np.float64)
    count, ends = len(numbers), set(numbers.tolist())
    if count > 1 and ends in ({math.inf}, {-math.inf}):
        return Interval(*ends, *ends, *ends)
    if not np.isfinite(numbers).all():
        return Interval(math.nan, -math.inf, math.inf)
    mean = float(numbers.mean())
    if count < 2:
        return Interval(mean, -math.inf, math.inf)
    away = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * _error(numbers)
    return Interval(mean, mean - away, mean + away)


def chance(values: ArrayLike, low: float, high: float) -> float:
    """Return the p-value of the hypothesis that the mean lies between ``low`` and ``high``.

    It is the p-value of the two-sided t test at the nearer end, so it is at most 5 % exactly if
    the whole 95 % interval is outside. It is 1 if the mean is inside, or for a single value.

    Examples
    --------
    >>> round(chance([1.0, 2.0, 3.0], -0.4841, 9.0), 4), chance([1.0, 2.0, 3.0], 0.0, 9.0)
    (1.0, 1.0)
    >>> round(chance([1.0, 2.0, 3.0], -9.0, -0.4841), 4)
    0.05
    """
    from scipy.special import stdtr

    numbers = np.asarray(values, np.float64)
    mean = interval(numbers).mean
    outside = mean <= low or (mean >= high and high < math.inf)
    if len(numbers) < 2 or not outside:
        return 1.0
    if math.isinf(mean) or not (error := _error(numbers)):
        return 0.0
    distance = low - mean if mean <= low else mean - high
    return float(2 * stdtr(len(numbers) - 1, -distance / error))


def _error(numbers: np.ndarray) -> float:
    """Return the standard error of a mean."""
    return float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
