"""The estimator's scale, against closed forms, for every kind of direction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedzo
from fedzo.core.directions import KINDS
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from fedzo.problems import FunctionObjective

DIM = 6
SLOPE = np.array([1.0, -2.0, 0.5, 3.0, -1.0, 0.25])
HESSIAN = np.diag([3.0, 1.0, 0.5, 2.0, 1.0, 4.0]) + 0.3
X = np.array([0.5, -1.0, 2.0, 0.1, 0.0, -0.7])


def linear(x, _device):
    return x @ SLOPE + 7.0


def quadratic(x, _device):
    return 0.5 * np.sum(x @ HESSIAN * x, axis=-1) + x @ SLOPE


def estimates(fun, estimator, steps, x=X):
    objective = FunctionObjective(fun, DIM, 1, vectorized=True)
    buffer = estimator.buffer(DIM, x.dtype)
    for step in steps:
        at = Draws(1, Stream.DIRECTIONS, step=step)
        coefficients, _ = estimator.estimate(objective, x, 1, buffer, at)
        yield coefficients @ buffer.rows


def estimate(fun, estimator, step, x=X):
    return next(estimates(fun, estimator, [step], x))


def mean_and_error(fun, estimator, n):
    """The mean of n estimates, and its standard error coordinate by coordinate."""
    found = np.array(list(estimates(fun, estimator, range(n))))
    return found.mean(axis=0), found.std(axis=0) / math.sqrt(n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("smoothing", [1e-3, 0.5])
def test_linear_function(kind, difference, smoothing):
    """E[estimate] is the slope exactly, whatever μ: within 5 standard errors."""
    estimator = Estimator(smoothing, 3, kind, difference)
    mean, error = mean_and_error(linear, estimator, 4000)
    assert np.all(np.abs(mean - SLOPE) < 5 * error + 1e-9)


@pytest.mark.parametrize("kind", ["sphere", "rademacher", "gaussian", "orthogonal"])
@pytest.mark.parametrize("difference", ["forward", "central"])
def test_quadratic_function(kind, difference):
    """Odd moments vanish, so E[estimate] = gradient for any μ, though one estimate is off."""
    gradient = HESSIAN @ X + SLOPE
    mean, error = mean_and_error(quadratic, Estimator(0.3, 3, kind, difference), 6000)
    assert np.all(np.abs(mean - gradient) < 5 * error)


def test_coordinate_on_quadratic():
    """b2 = d coordinates are the full finite difference: no randomness, known bias μ A_jj / 2."""
    gradient = HESSIAN @ X + SLOPE
    for smoothing in (1e-2, 0.5):
        forward = estimate(quadratic, Estimator(smoothing, DIM, "coordinate"), 0)
        bias = smoothing / 2 * np.diag(HESSIAN)
        np.testing.assert_allclose(forward, gradient + bias, atol=1e-9)
        central = estimate(quadratic, Estimator(smoothing, DIM, "coordinate", "central"), 0)
        np.testing.assert_allclose(central, gradient, atol=1e-9)


@pytest.mark.parametrize("difference", ["forward", "central"])
def test_orthogonal_is_exact_on_a_linear_function(difference):
    """d orthonormal directions: sum_n v_n v_n^T = I, so one estimate is the slope itself."""
    estimator = Estimator(0.1, DIM, "orthogonal", difference)
    np.testing.assert_allclose(estimate(linear, estimator, 3), SLOPE, atol=1e-9)


@pytest.mark.parametrize("b2", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_variance_on_a_linear_function(kind, b2):
    """E|estimate - a|^2 over |a|^2: see below, within 5 standard errors.

    One direction has (d - 1) on the sphere (Gao et al. 2018, L. 4.1) and with signs, where |v| = 1,
    and (d + 1) of normals, from E|v|^2 (v^T a)^2 = (d + 2)/d^2 |a|^2; b2 of them divide it by b2.
    Directions without replacement make d/b2 times a projection: d/b2 - 1.
    """
    one = {"sphere": DIM - 1, "rademacher": DIM - 1, "gaussian": DIM + 1}
    expected = one[kind] / b2 if kind in one else DIM / b2 - 1
    found = np.array(list(estimates(linear, Estimator(0.1, b2, kind), range(8000))))
    squares = np.sum((found - SLOPE) ** 2, axis=1) / (SLOPE @ SLOPE)
    error = squares.std() / math.sqrt(len(squares))
    assert abs(squares.mean() - expected) < 5 * error + 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", ["forward", "central"])
def test_bias_on_a_cubic_function(kind, difference):
    """Of f(x) = sum_j c_j x_j^3 the bias is d μ^2 c_j E[v_j^4], within 5 standard errors.

    E[v_j^4] is 3/(d (d + 2)) on the sphere, 3/d^2 of normals, 1/d^2 with signs and 1/d along axes.
    Along axes the forward difference also has the bias μ/2 ∂²f/∂x_j² = 3 μ c_j x_j.
    """
    moments = {
        "sphere": 3 / (DIM * (DIM + 2)),
        "orthogonal": 3 / (DIM * (DIM + 2)),
        "gaussian": 3 / DIM**2,
        "rademacher": 1 / DIM**2,
        "coordinate": 1 / DIM,
    }
    mu, c = 0.8, SLOPE
    mean, error = mean_and_error(
        lambda x, _device: x**3 @ c, Estimator(mu, 3, kind, difference), 6000
    )
    expected = 3 * c * X**2 + DIM * mu**2 * c * moments[kind]
    if kind == "coordinate" and difference == "forward":
        expected += 3 * mu * c * X
    assert np.all(np.abs(mean - expected) < 5 * error)


class Values(fedzo.Objective):
    """An objective given by its values alone."""

    def __init__(self, dim, values, batch=None):
        self.dim, self.devices = dim, 1
        self.values, self._batch = values, batch

    def batch(self, device, size, draws):
        return self._batch


AT = Draws(3, Stream.DIRECTIONS, round=4, device=0, step=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("b2", [1, 2])
def test_equation_2_written_out(kind, difference, b2):
    """The double sum over samples and directions, as the paper prints it, on a cubic."""
    samples = np.array([[1.0, -1.0, 2.0], [0.5, 3.0, 1.0]])  # two ξ of three numbers

    def value(x, xi):
        return float((xi @ x) ** 3 + xi @ x)

    def values(points, batch):
        return np.array([[value(x, xi) for xi in batch] for x in points])

    mu, dim, x = 0.2, 3, np.array([0.3, -0.4, 0.1])
    estimator = Estimator(mu, b2, kind, difference)
    buffer = estimator.buffer(dim, np.float64)
    coefficients, queries = estimator.estimate(Values(dim, values, samples), x, 2, buffer, AT)
    expected = np.zeros(dim)
    for xi in samples:
        for v in buffer.vectors():
            if difference == "forward":
                slope = (value(x + mu * v, xi) - value(x, xi)) / mu
            else:
                slope = (value(x + mu * v, xi) - value(x - mu * v, xi)) / (2 * mu)
            expected += dim * v * slope / (2 * b2)
    np.testing.assert_allclose(coefficients @ buffer.rows, expected, rtol=1e-12)
    assert queries == 2 * (b2 + 1 if difference == "forward" else 2 * b2)


@pytest.mark.parametrize("difference", ["forward", "central"])
def test_points_asked_for(difference):
    """One base value shared by all directions, or two sides and no base."""
    asked = []

    def values(points, batch):
        asked.append(points.copy())
        return np.zeros((len(points), 5))

    estimator = Estimator(0.1, 3, "sphere", difference)
    buffer = estimator.buffer(DIM, np.float64)
    estimator.estimate(Values(DIM, values), X, 5, buffer, AT)
    (seen,) = asked
    v = buffer.vectors()
    forward, backward = X + 0.1 * v, X - 0.1 * v
    expected = [X, *forward] if difference == "forward" else [*forward, *backward]
    np.testing.assert_allclose(seen, expected, atol=1e-15)


@given(st.integers(-20, 20), st.integers(1, 40))
def test_float32_losses_lose_nothing_here(base_exponent, samples):
    """float32 values that differ by one unit in the last place: the difference is exact."""
    base = np.float32(2.0**base_exponent)
    ulp = np.spacing(base)

    def values(points, batch):
        return np.array([[base] * samples, [base + ulp] * samples], np.float32)

    estimator = Estimator(1.0, 1, "coordinate")
    buffer = estimator.buffer(1, np.float64)
    coefficients, _ = estimator.estimate(Values(1, values), np.zeros(1), 1, buffer, AT)
    assert coefficients[0] == float(ulp)


def test_the_same_samples_at_both_points():
    """Large noise that is the same at x and x + μv cancels exactly: differences before means."""
    noise = 1e6 * np.arange(50.0)

    def values(points, batch):
        return points @ SLOPE[:, None] + batch

    estimator = Estimator(1.0, DIM, "coordinate")
    buffer = estimator.buffer(DIM, np.float64)
    coefficients, _ = estimator.estimate(Values(DIM, values, noise), X, 50, buffer, AT)
    np.testing.assert_allclose(coefficients @ buffer.rows, SLOPE, atol=1e-7)


@pytest.mark.parametrize(
    "bad",
    [
        {"smoothing": 0.0},
        {"smoothing": -1.0},
        {"smoothing": float("nan")},
        {"smoothing": float("inf")},
        {"directions": 0},
        {"difference": "backward"},
        {"kind": "cube"},
    ],
)
def test_bad_settings(bad):
    with pytest.raises(InvalidValue):
        Estimator(**{"smoothing": 0.1, "directions": 1, **bad})
