"""Coefficients over the air: AirComp's transceiver for H b2 numbers in place of d."""

import math

import numpy as np
import pytest

import fedzo
from fedzo.algorithms import server
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Update
from fedzo.problems import Quadratic
from fedzo.uplinks.base import RunSetting
from raising import fails

PROBLEM = Quadratic(dim=200, devices=20)
SHARED = fedzo.FedZO(learning_rate=0.005, directions=7, local_steps=3, shared_directions=True)


def heard(uplink, steps=50, directions=200, devices=8, t=3):
    """Let the scheduled devices send coefficients; return them and what the server receives."""
    algorithm = fedzo.FedZO(local_steps=steps, directions=directions, shared_directions=True)
    engine = LocalEngine(Quadratic(dim=3, devices=devices), seed=4)
    setting = RunSetting(engine, uplink, algorithm.coefficients_shape)
    chosen = uplink.participants(t, None, setting)
    rows = Draws(1, Stream.INIT).normals(len(chosen), steps * directions)
    sent = [
        Update(int(i), np.zeros(3), 1, 1, row.reshape(steps, directions))
        for i, row in zip(chosen, rows, strict=True)
    ]
    task = LocalSteps(algorithm, np.zeros(3), seed=4, round=t, devices=chosen)
    (update,) = uplink.compress(sent, task, setting)
    return np.array([u.coefficients for u in sent]), update


def test_without_noise_it_is_the_mean_of_the_updates():
    """The run of AirComp without noise, to the rounding of coefficients."""
    run = {"algorithm": SHARED, "rounds": 10, "seed": 3}
    air = fedzo.minimize(PROBLEM, uplink=fedzo.AirComp(snr_db=math.inf), **run)
    for packing in (False, True):
        uplink = fedzo.AirCompSeeds(snr_db=math.inf, packing=packing)
        own = fedzo.minimize(PROBLEM, uplink=uplink, **run)
        np.testing.assert_allclose(own.last, air.last, rtol=1e-9, atol=1e-12)
        assert own.history[-1]["participants"] == air.history[-1]["participants"]
        assert own.channel_uses == 10 * (11 if packing else 21)


@pytest.mark.parametrize(
    ("settings", "factor"), [({}, 0.5), ({"noise": "real"}, 1.0), ({"packing": True}, 1.0)]
)
def test_noise_variance_per_coefficient(settings, factor):
    """σ_w² c_max / (M² n P h_min²) times what is kept of it: 10^4 numbers, 5 standard errors."""
    sent, update = heard(fedzo.AirCompSeeds(snr_db=-3.0, **settings))
    noise = update.coefficients - sent.mean(axis=0)
    largest = max((c**2).sum() for c in sent)
    gamma, n = 10**-0.3 * 0.64, noise.size
    expected = factor * largest / (len(sent) ** 2 * n * gamma)
    assert noise.var() == pytest.approx(expected, rel=5 * math.sqrt(2 / n))


def test_the_noise_to_update_ratio_is_that_of_aircomp():
    """At equal power per symbol: within 10 % of each other over 40 rounds."""
    run = {"algorithm": SHARED, "rounds": 40, "evaluate_every": 1}
    ratios = []
    for uplink in (fedzo.AirComp(snr_db=0.0), fedzo.AirCompSeeds(snr_db=0.0)):
        history = fedzo.minimize(Quadratic(dim=2000, devices=20), uplink=uplink, **run).history
        ratios.append(np.mean([r["noise_to_update"] for r in history[1:]]))
    assert ratios[1] == pytest.approx(ratios[0], rel=0.1)


def test_it_needs_shared_directions():
    algorithm = fedzo.FedZO(directions=2)
    with fails("directions-not-shared"):
        fedzo.minimize(PROBLEM, algorithm=algorithm, uplink=fedzo.AirCompSeeds(), rounds=1)
    with fails("no-coefficients"):
        fedzo.minimize(PROBLEM, algorithm=fedzo.FedAvg(), uplink=fedzo.AirCompSeeds(), rounds=1)


@pytest.mark.parametrize(
    "algorithm",
    [
        SHARED,
        fedzo.FedZO(learning_rate=0.005, directions=5, shared_directions=True, fixed_directions=40),
        fedzo.FedZO(directions=5, shared_directions=True, server=server.Adam(learning_rate=0.01)),
    ],
    ids=["mean", "fixed", "adam"],
)
def test_workers_and_resume_change_no_bit(algorithm, tmp_path):
    uplink = fedzo.AirCompSeeds(snr_db=0.0, antennas=2, channel="rician")
    run = {"algorithm": algorithm, "uplink": uplink, "seed": 1}
    whole = fedzo.minimize(PROBLEM, rounds=8, **run)
    fedzo.minimize(PROBLEM, rounds=3, run_dir=tmp_path, workers=2, **run)
    again = fedzo.minimize(PROBLEM, rounds=8, run_dir=tmp_path, resume=True, **run)
    assert np.array_equal(whole.last, again.last)
    assert whole.downlink_bytes == again.downlink_bytes


def test_devices_replay_the_received_coefficients():
    """All devices take part in every round: each receives one entry of the log per round."""
    uplink = fedzo.AirCompSeeds(channel="fixed", clip=1.0)
    one = fedzo.minimize(PROBLEM, algorithm=SHARED, uplink=uplink, rounds=1)
    two = fedzo.minimize(PROBLEM, algorithm=SHARED, uplink=uplink, rounds=2)
    entry = 33 + 21 * 8
    assert one.downlink_bytes == 20 * (200 * 8 + 8)  # the start, and the channel
    assert two.downlink_bytes - one.downlink_bytes == 20 * (entry + 8)
