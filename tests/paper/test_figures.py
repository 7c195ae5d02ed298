"""Figures: what they run, and that every claim of each can hold and can fail."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from histories import runs

from fedzo.config.experiment import shipped
from fedzo.errors import UsageError
from fedzo.paper import FIGURES, find_figure
from fedzo.paper.claims import Verdict, judge
from fedzo.paper.reproduce import run_of
from raising import fails

ALL = [find_figure(name) for name in FIGURES]


def number(label):
    """Return the last number of a label, H or M or an SNR; infinite for none."""
    found = re.findall(r"-?\d+", label)
    return float(found[-1]) if found else math.inf


def by(labels, usual=None):
    """Return a spec from a dict of labels."""
    return lambda label: labels.get(label, usual or {})


def grows(label):
    """The greater the number in a label, the faster."""
    value = number(label)
    return {"rate": 2.0 if value == math.inf else 1 + (value + 10) / 60}


def shrinks(label):
    return {"rate": 1 / grows(label)["rate"]}


def same(label):
    return {}


def equal_steps(zo_rate, avg_rate):
    return lambda label: {"rate": zo_rate if label.startswith("FedZO") else avg_rate}


H20, H5 = "FedZO, H = 20", "FedAvg, H = 5"
M50, AVG = "FedZO, M = 50", "FedAvg, M = 50"
ZO5 = "FedZO, H = 5"
ZONE_S = "ZONE-S, sum"
NOISE = {"SNR = -10 dB": 1.0, "SNR = -5 dB": 1.02, "SNR = 0 dB": 1.04, "noise-free": 1.05}
NOISE = {label: {"rate": rate} for label, rate in NOISE.items()}


def levels(h=-0.5, m=-0.5, dzopa=8**0.5, zo_sgd=8.0, least=1.0):
    """Return a spec of squared gradients: powers of H and M, and the others' ratio to both at 8."""

    def spec(label):
        found = re.fullmatch(r"H = (\d), M = (\d)", label)
        if found:
            steps, devices = map(int, found.groups())
            return {"gradient": 0.1 * steps**h * devices**m}
        ratio = {"DZOPA, N = 8": dzopa, "ZO-SGD": zo_sgd}.get(label)
        return {"gradient": least if ratio is None else 0.1 * 8 ** (h + m) * ratio}

    return spec


# For each claim: what makes it hold, and all that must make it fail.
CASES = {
    ("fig1a", "loss falls"): (same, [by({"FedZO, H = 10": {"rate": -0.5}})]),
    ("fig1a", "faster in H"): (grows, [shrinks, by({"FedZO, H = 50": {"rate": 0.5}})]),
    ("fig1a", "beats the baselines"): (
        by({"DZOPA": {"rate": 0.5}, ZONE_S: {"rate": 0.3}}),
        [by({"DZOPA": {"rate": 2.0}}), by({ZONE_S: {"rate": 2.0}, "DZOPA": {"rate": 0.1}})],
    ),
    ("fig1a", "much faster"): (
        by({"FedZO, H = 50": {"rate": 3.0}}),
        [by({"FedZO, H = 50": {"rate": 1.5}}), same],
    ),
    ("fig1b", "loss falls"): (same, [by({"M = 5": {"rate": -0.5}})]),
    ("fig1b", "faster in M"): (grows, [shrinks, by({"M = 50": {"rate": 0.5}})]),
    ("fig1c", "converges"): (same, [by({"SNR = -10 dB": {"rate": -0.1}})]),
    ("fig1c", "faster in SNR"): (grows, [shrinks]),
    ("fig1c", "comparable"): (
        by(NOISE),
        [by({"SNR = 0 dB": {"rate": 0.8}}), by({"SNR = 0 dB": {"rate": 1.3}})],
    ),
    ("fig2", "above the baselines"): (
        by({f"FedZO, H = {h}": {"success": 0.8} for h in (20, 50)}),
        [
            by({f"FedZO, H = {h}": {"success": 0.3} for h in (20, 50)}),
            by({"DZOPA": {"success": 0.9}}, {"success": 0.8}),
        ],
    ),
    ("fig2", "ZONE-S above H = 5"): (
        by({ZONE_S: {"success": 0.7, "rate": 0.5}}),
        [by({ZONE_S: {"success": 0.3, "rate": 0.5}}), by({ZONE_S: {"success": 0.7, "rate": 2.0}})],
    ),
    ("fig2", "ZONE-S distorts"): (
        by({ZONE_S: {"distortion": 2.0}}),
        [by({ZONE_S: {"distortion": 0.5}})],
    ),
    ("fig3", "slightly slower"): (
        equal_steps(1.0, 1.1),
        [equal_steps(1.0, 1.5), equal_steps(1.1, 1.0)],
    ),
    ("fig3", "comparable"): (
        same,
        [
            by({H20: {"rate": 1.3}}),
            by({H20: {"rate": 0.7}}),
            by({H20: {"accuracy": 0.6}}),
            by({H20: {"accuracy": 0.8}}),
        ],
    ),
    ("fig3", "no worse"): (
        by({H20: {"rate": 2.0, "accuracy": 0.8}}),
        [by({H20: {"rate": 0.8}}), by({H20: {"rate": 2.0, "accuracy": 0.6}})],
    ),
    ("fig3", "faster in H"): (grows, [shrinks]),
    ("fig4", "speed-up in loss"): (grows, [shrinks, by({"FedZO, M = 25": {"rate": 0.5}})]),
    ("fig4", "speed-up in accuracy"): (
        lambda label: {"accuracy": 0.5 + number(label) / 200},
        [lambda label: {"accuracy": 0.9 - number(label) / 200}],
    ),
    ("fig4", "comparable"): (
        same,
        [by({M50: {"rate": 0.7}}), by({M50: {"rate": 1.4}}), by({AVG: {"accuracy": 0.8}})],
    ),
    ("fig5", "converges"): (
        same,
        [by({"SNR = -10 dB": {"rate": 0.01}}), by({"SNR = 0 dB": {"rate": -1.0}})],
    ),
    ("fig5", "faster in SNR"): (grows, [shrinks]),
    ("fig5", "performs well"): (
        by(NOISE),
        [by({"SNR = -5 dB": {"rate": 0.8}}), by({"SNR = 0 dB": {"accuracy": 0.6}})],
    ),
    ("table1", "speed-up in H"): (levels(), [levels(h=0.0), levels(h=-1.0)]),
    ("table1", "speed-up in M"): (levels(), [levels(m=0.0), levels(m=-1.0)]),
    ("table1", "bound"): (levels(least=0.5), [levels(least=50.0)]),
    ("table1", "rates"): (levels(), [levels(dzopa=1.0), levels(zo_sgd=4.0), levels(dzopa=8.0)]),
    ("queries", "same accuracy"): (
        same,
        [by({"H = 50": {"rate": 0.7}}), by({"H = 10": {"accuracy": 0.5}})],
    ),
    ("queries", "same accuracy where devices are alike"): (
        same,
        [by({"H = 50, devices alike": {"rate": 0.7}})],
    ),
    ("rates", "coincide"): (
        same,
        [by({"FedZO, η = 0.001": {"rate": 0.9}}), by({"FedZO, η = 0.001": {"rate": 1.1}})],
    ),
    ("rates", "trails"): (
        lambda label: {"rate": 1.0 if label.startswith("FedZO") else 1.2},
        [
            lambda label: {"rate": 1.2 if label.startswith("FedZO") else 1.0},
            by({"FedZO, η = 0.01": {"rate": 0.8}, "FedZO, η = 0.05": {"rate": 1.2}}),
        ],
    ),
}


