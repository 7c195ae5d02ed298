"""Shared directions and coefficients over the air: the variance, the theorems, the privacy."""

import math

import numpy as np
import pytest

import fedzo
from driving import begin, play
from fedzo.algorithms import server
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Replies, Update
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.theory import Constants, Setting, bound, channel_privacy, limit, moments, report
from fedzo.uplinks.base import RunSetting
from raising import fails

DIM, M = 40, 8
SLOPES = Draws(3, Stream.INIT).normals(M, DIM)


def linear(x, device):
    return float(SLOPES[device] @ x)


def mean_updates(problem, algorithm, uplink, rounds):
    """Return x^1 - x^0 of independent rounds from the same start."""
    engine, x0 = LocalEngine(problem, seed=5, workers=1), problem.initial()
    with engine:
        state = begin(algorithm, x0, engine, uplink)
        return np.array(
            [play(algorithm, t, state, engine, uplink)[0].x - x0 for t in range(rounds)]
        )


@pytest.mark.parametrize("shared", [False, True])
def test_the_variance_of_the_mean_on_linear_functions(shared):
    """E|mean e|² = |ḡ|² + (d-1)/b2 |ḡ|² if directions are shared, (d-1)/(b2 M) mean|g|² if not.

    400 rounds; the square of a sum of b2 random directions has a relative deviation below 1.
    """
    b2, rounds = 5, 400
    algorithm = fedzo.FedZO(
        learning_rate=1.0, local_steps=1, directions=b2, smoothing=1e-3, shared_directions=shared
    )
    problem = FunctionObjective(linear, DIM, devices=M)
    moved = mean_updates(problem, algorithm, None, rounds)
    mean = SLOPES.mean(axis=0)
    spread = mean @ mean if shared else (SLOPES**2).sum() / M**2
    expected = mean @ mean + (DIM - 1) / b2 * spread
    squares = (moved**2).sum(axis=1)
    assert abs(squares.mean() - expected) < 5 * squares.std() / math.sqrt(rounds)
    # What the theorems use is above it: 2 ĉ_g/M |∇f_i|², averaged over devices.
    setting = Setting(M, DIM, 1, directions=b2, shared=shared)
    used = 2 * moments(Constants(L=1.0, gap=1.0), setting).growth / M * (SLOPES**2).sum() / M
    assert squares.mean() - mean @ mean <= used


def test_shared_directions_lose_the_factor_m():
    """d = 2000, b2 = 20, M = 20 like devices: the direction variance is M times as large."""
    constants = Constants(L=1.0, gap=1.0, sigma_g=1.0, sigma_h=1.0)
    own, shared = (
        moments(constants, Setting(20, 2000, 1, directions=20, shared=s)) for s in (False, True)
    )
    assert shared.growth == 20 * own.growth
    sampled = 1 + 2000 / 20  # of σ_g², which is still divided by M
    assert shared.variance - sampled == pytest.approx(20 * (own.variance - sampled))
    alone = (Setting(1, 2000, 1, directions=20, shared=s) for s in (False, True))
    assert len({limit(constants, s).value for s in alone}) == 1  # one device shares with nobody


