"""Calls of a function side by side: the same run, to the query, with any workers."""

import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedzo
from fedzo.core.importing import call_user, failure_of
from fedzo.core.parallel import Calls, ProcessEnded, Trial
from fedzo.errors import Exit, UserCodeError
from raising import fails, rejects

START = np.zeros(6)


def waits(x, device=0):
    time.sleep(2e-3)
    return float(np.sum((x - 1 - device) ** 2 * np.arange(1, x.size + 1)))


def stops_at_one(x):
    if x[0] > 0.5:
        time.sleep(60)
    return waits(x)


def fails_at_one(x):
    if x[0] > 0.5:
        raise ArithmeticError("too large")
    return waits(x)


def exits(x):
    raise SystemExit(3)


class SilentError(Exception):
    def __str__(self):
        raise SystemExit(5)


class UnloadableError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


class UnsendableError(Exception):
    def __reduce__(self):
        raise SystemExit(4)


ODD = {
    "group": (BaseExceptionGroup("g", [SystemExit(1)]), UserCodeError),
    "stop": (StopIteration(3), UserCodeError),
    "exit": (SystemExit(0), UserCodeError),
    "generator": (GeneratorExit(), UserCodeError),
    "interrupt": (KeyboardInterrupt(), KeyboardInterrupt),
    "silent": (SilentError(), SilentError),
    "unloadable": (UnloadableError(1, 2), UserCodeError),
    "unsendable": (UnsendableError(), UserCodeError),
    "memory": (MemoryError("no room"), MemoryError),
    "value": (ValueError("no"), ValueError),
}


def raises(name):
    if name == "crash":
        os._exit(0)
    if name in ODD:
        raise ODD[name][0]
    return {"lambda": lambda: 1}.get(name, name)


@pytest.mark.slow
def test_whatever_a_process_raises_or_returns_is_an_error_of_the_user_here():
    """And the process stays, except after a crash, of which the next call notices nothing."""
    calls = Calls(partial(call_user, raises), workers=1, processes=True)
    codes = {MemoryError: Exit.NO_SPACE, KeyboardInterrupt: Exit.INTERRUPTED}
    for name, (_, kind) in [
        *ODD.items(),
        ("lambda", (0, UserCodeError)),
        ("crash", (0, ProcessEnded)),
    ]:
        with pytest.raises(kind) as caught:
            calls(name)
        assert failure_of(caught.value).code == codes.get(kind, Exit.OWN_CODE), name
        assert calls("a value") == "a value"
    calls.close()


@pytest.mark.slow
def test_a_closed_terminal_is_left_to_the_parent_of_a_process():
    """The parent hears it, too, and saves its state: no call may fail before that."""
    calls = Calls(os.getpid, workers=1, processes=True)
    process = calls()
    for name in ("SIGINT", "SIGHUP"):
        os.kill(process, signal.Signals[name])
        time.sleep(0.2)
        assert calls() == process
    calls.close()


def run(fun=waits, **more):
    return fedzo.minimize(fun, START, **{"max_queries": 150, **more})


def same(one, two):
    assert one.x.tobytes() == two.x.tobytes()
    assert (one.fun, one.queries, one.evaluation_queries, one.message) == (
        (two.fun, two.queries, two.evaluation_queries, two.message)
    )


@pytest.mark.parametrize("devices", [None, 3])
@pytest.mark.parametrize("max_queries", [40, 41, 150])
@pytest.mark.parametrize("method", ["adaptive", "cma", "fedzo"])
def test_the_same_run_with_any_workers(devices, max_queries, method):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return waits(*arguments)

    how = {"devices": devices, "max_queries": max_queries, "method": method}
    one = run(counted, workers=1, **how)
    assert len(calls) == one.nfev <= max_queries
    calls.clear()
    same(one, run(counted, workers=5, **how))
    assert len(calls) == one.nfev


@pytest.mark.slow
def test_processes_give_the_same_run_and_are_ended():
    one = run()
    same(one, run(workers=("processes", 2)))
    same(one, run(workers="processes", timeout=30.0))
    assert not multiprocessing.active_children()


