"""Robust rules: against numbers computed by hand, and against devices that lie."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedzo
from driving import steps_of
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import Evaluate, Replies, Update
from fedzo.problems import Quadratic
from fedzo.uplinks.robust import RULES, Robust, RobustSeeds, geometric_median, krum
from raising import fails, rejects

PROBLEM = Quadratic(dim=3, devices=10)
FEDERATION = LocalEngine(PROBLEM, seed=0)
ROWS = np.array(
    [[1.0, 0.0, 2.0], [2.0, 1.0, 2.0], [3.0, 2.0, -2.0], [4.0, 50.0, 2.0], [-99.0, 3.0, 2.0]]
)


def updates(rows, weights=None):
    weights = weights or [1.0] * len(rows)
    return [Update(i, row, w, 3) for i, (row, w) in enumerate(zip(rows, weights, strict=True))]


def centre(uplink, rows=ROWS, **keywords):
    return uplink.aggregate(0, Replies(updates(rows, **keywords)), FEDERATION)


def test_median_of_each_coordinate():
    delta, info = centre(Robust("median"))
    assert delta.tolist() == [2.0, 2.0, 2.0]
    assert (info.uplink_bytes, info.downlink_bytes, info.channel_uses) == (120, 120, 15)
    assert centre(Robust("median"), ROWS[:4])[0].tolist() == [2.5, 1.5, 2.0]


@pytest.mark.parametrize(
    ("trim", "expected"),
    [
        (0.0, ROWS.mean(axis=0)),
        (0.01, [2.0, 2.0, 2.0]),  # one of five at either end: the share is rounded up
        (0.2, [2.0, 2.0, 2.0]),  # (1 + 2 + 3) / 3, (1 + 2 + 3) / 3, 2
        (0.4, [2.0, 2.0, 2.0]),  # the median
    ],
)
def test_trimmed_mean(trim, expected):
    assert np.allclose(centre(Robust("trimmed_mean", trim=trim))[0], expected, rtol=1e-15)


@pytest.mark.parametrize("count", range(1, 21))
@pytest.mark.parametrize("trim", [0.0, 0.05, 0.07, 0.1, 0.25, 0.3, 0.45, 0.499])
def test_trimmed_mean_cuts_the_share_rounded_up(trim, count):
    """As many as that may be bad; at least one number, or two of an even count, is left."""
    cut = min(math.ceil(Fraction(str(trim)) * count), (count - 1) // 2)
    rows = np.arange(count, dtype=float)[:, None] ** 2
    expected = rows[cut : count - cut].mean()
    assert centre(Robust("trimmed_mean", trim=trim), rows)[0] == pytest.approx(expected)
    rows[count - cut :] = 1e30  # these many bad ones change nothing
    assert centre(Robust("trimmed_mean", trim=trim), rows)[0] == pytest.approx(expected)


def test_krum_of_five():
    """By hand: f = 1, so a score is the squared distances to the two nearest others."""
    rows = np.array([[0.0], [1.0], [3.0], [7.0], [8.0]])
    assert krum(rows, bad=1).tolist() == [1, 0, 2, 3, 4]  # 5, 10, 13, 17, 26
    one = Robust("krum", trim=0.2)
    assert centre(one, rows)[0].tolist() == [1.0]
    assert centre(Robust("krum", trim=0.2, keep=3), rows)[0].tolist() == [4 / 3]
    with rejects("keep"):
        Robust("krum", keep=0)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0.0], [1.0], [5.0]], [1.0]),  # on a line it is the median
        ([[0, 0], [4, 0], [4, 4], [0, 4]], [2, 2]),  # the crossing of the diagonals
        ([[0, 0], [1, 0], [0.5, math.sqrt(0.75)]], [0.5, math.sqrt(0.75) / 3]),  # 120 degrees each
        ([[0, 0], [4, 0], [2, 0.1]], [2, 0.1]),  # a corner of more than 120 degrees
        ([[3, 4], [3, 4], [3, 4], [9, 9]], [3, 4]),  # more than half are one point
    ],
)
def test_geometric_median_in_closed_form(rows, expected):
    found = geometric_median(np.array(rows, float))
    assert np.allclose(found, expected, rtol=0, atol=1e-6)


points = hnp.arrays(np.float64, (2,), elements=st.floats(-1, 1))
lies = hnp.arrays(np.float64, (2,), elements=st.floats(-1e6, 1e6))


@st.composite
def with_bad(draw, honest_per_bad):
    """Return honest rows within the unit square, and fewer bad ones anywhere."""
    bad = draw(st.integers(1, 4))
    honest = draw(st.integers(honest_per_bad(bad), honest_per_bad(bad) + 4))
    good = [draw(points) for _ in range(honest)]
    return np.array(good), np.array([draw(lies) for _ in range(bad)])


@given(with_bad(lambda bad: bad + 1))
def test_geometric_median_stays_within_its_published_bound(rows):
    """Minsker 2015, lemma 2.1: (1 - a) / sqrt(1 - 2 a) times the honest radius, for a share a."""
    good, bad = rows
    share = len(bad) / (len(good) + len(bad))
    middle = good.mean(axis=0)
    radius = np.linalg.norm(good - middle, axis=1).max()
    found = geometric_median(np.concatenate([bad, good]))
    bound = (1 - share) / math.sqrt(1 - 2 * share) * radius
    assert np.linalg.norm(found - middle) <= bound * (1 + 1e-6) + 1e-6


@given(with_bad(lambda bad: bad + 3))
def test_krum_stays_near_the_honest_updates(rows):
    """With M > 2 f + 2 the chosen update is near an honest one, whatever the bad ones send."""
    good, bad = rows
    count, f = len(good) + len(bad), len(bad)
    every = np.concatenate([bad, good])
    chosen = every[krum(every, f)[0]]
    middle = good.mean(axis=0)
    radius = np.linalg.norm(good - middle, axis=1).max()
    # An honest score is at most (M - f - 2) (2 r)^2, and one neighbour of a bad update is honest.
    assert np.linalg.norm(chosen - middle) <= radius * (1 + 2 * math.sqrt(count - f - 2)) + 1e-9
    far = np.concatenate([bad + 1e9 * np.arange(1, f + 1)[:, None], good])
    assert krum(far, f)[0] >= f  # one of the honest, if the bad ones are far away


@given(with_bad(lambda bad: bad + 1))
def test_median_and_trimmed_mean_stay_among_the_honest(rows):
    good, bad = rows
    every = np.concatenate([bad, good])
    trim = min(len(bad) / len(every), 0.4999)
    for uplink in (Robust("median"), Robust("trimmed_mean", trim=trim)):
        found = uplink._centre(every)
        assert (found >= good.min(axis=0) - 1e-12).all()
        assert (found <= good.max(axis=0) + 1e-12).all()


def test_one_in_six_cancels_a_mean_that_is_clipped_at_five():
    for honest, sign in ((5, 0.0), (6, 1.0), (4, -1.0)):
        rows = np.array([[1.0]] * honest + [[-1e9]])
        assert np.sign(np.round(centre(Robust("clipped_mean"), rows)[0], 12)) == sign


def test_clipped_mean():
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, -5e12]])  # lengths 5, 5, 5e12
    delta, _ = centre(Robust("clipped_mean", clip=2.0), rows)
    assert np.allclose(delta, [1.0, 3.0, -10 / 3], rtol=1e-15)


def test_clipped_mean_of_alike_updates_is_the_mean_to_the_bit():
    rows = np.random.default_rng(0).normal(size=(7, 3))
    assert np.array_equal(
        centre(Robust("clipped_mean"), rows)[0], rows.mean(axis=0, dtype=np.float64)
    )


@pytest.mark.parametrize("rule", RULES)
def test_weights_buy_nothing(rule):
    same = centre(Robust(rule))[0]
    assert np.array_equal(centre(Robust(rule), weights=[1, 1, 1, 1, 1e9])[0], same)


@pytest.mark.parametrize("rule", RULES)
def test_nobody_sent_anything(rule):
    assert centre(Robust(rule), ROWS[:0])[0].tolist() == [0.0, 0.0, 0.0]


def test_many_columns_are_looked_at_in_blocks():
    rows = np.random.default_rng(0).normal(size=(5, 150_000)).astype(np.float32)
    delta = Robust("median")._centre(rows)
    assert np.array_equal(delta, np.median(rows, axis=0).astype(np.float64))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("uplink", [Robust, RobustSeeds])
def test_three_of_ten_cannot_move_the_optimum(rule, uplink):
    """Alike devices, of which three of ten send the opposite of an update, a million times.

    Clipping leaves each of the three at most five honest lengths: too many of them for a mean, so
    the bar for it is two of ten at a clip of 1.
    """
    problem = Quadratic(dim=6, devices=10, gradient_noise=0.0, dissimilarity=0.0)
    bad = 2 if rule == "clipped_mean" else 3

    class Lying(fedzo.FedZO):
        def local(self, objective, device, task, draws):
            update = super().local(objective, device, task, draws)
            factor = -1e6 if device < bad else 1.0
            return update._replace(
                delta=factor * update.delta, coefficients=factor * update.coefficients
            )

    algorithm = Lying(
        learning_rate=0.2, directions=6, direction_kind="orthogonal", shared_directions=True
    )
    result = fedzo.minimize(problem, algorithm=algorithm, uplink=uplink(rule, clip=1.0), rounds=60)
    gap, start = result.history[-1]["optimality_gap"], result.history[0]["optimality_gap"]
    assert gap < 0.01 * start
    mean = fedzo.minimize(problem, algorithm=algorithm, rounds=2)
    assert not mean.success


def test_median_of_coefficients_rebuilds_once():
    algorithm = fedzo.FedZO(directions=2, local_steps=3, shared_directions=True)
    work = steps_of(algorithm, np.zeros(3), round=4, seed=9)
    rng = np.random.default_rng(1)
    sent = [Update(i, np.zeros(3), 1, 3, rng.normal(size=(3, 2))) for i in range(5)]
    delta, info = RobustSeeds("median").aggregate(4, Replies(sent, work), FEDERATION)
    middle = np.median([u.coefficients for u in sent], axis=0)
    assert np.array_equal(delta, work.rebuild(sent[0]._replace(coefficients=middle)))
    assert (info.uplink_bytes, info.channel_uses) == (5 * 6 * 8, 30)


def test_coefficients_of_different_directions_are_not_compared():
    with fails("directions-not-shared"):
        fedzo.minimize(PROBLEM, algorithm=fedzo.FedZO(), uplink=RobustSeeds(), rounds=1)
    work = steps_of(fedzo.FedZO(directions=2), np.zeros(3), round=4, seed=9)  # without a run
    sent = [Update(i, np.zeros(3), 1, 3, np.zeros((5, 2))) for i in range(5)]
    with fails("directions-not-shared"):
        RobustSeeds().aggregate(4, Replies(sent, work), FEDERATION)


def test_values_too():
    work = Evaluate(np.zeros((2, 3)))
    sent = [Update(i, np.empty(0), 1, 2, values=np.array([i, -1e300 * (i == 2)])) for i in range(5)]
    values, info = Robust("median").aggregate_values(0, Replies(sent, work), None)
    assert values.tolist() == [2.0, 0.0]
    assert (info.uplink_bytes, info.downlink_bytes) == (80, 5 * 48)


@pytest.mark.parametrize(("key", "value"), [("rule", "mean"), ("trim", 0.5), ("clip", 0.5)])
def test_bad_setting(key, value):
    with rejects(key):
        Robust(**{key: value})
