"""Plain functions through `minimize`: vectorised, bounded, failing, budgeted."""

import functools
import json

import numpy as np
import pytest

import fedzo
from fedzo.errors import BudgetSpent, Exit, FedzoError, UsageError
from fedzo.problems import FunctionObjective
from fedzo.runs import Status
from fedzo.runs.registry import ALGORITHMS
from raising import fails, rejects

ALGORITHM = fedzo.FedZO(
    learning_rate=0.05, local_steps=2, directions=3, direction_kind="orthogonal"
)
RUN = {"devices": 4, "rounds": 6, "evaluate_every": 2, "algorithm": ALGORITHM}
A_ROUND = 4 * 2 * (3 + 1)  # devices x steps x values


def distance(x, device):
    return float(np.sum((x - device) ** 2))


def distances(points, device):
    return np.sum((points - device) ** 2, axis=1)


def same(one, two):
    assert one.x.tobytes() == two.x.tobytes()
    strip = [{k: v for k, v in r.items() if k != "seconds"} for r in one.history]
    assert strip == [{k: v for k, v in r.items() if k != "seconds"} for r in two.history]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectorised_is_the_same_run(dtype):
    start = np.ones(3, dtype)
    one = fedzo.minimize(distance, start, **RUN)
    same(one, fedzo.minimize(distances, start, vectorized=True, **RUN))
    assert one.x.dtype == dtype


@pytest.mark.parametrize("shape", [(), (4, 1), (3,)])
def test_a_vectorised_function_of_another_shape_is_refused(shape):
    with fails("shape"):
        fedzo.minimize(lambda p, i: np.zeros(shape), np.ones(3), vectorized=True, **RUN)


NO_NUMBERS = {
    "none": None,
    "text": "1.5",
    "bytes": b"1",
    "complex": 1j,
    "array": [1.0, 2.0],
    "masked": np.ma.masked,
    "too large": 10**400,
    "function": abs,
}


@pytest.mark.parametrize("found", NO_NUMBERS.values(), ids=NO_NUMBERS)
@pytest.mark.parametrize("kind", ["function", "vectorized", "objective"])
def test_what_is_no_number_is_an_error_of_the_user(kind, found):
    """One line, for a function, one of many points, and the values of a problem."""

    class Problem(fedzo.Objective):
        dim, devices = 3, 2

        def batch(self, device, size, draws):
            return device

        def values(self, points, batch):
            return [[found]] * len(points)

        def losses(self, x, devices):
            return np.zeros(len(devices))

    fun, more = {
        "objective": (Problem(), {"rounds": 2}),
        "vectorized": (
            lambda p, i: [found] * len(p),
            {"x0": np.ones(3), "vectorized": True, **RUN},
        ),
        "function": (lambda x, i: found, {"x0": np.ones(3), **RUN}),
    }[kind]
    with pytest.raises(FedzoError) as caught:
        fedzo.minimize(fun, **more)
    assert caught.value.exit in (Exit.OWN_CODE, Exit.HALTED)
    assert caught.value.code in ("not-a-number", "not-numbers", "shape")


def test_tensors_that_have_gradients_are_values():
    torch = pytest.importorskip("torch")
    weight = torch.tensor([1.0, 2.0], requires_grad=True)

    def fun(points):
        return ((torch.as_tensor(points) - weight) ** 2).sum(dim=1)

    def listed(points):
        return list(fun(points))

    assert fedzo.minimize(fun, np.zeros(2), vectorized=True, max_queries=60).fun < 1e-3
    with fails("not-numbers"):
        fedzo.minimize(listed, np.zeros(2), vectorized=True, max_queries=60)


class Model:
    """Functions of the kinds that people pass."""

    def of_x(self, x):
        return float(np.sum((x - 2) ** 2))

    def of_both(self, x, device):
        return self.of_x(x) + device

    def __call__(self, x, power=2):
        return float(np.sum(np.abs(x - 2) ** power))


@pytest.mark.parametrize(
    "fun",
    [
        Model().of_x,
        Model(),
        lambda *args: Model().of_x(*args),
        functools.partial(Model().of_both, device=0),
        functools.partial(Model.of_x, Model()),
        lambda x, scale=1.0, **_: scale * Model().of_x(x),
    ],
    ids=["bound", "object", "star", "partial", "partial of a method", "defaults"],
)
def test_without_devices_the_function_takes_x_alone(fun):
    result = fedzo.minimize(fun, np.zeros(3), max_queries=300)
    np.testing.assert_allclose(result.x, 2, atol=1e-4)
    same(result, fedzo.minimize(lambda x, i: fun(x), np.zeros(3), devices=1, max_queries=300))