@pytest.mark.parametrize("snr_db", [0.0, -10.0])
def test_a_round_of_coefficients_over_the_air_on_a_quadratic(snr_db):
    """E|x'|² of ½|x|²: the estimate, the smoothing and the channel's noise, to the constant.

    With like devices and no noise of samples, x' = x - η (D x + (dμ/2) v̄) + Σ ν g, so
    E|x'|² = |x|² (1 - 2η + η² (1 + (d-1)/b2)) + η² d² μ²/(4 b2) + noise, and the noise is
    η² (d/b2 |x|² + d² μ²/(4 b2)) / (2 M² γ), times at most d/(d-2) for the lengths of normals.
    """
    b2, eta, mu, rounds = 4, 0.05, 0.1, 3000
    algorithm = fedzo.FedZO(
        learning_rate=eta, local_steps=1, directions=b2, smoothing=mu, shared_directions=True
    )
    problem = FunctionObjective(lambda x, device: 0.5 * x @ x, DIM, devices=M)
    x = np.ones(DIM)
    engine, uplink = (
        LocalEngine(problem, seed=5, workers=1),
        fedzo.AirCompSeeds(snr_db=snr_db, channel="fixed"),
    )
    with engine:
        state = begin(algorithm, x, engine, uplink)
        found = [play(algorithm, t, state, engine, uplink)[0].x for t in range(rounds)]
    squares = (np.array(found) ** 2).sum(axis=1)
    gamma, size = 10 ** (snr_db / 10) * 0.64, float(x @ x)
    smooth = DIM**2 * mu**2 / (4 * b2)
    quiet = size * (1 - 2 * eta + eta**2 * (1 + (DIM - 1) / b2)) + eta**2 * smooth
    noise = eta**2 * (DIM / b2 * size + smooth) / (2 * M**2 * gamma)
    error = 5 * squares.std() / math.sqrt(rounds)
    assert quiet + noise - error < squares.mean() < quiet + noise * DIM / (DIM - 2) + error


@pytest.mark.parametrize("seed", range(3))
def test_theorem_3_holds_for_coefficients_over_the_air(seed):
    """The least squared gradient of a run is below the bound, at the largest η that is allowed."""
    problem = Quadratic(dim=30, devices=8, gradient_noise=0.3, seed=seed)
    constants = Constants(**problem.constants())
    uplink = fedzo.AirCompSeeds(snr_db=0.0, h_min=0.3)
    sizes = {"devices": 8, "dim": 30, "rounds": 60, "uplink": uplink, "seed": seed}
    trial = fedzo.FedZO(learning_rate=1e-6, directions=10, local_steps=2, shared_directions=True)
    most = report(trial, constants, **sizes).limit.value
    algorithm = fedzo.FedZO(
        learning_rate=most, directions=10, local_steps=2, shared_directions=True
    )
    found = report(algorithm, constants, **sizes)
    assert found.allowed
    assert found.setting.coefficients
    run = fedzo.minimize(
        problem, algorithm=algorithm, uplink=uplink, rounds=60, seed=seed, evaluate_every=1
    )
    assert min(r["gradient_norm_squared"] for r in run.history) <= found.bound.value


def test_the_noise_of_coefficients_counts_h_times_less():
    """H γ (d-2)/d in place of γ: the squares of coefficients add up, those of steps do not."""
    constants = Constants(L=1.0, gap=1.0, sigma_g=1.0)
    sizes = {"local_steps": 5, "snr": 0.01, "shared": True, "participants": 10}
    air, own = (Setting(20, 50, 100, **sizes, coefficients=c) for c in (False, True))
    assert air.noise_excess / own.noise_excess == pytest.approx(5 * 48 / 50)
    one, two = (limit(constants, s).terms[-1] for s in (air, own))
    assert two.value / one.value == pytest.approx(5 * 48 / 50)
    assert bound(constants, own, 1e-3, 1e-3).value < bound(constants, air, 1e-3, 1e-3).value


@pytest.mark.parametrize(
    ("changes", "uplink"),
    [
        ({"difference": "central"}, None),
        ({"server": server.Momentum()}, None),
        ({}, fedzo.AirComp(csi_error=0.1)),
        ({}, fedzo.AirComp(antennas=2)),
        ({}, fedzo.Digital()),
        ({}, fedzo.Robust()),
    ],
)
def test_it_says_where_the_theorems_do_not_apply(changes, uplink):
    algorithm = fedzo.FedZO(learning_rate=1e-6, **changes)
    constants = Constants(L=1.0, gap=1.0)
    found = report(algorithm, constants, devices=10, dim=9, rounds=9, uplink=uplink)
    assert found.outside
    assert not found.allowed
    assert "does not apply" in found.text()
    plain = report(fedzo.FedZO(learning_rate=1e-6), constants, devices=10, dim=9, rounds=9)
    assert not plain.outside


