"""Seeds and scalars: the same run to the bit, and bytes that are really those of a message."""

import numpy as np
import pytest

import fedzo
from driving import begin, play, steps_of
from fedzo.core.directions import KINDS
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import Update
from fedzo.problems import Quadratic, softmax
from fedzo.uplinks.seeds import HEADER_BYTES
from raising import fails, rejects

PROBLEM = Quadratic(dim=300, devices=6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_server_rebuilds_the_update_to_the_bit(kind, dtype):
    """From the bytes of the coefficients and the seed alone."""
    algorithm = fedzo.FedZO(
        learning_rate=0.1, directions=7, local_steps=4, direction_kind=kind, batch_size=2
    )
    x = np.linspace(-1, 1, 300).astype(dtype)
    work = steps_of(algorithm, x, round=5, seed=11)
    update = work.reply(PROBLEM, 3)
    numbers = np.frombuffer(update.coefficients.tobytes(), dtype)
    rebuilt = work.rebuild(received(3, numbers.reshape(4, 7)))
    assert rebuilt.dtype == dtype
    assert np.array_equal(rebuilt, update.delta)


def test_the_softmax_update_too():
    """Its directions are drawn inside the compiled estimate, the server's outside."""
    problem, x = softmax(), np.zeros(7850, np.float32)
    work = steps_of(fedzo.FedZO(), x, round=2, seed=0)
    update = work.reply(problem, 7)
    assert np.array_equal(work.rebuild(update), update.delta)


@pytest.mark.parametrize("shared", [False, True])
def test_shared_directions_are_the_same_for_all_devices(shared):
    algorithm = fedzo.FedZO(directions=3, local_steps=2, shared_directions=shared)
    work = steps_of(algorithm, np.zeros(300), round=1, seed=4)
    coefficients = np.ones((2, 3))
    one, two = (work.rebuild(received(device, coefficients)) for device in (0, 5))
    assert np.array_equal(one, two) == shared
    update = work.reply(PROBLEM, 5)
    assert np.array_equal(work.rebuild(update), update.delta)


@pytest.mark.parametrize("shared", [False, True])
def test_shared_directions_in_the_compiled_step(shared):
    """The softmax problem draws them inside its own step: the rebuilt update must be the same."""
    algorithm = fedzo.FedZO(directions=4, local_steps=2, shared_directions=shared)
    work = steps_of(algorithm, np.zeros(7850, np.float32), round=1, seed=4)
    update = work.reply(softmax(), 7)
    assert np.array_equal(work.rebuild(update), update.delta)


def test_updates_without_coefficients_are_refused():
    class Corrected(fedzo.FedZO):
        coefficients_shape = None

        def correction(self, task, device):
            return lambda x: x - task.x

    with fails("no-coefficients"):
        fedzo.minimize(PROBLEM, algorithm=Corrected(), uplink=fedzo.Seeds(), rounds=1)


def received(device, coefficients):
    """An update as a server has it: coefficients alone."""
    return Update(device, np.empty(0), weight=1.0, queries=0, coefficients=coefficients)


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_the_trajectory_is_the_ideal_one(weighting):
    problem = softmax(devices=8, partition="sizes")
    algorithm = fedzo.FedZO(directions=4, participants=3, weighting=weighting)
    ideal, seeds = (
        fedzo.minimize(problem, algorithm=algorithm, uplink=uplink, rounds=10, seed=1)
        for uplink in (fedzo.Ideal(), fedzo.Seeds())
    )
    assert np.array_equal(ideal.x, seeds.x)
    assert ideal.queries == seeds.queries


def test_bytes_are_those_of_the_messages():
    algorithm = fedzo.FedZO(directions=20, local_steps=5, participants=4, batch_size=2)
    with LocalEngine(PROBLEM, 0, 1) as federation:
        state = begin(algorithm, np.zeros(300, np.float32), federation, fedzo.Seeds())
        _, info = play(algorithm, 0, state, federation, fedzo.Seeds())
        devices = fedzo.Seeds().participants(0, 4, federation)
        work = steps_of(algorithm, state.x, round=0, seed=0)
        replies = federation.ask(work.only(devices))
        messages = [update.coefficients.tobytes() for update in replies]
    assert info.uplink_bytes == sum(HEADER_BYTES + len(message) for message in messages)
    assert info.channel_uses == 4 * 5 * 20


def test_seventy_times_fewer_bytes_at_the_paper_s_setting():
    """H = 5, b2 = 20, d = 7850: 400 bytes of coefficients against 31,400 of an update."""
    run = {"algorithm": fedzo.FedZO(participants=20), "rounds": 1}
    ideal = fedzo.minimize(softmax(), uplink=fedzo.Ideal(), **run)
    seeds = fedzo.minimize(softmax(), uplink=fedzo.Seeds(), **run)
    assert ideal.uplink_bytes >= 70 * seeds.uplink_bytes


def test_catching_up_is_counted():
    """Written out with a memory of who was there when: log if it is fewer bytes, else model."""
    algorithm = fedzo.FedZO(directions=5, local_steps=1, participants=2, batch_size=1)
    uplink, rounds = fedzo.Seeds(), 40
    model, last, total, by_log = 300 * 4, {}, 0, 0
    with LocalEngine(PROBLEM, 3, 1) as federation:
        state = begin(algorithm, np.zeros(300, np.float32), federation, uplink)
        counted = 0
        for t in range(rounds):
            state, info = play(algorithm, t, state, federation, uplink)
            counted += info.downlink_bytes
            log = info.uplink_bytes  # one round's coefficients of all participants
            caught_up = 0
            for i in uplink.participants(t, 2, federation).tolist():
                missed = (t - last[i]) * log if i in last else model + 1
                caught_up += missed <= model
                total += min(missed, model)
                last[i] = t
            assert info.metrics["caught_up"] == caught_up
            by_log += caught_up
    assert counted == total
    assert 0 < by_log < 2 * rounds  # both ways were taken


def test_a_device_can_catch_up_from_the_log():
    """x^t from x^s and the messages of the rounds between: the server's model, to the bit."""
    algorithm = fedzo.FedZO(learning_rate=0.1, directions=5, local_steps=2, participants=3)
    with LocalEngine(PROBLEM, 3, 1) as federation:
        states = [begin(algorithm, np.zeros(300, np.float32), federation, fedzo.Seeds())]
        log = []
        for t in range(4):
            work = steps_of(algorithm, states[-1].x, t, seed=3)
            devices = fedzo.Seeds().participants(t, 3, federation)
            replies = federation.ask(work.only(devices))
            log.append([received(update.device, update.coefficients) for update in replies])
            state, _ = play(algorithm, t, states[-1], federation, fedzo.Seeds())
            states.append(state)
    x = states[1].x  # what the device had after round 0
    for t, messages in enumerate(log[1:], 1):
        total, work = np.zeros(300), steps_of(algorithm, x, t, seed=3)
        for message in messages:
            total += work.rebuild(message)
        x = (x + total / len(messages)).astype(np.float32)
    assert np.array_equal(x, states[-1].x)


def test_the_model_always_if_asked_for():
    algorithm = fedzo.FedZO(directions=2, local_steps=1, participants=5, batch_size=1)
    result = fedzo.minimize(
        PROBLEM, algorithm=algorithm, uplink=fedzo.Seeds(downlink="model"), rounds=4
    )
    assert result.downlink_bytes == 4 * 5 * 300 * 8
    assert result.history[-1]["caught_up"] == 0


def test_unknown_downlink():
    with rejects("downlink"):
        fedzo.Seeds(downlink="modle")
