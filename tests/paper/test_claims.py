"""Claims: intervals against SciPy, verdicts by the rule, measures against closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from fedzo.paper.claims import (
    Comparison,
    Verdict,
    ahead,
    average,
    falls,
    faster_each,
    final_level,
    gap,
    judge,
    reached,
    speed,
    verdicts,
)
from fedzo.plots.interval import chance, interval


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_interval_is_that_of_the_paired_t_test(count):
    rng = np.random.default_rng(count)
    one, other = rng.normal(1.0, 2.0, (2, count))
    exact = stats.ttest_rel(one, other).confidence_interval(0.95)
    found = interval(one - other)
    assert found.mean == pytest.approx(np.mean(one) - np.mean(other))
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_interval_covers():
    """19 times of 20: of 4,000 intervals of 3 values, within 4 standard errors."""
    values = np.random.default_rng(0).normal(5.0, 1.0, (4000, 3))
    hit = np.mean([low < 5 < high for _, low, high in map(interval, values)])
    assert hit == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_interval_without_spread_or_without_seeds():
    assert interval([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)
    assert interval([2.0]) == (2.0, -math.inf, math.inf)
    assert interval([math.inf])[1:] == (-math.inf, math.inf)


def test_runs_that_diverged():
    assert interval([math.inf] * 3) == (math.inf, math.inf, math.inf)
    for values in ([1.0, math.inf], [1.0, math.nan], [math.inf, -math.inf]):
        mean, low, high = interval(values)
        assert (math.isnan(mean), low, high) == (True, -math.inf, math.inf)
    assert verdicts([Comparison("", np.array([math.inf] * 3), low=0)]) == [Verdict.HOLDS]
    assert verdicts([Comparison("", np.array([math.inf] * 3), high=1)]) == [Verdict.FAILS]
    assert verdicts([Comparison("", np.array([math.nan] * 3), low=0)]) == [Verdict.UNKNOWN]


HALF = 4.302652729911275 / math.sqrt(3)  # half the interval of -1, 0, 1 around their mean


@pytest.mark.parametrize(
    ("centre", "low", "high", "verdict"),
    [
        (HALF + 0.01, 0, math.inf, "holds"),
        (HALF - 0.01, 0, math.inf, "cannot tell"),
        (-HALF + 0.01, 0, math.inf, "cannot tell"),
        (-HALF - 0.01, 0, math.inf, "does not hold"),
        (0, -HALF - 0.01, HALF + 0.01, "holds"),
        (0, -HALF - 0.01, HALF - 0.01, "cannot tell"),
        (3 * HALF, -HALF, HALF, "does not hold"),
        (-3 * HALF, -HALF, HALF, "does not hold"),
        (-HALF - 0.01, -math.inf, 0, "holds"),
        (0, -0.01, 0.01, "cannot tell"),
    ],
)
def test_verdict(centre, low, high, verdict):
    comparison = Comparison("", np.array([-1.0, 0.0, 1.0]) + centre, low, high)
    assert verdicts([comparison]) == [verdict]


def test_one_seed_cannot_tell():
    assert verdicts([Comparison("", np.array([5.0]), low=0)]) == [Verdict.UNKNOWN]


def test_judgement_of_several():
    holds = Comparison("", np.array([1.0, 1.1]), low=0)
    fails = Comparison("", np.array([1.0, 1.01]), high=0)  # p = 0.003, and 0.05/3 would do
    unknown = Comparison("", np.array([1.0, -1.1]), low=0)
    assert judge([holds, holds]) == Verdict.HOLDS
    assert judge([holds, unknown]) == Verdict.UNKNOWN
    assert judge([holds, unknown, fails]) == Verdict.FAILS
    assert judge([]) == Verdict.UNKNOWN


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_chance_is_that_of_the_t_test(count):
    values = np.random.default_rng(count).normal(3.0, 2.0, count)
    for edge in (0.0, 1.0, values.mean() - 0.1):
        exact = stats.ttest_1samp(values, edge).pvalue
        below, above = (-math.inf, edge), (edge, math.inf)
        region, other = (below, above) if values.mean() > edge else (above, below)
        assert chance(values, *region) == pytest.approx(exact, rel=1e-9)
        assert chance(-values, -region[1], -region[0]) == pytest.approx(exact, rel=1e-9)
        assert chance(values, *other) == 1.0
    assert chance([5.0] * count, 0, 1) == 0.0
    assert chance([5.0] * count, 0, 5) == 0.0  # the region is open
    assert chance([math.inf] * count, 0, 1) == chance([-math.inf] * count, 0, 1) == 0.0
    assert chance([math.inf] * count, 0, math.inf) == chance([math.nan] * count, 0, 1) == 1.0
    assert chance([5.0], 0, 1) == 1.0


def outside(p, count=4):
    """A comparison whose p-value of lying below zero is p."""
    values = np.array([-1.0, -1.0, 1.0, 1.0])
    error = values.std(ddof=1) / math.sqrt(count)
    return Comparison("", values + stats.t.ppf(1 - p / 2, count - 1) * error, high=0)


def test_holm():
    """The step-down procedure, by hand: 5 % over as many as are left, until one is above."""
    ps = [0.03, 0.015, 0.2, 0.011]  # 0.011 < 0.05/4 and 0.015 < 0.05/3, but 0.03 > 0.05/2
    assert [c.chance for c in map(outside, ps)] == pytest.approx(ps)
    assert verdicts([outside(p) for p in ps]) == [
        Verdict.UNKNOWN,
        Verdict.FAILS,
        Verdict.UNKNOWN,
        Verdict.FAILS,
    ]
    assert judge([outside(0.03)]) == Verdict.FAILS
    assert judge([outside(0.03), outside(0.03)]) == Verdict.UNKNOWN


@pytest.mark.slow
def test_true_claims_are_called_false_in_one_case_of_twenty_at_most():
    """Of 2,000 claims of 4 numbers that lie on the edge of their region: within 4 errors of 5 %."""
    values = np.random.default_rng(0).normal(0.0, 1.0, (2000, 4, 5))
    claims = [[Comparison("", v, high=0.0) for v in claim] for claim in values]
    wrong = np.mean([judge(claim) == Verdict.FAILS for claim in claims])
    assert wrong < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 2000)
    alone = np.mean([any(judge([c]) == Verdict.FAILS for c in claim) for claim in claims])
    assert alone > 0.07  # what it is without the correction: 1 - (1 - 0.025)^4 is 0.096


def falling(rate, rounds=range(0, 101, 10), start=2.0, **more):
    return [{"round": t, "train_loss": start * math.exp(-rate * t), **more} for t in rounds]


def test_reached_interpolates():
    history = [{"round": t, "train_loss": 10.0 - t} for t in (0, 4, 8)]
    assert reached(history, 7.5) == pytest.approx(2.5)
    assert reached(history, 2.0) == pytest.approx(8.0)
    assert reached(history, 1.0) == math.inf
    assert reached(history, 11.0) == 0.0


def test_reached_takes_the_first_of_several_times():
    losses = [3.0, 1.0, 3.0, 1.0]
    history = [{"round": t, "train_loss": loss} for t, loss in enumerate(losses)]
    assert reached(history, 2.0) == pytest.approx(0.5)


def test_speed_is_the_ratio_of_rates():
    """Losses exp(-rt): to the loss of the slower's end the faster takes rate/rate the rounds."""
    rounds = range(0, 101)
    runs = {"fast": [falling(0.03, rounds)], "slow": [falling(0.01, rounds)]}
    assert speed(runs, "fast", "slow").values == pytest.approx(1 / 3, rel=1e-3)
    assert speed(runs, "slow", "fast").values == pytest.approx(3.0, rel=1e-3)
    twice_at_least = speed(runs, "fast", "slow", low=2, high=4)
    assert (twice_at_least.low, twice_at_least.high) == (1 / 4, 1 / 2)


