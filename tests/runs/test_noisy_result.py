"""The value of a result is not a lucky one where evaluations are noisy."""

import numpy as np
import pytest

import fedzo
from fedzo.runs import Status

FEDZO = fedzo.FedZO(learning_rate=0.01, smoothing=0.1, directions=2, local_steps=1)
CENTRAL = fedzo.FedZO(
    learning_rate=0.01, smoothing=0.1, directions=2, local_steps=1, difference="central"
)


class Noisy(fedzo.Objective):
    """A custom problem with noisy evaluations."""

    dim, devices = 3, 4

    def __init__(self, fun):
        self.fun = fun

    def batch(self, device, size, draws):
        return device

    def values(self, points, batch):
        return np.array([[self.fun(x, batch)] for x in points])

    def losses(self, x, devices):
        return np.array([self.fun(x, i) for i in devices])


KINDS = ["forward", "central", "objective", "tpe"]
FREE = ("objective", 600)  # the evaluations of an objective are free


def run(level, seed, slope=0.0, kind="forward", **options):
    noise = np.random.default_rng(seed)

    def fun(x, device):
        return slope * float(np.sum((x - 1) ** 2)) + level * noise.normal()

    keywords = {"rounds": 30, "evaluate_every": 3, "workers": 1, "seed": seed, "algorithm": FEDZO}
    if kind == "central":
        keywords["algorithm"] = CENTRAL
    if kind == "objective":
        return fedzo.minimize(Noisy(fun), **{**keywords, **options})
    if kind == "tpe":
        pytest.importorskip("optuna")
        keywords |= {"algorithm": fedzo.TPE(sigma=1.0), "rounds": 12}
    return fedzo.minimize(fun, np.zeros(3), devices=4, **{**keywords, **options})


@pytest.mark.parametrize(
    ("kind", "budget"),
    [(kind, budget) for kind in KINDS for budget in (None, 600) if (kind, budget) != FREE],
)
def test_a_flat_noisy_function_is_rarely_a_success(kind, budget):
    """Each is one by chance with 2.5 %: more than 4 of 40 have a chance of 0.3 %."""
    limit = {} if budget is None else {"max_queries": budget, "rounds": 40}
    results = [run(1.0, seed, kind=kind, **limit) for seed in range(40 if kind != "tpe" else 10)]
    assert sum(result.success for result in results) <= (4 if kind != "tpe" else 2)
    assert all(result.fun_error > 0 for result in results)


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_is_unbiased_and_its_error_is_right(kind):
    """The mean of results of a standard error of 1 / sqrt(4 * 4) each, within 4 errors."""
    results = [run(1.0, seed, kind=kind) for seed in range(60 if kind != "tpe" else 12)]
    found = [result.fun for result in results if result.best.round]
    assert len(found) > 5
    assert abs(np.mean(found)) < 4 / 4 / np.sqrt(len(found))
    errors = [result.fun_error for result in results if result.best.round]
    # Of a variance with 16 degrees of freedom each, so within 4 relative errors of sqrt(2 / 16).
    assert abs(np.mean(np.square(errors)) * 16 - 1) < 4 * np.sqrt(2 / 16 / len(errors))


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_improvement_is_a_success(kind):
    for seed in range(8 if kind != "tpe" else 3):
        result = run(0.01, seed, slope=1.0, kind=kind)
        assert result.success
        assert abs(result.fun - np.sum((result.x - 1) ** 2)) < 5 * result.fun_error


@pytest.mark.parametrize("kind", KINDS[:3])
def test_an_exact_function_takes_one_further_evaluation(kind):
    result = run(0.0, 0, slope=1.0, kind=kind)
    assert result.evaluation_queries == (11 + 1) * 4
    assert result.fun_error == 0


def test_fresh_evaluations_count_and_are_part_of_the_budget():
    result = run(1.0, 0)
    assert result.evaluation_queries == (12 + 4) * 4
    budget = result.queries + 12 * 4 + 3
    limited = run(1.0, 0, max_queries=budget)
    assert limited.fun_error < 1 / 2  # of several evaluations
    assert limited.nfev <= budget


