"""Search spaces: scales, ends, rounding."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzo.variables.space import Choice, Float, Int, Space
from raising import rejects

SPACE = Space(
    {
        "linear": Float(-2.0, 6.0),
        "log": Float(1e-5, 1e-1, log=True),
        "whole": Int(-3, 4),
        "octaves": Int(1, 64, log=True),
    }
)


def test_the_middle():
    params = SPACE.params(np.zeros(4))
    assert params["linear"] == pytest.approx(2.0)
    assert params["log"] == pytest.approx(1e-3)
    assert params["whole"] in (0, 1)  # the middle of -3.5 and 4.5 is 0.5
    assert params["octaves"] == round(math.sqrt(0.5 * 64.5))


def test_the_ends_are_reached():
    low, high = (SPACE.params(np.full(4, u)) for u in (-np.pi / 2, np.pi / 2))
    assert list(low.values()) == pytest.approx([-2.0, 1e-5, -3, 1])
    assert list(high.values()) == pytest.approx([6.0, 1e-1, 4, 64])


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
def test_never_outside_and_of_the_right_kind(u):
    params = SPACE.params(np.array(u))
    for name, kind in SPACE.parameters.items():
        assert kind.low <= params[name] <= kind.high
        assert type(params[name]) is (int if isinstance(kind, Int) else float)


@given(st.floats(-1.9, 5.9), st.floats(1.1e-5, 0.9e-1), st.integers(-3, 4), st.integers(1, 64))
def test_point_is_the_inverse_of_params(linear, log, whole, octaves):
    params = {"linear": linear, "log": log, "whole": whole, "octaves": octaves}
    back = SPACE.params(SPACE.point(params))
    assert back == pytest.approx(params, rel=1e-9, abs=1e-9)
    assert (back["whole"], back["octaves"]) == (whole, octaves)


def test_whole_numbers_have_equal_shares():
    shares = (np.arange(8000) + 0.5) / 8000
    counts = np.unique([Int(-3, 4).at(s) for s in shares], return_counts=True)[1]
    assert counts.tolist() == [1000] * 8


def test_smooth_in_between():
    """The slope of a linear parameter is half its width times cos u."""
    for u in (-1.0, 0.0, 0.7):
        h = 1e-6
        ahead, behind = (SPACE.params(np.full(4, u + s))["linear"] for s in (h, -h))
        assert (ahead - behind) / (2 * h) == pytest.approx(4 * math.cos(u), rel=1e-6)


LOG = "Float(low, high, log=True)"


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Float(1, 1), "Float(low, high)"),
        (lambda: Float("a", 1), "low"),
        (lambda: Float(0, np.inf), "Float(low, high)"),
        (lambda: Float(-1e308, 1e308), "Float(low, high)"),
        (lambda: Float(1e-300, 1e300, log=True), LOG),
        (lambda: Float(1, 2, log="no"), "log"),
        (lambda: Space([1]), "space"),
        (lambda: Float(0, 1, log=True), LOG),
        (lambda: Int(0, 5, log=True), LOG.replace("Float", "Int")),
        (lambda: Int(1.5, 5), "low"),
        (lambda: Space({}), "space"),
        (lambda: Space({"a": (0, 1)}), "space.a"),
        (lambda: SPACE.point({"linera": 1.0}), "linera"),
        (lambda: SPACE.point({"linear": 1.0}), "log"),
        (lambda: Space({"a": Float(0, 1)}).point({"a": 1.1}), "a"),
    ],
)
def test_what_is_not_a_space_is_rejected(make, key):
    with rejects(key):
        make()


CHOICES = {"kernel": Choice(["linear", "rbf"]), "width": Float(1.0, 3.0, when=("kernel", "rbf"))}


def test_what_depends_on_a_choice_is_there_with_it_only():
    space = Space(CHOICES)
    assert space.params(np.array([-1.0, 0.0])) == {"kernel": "linear"}
    assert space.params(np.array([1.0, 0.0])) == {"kernel": "rbf", "width": 2.0}
    for params in ({"kernel": "linear"}, {"kernel": "rbf", "width": 2.5}):
        assert space.params(space.point(params)) == pytest.approx(params)
    assert space.levels == (-2, 0)
    assert space.conditions == ((), (0, 1))


@pytest.mark.parametrize(
    "parameters",
    [
        {"a": Float(0, 1, when=("b", 1)), "b": Choice([1, 2])},
        {"b": Choice([1, 2]), "a": Float(0, 1, when=("b", 3))},
        {"b": Int(1, 2), "a": Float(0, 1, when=("b", 1))},
    ],
)
def test_conditions_that_cannot_be_met_are_rejected(parameters):
    with rejects("space.a.when"):
        Space(parameters)


def test_a_choice_has_two_different_options():
    with rejects("Choice(options)"):
        Choice(["one"])
