"""Asynchronous rounds: the rule to the constant, and the same bits however a run is done."""

import heapq

import numpy as np
import pytest

import fedzo
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps
from fedzo.errors import FedzoError
from fedzo.problems import Quadratic
from fedzo.uplinks.base import RunSetting

STEPS = {"learning_rate": 0.01, "local_steps": 2, "directions": 3, "participants": 6}
CLOCK = {**STEPS, "buffer": 2, "speed_spread": 10.0, "dropout": 0.2, "clock_seed": 5}


@pytest.fixture(scope="module")
def problem():
    return Quadratic(dim=8, devices=12)


def run(problem, algorithm, rounds=12, **options):
    return fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, evaluate_every=3, **options)


def test_waiting_for_all_is_fedzo(problem):
    waits = run(problem, fedzo.FedBuff(**STEPS, speed_spread=10.0))
    np.testing.assert_array_equal(waits.last, run(problem, fedzo.FedZO(**STEPS)).last)


def by_events(problem, algorithm, rounds, seed=0):
    """Return x of each round by a queue of events, as the paper of FedBuff describes it."""
    fedzo_ = fedzo.FedZO(**STEPS)
    x, clock, queue, busy, models = problem.initial(), 0.0, [], set(), []
    for t in range(rounds):
        idle = [i for i in range(problem.devices) if i not in busy]
        draws = Draws(seed, Stream.PARTICIPANTS, round=t)
        for j in draws.subset(len(idle), STEPS["participants"] - len(busy)):
            task = LocalSteps(fedzo_, x, STEPS["learning_rate"], seed=seed, round=t)
            delta = np.asarray(task.reply(problem, idle[j]).delta)
            heapq.heappush(queue, (clock + algorithm.seconds(idle[j]), idle[j], t, delta))
            busy.add(idle[j])
        total, count = np.zeros(problem.dim), 0
        while queue and count < algorithm.buffer:
            clock, device, started, delta = heapq.heappop(queue)
            busy.remove(device)
            if not algorithm.lost(device, started):
                total, count = total + delta / (1 + t - started) ** 0.5, count + 1
        x = x + total / count
        models.append((x, clock))
    return models


def test_rounds_are_those_of_a_queue_of_events(problem):
    algorithm = fedzo.FedBuff(**CLOCK)
    for rounds in (1, 4, 12):
        found = run(problem, algorithm, rounds)
        x, clock = by_events(problem, algorithm, rounds)[-1]
        np.testing.assert_allclose(found.last, x, rtol=0, atol=1e-12)
        assert found.history[-1]["clock_seconds"] == pytest.approx(clock, rel=1e-12)
        assert found.history[-1]["participants"] == algorithm.buffer


def test_same_bits_with_workers_seeds_and_after_a_resume(problem, tmp_path):
    algorithm, rounds = fedzo.FedBuff(**CLOCK), 12
    once = run(problem, algorithm, rounds, workers=1)
    for other in (
        run(problem, algorithm, rounds, workers=2),
        run(problem, algorithm, rounds, uplink=fedzo.Seeds()),
    ):
        np.testing.assert_array_equal(once.last, other.last)
    stop = {"checkpoint_every": 1, "run_dir": tmp_path / "run"}
    run(problem, algorithm, rounds, callback=lambda at: at.round == 7, **stop)
    resumed = run(problem, algorithm, rounds, resume=True, **stop)
    np.testing.assert_array_equal(once.last, resumed.last)
    assert once.history[-1]["clock_seconds"] == resumed.history[-1]["clock_seconds"]


def test_three_times_sooner_to_the_same_loss(problem):
    clock = {"learning_rate": 0.01, "directions": 4, "participants": 8, "speed_spread": 10.0}
    waits = run(problem, fedzo.FedBuff(**clock), 60)
    target = waits.history[-1]["train_loss"]
    quick = run(problem, fedzo.FedBuff(**clock, buffer=2), 600, target=target)
    assert quick.history[-1]["train_loss"] <= target
    assert waits.history[-1]["clock_seconds"] > 3 * quick.history[-1]["clock_seconds"]


def test_speeds_are_spread_and_losses_have_their_share():
    algorithm = fedzo.FedBuff(speed_spread=10.0, dropout=0.3)
    seconds = np.array([algorithm.seconds(i) for i in range(2000)])
    assert seconds.min() >= 1
    assert seconds.max() <= 10
    # log-uniform: the mean of log10 is 1/2, its standard error 0.0065
    assert abs(np.log10(seconds).mean() - 0.5) < 0.026
    lost = np.mean([algorithm.lost(i, t) for i in range(50) for t in range(40)])
    assert abs(lost - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 2000)


@pytest.mark.parametrize(
    "settings",
    [
        {"buffer": 0},
        {"buffer": 7},
        {"dropout": 1.0},
        {"speed_spread": 0.5},
        {"staleness": -1.0},
        {"shared_directions": True},
        {"learning_rate": "auto"},
        {"clock_seed": -1},
    ],
)
def test_settings_that_do_not_fit(settings, problem):
    with pytest.raises(FedzoError):
        run(problem, fedzo.FedBuff(**{**STEPS, **settings}))


def test_uplinks_that_need_one_round_are_rejected(problem):
    for uplink in (fedzo.AirComp(snr_db=10.0), fedzo.Robust(), fedzo.Seeds(secure=True)):
        engine = LocalEngine(problem, 0)
        with pytest.raises(FedzoError):
            fedzo.FedBuff(**STEPS).init(problem.initial(), RunSetting(engine, uplink))
