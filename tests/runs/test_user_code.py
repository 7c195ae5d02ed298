"""Exceptions in the user's code have the same outcome with any number of workers."""

import asyncio
import signal
import sys
import threading

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.errors import (
    BudgetSpent,
    Exit,
    FedzoError,
    Halted,
    NoAnswer,
    UsageError,
    UserCodeError,
)
from fedzo.models import FunctionModel
from fedzo.runs.result import Status


class Odd(BaseException):
    """What no library expects."""


EXCEPTIONS = {
    "stop-iteration": (StopIteration, UserCodeError),
    "stop-async-iteration": (StopAsyncIteration, UserCodeError),
    "generator-exit": (GeneratorExit, UserCodeError),
    "system-exit": (lambda: SystemExit(0), UserCodeError),
    "cancelled": (asyncio.CancelledError, UserCodeError),
    "odd": (Odd, UserCodeError),
    "usage": (lambda: UsageError("no"), UserCodeError),
    "recursion": (RecursionError, RecursionError),
    "memory": (MemoryError, MemoryError),
    "warning": (lambda: UserWarning("late"), UserWarning),
    "value": (lambda: ValueError("no"), ValueError),
    "key": (lambda: KeyError("rate"), KeyError),
    "broken-pipe": (BrokenPipeError, BrokenPipeError),
    "keyboard": (KeyboardInterrupt, Status.INTERRUPTED),
    "halted": (lambda: Halted("no more"), Status.HALTED),
    "spent": (lambda: BudgetSpent("enough"), Status.STOPPED),
    "no-answer": (lambda: NoAnswer("gone"), Status.FINISHED),
}
FEDZO = fedzo.FedZO(learning_rate=0.05, directions=2, local_steps=2)


class Bowl(fedzo.Objective):
    """A custom problem that calls ``late`` in one of its methods."""

    dim, devices = 2, 6

    def __init__(self, where, late):
        self.where, self.late = where, late

    def _at(self, where):
        if where == self.where:
            self.late()

    def batch(self, device, size, draws):
        self._at("batch")
        return device

    def values(self, points, batch):
        self._at("values")
        return np.sum((points - batch) ** 2, axis=1, keepdims=True)

    def losses(self, x, devices):
        self._at("losses")
        return np.array([np.sum((x - i) ** 2) for i in devices])

    def metrics(self, x):
        self._at("metrics")
        return {}


class Late:
    """Raises an exception at its k-th call, on whatever thread that is."""

    def __init__(self, make, k):
        self.make, self.left, self.lock = make, k, threading.Lock()

    def __call__(self, *_):
        with self.lock:
            self.left -= 1
            if not self.left:
                raise self.make()


def outcome(run):
    try:
        result = run()
    except BaseException as error:
        return type(error), type(error.__cause__)
    return result.status, result.nit


@pytest.mark.parametrize("name", EXCEPTIONS)
@pytest.mark.parametrize("where", ["function", "device", "values", "losses", "metrics", "callback"])
def test_same_outcome_with_any_number_of_workers(name, where):
    make, wanted = EXCEPTIONS[name]

    def run(workers):
        if where == "callback":
            return fedzo.minimize(
                Bowl("", None), algorithm=FEDZO, rounds=4, workers=workers, callback=Late(make, 3)
            )
        if where == "device":  # one device, always

            def fails(x, device):
                if device == 3:
                    raise make()
                return float(np.sum((x - device) ** 2))

            return fedzo.minimize(
                fails, [0.0, 0.0], devices=6, algorithm=FEDZO, rounds=4, workers=workers
            )
        late = Late(make, 20 if where in ("function", "values") else 2)
        if where == "function":

            def fun(x, device):
                late()
                return float(np.sum((x - device) ** 2))

            return fedzo.minimize(
                fun, [0.0, 0.0], devices=6, algorithm=FEDZO, rounds=4, workers=workers
            )
        return fedzo.minimize(Bowl(where, late), algorithm=FEDZO, rounds=4, workers=workers)

    found = [outcome(lambda w=workers: run(w)) for workers in (1, 2, 8)]
    if name == "no-answer" and where in ("metrics", "callback"):
        wanted = NoAnswer  # not the work of a device
    if name == "spent" and where in ("device", "function", "losses", "metrics"):
        wanted = Status.STALLED  # before the end of the first round
    if name == "usage" and where in ("values", "losses", "metrics"):
        wanted = Halted  # fedzo raises it, too, about what these methods return
    assert all(one[0] == wanted for one in found), found
    assert found[0] == found[1] == found[2]


