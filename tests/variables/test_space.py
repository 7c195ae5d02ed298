"""Search spaces: scales, ends, rounding."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzo.errors import InvalidValue
from fedzo.variables.space import Choice, Float, Int, Space

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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(1, 1), r"Float\(low, high\) = \(1, 1\): must be two finite numbers"),
        (lambda: Float("a", 1), "two finite numbers"),
        (lambda: Float(0, np.inf), "two finite numbers"),
        (lambda: Float(-1e308, 1e308), "two finite numbers"),
        (lambda: Float(1e-300, 1e300, log=True), "low = 1e-300: must be .* high / low finite"),
        (lambda: Float(1, 2, log="no"), "log = 'no': must be True or False"),
        (lambda: Space([1]), r"space = \[1\]: must be at least one parameter"),
        (lambda: Float(0, 1, log=True), "low = 0: must be positive for a logarithmic scale"),
        (lambda: Int(0, 5, log=True), "low = 0: must be positive"),
        (lambda: Int(1.5, 5), "low = 1.5: must be a whole number"),
        (lambda: Space({}), "space = {}: must be at least one parameter"),
        (lambda: Space({"a": (0, 1)}), r"space.a = \(0, 1\): must be a fedzo.Float"),
        (lambda: SPACE.point({"linera": 1.0}), r"linera = 1.0: .* \(did you mean 'linear'\?\)"),
        (lambda: SPACE.point({"linear": 1.0}), "log = None: must be given, and between"),
        (lambda: Space({"a": Float(0, 1)}).point({"a": 1.1}), "a = 1.1: must be given, and bet"),
    ],
)
def test_what_is_no_space_is_refused(make, message):
    with pytest.raises(InvalidValue, match=message):
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
    ("parameters", "message"),
    [
        ({"a": Float(0, 1, when=("b", 1)), "b": Choice([1, 2])}, "space.a.when"),
        ({"b": Choice([1, 2]), "a": Float(0, 1, when=("b", 3))}, "space.a.when"),
        ({"b": Int(1, 2), "a": Float(0, 1, when=("b", 1))}, "space.a.when"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(parameters, message):
    with pytest.raises(InvalidValue, match=message):
        Space(parameters)


def test_a_choice_has_two_different_options():
    with pytest.raises(InvalidValue, match="two different ones or more"):
        Choice(["one"])
