"""Who computes: order, how far ahead, errors and BLAS threads of the local federation."""

import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from fedzo.core.capabilities import HasGradient, HasSizes, WritesFiles
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import Replies, Task, Update
from fedzo.problems import FunctionObjective, Quadratic, softmax
from raising import rejects

ANSWER = 10.0  # seconds; only a test that fails waits so long


@dataclass(frozen=True, eq=False)
class Doing(Task):
    """A task whose reply is any function's."""

    work: Any

    def reply(self, objective, device):
        return self.work(objective, device)


def federation(workers, devices=40):
    return LocalEngine(FunctionObjective(lambda x, i: float(i), 1, devices), 0, workers)


def update(device):
    return Update(device, np.array([float(device)]), 1, 2)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_replies_come_in_the_order_asked_for(workers):
    """Though the odd devices wait until a later even one is done."""
    done = [threading.Event() for _ in range(40)]

    def work(_objective, device):
        if workers > 1 and device % 2 and device + 1 < 40:
            assert done[device + 1].wait(ANSWER)
        done[device].set()
        return update(device)

    with federation(workers) as local:
        replies = local.ask(Doing(work, devices=range(40)))
        assert [reply.device for reply in replies] == list(range(40))
    assert (replies.count, replies.queries) == (40, 80)


@pytest.mark.parametrize("workers", [1, 3])
def test_work_gets_the_objective_and_whole_numbers(workers):
    seen = []

    def work(objective, device):
        seen.append((objective, device, type(device)))
        return update(device)

    with federation(workers) as local:
        list(local.ask(Doing(work, devices=np.array([3, 7, 5]))))
        assert sorted(d for _, d, _ in seen) == [3, 5, 7]
        assert {(o, kind) for o, _, kind in seen} == {(local.objective, int)}


@pytest.mark.parametrize("workers", [2, 4])
def test_looks_ahead_by_two_a_worker_and_one(workers):
    """However quick the workers are, no more is begun than will soon be taken."""
    begun = set()

    def work(_objective, device):
        begun.add(device)
        return update(device)

    with federation(workers) as local:
        for read, _ in enumerate(local.ask(Doing(work, devices=range(40))), start=1):
            assert len(begun) <= min(40, read + 2 * workers)
    assert begun == set(range(40))


def test_one_worker_does_nothing_ahead():
    begun = []

    def work(_objective, device):
        begun.append((device, threading.current_thread()))
        return update(device)

    with federation(1) as local:
        for read, _ in enumerate(local.ask(Doing(work, devices=range(5))), start=1):
            assert len(begun) == read
    assert {thread for _, thread in begun} == {threading.current_thread()}


def test_workers_work_at_the_same_time():
    together = threading.Barrier(4)

    def work(_objective, device):
        together.wait(ANSWER)
        return update(device)

    with federation(4) as local:
        assert len(list(local.ask(Doing(work, devices=range(8))))) == 8


def test_an_error_reaches_the_caller_and_cancels_the_rest():
    begun, release = [], threading.Event()

    def work(_objective, device):
        begun.append(device)
        if device == 3:
            raise ZeroDivisionError
        if device > 3:
            assert release.wait(ANSWER)
        return update(device)

    with federation(2) as local:
        replies = local.ask(Doing(work, devices=range(40)))
        assert [next(replies).device for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ZeroDivisionError):
            next(replies)
        release.set()
        assert (
            list(local.ask(Doing(work, devices=[0]))) != []
        )  # has waited for all that was still to be done
    # Both workers were held in a device each; all that waited behind them was called off.
    assert set(begun) <= {0, 1, 2, 3, 4, 5}
    assert list(replies) == []


