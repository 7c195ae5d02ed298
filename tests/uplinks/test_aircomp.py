"""AirComp: every scale of section IV against its closed form."""

import math

import numpy as np
import pytest

import fedzo
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Replies, Update
from fedzo.problems import Quadratic
from fedzo.uplinks.channels import Rician
from raising import rejects

N, DIM = 50, 40


def federation(dim=DIM, devices=N, seed=4):
    return LocalEngine(Quadratic(dim=dim, devices=devices), seed=seed)


def some_updates(devices, dim=DIM, dtype=np.float64, weight=1.0):
    rows = Draws(1, Stream.INIT).normals(len(devices), dim)
    return [
        Update(int(i), row.astype(dtype), weight, queries=1)
        for i, row in zip(devices, rows, strict=True)
    ]


def hear(uplink, t=0, dim=DIM, devices=N):
    """Let the scheduled devices send something; return it, what was heard, and the costs."""
    here = federation(dim, devices)
    updates = some_updates(uplink.participants(t, None, here), dim)
    delta, info = uplink.aggregate(t, Replies(updates), here)
    return updates, delta, info


def test_channels_are_complex_normal():
    """E|h|² = 1, 1/2 in either part, uncorrelated: 5 standard errors of 200,000 draws."""
    h = np.concatenate(
        [fedzo.AirComp().channels(t, federation(devices=1000))[0] for t in range(200)]
    )
    n = h.size
    assert abs(h.real.var() - 0.5) < 5 * 0.5 * math.sqrt(2 / n)
    assert abs(h.imag.var() - 0.5) < 5 * 0.5 * math.sqrt(2 / n)
    assert abs(np.mean(h.real * h.imag)) < 5 * 0.5 / math.sqrt(n)
    assert abs(np.mean(h)) < 5 / math.sqrt(n)


@pytest.mark.parametrize("h_min", [0.3, 0.8, 1.5])
def test_share_of_scheduled_devices(h_min):
    """P(|h| >= h_min) = exp(-h_min²), within 1 %: a million devices leave 0.3 % at most."""
    here = federation(dim=1, devices=1000)
    uplink = fedzo.AirComp(h_min=h_min)
    share = np.mean([len(uplink.participants(t, None, here)) for t in range(1000)]) / 1000
    assert share == pytest.approx(math.exp(-(h_min**2)), rel=0.01)


def test_rician_and_fixed_channels():
    """Rician: mean sqrt(K/(K+1)), E|h|² = 1; fixed: all ones, all scheduled."""
    uplink = fedzo.AirComp(channel=Rician(4.0))
    h = np.concatenate([uplink.channels(t, federation(devices=1000))[0] for t in range(100)])
    assert abs(h.mean() - math.sqrt(4 / 5)) < 5 * math.sqrt(1 / 5 / h.size)
    assert np.mean(np.abs(h) ** 2) == pytest.approx(1, rel=0.01)
    fixed = fedzo.AirComp(channel="fixed")
    assert fixed.participants(3, None, federation()).size == N


def test_without_noise_it_is_the_mean():
    for packing in (False, True):
        updates, delta, info = hear(fedzo.AirComp(snr_db=math.inf, packing=packing), dim=41)
        np.testing.assert_allclose(delta, np.mean([u.delta for u in updates], axis=0), atol=1e-12)
        assert info.metrics["noise_to_update"] == 0


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        ({}, 0.5),  # the real part keeps half of the complex variance
        ({"noise": "real"}, 1.0),  # a real noise of full variance
        ({"packing": True}, 1.0),  # both parts, but half the energy: twice the half
    ],
)
@pytest.mark.parametrize("snr_db", [-10.0, 0.0, 7.0])
def test_noise_variance(settings, factor, snr_db):
    """σ_w² Δ_max / (M² d P h_min²) times what is kept of it, within 2 % over 10^6 draws.

    The sample variance of n normals is off by sqrt(2/n), here 0.14 %.
    """
    dim = 20_000
    uplink = fedzo.AirComp(snr_db=snr_db, h_min=0.8, **settings)
    here, total, expected = federation(dim, 5, seed=9), 0.0, 0.0
    for t in range(50):
        chosen = uplink.participants(t, None, here)
        if not len(chosen):
            continue
        updates = some_updates(chosen, dim)
        delta, _ = uplink.aggregate(t, Replies(updates), here)
        noise = delta - np.mean([u.delta for u in updates], axis=0)
        largest = max(u.delta @ u.delta for u in updates)
        gamma = 10 ** (snr_db / 10) * 0.8**2
        expected += factor * largest / (len(chosen) ** 2 * dim * gamma) * dim
        total += noise @ noise
    assert total == pytest.approx(expected, rel=0.02)


