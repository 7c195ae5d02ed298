"""Channels, power control and the radio: every moment against its closed form."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

import fedzo
from fedzo.cli import main
from fedzo.config.experiment import Experiment
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Replies, Update
from fedzo.problems import Quadratic
from fedzo.runs.registry import describe_parts, make_parts
from fedzo.uplinks.base import RunSetting
from fedzo.uplinks.channels import (
    Cell,
    Channel,
    FullInversion,
    Jakes,
    LeastNoise,
    PowerControl,
    Radio,
    Rayleigh,
    Rician,
)
from raising import fails, rejects

MANY = 20_000
HERE = Draws(3, Stream.CHANNEL)


def engine(devices, dim=8, seed=4):
    return LocalEngine(Quadratic(dim=dim, devices=devices, dissimilarity=0.0), seed=seed)


def setting(uplink, devices=50, dim=8, seed=4):
    return RunSetting(engine(devices, dim, seed), uplink)


def send(uplink, devices=50, dim=40, t=0, length=1.0):
    """Let the devices that take part send normal numbers; return them and what arrives."""
    here = setting(uplink, devices, dim)
    chosen = uplink.participants(t, None, here)
    rows = length * Draws(1, Stream.INIT).normals(len(chosen), dim)
    updates = [Update(int(i), row, 1, 1) for i, row in zip(chosen, rows, strict=True)]
    return updates, *uplink.aggregate(t, Replies(updates), here)


# ------------------------------------------------------------------------------- channels


def test_jakes_has_the_moments_of_32_paths():
    """E|h|² = 1 and E|h|⁴ = 2 - 1/32: 5 standard errors, of variances 1 and about 20."""
    h = Jakes(0.05).gains(7, MANY, HERE)
    power = np.abs(h) ** 2
    assert abs(power.mean() - 1) < 5 / math.sqrt(MANY)
    assert abs((power**2).mean() - (2 - 1 / 32)) < 5 * math.sqrt(20 / MANY)
    assert abs(h.mean()) < 5 / math.sqrt(MANY)


@pytest.mark.parametrize("lag", [1, 4, 9])
def test_jakes_is_correlated_by_bessel(lag):
    """E[h(t) h*(t + s)] = J0(2π f s), where J0(x) is the mean of cos(x cos θ)."""
    channel, theta = Jakes(0.05), (np.arange(1000) + 0.5) * np.pi / 1000
    found = np.mean(channel.gains(3, MANY, HERE) * channel.gains(3 + lag, MANY, HERE).conj())
    bessel = np.cos(2 * np.pi * 0.05 * lag * np.cos(theta)).mean()
    assert abs(found - bessel) < 5 / math.sqrt(MANY)


def test_devices_of_a_cell_are_uniform_on_their_ring():
    """(r² - near²)/(far² - near²) is uniform: mean 1/2, variance 1/12."""
    cell = Cell(radius_m=300.0, nearest_m=30.0)
    r = cell.distances(MANY, HERE._replace(round=5))
    share = (r**2 - 900) / (90_000 - 900)
    assert abs(share.mean() - 0.5) < 5 * math.sqrt(1 / 12 / MANY)
    assert share.var() == pytest.approx(1 / 12, rel=0.05)
    assert np.array_equal(r, cell.distances(MANY, HERE._replace(round=9, device=3)))


def test_path_loss_and_shadowing_in_decibels():
    """Mean and deviation of 20 log10|h|, from E ln(r/R) on the ring and the normal shadowing."""
    cell = Cell(radius_m=100.0, nearest_m=10.0, exponent=3.5, shadowing_db=6.0, fading="fixed")
    decibels = 20 * np.log10(np.abs(cell.gains(0, MANY, HERE)))
    a = 0.1**2
    log = (-0.5 - a * (math.log(0.1) - 0.5)) / (1 - a)  # E ln(r/R)
    mean = -10 * 3.5 * log / math.log(10)
    assert abs(decibels.mean() - mean) < 5 * decibels.std() / math.sqrt(MANY)
    path = -10 * 3.5 * np.log10(cell.distances(MANY, HERE) / 100)
    assert (decibels - path).std() == pytest.approx(6.0, rel=5 / math.sqrt(2 * MANY))
    quiet = Cell(radius_m=100.0, nearest_m=10.0, exponent=3.5)
    faded = quiet.gains(0, MANY, HERE) / 10 ** (path / 20)
    assert abs(np.mean(np.abs(faded) ** 2) - 1) < 5 / math.sqrt(MANY)


def test_block_fading():
    uplink = fedzo.AirComp(coherence=4)
    h = [uplink.gains(t, setting(uplink))[0] for t in range(9)]
    assert all(np.array_equal(h[0], h[t]) for t in range(4))
    assert all(np.array_equal(h[4], h[t]) for t in range(4, 8))
    assert not np.array_equal(h[0], h[4])
    assert not np.array_equal(h[4], h[8])


def test_aligned_antennas_of_one_device_are_maximum_ratio():
    """|g|² = sum_k |h_k|², which is Gamma(K, 1): mean K, variance K."""
    uplink, here = fedzo.AirComp(antennas=4), setting(fedzo.AirComp(), devices=1)
    gains = []
    for t in range(3000):
        h, known = uplink.channels(t, here)
        assert abs(h[0]) ** 2 == pytest.approx((abs(uplink.gains(t, here)) ** 2).sum())
        assert h[0] == known[0]
        gains.append(abs(h[0]) ** 2)
    assert abs(np.mean(gains) - 4) < 5 * math.sqrt(4 / 3000)


def test_aligned_antennas_are_the_strongest_combination():
    """No unit vector has more gain, summed over devices, than the one that is used."""
    uplink, here = fedzo.AirComp(antennas=3), setting(fedzo.AirComp())
    all_gains = uplink.gains(2, here)
    best = (np.abs(uplink.channels(2, here)[0]) ** 2).sum()
    for draw in range(50):
        v = Draws(draw, Stream.INIT).normals(2, 3)
        unit = (v[0] + 1j * v[1]) / np.linalg.norm(v)
        assert (np.abs(unit @ all_gains) ** 2).sum() <= best + 1e-9


@pytest.mark.parametrize("antennas", [4, 64])
def test_blind_combining(antennas):
    """A device arrives with the mean 1 and the variance N/K: hardening with antennas."""
    uplink, n = fedzo.AirComp(antennas=antennas, combining="blind"), 10
    here = setting(uplink, devices=n)
    factors = np.concatenate([uplink.link(t, here).factors for t in range(500)])
    variance = n / antennas
    # Devices of a round are correlated: count rounds as the sample.
    assert abs(factors.mean() - 1) < 5 * math.sqrt(variance / 500)
    assert np.mean(np.abs(factors - 1) ** 2) == pytest.approx(variance, rel=0.2)
    assert uplink.participants(0, 3, here).size == n


def test_blind_noise():
    """The noise of the mean has the variance |Σ h|²/(2 K²) σ² Δ_max/(d M²) per number."""
    uplink = fedzo.AirComp(antennas=8, combining="blind", snr_db=-30.0)
    still = fedzo.AirComp(antennas=8, combining="blind", snr_db=math.inf)
    updates, heard, _ = send(uplink, devices=6, dim=MANY)
    _, quiet, _ = send(still, devices=6, dim=MANY)
    summed = uplink.gains(0, setting(uplink, devices=6)).sum(axis=1)
    largest = max(u.delta @ u.delta for u in updates)
    expected = np.linalg.norm(summed) ** 2 / 64 / 2 * 1000 * largest / MANY / 36
    assert np.var(heard - quiet) == pytest.approx(expected, rel=5 * math.sqrt(2 / MANY))


# ---------------------------------------------------------------------------- imperfections


def test_phase_errors_shrink_the_mean():
    """E cos φ = exp(-σ²/2) for φ ~ N(0, σ²)."""
    uplink = fedzo.AirComp(channel="fixed", phase_error=0.7)
    factors = uplink.link(0, setting(uplink, devices=MANY)).factors
    assert abs(factors.real.mean() - math.exp(-0.245)) < 5 / math.sqrt(MANY)
    assert np.allclose(np.abs(factors), 1)


def test_late_symbols_leak_into_the_next():
    """A device that is late by τ, uniform up to m, leaves 1 - τ in place: mean 1 - m/2."""
    uplink = fedzo.AirComp(channel="fixed", misalignment=0.6, snr_db=math.inf)
    kept = []
    for t in range(400):
        here = setting(uplink, devices=1, dim=3)
        sent = Update(0, np.array([1.0, 0.0, 2.0]), 1, 1)
        heard, _ = uplink.aggregate(t, Replies([sent]), here)
        late = 1 - heard[0]
        assert 0 <= late <= 0.6
        np.testing.assert_allclose(heard, [1 - late, late, 2 * (1 - late)], atol=1e-12)
        kept.append(late)
    assert abs(np.mean(kept) - 0.3) < 5 * 0.6 / math.sqrt(12 * 400)


def test_a_noisy_downlink():
    """Each device starts from x plus normal numbers of the variance |x|²/(2 d SNR)."""
    uplink = fedzo.AirComp(downlink_snr_db=10.0)
    x = np.full(MANY, 3.0)
    rows = uplink.broadcast(5, x, np.array([0, 4]), setting(uplink, dim=MANY))
    for row in rows:
        assert np.var(row - x) == pytest.approx(9 / 20, rel=5 * math.sqrt(2 / MANY))
    assert abs(np.corrcoef(rows - x)[0, 1]) < 5 / math.sqrt(MANY)
    problem, algorithm = Quadratic(dim=20, devices=10), fedzo.FedZO(learning_rate=0.01)
    for each in (algorithm, fedzo.FedAvg(learning_rate=0.01)):
        run = {"algorithm": each, "rounds": 3}
        loud = fedzo.minimize(problem, np.ones(20), uplink=uplink, **run)
        quiet = fedzo.minimize(problem, np.ones(20), uplink=fedzo.AirComp(), **run)
        assert not np.array_equal(loud.last, quiet.last)


# ---------------------------------------------------------------------------- power control


def test_full_inversion_hears_all_devices():
    updates, mean, info = send(fedzo.AirComp(power="full_inversion", snr_db=math.inf))
    assert len(updates) == 50
    np.testing.assert_allclose(mean, np.mean([u.delta for u in updates], axis=0), atol=1e-12)
    assert 0 < info.metrics["energy_max"] <= 1


def test_the_threshold_of_least_noise():
    """M η is largest at η = 1/√2 of Rayleigh channels, where it is N/√(2e)."""
    gains = np.abs(Rayleigh().gains(0, MANY, HERE))
    weights, level = LeastNoise().arrivals(gains, h_min=0.1)
    best = weights.sum() * level
    assert best == pytest.approx(MANY / math.sqrt(2 * math.e), rel=0.03)
    assert all(best >= (gains >= h).sum() * h for h in np.linspace(0.01, 3, 200))
    assert abs(level - 1 / math.sqrt(2)) < 0.1


def test_the_noise_of_each_policy():
    """Noise in the mean is in proportion to 1/(M η), whatever the policy."""
    found = {}
    for power in ("truncated_inversion", "least_noise", "full_inversion"):
        loud = fedzo.AirComp(power=power, snr_db=-20.0)
        link = loud.link(0, setting(loud))
        updates, heard, _ = send(loud, dim=MANY)
        _, quiet, _ = send(fedzo.AirComp(power=power, snr_db=math.inf), dim=MANY)
        largest = max(u.delta @ u.delta for u in updates)
        expected = 50 * largest / MANY / (len(updates) * link.level) ** 2
        found[power] = np.var(heard - quiet)
        assert found[power] == pytest.approx(expected, rel=5 * math.sqrt(2 / MANY))
    assert min(found, key=found.get) == "least_noise"


@dataclass(frozen=True)
class Loud(PowerControl):
    level: float = 1.0

    def arrivals(self, gains, h_min):
        return np.ones_like(gains), self.level


def test_a_policy_cannot_use_more_power_than_a_device_has():
    assert send(fedzo.AirComp(power=Loud(1e-6)))[0]
    with fails("too-much-power"):
        uplink = fedzo.AirComp(power=Loud(1e6))
        fedzo.minimize(Quadratic(dim=4), algorithm=fedzo.FedZO(), uplink=uplink, rounds=1)


def test_a_budget_in_joules_is_never_exceeded(tmp_path):
    """Devices fall silent; a resumed run has the same budgets; a device with none never sends."""
    radio = Radio(bandwidth_hz=1e3, power_dbm=30.0)  # 1 W, 1 ms per symbol: 10 mJ per round
    each = (0.0, *[0.05] * 9)
    spent = dict.fromkeys(range(10), 0.0)

    @dataclass(frozen=True, kw_only=True)
    class Noted(fedzo.AirComp):
        def aggregate(self, t, updates, here):
            delta, info = super().aggregate(t, updates, here)
            for i, energy in info.metrics["energies"].items():
                spent[i] += energy * 0.01
            return delta, info

    problem, algorithm = Quadratic(dim=10, devices=10), fedzo.FedZO(learning_rate=0.01)
    run = {"algorithm": algorithm, "seed": 2, "evaluate_every": 1}
    settings = {"radio": radio, "joules": each, "h_min": 0.5}
    free = fedzo.minimize(problem, uplink=fedzo.AirComp(h_min=0.5), rounds=60, **run)
    whole = fedzo.minimize(problem, uplink=Noted(**settings), rounds=60, **run)
    assert spent[0] == 0
    assert all(0 < spent[i] <= 0.05 for i in range(1, 10))
    assert whole.history[-1]["participants"] < free.history[-1]["participants"]
    assert whole.history[-1]["joules"] == pytest.approx(sum(spent.values()))
    uplink = fedzo.AirComp(**settings)
    fedzo.minimize(problem, uplink=uplink, rounds=25, run_dir=tmp_path, **run)
    resumed = fedzo.minimize(
        problem, uplink=uplink, rounds=60, run_dir=tmp_path, resume=True, **run
    )
    drop = {"seconds"}
    assert [{k: r[k] for k in r if k not in drop} for r in resumed.history] == [
        {k: r[k] for k in r if k not in drop} for r in whole.history
    ]


def test_a_budget_for_each_device_or_for_all():
    uplink = fedzo.AirComp(radio=Radio(), joules=(1.0, 2.0))
    with rejects("uplink.joules"):
        fedzo.minimize(Quadratic(dim=4), algorithm=fedzo.FedZO(), uplink=uplink, rounds=1)


def test_a_clip_fixes_the_amplitude():
    """The noise has the scale of the clip whatever is sent, and no length is reported."""
    for length in (1e-3, 1e3):
        _, heard, info = send(fedzo.AirComp(clip=2.0, snr_db=0.0), dim=MANY, length=length)
        _, quiet, _ = send(fedzo.AirComp(clip=2.0, snr_db=math.inf), dim=MANY, length=length)
        count = len(info.metrics["energies"])
        expected = 4 / 2 / MANY / 0.64 / count**2
        assert np.var(heard - quiet) == pytest.approx(expected, rel=5 * math.sqrt(2 / MANY))
        assert info.uplink_bytes == 0
        if length > 1:
            assert np.linalg.norm(quiet) <= 2
            assert info.metrics["energy_max"] <= 1
    assert not send(fedzo.AirComp(clip=1.0, h_min=50.0))[1].any()  # nobody takes part


# ------------------------------------------------------------------------------------ radio


def test_the_radio_in_its_units():
    """-174 dBm per Hz at 290 K; free space at 2.4 GHz has 40.05 dB at 1 m."""
    radio = Radio(bandwidth_hz=1e6, power_dbm=20.0, noise_figure_db=7.0, distance_m=100.0)
    boltzmann = 10 * math.log10(1.380649e-23 * 290 * 1e3 * 1e6)
    assert radio.noise_dbm == pytest.approx(boltzmann + 7, abs=0.01)
    assert radio.snr_db == pytest.approx(20 - 40.05 - 60 - radio.noise_dbm, abs=0.01)
    assert fedzo.AirComp(radio=radio).mean_snr_db == radio.snr_db
    with rejects("snr_db"):
        fedzo.AirComp(radio=radio, snr_db=3.0)


@pytest.mark.parametrize("packing", [False, True])
def test_seconds_and_joules(packing):
    radio = Radio(bandwidth_hz=2e6, power_dbm=20.0)  # 0.1 W
    _, _, info = send(fedzo.AirComp(radio=radio, packing=packing))
    assert info.costs["seconds_on_air"] == info.channel_uses / 2e6
    sent = info.costs["energy"] * info.channel_uses  # symbols of full power
    assert info.costs["joules"] == pytest.approx(0.1 * sent / 2e6)


def test_ideal_and_seeds_report_energy_where_a_radio_is_named():
    radio, problem = Radio(bandwidth_hz=1e3, power_dbm=30.0), Quadratic(dim=30, devices=10)
    run = {"algorithm": fedzo.FedZO(participants=4, directions=2), "rounds": 3}
    ideal = fedzo.minimize(problem, uplink=fedzo.Ideal(radio=radio), **run).history[-1]
    assert (ideal["energy"], ideal["joules"]) == (12, pytest.approx(3 * 4 * 30e-3))
    seeds = fedzo.minimize(problem, uplink=fedzo.Seeds(radio=radio), **run).history[-1]
    assert seeds["joules"] == pytest.approx(3 * 4 * 10e-3)
    assert seeds["seconds_on_air"] == pytest.approx(0.12)
    assert "energy" not in fedzo.minimize(problem, **run).history[-1]


def test_a_metric_cannot_have_the_name_of_a_cost():
    class Named(Quadratic):
        def metrics(self, x):
            return {"energy": 1.0}

    with fails("reserved-metric"):
        fedzo.minimize(Named(dim=3), algorithm=fedzo.FedZO(), uplink=fedzo.AirComp(), rounds=1)


# ---------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("uplink.antennas", 0),
        ("uplink.coherence", 0),
        ("uplink.radio.bandwidth_hz", 0),
        ("uplink.radio.power_dbm", 1e9),
        ("uplink.radio.noise_figure_db", -1),
        ("uplink.radio.distance_m", 0),
        ("uplink.channel.name", "cel"),
        ("uplink.channel.factor", -1),
        ("uplink.power.name", "loud"),
        ("uplink.phase_error", -1),
        ("uplink.misalignment", 2),
        ("uplink.clip", 0),
        ("uplink.joules", -1),
        ("uplink.downlink_snr_db", "-inf"),
        ("uplink.combining", "best"),
    ],
)
def test_bad_values_are_rejected_before_anything_runs(key, value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sets = ["--set", "uplink.name=aircomp", "--set", f"{key}={value}"]
    if key == "uplink.channel.factor":
        sets[2:2] = ["--set", "uplink.channel.name=rician"]
    assert main(["run", "quadratic", *sets, "--out", "run"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert key in lines[0]
    assert not (tmp_path / "run").exists()


LINKS = [
    fedzo.AirComp(channel=Rician(5.0), power=FullInversion(), radio=Radio(power_dbm=3.0)),
    fedzo.AirComp(channel="cell", antennas=2, coherence=3, joules=(1.0, 2.0), radio=Radio()),
    fedzo.AirCompSeeds(channel=Cell(shadowing_db=8.0, fading="jakes"), clip=0.5),
    fedzo.Digital(bits=3, payload="coefficients", channel=Jakes(0.1), antennas=2),
    fedzo.Ideal(radio=Radio(distance_m=3.0)),
]


@pytest.mark.parametrize("uplink", LINKS, ids=lambda uplink: type(uplink).__name__)
def test_a_description_makes_the_same_uplink(uplink):
    from fedzo.core.files import as_toml

    tables = as_toml(describe_parts(fedzo.FedZO(), uplink))
    made = make_parts(json.loads(json.dumps(tables)))[1]
    again = as_toml(describe_parts(fedzo.FedZO(), made))
    assert again == tables
    if not isinstance(getattr(uplink, "joules", None), tuple):
        assert made == uplink


OWN = """
from dataclasses import dataclass
import numpy as np
from fedzo.uplinks.channels import Channel