def test_with_devices_the_function_takes_the_device_even_if_there_is_one():
    seen = set()

    def fun(x, *rest):
        seen.add(rest)
        return float(x @ x)

    fedzo.minimize(fun, np.ones(2), devices=1, args=("more",), max_queries=30)
    fedzo.minimize(fun, np.ones(2), args=("alone",), max_queries=30)
    assert seen == {(0, "more"), ("alone",)}


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize(
    ("fun", "devices", "args"),
    [
        (lambda x: 0.0, 1, ()),
        (lambda x: 0.0, 4, ()),
        (lambda x, device: 0.0, None, ()),
        (lambda x, device: 0.0, 4, (1.0,)),
        (lambda x, a: 0.0, None, ()),
        (lambda: 0.0, None, ()),
    ],
)
def test_a_function_of_other_arguments_is_refused_before_a_call(fun, devices, args, vectorized):
    with rejects("fun"):
        fedzo.minimize(fun, np.ones(3), devices=devices, args=args, vectorized=vectorized)


@pytest.mark.parametrize("name", ["adaptive", "cma", "lbfgs", "tpe", "fedzo", "zo_sgd"])
def test_an_algorithm_by_its_name(name):
    if name == "tpe":
        pytest.importorskip("optuna", reason="needs fedzo[tune]")
    named = fedzo.minimize(Model().of_x, np.zeros(2), method=name, max_queries=60)
    given = ALGORITHMS[name]()
    same(named, fedzo.minimize(Model().of_x, np.zeros(2), algorithm=given, max_queries=60))
    assert type(named.algorithm) is type(given)


def test_a_method_is_a_known_name_and_given_once():
    for method in ("cmaes", 3, fedzo.CMA()):
        with rejects("method"):
            fedzo.minimize(distance, np.ones(3), devices=4, method=method)
    with rejects("method"):
        fedzo.minimize(distance, np.ones(3), method="cma", **RUN)
    with rejects("tol"):
        fedzo.minimize(distance, np.ones(3), devices=4, method="cma", tol=0.1)
    loose = fedzo.minimize(distance, np.ones(3), devices=4, method="adaptive", tol=0.1)
    assert loose.algorithm.tol == 0.1


def test_cma_ends_on_its_own_without_a_budget():
    result = fedzo.minimize(Model().of_x, np.zeros(3), method="cma")
    np.testing.assert_allclose(result.x, 2, atol=1e-4)
    assert result.success


# --- unbounded below


@pytest.mark.parametrize("method", ["adaptive", "cma", "lbfgs"])
@pytest.mark.parametrize("limit", [-np.inf, -1e200])
def test_a_function_without_a_minimum(method, limit):
    """It falls linearly, and has no bottom a little further on."""

    def fun(x):
        return -float(x[0]) if x[0] < 1.5 else limit

    result = fedzo.minimize(fun, np.ones(2), method=method, max_queries=2000)
    assert result.status is Status.HALTED
    assert not result.success
    assert np.isfinite(result.fun)
    assert "unbounded" in result.message


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize("dim", [1, 3, 250])
@pytest.mark.parametrize("max_queries", [400, 20_000])
def test_no_assertion_of_a_library_where_f_falls_without_end(dim, power, max_queries):
    def fun(x):
        return -float(np.sum(x**power))

    for method in ("adaptive", "cma"):
        result = fedzo.minimize(fun, np.ones(dim), method=method, max_queries=max_queries)
        assert result.nfev <= max_queries
        assert np.isfinite(result.fun)
        assert result.fun < -dim


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ({"retries": -1}, "retries"),
        ({"on_failure": "leave"}, "on_failure"),
        ({"max_queries": 0}, "max_queries"),
        ({"bounds": [(0, 2)]}, "bounds"),
        ({"vectorized": "no"}, "vectorized"),
        ({"target": "low"}, "target"),
        ({"target": np.nan}, "target"),
    ],
)
def test_bad_options_are_refused(option, key):
    with rejects(key):
        fedzo.minimize(distance, np.ones(3), **{**RUN, **option})


def test_an_algorithm_is_an_object():
    with rejects("algorithm"):
        fedzo.minimize(distance, np.ones(3), **{**RUN, "algorithm": "fedzo"})


def test_an_unknown_option_is_refused_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"retry = 2: unknown option \(did you mean 'retries'\?\)"):
        fedzo.minimize(distance, np.ones(3), **RUN, retry=2)


@pytest.mark.parametrize("kind", [float, np.float32, np.array, lambda v: np.array([[v]])])
def test_what_is_a_number(kind):
    result = fedzo.minimize(lambda x, i: kind(np.float32(x @ x)), np.ones(3), **RUN)
    same(result, fedzo.minimize(lambda x, i: float(np.float32(x @ x)), np.ones(3), **RUN))


