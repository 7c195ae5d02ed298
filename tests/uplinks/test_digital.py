"""The digital uplink: rounding, capacity and outage against their closed forms."""

import math

import numpy as np
import pytest

import fedzo
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Replies, Update
from fedzo.problems import Quadratic
from fedzo.uplinks.base import RunSetting
from fedzo.uplinks.channels import Radio
from fedzo.uplinks.digital import quantise
from raising import rejects


def send(uplink, devices=2000, dim=3, t=0):
    setting = RunSetting(LocalEngine(Quadratic(dim=dim, devices=devices), seed=4), uplink)
    chosen = uplink.participants(t, None, setting)
    rows = Draws(1, Stream.INIT).normals(len(chosen), dim)
    updates = [Update(int(i), row, 1, 1) for i, row in zip(chosen, rows, strict=True)]
    return updates, *uplink.aggregate(t, Replies(updates), setting)


@pytest.mark.parametrize("bits", [1, 2, 5, 8])
def test_rounding_is_unbiased_and_has_its_variance(bits):
    """Mean v and variance s² q (1 - q) of every number: 4,000 draws, 5 standard errors."""
    numbers, draws = np.array([-1.5, -0.3, 0.0, 0.111, 0.7, 1.5]), 4000
    rounded = np.array(
        [quantise(numbers, bits, Draws(0, Stream.NOISE, round=t)) for t in range(draws)]
    )
    step = 3.0 / (2**bits - 1)
    share = (numbers + 1.5) / step % 1
    variance = step**2 * share * (1 - share)
    assert np.all(np.abs(rounded.mean(axis=0) - numbers) <= 5 * np.sqrt(variance / draws) + 1e-9)
    spread = 5 * step**2 / math.sqrt(draws)  # of a squared deviation, at most s²
    assert np.all(np.abs(rounded.var(axis=0) - variance) <= spread)
    assert len(np.unique(np.round(rounded, 9))) <= 2**bits


def test_rounding_keeps_type_shape_and_zeros():
    zeros = np.zeros((2, 3), np.float32)
    assert quantise(zeros, 4, Draws(0, Stream.NOISE)).dtype == np.float32
    some = Draws(5, Stream.INIT).normals(7, 9, dtype=np.float32)
    fine = quantise(some, 32, Draws(0, Stream.NOISE))
    assert fine.shape == some.shape
    np.testing.assert_allclose(fine, some, atol=1e-6)


def test_symbols_at_capacity():
    """Each device sends 32 + bits n bits at log2(1 + SNR |h|²) bits per symbol."""
    uplink = fedzo.Digital(bits=6, snr_db=3.0, radio=Radio(bandwidth_hz=1e6, power_dbm=30.0))
    updates, delta, info = send(uplink, devices=30, dim=50)
    setting = RunSetting(LocalEngine(Quadratic(dim=50, devices=30), seed=4), uplink)
    power = np.abs(uplink.gains(0, setting)[0]) ** 2
    assert [u.device for u in updates] == np.flatnonzero(power >= 0.64).tolist()
    capacity = np.log2(1 + 10**0.3 * power)
    symbols = sum(math.ceil((32 + 300) / capacity[u.device]) for u in updates)
    assert info.channel_uses == symbols
    assert info.uplink_bytes == len(updates) * math.ceil(332 / 8)
    assert info.costs["joules"] == pytest.approx(symbols / 1e6)
    assert info.costs["energy"] == pytest.approx(symbols / 50)
    mean = np.mean([u.delta for u in updates], axis=0)
    step = max(2 * np.abs(u.delta).max() / 63 for u in updates)
    assert np.abs(delta - mean).max() < step


def test_antennas_add_their_gains():
    one, four = (fedzo.Digital(antennas=k, h_min=1e-9) for k in (1, 4))
    assert send(four)[2].channel_uses < 0.6 * send(one)[2].channel_uses


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_outage_and_retransmission(attempts):
    """A message is lost with p^A, p = 1 - exp(-(2^R - 1)/SNR), and sent (1 - p^A)/(1 - p) times."""
    uplink = fedzo.Digital(access="outage", rate=1.5, attempts=attempts, snr_db=3.0)
    updates, _, info = send(uplink)
    p, n = 1 - math.exp(-(2**1.5 - 1) / 10**0.3), len(updates)
    lost = p**attempts
    assert abs(info.metrics["lost"] / n - lost) < 5 * math.sqrt(lost * (1 - lost) / n)
    times = info.channel_uses / math.ceil((32 + 24) / 1.5) / n
    assert abs(times - (1 - lost) / (1 - p)) < 5 * attempts / 2 / math.sqrt(n)


@pytest.mark.parametrize("shared", [False, True])
def test_coefficients_are_rounded_and_rebuilt(shared):
    """With 32 bits the run is that of seeds, up to the rounding of the coefficients."""
    algorithm = fedzo.FedZO(
        learning_rate=0.01, directions=4, participants=6, shared_directions=shared
    )
    problem = Quadratic(dim=60, devices=12)
    run = {"algorithm": algorithm, "rounds": 5, "seed": 2}
    seeds = fedzo.minimize(problem, uplink=fedzo.Seeds(), **run)
    link = {"access": "outage", "rate": 1e-3, "payload": "coefficients"}
    digital = fedzo.minimize(problem, uplink=fedzo.Digital(bits=32, **link), **run)
    np.testing.assert_allclose(digital.last, seeds.last, rtol=1e-6, atol=1e-7)
    coarse = fedzo.minimize(problem, uplink=fedzo.Digital(bits=1, **link), **run)
    assert not np.allclose(coarse.last, seeds.last, rtol=1e-3)
    assert coarse.uplink_bytes < digital.uplink_bytes / 10


@pytest.mark.parametrize(
    "bad",
    [
        {"bits": 0}, {"bits": 33}, {"rate": 0.0}, {"attempts": 0}, {"payload": "model"},
        {"access": "free"}, {"h_min": 0.0}, {"snr_db": math.inf},
    ],
)  # fmt: skip
def test_impossible_settings(bad):
    with rejects(next(iter(bad))):
        fedzo.Digital(**bad)


def test_a_resume_changes_no_bit(tmp_path):
    problem, uplink = Quadratic(dim=30, devices=10), fedzo.Digital(bits=3, access="outage")
    run = {"algorithm": fedzo.FedZO(participants=5), "uplink": uplink}
    whole = fedzo.minimize(problem, rounds=6, **run)
    fedzo.minimize(problem, rounds=2, run_dir=tmp_path, **run)
    again = fedzo.minimize(problem, rounds=6, run_dir=tmp_path, resume=True, **run)
    assert np.array_equal(whole.last, again.last)
    assert whole.history[-1]["energy"] == again.history[-1]["energy"]
