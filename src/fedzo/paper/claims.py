"""Claims, and when they hold.

A claim is a handful of comparisons. A comparison is one number a seed, say by what factor
one curve is faster than another, and a region in which the claim says that it lies. All
curves of a figure share data, and with the same seed the participants and batches too, so
numbers are taken seed by seed and the noise that two curves share cancels. From them comes a
95 % confidence interval for the mean, Student's t. The comparison

* **holds** if the whole interval is in the region,
* **does not hold** if the whole interval is outside of it,
* and else one **cannot tell**; so it is with a single seed, which has no interval.

A claim holds if all its comparisons do (no correction is due: all 95 % tests must pass), and
does not hold if one does not. "Comparable" is a region around no difference, so a claim of it
needs enough seeds to be borne out, as any other does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
History = Sequence[Mapping[str, Any]]
Runs = Mapping[str, Sequence[History]]  # the histories of each curve, by seed

CONFIDENCE = 0.95


class Verdict(StrEnum):
    """What came of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "cannot tell"


class Interval(NamedTuple):
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One number a seed, and the open region in which the claim has it."""

    what: str
    values: Array
    low: float = -math.inf
    high: float = math.inf

    @property
    def interval(self) -> Interval:
        """The mean over seeds and where it may lie."""
        return interval(self.values)

    @property
    def verdict(self) -> Verdict:
        """Whether the interval lies in the region."""
        _, low, high = self.interval
        if low > self.low and (high < self.high or self.high == math.inf):
            return Verdict.HOLDS
        return Verdict.FAILS if high <= self.low or low >= self.high else Verdict.UNKNOWN


@dataclass(frozen=True)
class Claim:
    """What is said of a figure, and how to measure it.

    ``by`` is who says it: the paper, or this package where the figure is its own. ``reason``
    is what we think is behind it where it was measured and was not borne out.
    """

    name: str
    text: str
    measure: Callable[[Runs], Sequence[Comparison]] = field(repr=False)
    by: str = "paper"
    reason: str = ""


def judge(comparisons: Sequence[Comparison]) -> Verdict:
    """Return what becomes of a claim.

    Examples
    --------
    >>> faster = Comparison("speed-up", np.array([1.9, 2.1, 2.0]), low=1)
    >>> close = Comparison("gap", np.array([0.2, 0.2, 0.3]), low=-0.05, high=0.05)
    >>> judge([faster]).value, judge([faster, close]).value, judge([]).value
    ('holds', 'does not hold', 'cannot tell')
    """
    verdicts = {comparison.verdict for comparison in comparisons}
    if Verdict.FAILS in verdicts:
        return Verdict.FAILS
    return Verdict.HOLDS if verdicts == {Verdict.HOLDS} else Verdict.UNKNOWN


def interval(values: ArrayLike) -> Interval:
    """Return the mean of independent values and its 95 % confidence interval, Student's t.

    One value, or one that is not a number, has none: it may lie anywhere. Infinite values,
    from runs that diverged or never got somewhere, are at infinity for certain if all are.

    Examples
    --------
    >>> interval([1.0, 2.0, 3.0])
    Interval(mean=2.0, low=-0.484..., high=4.484...)
    >>> interval([1.0])
    Interval(mean=1.0, low=-inf, high=inf)
    """
    numbers = np.asarray(values, np.float64)
    count, ends = len(numbers), set(numbers.tolist())
    if count > 1 and ends in ({math.inf}, {-math.inf}):
        return Interval(*ends, *ends, *ends)
    if not np.isfinite(numbers).all():
        return Interval(math.nan, -math.inf, math.inf)
    mean = float(numbers.mean())
    if count < 2:
        return Interval(mean, -math.inf, math.inf)
    error = float(numbers.std(ddof=1)) / math.sqrt(count)
    away = t_quantile(CONFIDENCE, count - 1) * error
    return Interval(mean, mean - away, mean + away)


def t_quantile(confidence: float, freedom: int) -> float:
    """Return t with P(|T| < t) = confidence, by bisection of its closed form.

    The form is Abramowitz & Stegun 26.7.3 and 26.7.4, a finite sum for whole degrees of freedom.

    >>> round(t_quantile(0.95, 2), 4), round(t_quantile(0.95, 4), 4)
    (4.3027, 2.7764)
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(freedom)
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return P(|T| < t) at angle = atan(t / sqrt(freedom))."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