@dataclass(frozen=True)
class Gate(Channel):
    good: float = 0.7

    def gains(self, t, devices, draws):
        return np.where(draws.uniform(devices) < self.good, 1.0, 0.1)
"""


def test_a_custom_channel_by_name(tmp_path, monkeypatch):
    """From a configuration, with a resume that repeats it; a node does not import it."""
    (tmp_path / "own_gate.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sets = ["uplink.name=aircomp", "uplink.channel.name=own_gate:Gate", "uplink.channel.good=0.5"]
    arguments = [a for one in sets for a in ("--set", one)]
    run = ["run", "quadratic", *arguments, "--set", "run.rounds=4", "--quiet", "--out", "run"]
    assert main(run) == 0
    record = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    again = Experiment.load("run").run()
    assert again.history[-1]["train_loss"] == record["train_loss"]
    with rejects("uplink.channel.name"):
        make_parts({"uplink": Experiment.load("run").tables["uplink"]}, {"fedzo": fedzo.FedZO})


def test_gains_of_a_custom_channel_are_checked():
    @dataclass(frozen=True)
    class Short(Channel):
        def gains(self, t, devices, draws):
            return np.ones(devices - 1)

    for uplink in (fedzo.AirComp(channel=Short()), fedzo.Digital(channel=Short())):
        with fails("bad-gains"):
            fedzo.minimize(Quadratic(dim=3), algorithm=fedzo.FedZO(), uplink=uplink, rounds=1)


def test_defaults_give_the_run_that_they_always_gave():
    """The last training losses of runs from before channels were parts."""
    runs = BEFORE
    for changes, losses in runs:
        tables = {"uplink": {"name": "aircomp", **changes}, "run": {"rounds": 6}}
        tables["run"]["evaluate_every"] = 2
        history = Experiment.load("quadratic", tables).run().history
        found = [[r[k] for k in ("train_loss", "energy_max", "energy")] for r in history[1:]]
        # A difference over μ = 1e-3 enlarges the rounding of BLAS, which depends on the processor.
        np.testing.assert_allclose(found, losses, rtol=1e-10)


BEFORE = [
    (
        {},
        [
            [14.585768757560132, 0.7345778560045276, 10.608255609813488],
            [13.414987211539245, 0.5650163561962845, 18.523510938724655],
            [12.284370359767914, 0.6287680575820741, 28.89344022184459],
        ],
    ),
    (
        {"packing": True, "snr_db": -5.0},
        [
            [14.601780722505271, 0.7351461246799545, 10.604945412109224],
            [13.430132727080874, 0.5660711787553586, 18.5281290801642],
            [12.2978159162105, 0.6287680575820741, 28.93120358396427],
        ],
    ),
    (
        {"channel": "rician", "csi_error": 0.1, "h_min": 0.5},
        [
            [14.82038218247219, 0.6089890985442525, 5.490225010370342],
            [13.67036809849434, 0.34805988455031855, 11.951367728827385],
            [12.586111363367763, 0.5767303647266201, 19.529026192834305],
        ],
    ),
    (
        {"noise": "real"},
        [
            [14.583235769466048, 0.73448767371687, 10.607747915000871],
            [13.419574027601062, 0.5649747917089609, 18.526661146630264],
            [12.28662020087906, 0.6287680575820741, 28.911212019149218],
        ],
    ),
]