def test_a_round_in_the_complex_baseband():
    """Precode, add up, add noise, scale, take the real part: as section IV prints it."""
    snr_db, h_min, t = -5.0, 0.8, 6
    uplink, here = fedzo.AirComp(snr_db=snr_db, h_min=h_min), federation()
    h, _ = uplink.channels(t, here)
    chosen = [i for i in range(N) if abs(h[i]) >= h_min]
    assert uplink.participants(t, None, here).tolist() == chosen
    updates = some_updates(chosen)
    power, sigma = 3.0, math.sqrt(3.0 / 10 ** (snr_db / 10))  # any P with P/σ² the SNR
    largest = max(u.delta @ u.delta for u in updates)
    heard = np.zeros(DIM, complex)
    energies = {}
    for u in updates:
        alpha = h_min / h[u.device] * math.sqrt(DIM * power / largest)
        heard += h[u.device] * alpha * u.delta
        energies[u.device] = np.linalg.norm(alpha * u.delta) ** 2 / (DIM * power)
    real, imaginary = Draws(here.seed, Stream.NOISE, round=t).normals(2, DIM)
    heard += sigma * math.sqrt(0.5) * (real + 1j * imaginary)
    scaled = heard * math.sqrt(largest / (DIM * power * h_min**2)) / len(chosen)
    delta, info = uplink.aggregate(t, Replies(updates), here)
    np.testing.assert_allclose(delta, scaled.real, rtol=1e-10)
    assert info.metrics["energies"] == pytest.approx(energies)
    assert info.costs["energy"] == pytest.approx(sum(energies.values()))
    assert max(energies.values()) <= 1  # the energy constraint, for every device
    mean = np.mean([u.delta for u in updates], axis=0)
    ratio = np.linalg.norm(delta - mean) / np.linalg.norm(mean)
    assert info.metrics["noise_to_update"] == pytest.approx(ratio)
    assert info.channel_uses == DIM
    assert info.uplink_bytes == 4 * len(chosen)


def test_the_energy_constraint_holds_in_every_round():
    for settings in ({}, {"packing": True}, {"channel": "rician"}, {"csi_error": 0.1}):
        uplink = fedzo.AirComp(**settings)
        for t in range(20):
            _, _, info = hear(uplink, t)
            assert all(0 < energy <= 1 for energy in info.metrics["energies"].values())


def test_energy_adds_up_over_rounds_and_over_a_resume(tmp_path):
    """The history's energy is the sum of what each round's devices sent with."""
    told = []

    class Noted(fedzo.AirComp):
        def aggregate(self, t, updates, federation):
            delta, info = super().aggregate(t, updates, federation)
            told.append(sum(info.metrics["energies"].values()))
            return delta, info

    problem, algorithm = Quadratic(dim=4, devices=6), fedzo.FedZO(directions=2)
    whole = fedzo.minimize(problem, algorithm=algorithm, uplink=Noted(), rounds=6, evaluate_every=1)
    assert "energy" not in whole.history[0]
    seen = [record["energy"] for record in whole.history[1:]]
    np.testing.assert_allclose(seen, np.cumsum(told), rtol=1e-12)
    run = {"algorithm": algorithm, "uplink": fedzo.AirComp(), "run_dir": tmp_path}
    fedzo.minimize(problem, rounds=3, **run)
    resumed = fedzo.minimize(problem, rounds=6, resume=True, **run)
    assert resumed.history[-1]["energy"] == seen[-1]
    assert "energy" not in fedzo.minimize(problem, algorithm=algorithm, rounds=1).history[-1]


