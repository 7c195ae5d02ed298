"""Claims about figures, and when they hold.

A claim is a few comparisons. A comparison has one number per seed, such as the factor by which one
curve is faster than another, and the region that the claim predicts for it. All curves of a figure
share data, and with the same seed also participants and batches. So numbers are computed seed by
seed, and the noise that two curves share cancels. The 95 % confidence interval of the mean
(Student's t) decides. The comparison

* has **no effect above 1 %** if it has a direction ("faster", "more often") and the whole interval
  is closer to no difference than the smallest effect that would matter,
* **holds** if the whole interval is in the region,
* **does not hold** if the whole interval is outside the region,
* otherwise the verdict is **cannot tell**, as always with a single seed, which has no interval.

A claim holds if all its comparisons hold; this needs no correction, since all 95 % tests must pass.
A claim does not hold if one comparison does not. If some have no effect and the others hold, the
claim has no effect above 1 %, and its reason names them. Of many true comparisons one may look
false by chance, so those outside are corrected after Holm (1979). A true claim is then called
false in at most one of 20 cases, however many numbers it has. "Comparable" is a region
around no difference, so such a claim needs enough seeds, as any other does.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from fedzo.core.types import Array
from fedzo.plots.interval import CONFIDENCE, Interval, chance, interval

History = Sequence[Mapping[str, Any]]
Runs = Mapping[str, Sequence[History]]  # the history of each seed, by curve

# The meaning of words in claims. The paper gives words ("slightly", "comparable") and no numbers.
# These numbers were fixed before any run, for all figures.
SMALLEST = 0.01  # the smallest effect that would matter: 1 % of a cost or a loss, or 1 point
COMPARABLE_LOSS = 0.05
COMPARABLE_ACCURACY = 0.02
SAME_ACCURACY = 0.05
SLIGHTLY = 1.25
MUCH = 2.0
CONVERGED = 0.1
EXPONENT = 0.15
RATE = (0.7, 1.4)
COINCIDE = 0.02

MEANING = {
    "faster": "fewer rounds to the same loss, the higher of the two that both end at",
    "no effect": f"less than {SMALLEST:.0%} of the rounds or loss, and less than 1 point of "
    "accuracy or success",
    "slightly slower": f"slower, and at most {SLIGHTLY} times the rounds",
    "much faster": f"{MUCH:g} times at least",
    "comparable, performs well": f"the last training loss within {COMPARABLE_LOSS:.0%}, and the "
    f"last test accuracy, where there is one, within {100 * COMPARABLE_ACCURACY:g} points",
    "the same accuracy (remark 2)": f"the last training loss within {COMPARABLE_LOSS:.0%}, the "
    f"last test accuracy within {100 * SAME_ACCURACY:g} points",
    "converges": "the loss ends below where it began; in softmax regression by at least "
    f"{CONVERGED:.0%}",
    "linear speed-up": f"the squared gradient falls with the exponent -1/2, within {EXPONENT}",
    "rates of Table I": f"their ratio within a factor of {RATE[0]} to {RATE[1]}",
    "coincide": f"the rounds to the same loss within {COINCIDE:.0%}",
}


class Verdict(StrEnum):
    """The outcome of a claim."""

    HOLDS = "holds"
    NO_EFFECT = "no effect above 1 %"
    FAILS = "does not hold"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Comparison:
    """One number per seed, and the open region that the claim predicts.

    If one end of the region means no difference, ``matters`` is the smallest distance from that end
    that would matter.
    """

    what: str
    values: Array
    low: float = -math.inf
    high: float = math.inf
    neutral: float = 0.0
    matters: float = 0.0

    @property
    def interval(self) -> Interval:
        """The mean over seeds and its confidence interval."""
        return interval(self.values)

    @property
    def holds(self) -> bool:
        """Whether the whole interval lies in the region."""
        _, low, high = self.interval
        return low > self.low and (high < self.high or self.high == math.inf)

    @property
    def negligible(self) -> bool:
        """Whether the claim has a direction, and no effect that would matter is in the interval."""
        _, low, high = self.interval
        within = self.neutral - self.matters < low and high < self.neutral + self.matters
        return self.neutral in (self.low, self.high) and within

    @property
    def chance(self) -> float:
        """The p-value of the mean being in the region."""
        return chance(self.values, self.low, self.high)


@dataclass(frozen=True)
class Claim:
    """A statement about a figure, and how to measure it.

    ``by`` is its source: the paper, or this package for extra figures. ``reason`` is a likely
    explanation if the measurements do not support the claim.
    """

    name: str
    text: str
    measure: Callable[[Runs], Sequence[Comparison]] = field(repr=False)
    by: str = "paper"
    reason: str = ""


ours = partial(Claim, by="fedzo")


def verdicts(comparisons: Sequence[Comparison]) -> list[Verdict]:
    """Return the verdict on each comparison of one claim, with Holm's correction.

    Comparisons are in the order of their p-values. The first of k is outside if it is below
    5 % / k, the next if it is below 5 % / (k - 1), and so on.
    All after the first failure are not outside.

    Examples
    --------
    >>> outside = Comparison("", np.array([0.0, 1.0, 2.0, 1.0]), high=-0.4)
    >>> inside = Comparison("", np.array([1.9, 2.1, 2.0]), low=1)
    >>> round(outside.chance, 3)
    0.042
    >>> [v.value for v in verdicts([outside])], [v.value for v in verdicts([inside, outside])]
    (['does not hold'], ['holds', 'cannot tell'])
    >>> same = Comparison("", np.array([0.996, 0.999, 1.001]), high=1, neutral=1, matters=0.01)
    >>> same.interval
    Interval(mean=0.998..., low=0.992..., high=1.004...)
    >>> [v.value for v in verdicts([same])]
    ['no effect above 1 %']
    """
    found = [Verdict.HOLDS if c.holds else Verdict.UNKNOWN for c in comparisons]
    order = sorted(range(len(comparisons)), key=lambda i: comparisons[i].chance)
    for rank, i in enumerate(order):
        if comparisons[i].chance > (1 - CONFIDENCE) / (len(order) - rank):
            break
        found[i] = Verdict.FAILS
    small = (c.negligible for c in comparisons)
    return [Verdict.NO_EFFECT if s else v for s, v in zip(small, found, strict=True)]


def judge(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict on a claim.

    Examples
    --------
    >>> faster = Comparison("speed-up", np.array([1.9, 2.1, 2.0]), low=1)
    >>> close = Comparison("gap", np.array([0.2, 0.2, 0.21]), low=-0.05, high=0.05)
    >>> judge([faster]).value, judge([faster, close]).value, judge([]).value
    ('holds', 'does not hold', 'cannot tell')
    """
    found = verdicts(comparisons)
    order = (Verdict.FAILS, Verdict.UNKNOWN, Verdict.NO_EFFECT, Verdict.HOLDS)
    return next((verdict for verdict in order if verdict in found), Verdict.UNKNOWN)