def test_a_noisy_run_that_is_stopped_knows_the_value_of_its_model():
    """Stopped at any round, the value is true within its error.

    It is the mean of four values, whose deviation has three degrees of freedom at least: it is
    beyond the quantiles of a t-distribution in 5 % of the runs. More than 6 of 33 have a chance of
    0.1 %.
    """
    beyond = []
    for stop in range(4, 48, 4):
        for seed in range(3):
            noise = np.random.default_rng([stop, seed])

            def fun(x, noise=noise):
                return float(np.sum((x - 1) ** 2)) + 0.5 * noise.normal()

            found = fedzo.minimize(fun, np.full(5, 4.0), callback=lambda p, t=stop: p.round == t)
            assert found.nit <= stop  # it may end by itself before
            assert found.status in (Status.STOPPED, Status.STALLED)
            assert found.fun_error > 0
            error = found.fun - np.sum((found.x - 1) ** 2)
            beyond.append(abs(error) > 3.18 * found.fun_error)
    assert sum(beyond) <= 6


@pytest.mark.parametrize("again", [1, 2])
def test_a_resume_of_a_finished_run_repeats_the_result(again, tmp_path):
    first = run(1.0, 3, run_dir=tmp_path / "run")
    for _ in range(again):  # another seed of the noise: nothing is asked
        other = run(1.0, 3, run_dir=tmp_path / "run", resume=True)
    assert (other.fun, other.success, other.nfev) == (first.fun, first.success, first.nfev)
    assert other.fun_error == first.fun_error


@pytest.mark.parametrize("search", ["adaptive", "cma", "lbfgs"])
@pytest.mark.parametrize("budget", [None, 600])
def test_a_search_of_a_flat_noisy_function_is_rarely_a_success(search, budget):
    """Each is one by chance with 2.5 %: more than 4 of 40 have a chance of 0.3 %."""
    results = []
    for seed in range(40):
        noise = np.random.default_rng(100 + seed)
        results.append(
            fedzo.minimize(
                lambda x, device, noise=noise: noise.normal(),
                np.zeros(3),
                devices=4,
                method=search,
                rounds=30,
                max_queries=budget,
                seed=seed,
                workers=1,
            )
        )
    assert sum(result.success for result in results) <= 4
    assert all(result.fun_error > 0 for result in results)
    # Values that nobody selected: of a mean of at least two evaluations each, within 4 errors.
    fresh = [result.fun for result in results if result.x.any()]
    assert abs(np.mean(fresh or [0])) < 4 / np.sqrt(4 * 2 * max(len(fresh), 1))


@pytest.mark.parametrize("how", ["callback", "budget"])
def test_without_fresh_values_the_lowest_of_many_is_no_proof(how, tmp_path):
    """A stop within a budget and a folder asks nothing: each value had a chance to be low."""
    results = []
    for seed in range(40):
        stop = {"callback": lambda progress: progress.round == 27} if how == "callback" else {}
        options = {"max_queries": 2000 if how == "callback" else 200, "rounds": 40, **stop}
        results.append(run(1.0, seed, run_dir=tmp_path / f"{seed}", **options))
    assert sum(result.success for result in results) <= 4


@pytest.mark.parametrize("method", ["adaptive", "cma", "tpe", "lbfgs"])
@pytest.mark.parametrize("exponent", [-990, 500, 990])
def test_success_does_not_depend_on_the_unit_of_the_values(method, exponent):
    """Squares of values near 1e300 or 1e-300 are infinite or zero: neither decides success."""

    def outcome(unit, slope):
        rng = np.random.default_rng(0)

        def noisy(x, device):
            return unit * (slope * float((x - 1) @ (x - 1)) + 1 + 0.1 * rng.normal())

        options = {"devices": 2, "workers": 1, "max_queries": 300, "method": method}
        result = fedzo.minimize(noisy, np.zeros(2), **options)
        return result.status, result.success, result.fun / unit, result.fun_error / unit

    for slope in (0.0, 1.0):
        status, success, fun, error = outcome(1.0, slope)
        assert success == bool(slope)
        found = outcome(2.0**exponent, slope)
        assert found[:2] == (status, success)
        assert abs(found[2] - fun) <= 5 * np.hypot(found[3], error)
        assert 0.2 * error <= found[3] <= 5 * error