# Against another victim the same is claimed of the same curves.
CASES |= {
    ("victim", claim): case for (name, claim), case in CASES.items() if name in ("fig1a", "fig2")
}


def test_every_claim_is_tried():
    assert set(CASES) == {(each.name, claim.name) for each in ALL for claim in each.claims}


def claim_of(key):
    (found,) = (claim for claim in find_figure(key[0]).claims if claim.name == key[1])
    return found


@pytest.mark.parametrize("key", CASES, ids=lambda key: f"{key[0]}: {key[1]}")
def test_claim_holds_where_it_is_true(key):
    comparisons = claim_of(key).measure(runs(find_figure(key[0]), CASES[key][0]))
    assert judge(comparisons) == Verdict.HOLDS, [(c.what, c.interval) for c in comparisons]


@pytest.mark.parametrize(
    ("key", "false"), [(key, spec) for key, (_, specs) in CASES.items() for spec in specs]
)
def test_claim_fails_where_it_is_false(key, false):
    comparisons = claim_of(key).measure(runs(find_figure(key[0]), false))
    assert judge(comparisons) == Verdict.FAILS, [(c.what, c.interval) for c in comparisons]


@pytest.mark.parametrize("key", CASES, ids=lambda key: f"{key[0]}: {key[1]}")
def test_one_seed_cannot_tell(key):
    comparisons = claim_of(key).measure(runs(find_figure(key[0]), CASES[key][0], seeds=1))
    assert judge(comparisons) == Verdict.UNKNOWN


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_every_curve_can_be_run(name, scale):
    """Its configuration is one; different curves are different runs; at least five seeds."""
    each = find_figure(name)
    size = each.scales[scale]
    if size.config not in shipped():
        pytest.skip(f"the configuration {size.config} does not ship")
    experiments = [curve.experiment(size) for curve in each.curves]
    assert len({str(e.tables) for e in experiments}) == len(experiments)
    assert all(e.options.workers == 1 for e in experiments)
    assert size.seeds >= 5
    assert len({curve.label for curve in each.curves}) == len(each.curves)


def test_figures_that_share_runs_share_them(tmp_path):
    def folders(name, labels):
        each = find_figure(name)
        size = each.scales["paper"]
        curves = [curve for curve in each.curves if curve.label in labels]
        return {run_of(curve.experiment(size), 0, tmp_path).folder for curve in curves}

    shared = folders("fig3", {ZO5})
    assert len(shared) == 1
    assert folders("rates", {"FedZO, η = 0.001"}) == folders("queries", {"H = 5"}) == shared
    assert find_figure("fig2").curves == find_figure("fig1a").curves
    assert find_figure("fig2").scales == find_figure("fig1a").scales


def test_noise_free_has_the_same_participants():
    """Fig. 5's benchmark: the channel schedules, whatever the noise."""
    each = find_figure("fig5")
    size = each.scales["quick"]
    uplinks = [curve.experiment(size).uplink for curve in each.curves]
    assert [uplink.snr_db for uplink in uplinks] == [-10.0, -5.0, 0.0, math.inf]
    assert {(uplink.h_min, uplink.channel) for uplink in uplinks} == {(0.8, "rayleigh")}


def test_equal_queries():
    """At a fixed number of queries all curves spend the same, to 2 %."""
    each = find_figure("queries")
    spent = [run_of(c.experiment(each.scales["paper"]), 0, Path()).work for c in each.curves]
    assert np.ptp(spent) < 0.02 * max(spent)


def test_unknown_figure():
    with fails("no-figure", UsageError) as caught:
        find_figure("fig3a")
    assert "'fig3'" in str(caught.value)  # the nearest