@pytest.mark.parametrize("value", [None, [1.0], 1j, np.ones(2), "low"], ids=repr)
def test_what_is_no_number(value):
    with pytest.raises(TypeError):
        fedzo.minimize(lambda x, i: value, np.ones(3), **RUN)
    left = fedzo.minimize(lambda x, i: value, np.ones(3), on_failure="leave_out", **RUN)
    assert left.status is Status.HALTED


@pytest.mark.parametrize("x0", [["a", "b"], [None, 1.0], np.array([1j, 0])], ids=repr)
def test_a_start_is_real_numbers(x0):
    with rejects("x0"):
        fedzo.minimize(distance, x0, **RUN)


def test_options_of_functions_are_not_for_objectives():
    objective = FunctionObjective(distance, 3, 4)
    with rejects("retries"):
        fedzo.minimize(objective, np.ones(3), retries=2)


# --- bounds


def test_never_asked_outside_and_ends_on_the_bound():
    """min (x - 1.5)² over devices 0..3 with x <= 1.25, x[1] in (-1, 1), x[2] free."""
    seen = []

    def watched(x, device):
        seen.append(x)
        return distance(x, device)

    bounds = [(None, 1.25), (-1, 1), (None, None)]
    options = {**RUN, "rounds": 60, "bounds": bounds, "workers": 1}
    result = fedzo.minimize(watched, np.zeros(3), **options)
    np.testing.assert_allclose(result.x, [1.25, 1.0, 1.5], atol=0.01)
    seen = np.array(seen)
    assert (seen[:, :2] <= [1.25, 1]).all()
    assert (seen[:, 1] >= -1).all()
    assert result.fun == np.mean([distance(result.x, i) for i in range(4)])
    assert result.best.fun == np.mean([distance(result.best.x, i) for i in range(4)])


def test_wide_bounds_are_like_none():
    options = {**RUN, "rounds": 20}
    free = fedzo.minimize(distance, np.zeros(3), **options)
    wide = fedzo.minimize(distance, np.zeros(3), bounds=[(-1e5, 1e5)] * 3, **options)
    np.testing.assert_allclose(wide.x, free.x, rtol=1e-6)


def test_callback_model_and_resume_are_in_the_users_units(tmp_path):
    seen = []
    bounds = [(-0.5, 4)] * 3
    options = {**RUN, "bounds": bounds, "callback": lambda p: seen.append(p.x)}
    whole = fedzo.minimize(distance, np.zeros(3), **options)
    assert seen[0] == pytest.approx(np.zeros(3), abs=1e-12)
    assert np.array_equal(seen[-1], whole.x)
    options["run_dir"] = tmp_path
    fedzo.minimize(distance, np.zeros(3), **{**options, "rounds": 3})
    resumed = fedzo.minimize(distance, np.zeros(3), resume=True, **options)
    assert resumed.x.tobytes() == whole.x.tobytes()
    assert np.array_equal(np.load(tmp_path / "model.npy"), whole.x)
    other = {**options, "bounds": [(-0.5, None)] * 3}
    with pytest.raises(UsageError, match=r"problem.bounds = \[\[-0.5, 4.0\]"):
        fedzo.minimize(distance, np.zeros(3), resume=True, **other)


# --- failures


class Flaky:
    """Fails in a given way at every third call, so twice in a row at no point."""

    def __init__(self, failure, every=3):
        self.failure, self.every, self.calls = failure, every, 0

    def __call__(self, x, device):
        self.calls += 1
        if self.calls % self.every == 0:
            x[:] = np.nan  # it may have worked in place before it failed
            if isinstance(self.failure, Exception):
                raise self.failure
            return self.failure
        return distance(x, device)


FAILURES = [OSError("no line"), float("nan"), float("inf"), -np.inf]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_one_retry_and_nobody_notices(failure):
    flaky = Flaky(failure)
    clean = fedzo.minimize(distance, np.ones(3), **RUN)
    result = fedzo.minimize(flaky, np.ones(3), retries=1, workers=1, **RUN)
    assert result.x.tobytes() == clean.x.tobytes()
    assert flaky.calls == clean.nfev + flaky.calls // 3
    assert result.nfev == flaky.calls  # what was asked again is counted again


@pytest.mark.parametrize("failure", [OSError("no line"), KeyError("x")], ids=str)
def test_an_exception_is_the_callers(failure):
    flaky = Flaky(failure, every=1)
    with pytest.raises(type(failure)):
        fedzo.minimize(flaky, np.ones(3), retries=2, workers=1, **RUN)
    assert flaky.calls == 3


