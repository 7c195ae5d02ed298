"""Tasks: pure replies, an address for every device and task, the same after a journey."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from driving import steps_of
from fedzo import DZOPA, FedZO, Seeds, ZoneS
from fedzo.core.engine import LocalEngine, ReplayEngine, drive
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Evaluate, Replies, Slopes, Update
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.uplinks.base import RunSetting

PROBLEM = Quadratic(dim=6, devices=5)
ALGORITHM = FedZO(directions=3, local_steps=2, batch_size=2)
X = np.linspace(-1, 1, 6)


def same(one, two):
    assert one.delta.tobytes() == two.delta.tobytes()
    assert (one.device, one.weight, one.queries) == (two.device, two.weight, two.queries)


def test_it_is_the_algorithms_local_at_the_devices_address():
    task = steps_of(ALGORITHM, X, round=4, seed=9)
    at = Draws(9, Stream.DIRECTIONS, 4, 2)
    assert task.draws(2) == at
    same(task.reply(PROBLEM, 2), ALGORITHM.local(PROBLEM, 2, task, at))


def test_it_is_pure():
    task = steps_of(ALGORITHM, X.copy(), round=4, seed=9)
    first = task.reply(PROBLEM, 1)
    task.reply(PROBLEM, 3)
    same(task.reply(PROBLEM, 1), first)
    assert np.array_equal(task.x, X)


@pytest.mark.parametrize("other", [{"round": 5}, {"seed": 8}, {"index": 1}], ids=str)
def test_another_address_is_another_update(other):
    task = steps_of(ALGORITHM, X, **{"round": 4, "seed": 9})
    elsewhere = steps_of(ALGORITHM, X, **({"round": 4, "seed": 9} | other))
    assert not np.array_equal(task.reply(PROBLEM, 1).delta, elsewhere.reply(PROBLEM, 1).delta)


@pytest.mark.parametrize("algorithm", [ALGORITHM, DZOPA(directions=3), ZoneS(directions=3)])
def test_it_travels(algorithm):
    task = steps_of(algorithm, X, round=1, seed=2)
    same(pickle.loads(pickle.dumps(task)).reply(PROBLEM, 3), task.reply(PROBLEM, 3))


def test_rows_are_the_devices_own_models():
    rows = np.arange(18.0).reshape(3, 6)
    task = steps_of(ALGORITHM, rows, round=0, seed=1, devices=(4, 0, 2))
    for device, row in ((4, 0), (0, 1), (2, 2)):
        same(
            task.reply(PROBLEM, device), steps_of(ALGORITHM, rows[row], 0, 1).reply(PROBLEM, device)
        )
    with pytest.raises(ValueError, match="not in tuple"):
        task.reply(PROBLEM, 3)


def test_only_what_devices_need_is_sent():
    rows = np.arange(18.0).reshape(3, 6)
    task = steps_of(ALGORITHM, rows, round=0, seed=1, devices=(4, 0, 2))
    part = task.only([2, 4])
    assert part.devices == (2, 4)
    assert np.array_equal(part.x, rows[[2, 0]])
    for device in (2, 4):
        same(part.reply(PROBLEM, device), task.reply(PROBLEM, device))
    shared = steps_of(ALGORITHM, X, round=0, seed=1, devices=(0, 2))
    assert shared.only([2]).x is shared.x


def test_further_rows_go_to_their_devices():
    controls = np.arange(12.0).reshape(2, 6)
    task = steps_of(ALGORITHM, X, devices=(1, 3))
    task = replace(task, rows={"control": controls})
    assert np.array_equal(task.row("control", 3), controls[1])
    assert np.array_equal(task.only([3]).row("control", 3), controls[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shared", [False, True])
def test_coefficients_rebuild_the_update_to_the_bit(dtype, shared):
    algorithm = FedZO(directions=3, local_steps=4, batch_size=2, shared_directions=shared)
    task = steps_of(algorithm, X.astype(dtype), round=7, seed=3)
    for device in (0, 3):
        update = task.reply(PROBLEM, device)
        assert update.coefficients.shape == (4, 3)
        assert task.rebuild(update).tobytes() == update.delta.tobytes()


def test_the_rate_of_a_task_is_that_of_its_steps():
    one, two = (replace(steps_of(ALGORITHM, X), learning_rate=rate) for rate in (1e-9, 2e-9))
    np.testing.assert_allclose(
        2 * one.reply(PROBLEM, 0).coefficients, two.reply(PROBLEM, 0).coefficients, rtol=1e-6
    )


def test_values_of_all_devices_average_to_the_loss():
    problem = Quadratic(dim=6, devices=5, gradient_noise=0.0)
    points = np.stack([X, 2 * X])
    values = [Evaluate(points, devices=range(5)).reply(problem, i).values for i in range(5)]
    everyone = np.arange(5)
    wanted = [problem.losses(x, everyone).mean() for x in points]
    np.testing.assert_allclose(np.mean(values, axis=0), wanted, rtol=1e-12)


def test_values_have_the_precision_of_their_type():
    class Single(Quadratic):
        def values(self, points, batch):
            return super().values(points, batch).astype(np.float32)

    task = Evaluate(X[None])
    assert task.reply(Single(dim=6, devices=5), 0).eps == np.finfo(np.float32).eps
    assert task.reply(PROBLEM, 0).eps == np.finfo(np.float64).eps


def test_replies_count_devices_and_queries():
    updates = [Update(0, X, 1, 5), Update(3, X, 1, 7, contributors=4)]
    replies = Replies(updates, Evaluate(X[None]))
    assert list(replies) == updates
    assert (replies.count, replies.queries) == (5, 12)


def asking(*tasks):
    """A run that yields tasks and returns what it was sent."""
    answers = []
    for task in tasks:
        try:
            answers.append((yield task))
        except KeyError as error:
            answers.append(error)
    return answers


class Answering:
    """An engine whose answers are numbers, and whose odd tasks fail."""

    def ask(self, task):
        if task % 2:
            raise KeyError(task)
        return 10 * task


def test_a_run_is_sent_the_answers_and_raised_the_errors():
    first, error, last = drive(asking(2, 3, 4), Answering())
    assert (first, last) == (20, 40)
    assert isinstance(error, KeyError)


def test_what_a_run_does_not_catch_ends_it():
    def careless():
        yield 1

    with pytest.raises(KeyError):
        drive(careless(), Answering())


def test_a_stream_that_is_not_read_is_closed_before_the_next_task():
    closed = []

    def updates():
        try:
            yield Update(0, X, 1, 1)
            yield Update(1, X, 1, 1)
        finally:
            closed.append(True)

    class Streaming:
        def ask(self, task):
            assert len(closed) == task
            return Replies(updates())

    def reading_one():
        for number in range(2):
            replies = yield number
            next(replies)
        return "done"

    assert drive(reading_one(), Streaming()) == "done"
    assert len(closed) == 2


def test_a_log_is_replayed_to_the_same_round():
    uplink, x0 = Seeds(), np.zeros(6)
    algorithm = FedZO(directions=3, local_steps=2, batch_size=2, participants=3)
    with LocalEngine(PROBLEM, seed=4) as engine:
        setting = RunSetting(engine, uplink)
        state, log = algorithm.init(x0, setting), []
        for t in range(3):
            run = algorithm.round(t, state, setting)
            updates = list(engine.ask(next(run)))
            log.append([u._replace(delta=np.empty(0)) for u in updates])
            try:
                run.send(Replies(updates, steps_of(algorithm, state.x, t, 4)))
            except StopIteration as end:
                state, _ = end.value
    engine = ReplayEngine(4, 6, 5, log)
    again = algorithm.init(x0, RunSetting(engine, uplink))
    for t in range(3):
        again, _ = drive(algorithm.round(t, again, RunSetting(engine, uplink)), engine)
    assert again.x.tobytes() == state.x.tobytes()


@pytest.mark.parametrize("central", [False, True])
def test_slopes_ask_for_points_in_blocks(central, monkeypatch):
    monkeypatch.setattr("fedzo.core.tasks.LEAST_POINTS", 4)
    monkeypatch.setattr("fedzo.core.tasks.NUMBERS_AT_ONCE", 40)
    asked = []

    def fun(points):
        asked.append(points.copy())
        return np.exp(points) @ np.arange(1.0, 10.0)

    objective = FunctionObjective(fun, dim=9, vectorized=True)
    x, steps = np.linspace(-1, 1, 9), np.linspace(1e-3, 2e-3, 9)
    steps[4] = 0  # not asked for
    update = Slopes(x, steps, central=central, devices=(0,)).reply(objective, 0)
    assert {len(points) for points in asked} <= {1, 4}
    wanted = [x, *(x + h for h in np.diag(steps)[steps > 0])]
    wanted += [x - h for h in np.diag(steps)[steps > 0]] if central else []
    assert_array_equal(np.concatenate(asked), wanted)
    ahead, behind = (np.exp(x + s * steps) for s in (1, -central))
    exact = np.arange(1.0, 10.0) * (ahead - behind)
    exact[steps > 0] /= ((1 + central) * steps)[steps > 0]
    # Two sums of nine terms, up to 120: 2 * 9 * 2^-53 * 120 / 1e-3 = 2.4e-10.
    assert_allclose(update.values[1:10], exact, rtol=0, atol=3e-10)