def test_speed_of_what_never_falls():
    runs = {"down": [falling(0.03)], "up": [falling(-0.03)], "away": [falling(0.01)]}
    runs["away"][0].append({"round": 110, "train_loss": math.inf})
    assert speed(runs, "down", "up").values == [0.0]
    assert speed(runs, "up", "down").values == [math.inf]
    assert speed(runs, "down", "away").values == [0.0]
    assert np.isnan(speed(runs, "up", "up").values).all()


def test_faster_each_takes_neighbours():
    runs = {str(r): [falling(r / 1000, range(101))] for r in (10, 20, 80)}
    claim = faster_each("faster", "Faster.", runs.keys())
    ratios = [c.values[0] for c in claim.measure(runs)]
    assert ratios == pytest.approx([1 / 2, 1 / 4], rel=0.02)


def test_other_measures():
    runs = {
        "a": [falling(0.01, test_accuracy=0.6), falling(0.02, test_accuracy=0.8)],
        "b": [falling(0.01, start=1.0, test_accuracy=0.5)] * 2,
    }
    assert falls(runs, "a").values == pytest.approx([1 - math.exp(-1), 1 - math.exp(-2)])
    assert gap(runs, "a", "b", 0.1).values == pytest.approx([1.0, 2 * math.exp(-1) - 1])
    assert (gap(runs, "a", "b", 0.1).low, gap(runs, "a", "b", 0.1).high) == (-0.1, 0.1)
    assert ahead(runs, "a", "b", "test_accuracy").values == pytest.approx([0.1, 0.3])
    assert average(runs, "a", "test_accuracy") == pytest.approx([0.6, 0.8])
    assert final_level(falling(0.0, start=3.0), "train_loss") == pytest.approx(3.0)
    assert final_level([{"round": t, "y": t} for t in (0, 4, 8)], "y") == pytest.approx(6.0)


