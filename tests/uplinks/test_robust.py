"""Robust rules: against numbers computed by hand, and against devices that lie."""

import numpy as np
import pytest

import fedzo
from driving import steps_of
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import Evaluate, Replies, Update
from fedzo.problems import Quadratic
from fedzo.uplinks.robust import RULES, Robust, RobustSeeds
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
        (0.19, ROWS.mean(axis=0)),  # less than one of five
        (0.2, [2.0, 2.0, 2.0]),  # (1 + 2 + 3) / 3, (1 + 2 + 3) / 3, 2
        (0.4, [2.0, 2.0, 2.0]),  # the median
    ],
)
def test_trimmed_mean(trim, expected):
    assert np.allclose(centre(Robust("trimmed_mean", trim=trim))[0], expected, rtol=1e-15)


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
