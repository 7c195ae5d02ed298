"""Seeds and scalars: the same run to the bit, and bytes that are really those of a message."""

import numpy as np
import pytest

import fedzo
from fedzo.algorithms.fedzo import LocalSteps, rebuild
from fedzo.core.directions import KINDS
from fedzo.core.federation import LocalFederation
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from fedzo.problems.quadratic import Quadratic
from fedzo.problems.softmax import softmax
from fedzo.uplinks.seeds import decode, encode

PROBLEM = Quadratic(dim=300, devices=6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_server_rebuilds_the_update_to_the_bit(kind, dtype):
    """From the bytes of the message and the seed alone."""
    algorithm = fedzo.FedZO(learning_rate=0.1, directions=7, local_steps=4, direction_kind=kind)
    x = np.linspace(-1, 1, 300).astype(dtype)
    steps = LocalSteps(algorithm.estimator, 0.1, 2, x, 5, 11, local_steps=4)
    update = steps(PROBLEM, 3)
    t, device, queries, weight, coefficients = decode(encode(5, update))
    assert (t, device, queries, weight) == (5, 3, update.queries, 1.0)
    at = Draws(11, Stream.DIRECTIONS, round=t, device=device)
    rebuilt = rebuild(coefficients, kind, 300, at)
    assert rebuilt.dtype == dtype
    assert np.array_equal(rebuilt, update.delta)


def test_the_softmax_update_too():
    """Its directions are drawn inside the compiled estimate, the server's outside."""
    problem, x = softmax(), np.zeros(7850, np.float32)
    algorithm = fedzo.FedZO()
    update = LocalSteps(algorithm.estimator, 1e-3, 25, x, 2, 0, local_steps=5)(problem, 7)
    at = Draws(0, Stream.DIRECTIONS, round=2, device=7)
    assert np.array_equal(rebuild(update.coefficients, "sphere", 7850, at), update.delta)


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
    with LocalFederation(PROBLEM, 0, 1) as federation:
        state = algorithm.init(np.zeros(300, np.float32), federation, fedzo.Seeds())
        _, info = algorithm.round(0, state, federation, fedzo.Seeds())
        devices = fedzo.Seeds().participants(0, 4, federation)
        steps = LocalSteps(algorithm.estimator, 1e-3, 2, state.x, 0, 0, local_steps=5)
        messages = [encode(0, update) for update in federation.map(steps, devices)]
    assert info.uplink_bytes == sum(len(message) for message in messages)
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
    with LocalFederation(PROBLEM, 3, 1) as federation:
        state = algorithm.init(np.zeros(300, np.float32), federation, uplink)
        counted = 0
        for t in range(rounds):
            state, info = algorithm.round(t, state, federation, uplink)
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
    with LocalFederation(PROBLEM, 3, 1) as federation:
        states = [algorithm.init(np.zeros(300, np.float32), federation, fedzo.Seeds())]
        log = []
        for t in range(4):
            x = states[-1].x
            steps = LocalSteps(algorithm.estimator, 0.1, 25, x, t, 3, local_steps=2)
            devices = fedzo.Seeds().participants(t, 3, federation)
            log.append([encode(t, update) for update in federation.map(steps, devices)])
            state, _ = algorithm.round(t, states[-1], federation, fedzo.Seeds())
            states.append(state)
    x = states[1].x  # what the device had after round 0
    for messages in log[1:]:
        total = np.zeros(300)
        for message in messages:
            t, device, _, _, coefficients = decode(message)
            at = Draws(3, Stream.DIRECTIONS, round=t, device=device)
            total += rebuild(coefficients, "sphere", 300, at)
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
    with pytest.raises(InvalidValue, match="did you mean 'model'"):
        fedzo.Seeds(downlink="modle")
