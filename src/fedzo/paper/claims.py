"""Claims, and when they hold.

A claim is a handful of comparisons. A comparison is one number a seed, say by what factor
one curve is faster than another, and a region in which the claim says that it lies. All
curves of a figure share data, and with the same seed the participants and batches too, so
numbers are taken seed by seed and the noise that two curves share cancels. From them comes a
95 % confidence interval for the mean, Student's t. The comparison

* **holds** if the whole interval is in the region,
* **does not hold** if the whole interval is outside of it,
* and else one **cannot tell**; so it is with a single seed, which has no interval.

A claim holds if all its comparisons do: no correction is due, since all 95 % tests must pass. It
does not hold if one does not, and of many that are true one may look false by chance; so those that
are outside are corrected after Holm (1979), and a true claim is called false in one of 20 cases at
most, however many numbers it has. "Comparable" is a region around no difference, so a claim of it
needs enough seeds to be borne out, as any other does.

What the words mean in numbers is in :mod:`fedzo.paper.thresholds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.plots.interval import CONFIDENCE, Interval, chance, interval

Array = NDArray[Any]
History = Sequence[Mapping[str, Any]]
Runs = Mapping[str, Sequence[History]]  # the histories of each curve, by seed


class Verdict(StrEnum):
    """What came of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNKNOWN = "cannot tell"


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
    def holds(self) -> bool:
        """Whether the whole interval lies in the region."""
        _, low, high = self.interval
        return low > self.low and (high < self.high or self.high == math.inf)

    @property
    def chance(self) -> float:
        """The p-value of its being in the region."""
        return chance(self.values, self.low, self.high)


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


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """Return what becomes of each comparison of one claim, with Holm's correction.

    In the order of their p-values the first of k must be below 5 % / k to be outside, the next
    below 5 % / (k - 1), and so on until one is not.

    Examples
    --------
    >>> outside = Comparison("", np.array([0.0, 1.0, 2.0, 1.0]), high=-0.4)
    >>> inside = Comparison("", np.array([1.9, 2.1, 2.0]), low=1)
    >>> round(outside.chance, 3)
    0.042
    >>> [v.value for v in verdicts([outside])], [v.value for v in verdicts([inside, outside])]
    (['does not hold'], ['holds', 'cannot tell'])
    """
    found = [Verdict.HOLDS if c.holds else Verdict.UNKNOWN for c in comparisons]
    order = sorted(range(len(comparisons)), key=lambda i: comparisons[i].chance)
    for rank, i in enumerate(order):
        if comparisons[i].chance > (1 - CONFIDENCE) / (len(order) - rank):
            break
        found[i] = Verdict.FAILS
    return found


def judge(comparisons: Sequence[Comparison]) -> Verdict:
    """Return what becomes of a claim.

    Examples
    --------
    >>> faster = Comparison("speed-up", np.array([1.9, 2.1, 2.0]), low=1)
    >>> close = Comparison("gap", np.array([0.2, 0.2, 0.21]), low=-0.05, high=0.05)
    >>> judge([faster]).value, judge([faster, close]).value, judge([]).value
    ('holds', 'does not hold', 'cannot tell')
    """
    found = set(verdicts(comparisons))
    if Verdict.FAILS in found:
        return Verdict.FAILS
    return Verdict.HOLDS if found == {Verdict.HOLDS} else Verdict.UNKNOWN


def explain(comparisons: Sequence[Comparison]) -> str:
    """Return which numbers keep a claim from holding, in words; nothing if it does.

    Examples
    --------
    >>> close = Comparison("gap", np.array([0.2, 0.2, 0.21]), low=-0.05, high=0.05)
    >>> wide = Comparison("speed-up", np.array([0.5, 2.1, 2.0]), low=1)
    >>> explain([close]), explain([wide])
    ('Not as claimed: gap.', 'More seeds could decide: speed-up.')
    >>> explain([Comparison("speed-up", np.array([1.9, 2.1, 2.0]), low=1)])
    ''
    """
    each = list(zip(comparisons, verdicts(comparisons), strict=True))
    outside = [c.what for c, verdict in each if verdict == Verdict.FAILS]
    across = [c.what for c, verdict in each if verdict == Verdict.UNKNOWN]
    if outside:
        return f"Not as claimed: {'; '.join(outside)}."
    if across:
        return f"More seeds could decide: {'; '.join(across)}."
    return ""


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


def final_level(history: History, key: str) -> float:
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