def test_a_value_that_stays_infinite_ends_the_run():
    result = fedzo.minimize(lambda x, i: np.inf, np.ones(3), retries=2, **RUN)
    assert result.status is Status.NON_FINITE
    assert result.message == "the loss is not finite in round 0 on device 0"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (OSError("no line"), "OSError: no line"),
        (float("nan"), "the function returned nan"),
        (float("inf"), "the function returned inf"),
    ],
)
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_device_that_fails_is_left_out_and_named(failure, reason, vectorized, tmp_path):
    def broken(x, device):
        if device == 2:
            if isinstance(failure, Exception):
                raise failure
            return np.full(len(x), failure) if vectorized else failure
        return distances(x, device) if vectorized else distance(x, device)

    options = {**RUN, "rounds": 2, "vectorized": vectorized, "run_dir": tmp_path}
    result = fedzo.minimize(broken, np.ones(3), retries=1, on_failure="leave_out", **options)
    assert result.success  # three of four are a quorum
    assert result.message.startswith("finished 2 rounds; device 2 was dropped")
    first, last = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    named = {"device": 2, "reason": reason}
    assert first["dropped"] == [{"round": 0, **named}]
    assert last["dropped"] == [{"round": t, **named} for t in (1, 2, 2)]
    assert last["participants"] == 3
    assert result.fun == pytest.approx(np.mean([distance(result.x, i) for i in (0, 1, 3)]))


@pytest.mark.parametrize("algorithm", [fedzo.ZOSGD(), fedzo.ZoneS(penalty=1.0)])
def test_an_only_device_that_fails_leaves_the_model(algorithm):
    """What a round asks of one device alone may go unanswered too; evaluations do not fail."""

    def at_start_only(x, device):
        if not np.array_equal(x, np.ones(3)):
            raise OSError("no line")
        return 0.0

    options = {**RUN, "algorithm": algorithm, "on_failure": "leave_out"}
    result = fedzo.minimize(at_start_only, np.ones(3), **options)
    assert (result.success, result.status) == (False, Status.STALLED)
    assert result.last.tolist() == [1, 1, 1]
    assert result.history[-1]["participants"] == 0


# --- budget


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("extra", [1, 5, A_ROUND])
def test_a_budget_is_spent_to_the_query(extra, vectorized, workers):
    asked = []

    def counted(x, device):
        asked.append(len(x) if vectorized else 1)
        return distances(x, device) if vectorized else distance(x, device)

    budget = 2 * 4 + 2 * A_ROUND + 4 + extra  # the start is evaluated twice
    options = {**RUN, "vectorized": vectorized, "workers": workers, "max_queries": budget}
    result = fedzo.minimize(counted, np.ones(3), **options)
    assert sum(asked) == budget == result.queries + result.evaluation_queries
    assert (result.status, result.nit) == (Status.STOPPED, 2 + (extra >= A_ROUND))
    assert result.message.startswith(f"the budget of {budget} queries is spent after round")


def test_retries_count_and_a_spent_budget_is_no_failure():
    objective = FunctionObjective(
        lambda x, i: np.nan, 3, 4, retries=10, on_failure="leave_out", max_queries=5
    )
    with pytest.raises(BudgetSpent):
        objective.losses(np.ones(3), np.array([0]))
    assert objective.meter.queries == 5


def test_a_larger_budget_goes_on(tmp_path):
    options = {**RUN, "run_dir": tmp_path}
    first = fedzo.minimize(distance, np.ones(3), max_queries=100, **options)
    assert first.nit < 6
    second = fedzo.minimize(distance, np.ones(3), max_queries=1000, resume=True, **options)
    whole = fedzo.minimize(distance, np.ones(3), **RUN)
    assert second.x.tobytes() == whole.x.tobytes()


# --- callbacks


def test_several_callbacks_all_are_called_any_stops_and_all_are_closed():
    class Watcher:
        def __init__(self, stop):
            self.stop, self.rounds, self.closed = stop, [], 0

        def __call__(self, progress):
            self.rounds.append(progress.round)
            return progress.round == self.stop

        def close(self):
            self.closed += 1

    one, two = Watcher(3), Watcher(9)
    result = fedzo.minimize(distance, np.ones(3), callback=[one, two], **RUN)
    assert (result.status, result.nit) == (Status.STOPPED, 3)
    assert one.rounds == two.rounds == [0, 1, 2, 3]
    assert (one.closed, two.closed) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        fedzo.minimize(lambda x, i: 1 / 0, np.ones(3), callback=one, **RUN)
    assert one.closed == 2
