"""Constraints of SciPy: problems whose solutions are known."""

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import LinearConstraint, NonlinearConstraint
from scipy.sparse import csr_matrix

import fedzo
from fedzo.problems import Quadratic
from raising import rejects

DISK = {"type": "ineq", "fun": lambda x: 1 - x @ x}
CORNER = LinearConstraint([[1, -2], [-1, -2], [-1, 2]], [-2, -6, -2], np.inf)


def rosenbrock(x):
    return float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


# fun, x0, constraints, the lowest value, bounds. HS: Hock and Schittkowski, 1981.
PROBLEMS = {
    "disk": (lambda x: float(x.sum()), [0.5, 0.5], DISK, -np.sqrt(2), None),
    "outside": (lambda x: float(x.sum()), [4.0, 3.0], [DISK], -np.sqrt(2), None),
    "equality": (
        lambda x: float(x @ x),
        [3.0, 1.0, 0.0],
        {"type": "eq", "fun": lambda x, total: x.sum() - total, "args": (3,)},
        3.0,
        None,
    ),
    "linear": (
        lambda x: float((x[0] - 1) ** 2 + (x[1] - 2.5) ** 2),
        [2.0, 0.1],
        CORNER,
        0.8,
        [(0, None), (0, None)],
    ),
    "HS71": (
        lambda x: float(x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]),
        [1.5, 4.5, 4.5, 1.5],
        [
            {"type": "ineq", "fun": lambda x: np.prod(x) - 25},
            {"type": "eq", "fun": lambda x: x @ x - 40},
        ],
        17.0140173,
        [(1, 5)] * 4,
    ),
    "HS7": (
        lambda x: float(np.log(1 + x[0] ** 2) - x[1]),
        [2.0, 2.0],
        NonlinearConstraint(lambda x: (1 + x[0] ** 2) ** 2 + x[1] ** 2, 4, 4),
        -np.sqrt(3),
        None,
    ),
    "two sides": (
        rosenbrock,
        [-1.0, 0.5],
        NonlinearConstraint(lambda x: [x @ x, x[0] - x[1]], [-np.inf, -5], [1.0, 5]),
        0.0456748,
        None,
    ),
    "inactive": (rosenbrock, [-1.0, 0.5], NonlinearConstraint(np.sum, -9, 9), 0.0, None),
}


@pytest.mark.parametrize("max_queries", [None, 3000])
@pytest.mark.parametrize("name", PROBLEMS)
def test_known_solutions(name, max_queries):
    fun, x0, constraints, lowest, bounds = PROBLEMS[name]
    run = {"bounds": bounds, "max_queries": max_queries}
    result = fedzo.minimize(fun, x0, constraints=constraints, **run)
    assert result.success, result.message
    assert result.maxcv <= 1e-6
    assert result.fun == pytest.approx(lowest, abs=2e-5)
    assert result.fun == fun(result.x)
    if max_queries:
        assert result.nfev <= max_queries


def test_the_mean_of_the_federation_is_minimised():
    """The mean of |x - i|² is lowest at 1.5; the nearest point of the disk is (1, 1)/√2."""
    result = fedzo.minimize(
        lambda x, i: float(np.sum((x - i) ** 2)), [0.2, 0.1], devices=4, constraints=DISK
    )
    np.testing.assert_allclose(result.x, np.sqrt(0.5), atol=1e-4)
    assert result.success


def test_noisy_values():
    """The noise of a value is 1e-3, so that x is known to about the root of it."""
    rng = np.random.default_rng(0)

    def fun(x):
        return float(np.sum((x - 2) ** 2)) + 1e-3 * rng.normal()

    half = LinearConstraint([1, 1], -np.inf, 2)
    result = fedzo.minimize(fun, [0.0, 0.5], constraints=half, max_queries=4000)
    np.testing.assert_allclose(result.x, 1, atol=0.15)


def test_what_cannot_be_satisfied_is_no_success():
    both = [{"type": "eq", "fun": lambda x: x[0] - 1}, {"type": "eq", "fun": lambda x: x[0] - 2}]
    result = fedzo.minimize(lambda x: float(x @ x), [0.0, 1.0], constraints=both, max_queries=500)
    assert not result.success
    assert result.maxcv >= 0.5 - 1e-6


def test_as_a_method_of_scipy():
    fun, x0, constraints, lowest, bounds = PROBLEMS["HS71"]
    run = {"bounds": bounds, "constraints": constraints}
    found = scipy.optimize.minimize(fun, x0, method=fedzo.scipy_method(), **run)
    assert found.fun == pytest.approx(lowest, abs=1e-5)
    assert found.maxcv <= 1e-6


@pytest.mark.parametrize("method", ["lbfgs", "cma"])
def test_sparse_matrices_and_other_methods(method):
    sparse = LinearConstraint(csr_matrix(CORNER.A), CORNER.lb, CORNER.ub)
    fun, x0, _, lowest, bounds = PROBLEMS["linear"]
    run = {"bounds": bounds, "method": method, "max_queries": 8000}
    result = fedzo.minimize(fun, x0, constraints=sparse, **run)
    assert result.fun == pytest.approx(lowest, abs=1e-3)


def test_a_resumed_run_is_the_same(tmp_path):
    fun, x0, constraints, _, bounds = PROBLEMS["HS71"]
    run = {"constraints": constraints, "bounds": bounds, "max_queries": 900}
    whole = fedzo.minimize(fun, x0, **run)
    fedzo.minimize(fun, x0, run_dir=tmp_path, callback=lambda p: p.round == 40, **run)
    again = fedzo.minimize(fun, x0, run_dir=tmp_path, resume=True, **run)
    assert again.x.tobytes() == whole.x.tobytes()


@pytest.mark.parametrize(
    "given", [3, "disk", {"type": "le", "fun": len}, {"type": "eq"}, [DISK, None], lambda x: x]
)
def test_what_is_no_constraint(given):
    with rejects("constraints"):
        fedzo.minimize(lambda x: 0.0, [1.0, 1.0], constraints=given)


def test_only_searches_of_functions_have_them():
    with rejects("constraints"):
        fedzo.minimize(lambda x: 0.0, [1.0, 1.0], constraints=DISK, method="fedzo")
    with rejects("constraints"):
        fedzo.minimize(Quadratic(dim=2), constraints=DISK)