def every_kind(base):
    return [base, *(kind for one in base.__subclasses__() for kind in every_kind(one))]


ARGUMENTS = {
    "InvalidValue": ("a", 1, "b"),
    "CannotWrite": ("a", OSError(28, "full")),
    "MissingExtra": ("a", "b"),
    "ModelError": ("a", "b"),
    "NonFinite": ("the loss", 3),
}


@pytest.mark.parametrize("where", ["to_user", "write_files", "load_best", "close", "metrics"])
def test_what_fails_after_the_first_query_does_not_say_that_nothing_was_run(where, tmp_path):
    """Of all exceptions of fedzo, raised where a problem is called last."""

    class Last(Bowl):
        def to_user(self, x):
            self._at("to_user")
            return x.copy()

        def write_files(self, folder, best):
            self._at("write_files")

        def load_best(self, best):
            self._at("load_best")

        def close(self):
            self._at("close")

    kinds = [kind for kind in every_kind(FedzoError) if kind.__module__ == "fedzo.errors"]
    assert len(kinds) > 10
    for kind in kinds:

        def late(kind=kind):
            raise kind(*ARGUMENTS.get(kind.__name__, ("mine",)))

        folder = tmp_path / kind.__name__
        problem = Last(where, late)
        try:
            result = fedzo.minimize(problem, algorithm=FEDZO, rounds=1, run_dir=folder)
            code = Exit.DONE if result.success else Exit.NO_SUCCESS
        except FedzoError as error:
            code = error.exit
        assert code not in (Exit.DONE, Exit.NOTHING_RUN), kind


@pytest.mark.parametrize("make", [StopIteration, GeneratorExit, SystemExit, StopAsyncIteration])
@pytest.mark.parametrize("call", [1, 40])
def test_a_constraint_is_code_of_the_user_too(make, call):
    """At its first call, before the run, and within the generators of a search."""
    for workers in (1, 4):
        late = Late(make, call)
        limit = {"type": "ineq", "fun": lambda x, late=late: [late(), x[0]][1]}
        with pytest.raises(UserCodeError) as told:
            fedzo.minimize(lambda x: float(x @ x), np.ones(2), constraints=limit, workers=workers)
        assert type(told.value.__cause__) is make


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_a_model_that_raises_leaves_no_device_waiting(name):
    make, wanted = EXCEPTIONS[name]
    weights = np.random.default_rng(0).normal(size=(5, 3))
    late = Late(make, 7)

    def scores(batch):
        late()
        return batch.reshape(-1, 5) @ weights

    model = FunctionModel(scores, input_shape=(5,), retries=0)
    attack = fedzo.UniversalAttack(model, eps=0.1, rounds=5)
    parts = np.random.default_rng(1).uniform(0.2, 0.8, (4, 6, 5))
    found = []

    def fit():
        try:
            found.append(attack.fit(list(parts), 1).result.status)
        except BaseException as error:
            found.append(type(error))

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert wanted in (found[0], Status.FINISHED)


def leaves(x, device):
    sys.exit("no licence")


