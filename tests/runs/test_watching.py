"""Callbacks see every round, may stop a run, and cannot change it."""

import itertools
import threading

import numpy as np
import pytest
from running import SMALL, assert_same_files, distance

from fedzo import Status, minimize
from fedzo.runs import RunFolder


def test_callback_sees_every_round(problems):
    seen = []
    result = minimize(
        problems["quadratic"], algorithm=SMALL, rounds=7, evaluate_every=3, callback=seen.append
    )
    assert [p.round for p in seen] == list(range(8))
    assert {p.rounds for p in seen} == {7}
    assert [p.queries for p in seen] == [t * 5 * 2 * 3 * 5 for t in range(8)]
    assert np.array_equal(seen[0].x, np.zeros(12))
    assert np.array_equal(seen[7].x, result.last)
    assert len({p.x.tobytes() for p in seen}) == 8
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))
    # The last round is evaluated though off the schedule, before the callback sees it.
    evaluated = {p.round: p.record for p in seen if p.record is not None}
    assert list(evaluated) == [0, 3, 6, 7]
    assert list(evaluated.values()) == result.history


@pytest.mark.parametrize("stop", [0, 5, 6])
def test_callback_stops_a_run(stop, tmp_path):
    def run(folder, callback=None, resume=False):
        return minimize(
            distance,
            np.zeros(3),
            devices=4,
            rounds=6,
            evaluate_every=3,
            checkpoint_every=4,
            callback=callback,
            run_dir=tmp_path / folder,
            resume=resume,
        )

    result = run("stopped", lambda progress: progress.round == stop)
    assert (result.status, result.success) == (Status.STOPPED, True)
    assert (result.nit, result.message) == (stop, f"stopped by the callback after round {stop}")
    assert result.history[-1]["round"] == stop
    assert result.fun == np.mean([distance(result.x, i) for i in range(4)])
    assert RunFolder(tmp_path / "stopped").load().at.round == stop
    run("at-once")
    run("stopped", resume=True)
    assert_same_files(tmp_path / "at-once", tmp_path / "stopped")


def test_callback_goes_on_unless_it_says_stop():
    for answer in (None, False, 0):
        result = minimize(
            distance, np.zeros(3), devices=4, rounds=8, callback=lambda _, a=answer: a
        )
        assert result.status == Status.FINISHED


@pytest.mark.parametrize("workers", [1, 3])
def test_callback_may_raise(workers, tmp_path):
    class EnoughError(Exception):
        pass

    def callback(progress):
        if progress.round == 5:
            raise EnoughError("round 5")

    before = threading.active_count()
    with pytest.raises(EnoughError):
        minimize(
            distance,
            np.zeros(3),
            devices=4,
            rounds=9,
            workers=workers,
            checkpoint_every=2,
            callback=callback,
            run_dir=tmp_path,
        )
    assert threading.active_count() == before  # the workers have gone
    assert RunFolder(tmp_path).load().at.round == 4


def test_what_a_callback_does_to_x_stays_with_it():
    def meddle(progress):
        progress.x[:] = 1e6

    def run(callback):
        return minimize(distance, np.zeros(3), devices=4, rounds=3, callback=callback)

    assert run(meddle).last.tobytes() == run(None).last.tobytes()


def test_interrupt_is_a_result_with_a_checkpoint(tmp_path):
    def callback(progress):
        if progress.round == 5:
            raise KeyboardInterrupt

    def run(folder, callback=None, resume=False):
        return minimize(
            distance,
            np.zeros(3),
            devices=4,
            rounds=9,
            callback=callback,
            run_dir=tmp_path / folder,
            resume=resume,
        )

    result = run("stopped", callback)
    assert (result.status, result.success) == (Status.INTERRUPTED, False)
    assert (result.message, result.nit) == ("interrupted after round 5", 5)
    assert RunFolder(tmp_path / "stopped").load().at.round == 5
    run("stopped", resume=True)
    run("at-once")
    assert_same_files(tmp_path / "at-once", tmp_path / "stopped")


@pytest.mark.parametrize("workers", [1, 2])
def test_error_in_a_function_reaches_the_caller(workers):
    def broken(x, device):
        if device == 2 and np.any(x != 0):
            raise ZeroDivisionError("device 2")
        return 0.0

    with pytest.raises(ZeroDivisionError):
        minimize(broken, np.zeros(3), devices=4, rounds=2, workers=workers)
