"""Bounds as a change of variables."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedzo
from fedzo.variables.bounds import Box
from raising import rejects

KINDS = [(-3.0, 5.0), (None, 2.0), (-1.0, None), (None, None), (-np.inf, 1e6), (0, 1e-3)]
ends = st.floats(-1e6, 1e6)


@given(st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=6))
def test_never_outside(u):
    x = Box(KINDS, len(KINDS)).decode(np.array(u))
    low = [-np.inf if a is None else a for a, _ in KINDS]
    high = [np.inf if b is None else b for _, b in KINDS]
    assert (low <= x).all()
    assert (x <= high).all()


@given(ends, ends, st.floats(0.01, 0.99))
def test_encode_is_the_inverse_of_decode(a, b, where):
    low, high = min(a, b), max(a, b) + 1
    x = np.array([low + where * (high - low)])
    for bounds in ((low, high), (low, None), (None, high), (None, None)):
        box = Box([bounds], 1)
        # The map is flat near a bound: what is lost there is a few bits of the distance.
        np.testing.assert_allclose(
            box.decode(box.encode(x)), x, rtol=1e-9, atol=1e-9 * (high - low)
        )


@pytest.mark.parametrize("bounds", KINDS)
def test_smooth_with_slope_one_in_the_middle(bounds):
    """Central differences of x(u) agree with its derivative, everywhere; it is 1 far inside."""
    box, h = Box([bounds], 1), 1e-6
    scale = 1.0 if None in bounds or np.inf in np.abs(bounds) else (bounds[1] - bounds[0]) / 2
    u = np.linspace(-2, 2, 41)[:, None] * scale
    slopes = (box.decode(u + h * scale) - box.decode(u - h * scale)) / (2 * h * scale)
    if None in bounds or np.inf in np.abs(bounds):
        has_low = bounds[0] is not None and np.isfinite(bounds[0])
        derivative = u / np.sqrt(1 + u**2) if has_low else -u / np.sqrt(1 + u**2)
        derivative = np.ones_like(u) if bounds == (None, None) else derivative
    else:
        # Up to the margin 1, then a cosine; beyond the bound the same backwards.
        margin, end = 0.2 * scale, scale * (0.8 + 0.1 * np.pi)
        folded = np.where(np.abs(u) > end, 2 * end - np.abs(u), np.abs(u))
        derivative = np.cos(np.maximum(folded - 0.8 * scale, 0) / margin)
        derivative = np.where(np.abs(u) > end, -derivative, derivative)
    np.testing.assert_allclose(slopes, derivative, atol=1e-4)


def test_wide_bounds_change_nothing_but_the_origin():
    box = Box([(-1e7, 1e7), (-1e7, None), (None, 1e7)], 3)
    x = np.array([1.0, 2.0, 3.0])
    u, step = box.encode(x), np.array([0.5, -0.25, 0.125])
    inward = np.array([1, 1, -1])  # from an upper bound, u counts the other way
    np.testing.assert_allclose(box.decode(u + inward * step) - x, step, rtol=1e-6)


def test_a_bound_is_reached():
    box = Box([(0.0, 4.0), (1.0, None), (None, 1.0)], 3)
    # The margin is 0.4 wide, and a quarter of a wave of the sine: u - m = 1.6 + 0.4 π / 2.
    end = 1.6 + 0.2 * np.pi
    np.testing.assert_allclose(box.decode(np.array([end, 0, 0])), [4, 1, 1], rtol=1e-15)


def test_bounds_that_do_not_matter_change_nothing():
    box, inside = Box([(-5.0, 5.0)] * 3, 3), np.array([[3.9, -2.0, 0.0], [-3.9, 1e-9, 1.0]])
    np.testing.assert_array_equal(box.decode(inside), inside)
    np.testing.assert_array_equal(box.encode(inside[0]), inside[0])


@pytest.mark.parametrize("bad", [(2, 1), (0, np.nan), 3, (1, 2, 3), ("a", 1), (np.inf, None)])
def test_what_is_no_pair_of_bounds(bad):
    with rejects("bounds[1]"):
        Box([(0, 1), bad], 2)


@pytest.mark.parametrize("bounds", [[(0, 1), (0, 1)], [], 3, SimpleNamespace(lb=[0, 0], ub=1)])
def test_there_must_be_one_for_each_number(bounds):
    with rejects("bounds"):
        Box(bounds, 3)


def test_bounds_as_scipy_has_them():
    ends = SimpleNamespace(lb=-1.0, ub=[2.0, np.inf])
    assert Box(ends, 2).pairs() == [[-1, 2], [-1, np.inf]]


@pytest.mark.parametrize("x", [-1.0, 5.0])
def test_the_start_lies_inside(x):
    """SciPy moves such a start, too, and warns."""
    box = Box([(0, 4)], 1)
    with pytest.warns(fedzo.errors.FedzoWarning):
        u = box.encode(np.array([x]))
    assert 0 < box.decode(u)[0] < 4


def test_a_start_on_a_bound_is_moved_where_it_sees_a_slope():
    box = Box([(0, 4), (0, 4), (1, None), (None, 1), (None, None)], 5)
    u = box.encode(np.array([0.0, 4.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(box.decode(u), [0.04, 3.96, 1.01, 0.99, 1.0], rtol=1e-12)
    slopes = (box.decode(u + 1e-6) - box.decode(u - 1e-6)) / 2e-6
    assert (np.abs(slopes) > 0.1).all()


def test_equal_bounds_hold_a_number_fixed():
    box = Box([(2, 2), (0, 4)], 2)
    u = box.encode(np.array([2.0, 1.0]))
    np.testing.assert_allclose(box.decode(u + np.array([[0, 0], [7.0, 0]])), [[2, 1]] * 2)
    with pytest.warns(fedzo.errors.FedzoWarning):
        assert box.decode(box.encode(np.array([1.0, 1.0])))[0] == 2


def test_very_wide_bounds():
    box = Box([(-1e308, 1e308), (-1e300, None)], 2)
    x = box.decode(box.encode(np.array([1.0, 1e301])))
    np.testing.assert_allclose(x, [1.0, 1e301], rtol=1e-12)


def test_precision_of_the_start_is_kept():
    assert Box([(0, 4)], 1).encode(np.array([1], np.float32)).dtype == np.float32