# What claims are made of: numbers of runs, one a seed.


def last(runs: Runs, label: str, key: str = "train_loss") -> Array:
    """Return what each seed's run ended at."""
    return np.array([history[-1][key] for history in runs[label]])


def first(runs: Runs, label: str, key: str = "train_loss") -> Array:
    """Return what each seed's run began at."""
    return np.array([history[0][key] for history in runs[label]])


def average(runs: Runs, label: str, key: str) -> Array:
    """Return the mean over each run's evaluated rounds."""
    return np.array([np.mean([record[key] for record in history]) for history in runs[label]])


def settled(history: History, key: str) -> float:
    """Return the mean over the second half of a run's rounds."""
    half = history[-1]["round"] / 2
    return float(np.mean([record[key] for record in history if record["round"] >= half]))


def reached(history: History, loss: float, cost: str = "round") -> float:
    """Return what a run had spent when its loss first fell to this, between evaluations too.

    >>> history = [{"round": 0, "train_loss": 2.0}, {"round": 10, "train_loss": 1.0}]
    >>> reached(history, 1.5), reached(history, 0.5)
    (5.0, inf)
    """
    for before, after in pairwise(history):
        high, low = before["train_loss"], after["train_loss"]
        if low <= loss < high:
            share = (high - loss) / (high - low) if high < math.inf else 1.0
            return float(before[cost] + share * (after[cost] - before[cost]))
    return math.inf if history[0]["train_loss"] > loss else 0.0


# Comparisons.


def falls(runs: Runs, label: str, least: float = 0.0) -> Comparison:
    """Compare a curve's loss at its end with that at its start."""
    share = 1 - last(runs, label) / first(runs, label)
    return Comparison(f"{label}: share of the first loss gone at the end", share, low=least)


def speed(
    runs: Runs,
    fast: str,
    slow: str,
    low: float = 1.0,
    high: float = math.inf,
    cost: str = "round",
) -> Comparison:
    """Compare what two curves spend until both are as low as the higher of them ends.

    The number is what the fast one spends as a share of what the slow one does, since that is
    a number, zero, where the slow one never gets there. ``low`` and ``high`` say how many times
    as fast it must be.
    """
    shares = []
    for one, other in zip(runs[fast], runs[slow], strict=True):
        ends = sorted(history[-1]["train_loss"] for history in (one, other))
        start = min(one[0]["train_loss"], other[0]["train_loss"])
        loss = ends[1] if ends[1] < start else ends[0]
        mine, its = reached(one, loss, cost), reached(other, loss, cost)
        shares.append(mine / its if its > 0 and min(mine, its) < math.inf else math.nan)
    unit = {"round": "rounds"}.get(cost, cost.replace("_", " "))
    what = f"{unit} of {fast} over {unit} of {slow}, to the same loss"
    return Comparison(what, np.array(shares), 1 / high if high < math.inf else -math.inf, 1 / low)


def growing_speed(runs: Runs, labels: Sequence[str]) -> list[Comparison]:
    """Compare each curve with the one before it: it must be faster."""
    return [speed(runs, fast, slow) for slow, fast in pairwise(labels)]


def gap(runs: Runs, one: str, other: str, within: float) -> Comparison:
    """Compare the losses that two curves end at, which must differ by no more than a share."""
    shares = last(runs, one) / last(runs, other) - 1
    return Comparison(f"last loss of {one} over that of {other}, less 1", shares, -within, within)


def ahead(
    runs: Runs, one: str, other: str, key: str, low: float = 0.0, high: float = math.inf
) -> Comparison:
    """Compare what two curves end at: the first must be above the second."""
    differences = last(runs, one, key) - last(runs, other, key)
    what = f"last {key.replace('_', ' ')} of {one} less that of {other}"
    return Comparison(what, differences, low, high)