def test_a_stream_that_nobody_reads_on_is_called_off():
    begun, release = [], threading.Event()

    def work(_objective, device):
        begun.append(device)
        if device > 0:
            assert release.wait(ANSWER)
        return update(device)

    with federation(2) as local:
        replies = local.ask(Doing(work, devices=range(40)))
        next(replies)
        del replies
        release.set()
        assert list(local.ask(Doing(work, devices=[0]))) != []
    assert set(begun) <= {0, 1, 2}


def test_federation_goes_on_after_an_error():
    def work(_objective, device):
        if device == 1:
            raise ValueError
        return update(device)

    with federation(2) as local:
        with pytest.raises(ValueError):  # noqa: PT011 - the very one
            list(local.ask(Doing(work, devices=range(5))))
        assert [r.device for r in local.ask(Doing(work, devices=[0, 2, 3]))] == [0, 2, 3]


def blas_threads():
    counts = [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]
    assert counts
    return counts


@pytest.mark.parametrize("workers", [1, 2])
def test_blas_has_one_thread_inside_and_what_it_had_after(workers):
    def work(_objective, device):
        return Update(device, np.array(blas_threads()), 1, 0)

    local = federation(workers)
    with threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        assert set(before) == {3}
        for _ in range(2):  # it may be opened again
            with local:
                assert {n for r in local.ask(Doing(work, devices=range(6))) for n in r.delta} == {1}
            assert blas_threads() == before
        with pytest.raises(KeyError), local:
            raise KeyError
        assert blas_threads() == before


def test_threads_are_gone_after():
    before = set(threading.enumerate())
    with federation(3) as local:
        list(local.ask(Doing(lambda _, i: update(i), devices=range(9))))
        assert len(set(threading.enumerate()) - before) == 3
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_numpy_does_not_warn_of_what_the_loop_will_catch(workers):
    def overflow(_objective, device):
        with np.errstate(divide="ignore"):
            return Update(device, np.array([1e308]) * 10 - np.inf, 1, 0)  # inf - inf

    with federation(workers) as local:
        assert all(
            np.isnan(reply.delta[0]) for reply in local.ask(Doing(overflow, devices=range(3)))
        )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        overflow(None, 0)
    assert {str(w.message).split()[0] for w in told} == {"overflow", "invalid"}


@pytest.mark.parametrize("devices", [1, 7, 64, 65, 200])
def test_losses_are_of_all_devices_in_order(devices):
    for workers in (1, 3):
        with federation(workers, devices) as local:
            assert np.array_equal(local.losses(np.zeros(1)), np.arange(devices))
            assert local.evaluation_cost == devices


@pytest.mark.parametrize("problem", [Quadratic(dim=9, devices=70), softmax(devices=10)])
def test_losses_have_the_same_bits_with_any_number_of_workers(problem):
    x = np.linspace(-1, 1, problem.dim, dtype=problem.initial().dtype)
    bits = set()
    for workers in (1, 2, 4):
        with LocalEngine(problem, 0, workers) as local:
            losses = local.losses(x)
            bits.add(losses.tobytes())
    assert len(bits) == 1
    each = [problem.losses(x, np.array([i]))[0] for i in range(problem.devices)]
    np.testing.assert_allclose(losses, each, rtol=1e-6)


def test_tells_what_the_problem_tells():
    local = LocalEngine(softmax(devices=10), seed=4)
    assert (local.dim, local.devices, local.seed) == (7850, 10, 4)
    assert local.provides(HasSizes)
    assert local.provides(HasGradient)
    assert not local.provides(WritesFiles)
    assert local.evaluation_cost == 4000
    assert local.workers >= 1
    assert not federation(1).provides(HasSizes)


def test_impossible_workers():
    with rejects("workers"):
        federation(0)


def test_replies_count_what_goes_by():
    replies = Replies(update(i) for i in range(3))
    assert (replies.count, replies.queries) == (0, 0)
    next(replies)
    assert (replies.count, replies.queries) == (1, 2)
    assert [r.device for r in replies] == [1, 2]
    assert (replies.count, replies.queries) == (3, 6)