def test_points_of_one_device_are_evaluated_at_the_same_time():
    most, now, lock = 0, 0, threading.Lock()

    def watched(x):
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.01)
        with lock:
            now -= 1
        return waits(x)

    run(watched, workers=4)
    assert 2 <= most <= 4
    most = 0
    run(watched)
    assert most == 1  # a function that expects no threads meets none


def test_a_resumed_run_calls_for_what_is_not_known(tmp_path):
    calls, whole = [], run()

    def counted(x):
        calls.append(x.tobytes())
        if len(calls) == stop:
            raise KeyboardInterrupt
        return waits(x)

    stop = 60
    run(counted, workers=1, run_dir=tmp_path)
    stop = -1
    again = run(counted, workers=4, run_dir=tmp_path, resume=True)
    assert (again.x.tobytes(), again.nfev) == (whole.x.tobytes(), whole.nfev)
    assert len(calls) == whole.nfev + 1  # the call that was interrupted


@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_failure_in_order_decides(workers):
    """Many points fail, each with its own words."""

    def fun(x):
        waits(x)
        if x[0] > 0.5:
            raise ArithmeticError(repr(x.tolist()))
        return waits(x)

    with pytest.raises(ArithmeticError) as first:
        run(fun, workers=1)
    with pytest.raises(ArithmeticError) as other:
        run(fun, workers=workers)
    assert str(first.value) == str(other.value)


@pytest.mark.parametrize("workers", [1, 4])
def test_retries_ask_for_the_same_point_again(workers):
    tried = set()

    def flaky(x):
        time.sleep(1e-3)
        if x.tobytes() not in tried:
            tried.add(x.tobytes())
            raise ConnectionError
        return waits(x)

    one = run(flaky, workers=workers, retries=1, max_queries=None, tol=0.1)
    np.testing.assert_allclose(one.x, 1, atol=0.3)
    assert one.nfev > len(tried)


@pytest.mark.slow
def test_a_call_that_takes_too_long_is_ended():
    began = time.perf_counter()
    with pytest.raises(TimeoutError):
        run(stops_at_one, workers=("processes", 2), timeout=0.5)
    assert time.perf_counter() - began < 30
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_exceptions_of_a_process_are_raised_here():
    with pytest.raises(ArithmeticError, match="too large"):
        run(fails_at_one, workers=("processes", 2))
    with pytest.raises(fedzo.errors.FedzoError):
        run(exits, workers=("processes", 1))
    calls = Calls(time.sleep, workers=1, processes=True, timeout=0.3)
    with pytest.raises(TimeoutError):
        calls(60)
    assert calls(0) is None  # another process has taken its place
    calls.close()


def test_a_timeout_needs_processes():
    with rejects("timeout"):
        run(timeout=1.0)
    with rejects("timeout"):
        run(timeout=-1.0, workers="processes")
    with rejects("workers"):
        run(workers="threads")
    with rejects("workers"):
        run(workers=("processes", 0))
    with fails("not-picklable"):
        run(lambda x: 0.0, workers="processes")


@given(
    workers=st.integers(1, 8),
    items=st.lists(st.tuples(st.integers(1, 20), st.floats(0.01, 100.0)), max_size=30),
)
def test_threads_are_chosen_if_they_were_quicker(workers, items):
    """No item is timed again after the decision, which needs both ways."""
    trial, alone, both = Trial(workers, least=0.1), [], []
    for count, seconds in items:
        if trial.pays is not None:
            assert trial.beside == trial.pays
        elif trial.beside:
            assert len(alone) >= 2
            both += [seconds / count] * count
        else:
            assert len(alone) < 2
            alone += [seconds / count] * count
        trial.note(trial.beside, count, seconds)
    if workers == 1 or (len(alone) > 1 and min(alone) < 0.1):
        assert trial.pays is False
    elif len(both) < 2 * workers:
        assert trial.pays is None
    else:
        assert trial.pays == (sum(both) / len(both) < 0.9 * min(alone))