def directed(centre, spread, **region):
    """Five seeds of a comparison whose interval is about ``centre`` plus or minus ``spread``."""
    values = centre + spread * np.array([-1.2, -0.4, 0.0, 0.4, 1.2]) / 1.1
    return Comparison("rounds", values, **region)


@pytest.mark.parametrize(
    ("centre", "spread", "verdict"),
    [
        (0.9985, 0.0055, Verdict.NO_EFFECT),  # [0.993, 1.004]
        (0.995, 0.004, Verdict.NO_EFFECT),  # faster, by less than would matter
        (1.005, 0.004, Verdict.NO_EFFECT),  # slower, by less than would matter
        (0.995, 0.02, Verdict.UNKNOWN),
        (0.97, 0.01, Verdict.HOLDS),
        (1.03, 0.01, Verdict.FAILS),
    ],
)
def test_an_effect_that_does_not_matter(centre, spread, verdict):
    faster = directed(centre, spread, high=1.0, neutral=1.0, matters=0.01)
    assert verdicts([faster]) == [verdict]
    # A claim without a direction, such as "comparable" or "twice as fast", has a region of its own.
    close = directed(centre, spread, low=0.9, high=1.1, neutral=1.0, matters=0.01)
    assert verdicts([close]) == [Verdict.HOLDS]
    much = directed(centre, spread, high=0.5, neutral=1.0, matters=0.01)
    assert verdicts([much]) == [Verdict.FAILS]


def test_a_claim_in_which_some_numbers_have_no_effect():
    region = {"high": 1.0, "neutral": 1.0, "matters": 0.01}
    faster, same = directed(0.9, 0.02, **region), directed(1.0, 0.005, **region)
    open_, slower = directed(1.0, 0.05, **region), directed(1.2, 0.02, **region)
    assert judge([faster, same]) == Verdict.NO_EFFECT
    assert judge([faster, same, open_]) == Verdict.UNKNOWN
    assert judge([same, slower]) == Verdict.FAILS