def test_imperfect_channel_knowledge():
    """What arrives of Δ_i is Re(h_i/ĥ_i) Δ_i, scheduled by ĥ."""
    uplink, here = fedzo.AirComp(snr_db=math.inf, csi_error=0.2), federation()
    h, known = uplink.channels(2, here)
    error = known - h
    assert np.mean(np.abs(error) ** 2) == pytest.approx(0.2, rel=5 / math.sqrt(N))
    chosen = uplink.participants(2, None, here)
    assert np.all(np.abs(known[chosen]) >= 0.8)
    updates = some_updates(chosen)
    delta, _ = uplink.aggregate(2, Replies(updates), here)
    expected = np.mean([(h[u.device] / known[u.device]).real * u.delta for u in updates], axis=0)
    np.testing.assert_allclose(delta, expected, atol=1e-12)


def test_packing_with_a_wrong_phase_mixes_the_halves():
    uplink, here = fedzo.AirComp(snr_db=math.inf, csi_error=0.2, packing=True), federation()
    h, known = uplink.channels(2, here)
    updates = some_updates(uplink.participants(2, None, here))
    delta, info = uplink.aggregate(2, Replies(updates), here)
    half = DIM // 2
    symbols = np.mean(
        [(h[u.device] / known[u.device]) * (u.delta[:half] + 1j * u.delta[half:]) for u in updates],
        axis=0,
    )
    np.testing.assert_allclose(delta, np.r_[symbols.real, symbols.imag], atol=1e-12)
    assert info.channel_uses == half


def test_nobody_clears_the_threshold():
    """P(one of 3 does) is 3 exp(-25): the model stays, and the history says so."""
    problem = Quadratic(dim=4, devices=3)
    result = fedzo.minimize(
        problem, algorithm=fedzo.FedZO(directions=2), uplink=fedzo.AirComp(h_min=5.0), rounds=3
    )
    assert np.array_equal(result.x, problem.initial())
    assert result.history[-1]["participants"] == 0
    assert result.queries == result.channel_uses == result.uplink_bytes == 0


def test_noise_free_has_the_same_participants():
    here = federation()
    for t in range(10):
        loud = fedzo.AirComp(snr_db=-10.0).participants(t, None, here)
        quiet = fedzo.AirComp(snr_db=math.inf).participants(t, 7, here)
        assert np.array_equal(loud, quiet)


def test_weights():
    """Weighted updates: the noise-free result is their weighted mean."""
    uplink, here = fedzo.AirComp(snr_db=math.inf), federation()
    chosen = uplink.participants(0, None, here)
    updates = [
        u._replace(weight=float(k + 1))
        for k, u in enumerate(some_updates(chosen, dtype=np.float32))
    ]
    delta, _ = uplink.aggregate(0, Replies(updates), here)
    shares = [u.weight for u in updates]
    expected = np.average([u.delta for u in updates], axis=0, weights=shares)
    np.testing.assert_allclose(delta, expected, atol=1e-6)


def test_a_converged_federation_hears_no_noise():
    """The noise is in proportion to the largest update: none where all updates are zero."""
    uplink, here = fedzo.AirComp(snr_db=-20.0), federation()
    chosen = uplink.participants(0, None, here)
    zeros = [Update(int(i), np.zeros(DIM), 1, 1) for i in chosen]
    delta, info = uplink.aggregate(0, Replies(zeros), here)
    assert not delta.any()
    assert info.metrics["energy_max"] == 0


def test_channel_uses_against_orthogonal_access():
    """One after another it is M d symbols; at once it is d, and d/2 when packed."""
    updates, _, info = hear(fedzo.AirComp())
    _, orthogonal = fedzo.Ideal().aggregate(0, Replies(updates), federation())
    assert (orthogonal.channel_uses, info.channel_uses) == (len(updates) * DIM, DIM)


@pytest.mark.parametrize(
    "bad",
    [
        {"snr_db": -math.inf},
        {"snr_db": math.nan},
        {"h_min": 0.0},
        {"channel": "raylay"},
        {"csi_error": -0.1},
        {"noise": "pink"},
        {"noise": "real", "packing": True},
        {"power": "least_noise", "combining": "blind"},
    ],
)
def test_impossible_settings(bad):
    with rejects(next(iter(bad))):
        fedzo.AirComp(**bad)


def test_impossible_rician_factor():
    with rejects("factor"):
        Rician(0.0)
