"""Measured constants against known ones."""

import math

import numpy as np
import pytest
from theory_cases import constants_of

import fedzo
from fedzo.core.random import Draws, Stream
from fedzo.problems import FunctionObjective, Quadratic, softmax
from fedzo.theory import estimate
from raising import fails, rejects


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("dim", "devices", "noise", "unlike"), [(20, 6, 3.0, 1.0), (100, 25, 1.0, 2.0)]
)
def test_estimate_on_a_quadratic(dim, devices, noise, unlike, seed):
    """L to 0.1 %, σ_g and σ_h to 15 %, and to 5 of the errors that are told; the gap exactly."""
    problem = Quadratic(dim, devices, 2.0, gradient_noise=noise, dissimilarity=unlike)
    found = estimate(problem, queries=300_000, lower_bound=problem.minimum, seed=seed)
    known, told = constants_of(problem), found.constants
    assert 0.999 * 2.0 <= told.L <= 2.0 + 1e-6
    assert told.gap == pytest.approx(known.gap)
    assert found.start == pytest.approx(known.gap + problem.minimum)
    assert problem.minimum <= found.best < found.start
    for key in ("sigma_g", "sigma_h"):
        value, truth, error = getattr(told, key), getattr(known, key), found.errors[key]
        # σ_h is the largest of the *sampled* devices': below that of all, if not all are.
        assert value == pytest.approx(truth, rel=0.15), key
        assert abs(value - truth) < 5 * error, key
        assert error < 0.1 * truth
    assert told.c_g == pytest.approx(1.0, abs=0.1)
    assert told.c_h == pytest.approx(0.0, abs=0.05)
    assert found.queries <= 300_000


@pytest.mark.slow
def test_estimated_errors_are_honest():
    """Over 40 seeds, two standard errors hold the truth in most cases, and are not too wide."""
    problem = Quadratic(12, 4, gradient_noise=2.0, dissimilarity=1.0)
    off = []
    for seed in range(40):
        found = estimate(problem, queries=30_000, seed=seed)
        off.append(
            [
                (found.constants.sigma_g - 2.0) / found.errors["sigma_g"],
                (found.constants.sigma_h - 1.0) / found.errors["sigma_h"],
            ]
        )
    inside = np.mean(np.abs(off) < 2, axis=0)
    assert np.all(inside > 0.75)  # 95 % were the errors exact and normal; they are Student's
    assert np.all(np.std(off, axis=0) > 0.5)


class Scaled(fedzo.Objective):
    """F_i(x, ξ) = (a_i + τξ) ‖x‖²/2: all of ∇F's spread, and all unlikeness, grows with ‖∇f‖."""

    def __init__(self, dim, scales, spread):
        self.dim, self.devices = dim, len(scales)
        self.scales, self.spread = np.asarray(scales), spread

    def initial(self):
        return np.full(self.dim, 2.0)

    def batch(self, device, size, draws):
        return self.scales[device] + self.spread * draws.normals(size)

    def values(self, points, batch):
        return 0.5 * np.sum(points**2, axis=1)[:, None] * batch

    def losses(self, x, devices):
        return 0.5 * self.scales[devices] * (x @ x)


def test_estimate_of_what_grows_with_the_gradient():
    """E‖∇F‖² = (1 + τ²/a²)‖∇f_i‖² and ‖∇f_i - ∇f‖² = (a_i/ā - 1)²‖∇f‖²: no σ, only c."""
    found = estimate(Scaled(10, [1.0, 1.0], spread=0.5), queries=200_000)
    assert found.constants.c_g == pytest.approx(1.25, rel=0.1)
    assert abs(found.constants.c_g - 1.25) < 4 * found.errors["c_g"]
    # The spread τ²‖∇f‖² = 10 at x⁰ is measured from 8 x 32 samples, to sqrt(2/256) of itself;
    # by how much one device is above the line of both, three of these at most, is left.
    assert found.constants.sigma_g**2 < 3 * math.sqrt(2 / 256) * 10
    found = estimate(Scaled(10, [0.5, 1.5], spread=0.0), queries=200_000)
    assert found.constants.c_h == pytest.approx(0.25, rel=1e-6)
    assert found.constants.sigma_h == pytest.approx(0.0, abs=1e-3)
    assert (found.constants.c_g, found.constants.sigma_g) == (1.0, 0.0)
    assert abs(found.constants.L - 1.5) < 1e-6