def explain(comparisons: Sequence[Comparison]) -> str:
    """Return which numbers keep a claim from holding, or an empty string if it holds.

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
    for kind, meaning in (
        (Verdict.FAILS, "Not as claimed"),
        (Verdict.UNKNOWN, "More seeds could decide"),
        (Verdict.NO_EFFECT, "No effect above 1 %"),
    ):
        if named := [c.what for c, verdict in each if verdict == kind]:
            return f"{meaning}: {'; '.join(named)}."
    return ""


# Numbers of runs, one per seed.


def last(runs: Runs, label: str, key: str = "train_loss") -> Array:
    """Return the last value of each seed."""
    return np.array([history[-1][key] for history in runs[label]])


def average(runs: Runs, label: str, key: str) -> Array:
    """Return the mean over the evaluated rounds of each seed."""
    return np.array([np.mean([record[key] for record in history]) for history in runs[label]])


def final_level(history: History, key: str) -> float:
    """Return the mean over the second half of a run's rounds."""
    half = history[-1]["round"] / 2
    return float(np.mean([record[key] for record in history if record["round"] >= half]))


def reached(history: History, loss: float) -> float:
    """Return the round at which the loss first falls to this, interpolated between evaluations.

    >>> history = [{"round": 0, "train_loss": 2.0}, {"round": 10, "train_loss": 1.0}]
    >>> reached(history, 1.5), reached(history, 0.5)
    (5.0, inf)
    """
    for before, after in pairwise(history):
        high, low = before["train_loss"], after["train_loss"]
        if low <= loss < high:
            share = (high - loss) / (high - low) if high < math.inf else 1.0
            return float(before["round"] + share * (after["round"] - before["round"]))
    return math.inf if history[0]["train_loss"] > loss else 0.0


# Comparisons of curves.


def falls(runs: Runs, label: str, least: float = 0.0) -> Comparison:
    """Compare the last loss of a curve with its first."""
    share = 1 - last(runs, label) / np.array([h[0]["train_loss"] for h in runs[label]])
    what = f"{label}: share of the first loss gone at the end"
    return Comparison(what, share, low=least, matters=SMALLEST)


def speed(runs: Runs, fast: str, slow: str, low: float = 1.0, high: float = math.inf) -> Comparison:
    """Compare the rounds of two curves to the same loss, the higher of their last losses.

    The number is the rounds of the fast curve over those of the slow one, which is zero if the
    slow one never reaches the loss. ``low`` and ``high`` bound how many times as fast it must be.
    """
    shares = []
    for one, other in zip(runs[fast], runs[slow], strict=True):
        ends = sorted(history[-1]["train_loss"] for history in (one, other))
        start = min(one[0]["train_loss"], other[0]["train_loss"])
        loss = ends[1] if ends[1] < start else ends[0]
        mine, its = reached(one, loss), reached(other, loss)
        shares.append(mine / its if its > 0 and min(mine, its) < math.inf else math.nan)
    what = f"rounds of {fast} over rounds of {slow}, to the same loss"
    least = 1 / high if high < math.inf else -math.inf
    return Comparison(what, np.array(shares), least, 1 / low, neutral=1.0, matters=SMALLEST)


def gap(runs: Runs, one: str, other: str, within: float) -> Comparison:
    """Compare the last losses of two curves, which must differ by no more than a share."""
    shares = last(runs, one) / last(runs, other) - 1
    return Comparison(f"last loss of {one} over that of {other}, less 1", shares, -within, within)


def ahead(
    runs: Runs, one: str, other: str, key: str, low: float = 0.0, high: float = math.inf
) -> Comparison:
    """Compare the last values of two curves: the first must be above the second."""
    differences = last(runs, one, key) - last(runs, other, key)
    what = f"last {key.replace('_', ' ')} of {one} less that of {other}"
    unit = 1.0 if key.endswith(("accuracy", "success")) else float(np.mean(last(runs, other, key)))
    return Comparison(what, differences, low, high, matters=SMALLEST * unit)


# Claims about all curves of a kind.


def all_fall(name: str, text: str, labels: Iterable[str], least: float = 0.0) -> Claim:
    """Return the claim that the loss of each curve falls."""
    return Claim(name, text, lambda runs: [falls(runs, label, least) for label in labels])


def faster_each(name: str, text: str, labels: Iterable[str], reason: str = "") -> Claim:
    """Return the claim that each curve is faster than the one before it."""
    pairs = list(pairwise(labels))
    return Claim(name, text, lambda runs: [speed(runs, b, a) for a, b in pairs], reason=reason)
