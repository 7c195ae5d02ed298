"""SciPy's own `minimize` runs ours."""

import numpy as np
import pytest

import fedzo
from raising import rejects

optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")

ALGORITHM = fedzo.FedZO(learning_rate=0.05, directions=2, direction_kind="orthogonal")
SETTINGS = {"algorithm": ALGORITHM, "rounds": 40, "seed": 5}


def bowl(x, scale=1.0):
    return scale * float((x[0] - 3) ** 2 + (x[1] + 1) ** 2)


def site(x, device, scale=1.0):
    return scale * float(np.sum((x - device) ** 2))


def test_one_device_and_args():
    found = optimize.minimize(bowl, [0.0, 0.0], args=(2.0,), method=fedzo.scipy_method(**SETTINGS))
    ours = fedzo.minimize(lambda x, i: bowl(x, 2.0), [0.0, 0.0], devices=1, **SETTINGS)
    assert isinstance(found, optimize.OptimizeResult)
    assert found.x.tobytes() == ours.x.tobytes()
    np.testing.assert_allclose(found.x, [3, -1], atol=0.01)
    for key in ("fun", "success", "status", "message", "nit", "nfev", "queries"):
        assert found[key] == getattr(ours, key)


def test_many_devices():
    method = fedzo.scipy_method(devices=5, **SETTINGS)
    found = optimize.minimize(site, np.zeros(2), args=(0.5,), method=method)
    np.testing.assert_allclose(found.x, [2, 2], atol=0.05)


@pytest.mark.parametrize(
    "bounds",
    [[(None, 2), (-0.5, 4)], optimize.Bounds([-np.inf, -0.5], [2, 4])],
    ids=["pairs", "Bounds"],
)
def test_bounds(bounds):
    found = optimize.minimize(
        bowl, [0.0, 0.0], method=fedzo.scipy_method(**SETTINGS), bounds=bounds
    )
    np.testing.assert_allclose(found.x, [2, -0.5], atol=0.01)
    assert found.x[0] <= 2
    assert found.x[1] >= -0.5


def test_options_go_first():
    method = fedzo.scipy_method(**SETTINGS)
    found = optimize.minimize(bowl, [0.0, 0.0], method=method, options={"rounds": 3})
    assert found.nit == 3
    budget = optimize.minimize(bowl, [0.0, 0.0], method=method, options={"max_queries": 50})
    assert budget.nfev == 50


def test_options_of_scipys_own_methods(capsys):
    method = fedzo.scipy_method(**SETTINGS)
    options = {"maxiter": 7, "disp": True}
    found = optimize.minimize(bowl, [0.0, 0.0], method=method, options=options)
    assert found.nit == 7
    assert "round 7/7" in capsys.readouterr().err
    budget = optimize.minimize(
        bowl, [0.0, 0.0], method=method, options={"maxfev": 50, "disp": False}
    )
    assert budget.nfev == 50
    assert capsys.readouterr().err == ""


def test_what_scipy_takes_is_taken():
    """A number for x0, an array of one for a value, a start on a bound, equal bounds."""
    method, asked = (
        fedzo.scipy_method(**{**SETTINGS, "algorithm": fedzo.FedZO(learning_rate=0.05)}),
        [],
    )
    found = optimize.minimize(lambda x: asked.append(x) or (x - 2) ** 2, 0.0, method=method)
    np.testing.assert_allclose(found.x, [2], atol=0.01)
    assert found.nfev == len(asked)
    bounds = optimize.Bounds([0, -0.5], [2, -0.5])
    found = optimize.minimize(bowl, [2.0, -0.5], method=method, bounds=bounds)
    np.testing.assert_allclose(found.x, [2, -0.5], atol=0.01)


def test_both_kinds_of_callbacks():
    method, seen, told = fedzo.scipy_method(**SETTINGS), [], []

    def stop(intermediate_result):
        told.append(intermediate_result)
        if len(told) == 4:
            raise StopIteration

    optimize.minimize(bowl, [0.0, 0.0], method=method, callback=seen.append)
    assert len(seen) == 40
    found = optimize.minimize(bowl, [0.0, 0.0], method=method, callback=stop)
    assert found.nit == 4
    assert [one.nit for one in told] == [1, 2, 3, 4]
    for x, one in zip(seen, told, strict=False):
        assert np.array_equal(x, one.x)


def test_fedzos_own_callbacks_are_called_as_well():
    own, seen = [], []
    method = fedzo.scipy_method(callback=lambda p: own.append(p.round), **SETTINGS)
    optimize.minimize(bowl, [0.0, 0.0], method=method, callback=seen.append)
    assert own == list(range(41))
    assert len(seen) == 40


@pytest.mark.parametrize(
    "given",
    [
        {"jac": lambda x: 2 * x},
        {"hess": lambda x: np.eye(2)},
        {"constraints": {"type": "eq", "fun": bowl}},
        {"tol": 1e-3},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_would_not_be_looked_at_is_refused(given):
    with rejects(*given):
        optimize.minimize(bowl, [0.0, 0.0], method=fedzo.scipy_method(**SETTINGS), **given)