# ---------------------------------------------------------------------------------- privacy

CLIPPED = fedzo.AirCompSeeds(snr_db=-20.0, clip=0.3, h_min=0.5)


@pytest.mark.parametrize("settings", [{}, {"packing": True}, {"noise": "real"}])
def test_the_noise_over_the_clip(settings):
    """The sum that the server recovers has normal noise of z C per number, whatever is sent."""
    pytest.importorskip("dp_accounting")
    n = 20_000
    uplink = fedzo.AirComp(snr_db=-20.0, clip=0.3, h_min=0.5, **settings)
    engine = LocalEngine(Quadratic(dim=n, devices=6), seed=4)
    setting = RunSetting(engine, uplink)
    chosen = uplink.participants(0, None, setting)
    for scale in (0.0, 1e-3, 1.0):
        updates = [Update(int(i), np.full(n, scale), 1, 1) for i in chosen]
        heard = uplink.aggregate(0, Replies(updates), setting)[0] * len(chosen)
        clipped = min(scale, 0.3 / math.sqrt(n)) * len(chosen)
        deviation = channel_privacy(uplink, n, 1).noise * 0.3
        assert np.std(heard - clipped) == pytest.approx(deviation, rel=5 / math.sqrt(2 * n))


def test_no_data_of_a_device_moves_the_sum_by_more_than_twice_the_clip():
    """Neighbours that differ in all data of one device, and a device that sends nothing."""
    uplink = fedzo.AirComp(snr_db=math.inf, clip=0.3, channel="fixed")
    engine = LocalEngine(Quadratic(dim=5, devices=3), seed=4)
    setting = RunSetting(engine, uplink)

    def total(rows):
        updates = [Update(i, row, 1, 1) for i, row in enumerate(rows)]
        return 3 * uplink.aggregate(0, Replies(updates), setting)[0]

    rows = Draws(1, Stream.INIT).normals(3, 5)
    for scale in (1e-2, 1.0, 1e6, -1e6):
        other = [rows[0], scale * rows[0], rows[2]]
        assert np.linalg.norm(total(rows) - total(other)) <= 0.6 + 1e-9
        assert np.linalg.norm(total(other) - total([rows[0], 0 * rows[1], rows[2]])) <= 0.3 + 1e-9


def test_epsilon_is_that_of_the_composed_gaussian():
    accounting = pytest.importorskip("dp_accounting")
    found = channel_privacy(CLIPPED, numbers=100, rounds=50)
    noise = 1 / (0.5 * math.sqrt(2 * 100 * 0.01))
    assert found.noise == pytest.approx(noise)
    for z, epsilon in ((noise, found.device), (noise / 2, found.record)):
        accountant = accounting.rdp.RdpAccountant()
        accountant.compose(accounting.GaussianDpEvent(z), 50)
        assert epsilon <= accountant.get_epsilon(1e-5)  # Rényi is an upper bound of it
        assert epsilon > 0.7 * accountant.get_epsilon(1e-5)
    text = report(
        fedzo.FedZO(shared_directions=True),
        Constants(L=1.0, gap=1.0),
        devices=9,
        dim=20,
        rounds=9,
        uplink=CLIPPED,
    ).text()
    assert "privacy" in text


@pytest.mark.parametrize(
    "uplink",
    [
        fedzo.AirComp(),
        fedzo.AirComp(clip=1.0, csi_error=0.1),
        fedzo.AirComp(clip=1.0, antennas=2),
        fedzo.AirComp(clip=1.0, power="least_noise"),
    ],
)
def test_no_epsilon_where_the_amplitude_is_not_known(uplink):
    with fails("privacy-not-known"):
        channel_privacy(uplink, 10, 10)