def test_estimate_in_high_dimension():
    """A logistic loss of d = 2000, curved along one direction of its own on each device.

    ln(1 + exp(-aᵀx)) has the curvature ‖a‖²/4 at x = 0, along a, and less anywhere else.
    """
    dim, devices = 2000, 3
    a = Draws(2, Stream.PROBLEM).normals(devices, dim) / 50
    objective = FunctionObjective(
        lambda x, device: float(np.logaddexp(0, -a[device] @ x)), dim, devices
    )
    found = estimate(objective, np.zeros(dim), queries=60_000, step=0.05)
    steepest = np.max(np.sum(a**2, axis=1)) / 4
    assert 0.95 * steepest < found.constants.L <= steepest
    assert found.constants.gap == pytest.approx(math.log(2))
    assert (found.constants.sigma_g, found.errors["sigma_g"]) == (0.0, 0.0)
    # At x = 0 the gradients are -a_i/2; what is fitted must be the largest unlikeness there. K
    # of d directions see a square with a relative error of sqrt(2/K) in each repetition.
    middle = a.mean(axis=0)
    unlike = np.max(np.sum((a - middle) ** 2, axis=1)) / 4
    told = found.constants.c_h * (middle @ middle) / 4 + found.constants.sigma_h**2
    error = math.sqrt(2 / (found.plan.directions * found.plan.repeats))
    assert told == pytest.approx(unlike, rel=4 * error)


@pytest.mark.slow
def test_estimate_on_softmax():
    """d = 7850 in float32: unlikeness against gradients, and L within what is known of it."""
    problem = softmax()
    found = estimate(problem, queries=300_000)
    x, at = problem.initial(), Draws(0, Stream.BATCHES)
    gradients = np.array([problem.gradient(x, problem.batch(i, 2000, at)) for i in range(50)])
    unlike = np.max(np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1))
    # The largest of 20 sampled devices is below that of 50, and a bit of the estimate is noise.
    assert 0.6 * unlike < found.constants.sigma_h**2 < 1.3 * unlike
    # Curvature is at most ‖a‖²/2 for a sample a; at x = 0, with p = 1/10, it is ‖a‖²/10.
    squares = np.sum((problem.data.train_inputs / 255.0) ** 2, axis=1) + 1
    assert 0.1 * squares.mean() < found.constants.L < 0.5 * squares.max()
    assert found.constants.gap == pytest.approx(math.log(10))


@pytest.mark.parametrize("queries", [3_000, 20_000, 100_000])
def test_estimate_keeps_to_its_budget(queries):
    asked = 0

    class Counted(Quadratic):
        def values(self, points, batch):
            nonlocal asked
            values = super().values(points, batch)
            asked += values.size
            return values

    problem = Counted(50, 10)
    found = estimate(problem, queries=queries)
    assert found.queries == asked + 2 * problem.devices  # and f, twice, over all devices
    assert found.queries <= queries


def test_estimate_is_a_function_of_its_seed():
    problem = Quadratic(10, 3)
    assert estimate(problem, queries=20_000, seed=4) == estimate(problem, queries=20_000, seed=4)


def test_estimate_refuses():
    problem = Quadratic(10, 3)
    with rejects("queries"):
        estimate(problem, queries=100)
    with rejects("step"):
        estimate(problem, step=0)
    with rejects("x0"):
        estimate(problem, np.zeros(9))
    with rejects("lower_bound"):
        estimate(problem, queries=20_000, lower_bound=1000.0)
    broken = FunctionObjective(lambda x, device: math.nan, 3, 2)
    with fails("not-finite"):
        estimate(broken, np.zeros(3), queries=20_000)


def test_estimate_says_when_it_cannot_know():
    """With far fewer queries than dimensions the largest curvature is not found, and it says so."""
    problem = Quadratic(300, 3)
    poor, rich = (estimate(problem, queries=queries) for queries in (2_000, 100_000))
    assert poor.constants.L < 0.8
    assert "too few to be sure" in poor.notes["L"]
    assert rich.constants.L > 0.99
    assert "too few" not in rich.notes["L"]


def test_estimate_without_a_lower_bound():
    """f - 100 is below zero everywhere: only what was seen is known."""
    objective = FunctionObjective(lambda x, device: float(x @ x) - 100, 5, 2)
    found = estimate(objective, np.ones(5), queries=20_000, lower_bound=None)
    assert found.constants.gap == pytest.approx(5.0)  # the line search finds the minimum
    with rejects("lower_bound"):
        estimate(objective, np.ones(5), queries=20_000)
