"""Bounds as a change of variables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzo.box import Box
from fedzo.errors import InvalidValue

KINDS = [(-3.0, 5.0), (None, 2.0), (-1.0, None), (None, None), (-np.inf, 1e6), (0, 1e-3)]
ends = st.floats(-1e6, 1e6)


@given(st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=6))
def test_never_outside(u):
    x = Box(KINDS).leave(np.array(u))
    low = [-np.inf if a is None else a for a, _ in KINDS]
    high = [np.inf if b is None else b for _, b in KINDS]
    assert (low <= x).all()
    assert (x <= high).all()


@given(ends, ends, st.floats(0.01, 0.99))
def test_enter_is_the_inverse_of_leave(a, b, where):
    low, high = min(a, b), max(a, b) + 1
    x = np.array([low + where * (high - low)])
    for bounds in ((low, high), (low, None), (None, high), (None, None)):
        box = Box([bounds])
        # The map is flat near a bound: what is lost there is a few bits of the distance.
        np.testing.assert_allclose(box.leave(box.enter(x)), x, rtol=1e-9, atol=1e-9 * (high - low))


@pytest.mark.parametrize("bounds", KINDS)
def test_smooth_with_slope_one_in_the_middle(bounds):
    """Central differences of x(u) agree with its derivative, everywhere; it is 1 far inside."""
    box, h = Box([bounds]), 1e-6
    scale = 1.0 if None in bounds or np.inf in np.abs(bounds) else (bounds[1] - bounds[0]) / 2
    u = np.linspace(-2, 2, 41)[:, None] * scale
    slopes = (box.leave(u + h * scale) - box.leave(u - h * scale)) / (2 * h * scale)
    if None in bounds or np.inf in np.abs(bounds):
        has_low = bounds[0] is not None and np.isfinite(bounds[0])
        derivative = u / np.sqrt(1 + u**2) if has_low else -u / np.sqrt(1 + u**2)
        derivative = np.ones_like(u) if bounds == (None, None) else derivative
    else:
        derivative = np.cos(u / scale)
        assert derivative[20] == 1
    np.testing.assert_allclose(slopes, derivative, atol=1e-4)


def test_wide_bounds_change_nothing_but_the_origin():
    box = Box([(-1e7, 1e7), (-1e7, None), (None, 1e7)])
    x = np.array([1.0, 2.0, 3.0])
    u, step = box.enter(x), np.array([0.5, -0.25, 0.125])
    inward = np.array([1, 1, -1])  # from an upper bound, u counts the other way
    np.testing.assert_allclose(box.leave(u + inward * step) - x, step, rtol=1e-6)


def test_a_bound_is_reached():
    box = Box([(0.0, 4.0), (1.0, None), (None, 1.0)])
    np.testing.assert_allclose(box.leave(np.array([np.pi, 0, 0])), [4, 1, 1], rtol=1e-15)


@pytest.mark.parametrize(
    "bad", [(1, 1), (2, 1), (0, np.nan), 3, (1, 2, 3), ("a", 1), (np.inf, None)]
)
def test_what_is_no_pair_of_bounds(bad):
    with pytest.raises(InvalidValue, match=r"bounds\[1\] = .*must be a pair \(low, high\)"):
        Box([(0, 1), bad])


def test_there_must_be_one_for_each_number():
    with pytest.raises(InvalidValue, match="bounds = '2 pairs': must be 3, as x0 has"):
        Box([(0, 1), (0, 1)]).enter(np.full(3, 0.5))
    with pytest.raises(InvalidValue, match="bounds"):
        Box([])


@pytest.mark.parametrize("x", [0.0, 4.0, -1.0, 5.0])
def test_the_start_lies_strictly_inside(x):
    with pytest.raises(InvalidValue, match=r"x0\[0\] = .* strictly between its bounds, 0 and 4"):
        Box([(0, 4)]).enter(np.array([x]))


def test_precision_of_the_start_is_kept():
    assert Box([(0, 4)]).enter(np.array([1], np.float32)).dtype == np.float32