@pytest.mark.parametrize("options", [{"retries": 1}, {"on_failure": "leave_out"}])
@pytest.mark.parametrize("workers", [1, 2, "processes"])
def test_an_exit_in_the_function_is_no_failed_value(workers, options, tmp_path):
    """Neither requested again nor dropped, and a resume does not take it for a value."""
    for resume in (False, True):
        with pytest.raises(UserCodeError, match="SystemExit: no licence"):
            fedzo.minimize(
                leaves, [0.0, 1.0], devices=2, rounds=3, workers=workers, **options,
                run_dir=tmp_path / "run", resume=resume,
            )  # fmt: skip


def test_an_exit_in_a_training_is_no_failed_score():
    def score(params, device, rng):
        sys.exit("no licence")

    space = {"x": fedzo.Float(0.0, 1.0)}
    with pytest.raises(UserCodeError, match="SystemExit: no licence"):
        fedzo.tune(score, space, devices=2, max_queries=20, on_failure="leave_out")


@pytest.mark.parametrize("part", ["uplink", "server", "algorithm"])
@pytest.mark.parametrize("make", [StopIteration, GeneratorExit, SystemExit, Odd])
def test_custom_parts_of_the_server(part, make):
    class Uplink(fedzo.Ideal):
        def aggregate(self, t, updates, setting):
            raise make()

    class Server(fedzo.server.Mean):
        def apply(self, t, state, x, delta):
            raise make()

    class Algorithm(fedzo.FedZO):
        def local(self, *_):
            raise make()

    kinds = {"uplink": {"uplink": Uplink()}, "server": {}, "algorithm": {}}
    algorithm = Algorithm() if part == "algorithm" else fedzo.FedZO()
    if part == "server":
        algorithm = fedzo.FedZO(server=Server())
    with pytest.raises(UserCodeError) as caught:
        fedzo.minimize(Bowl("", None), algorithm=algorithm, rounds=3, **kinds[part])
    cause = caught.value.__cause__
    assert make in (type(cause), type(cause.__cause__))


def test_a_signal_is_an_interrupt_that_can_be_resumed(tmp_path):
    calls = []

    def fun(x, device):
        calls.append(device)
        if len(calls) == 50:
            signal.raise_signal(signal.SIGINT)
        return float(np.sum((x - device) ** 2))

    keywords = {"devices": 3, "algorithm": FEDZO, "rounds": 6, "workers": 1}
    first = fedzo.minimize(fun, [0.0, 0.0], run_dir=tmp_path / "a", **keywords)
    assert first.status == Status.INTERRUPTED
    resumed = fedzo.minimize(fun, [0.0, 0.0], run_dir=tmp_path / "a", resume=True, **keywords)
    assert resumed.status == Status.FINISHED


OWN = """
import sys, asyncio
import numpy as np
import fedzo
class Odd(BaseException): pass
class Problem(fedzo.Objective):
    dim, devices = 2, 4
    def __init__(self, name="exit"):
        self.name, self.calls = name, 0
    def batch(self, device, size, draws):
        return device
    def values(self, points, batch):
        self.calls += 1
        if self.calls == 9:
            if self.name == "exit": sys.exit(0)
            raise {"stop": StopIteration, "generator": GeneratorExit, "odd": Odd,
                   "cancelled": asyncio.CancelledError}[self.name]
        return np.sum(points ** 2, axis=1, keepdims=True)
    def losses(self, x, devices):
        return np.full(len(devices), np.sum(x ** 2))
"""


@pytest.mark.parametrize("name", ["exit", "stop", "generator", "odd", "cancelled"])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_command_line_says_it_in_one_line(name, workers, tmp_path, monkeypatch, capsys):
    module = f"own_code_{name}_{workers}"
    (tmp_path / f"{module}.py").write_text(OWN.replace('name="exit"', f'name="{name}"'))
    config = tmp_path / "own.toml"
    run = f"[run]\nrounds = 3\nworkers = {workers}\n"
    config.write_text(f'[problem]\nname = "{module}:Problem"\n{run}')
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(config), "--out", str(tmp_path / "out"), "--quiet"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
