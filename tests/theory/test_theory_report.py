"""The report of the theory for one run."""

from dataclasses import replace

import pytest
from theory_cases import ODD, constants_of

import fedzo
from fedzo.problems import Quadratic
from fedzo.theory import Constants, estimate, report
from raising import fails, rejects


def test_report_names_what_is_broken():
    algorithm = fedzo.FedZO(learning_rate=0.1, direction_kind="gaussian", weighting="size")
    found = report(algorithm, ODD, devices=10, dim=50, rounds=100)
    assert found.setting.theorem == 1
    assert not found.allowed
    (first,) = found.warnings
    for term in found.limit.broken(0.1):
        assert term.name in first
    assert [one.split()[0] for one in found.outside] == ["direction_kind", "weighting"]
    text = found.text()
    assert "<- binds" in text
    assert "no bound" in text


def test_report_is_quiet_within_the_theory():
    constants = Constants(L=1.0, gap=10.0, sigma_g=1.0)
    algorithm = fedzo.FedZO(learning_rate=1e-5, participants=5)
    found = report(algorithm, constants, devices=10, dim=50, rounds=100)
    assert found.setting.theorem == 2
    assert found.warnings == ()
    assert found.allowed
    assert "warnings" not in found.text()
    advised = replace(algorithm, learning_rate=found.advised.learning_rate)
    again = report(advised, constants, devices=10, dim=50, rounds=100)
    assert again.bound.value < found.bound.value
    assert again.warnings == ()


def test_report_over_the_air_counts_this_runs_channels():
    algorithm, uplink = fedzo.FedZO(local_steps=2), fedzo.AirComp(snr_db=-3.0, h_min=1.2)
    problem = Quadratic(6, 5)
    found = report(
        algorithm, constants_of(problem), devices=5, dim=6, rounds=30, uplink=uplink, seed=7
    )
    result = fedzo.minimize(
        problem, algorithm=algorithm, uplink=uplink, rounds=30, seed=7, evaluate_every=1
    )
    counts = [record["participants"] for record in result.history[1:]]
    heard = [count for count in counts if count > 0]
    assert 0 < len(heard) < 30
    assert found.setting.meeting == min(heard)
    assert found.setting.rounds == len(heard)
    assert found.setting.snr == pytest.approx(10**-0.3 * 1.44)
    assert any(f"in {30 - len(heard)} rounds" in w for w in found.warnings)
    assert any("8 M̃ γ >= N H" in w for w in found.warnings)
    nowhere = fedzo.AirComp(h_min=50.0)
    with fails("no-participants"):
        report(algorithm, ODD, devices=5, dim=6, rounds=3, uplink=nowhere)


def test_report_of_measured_constants():
    problem = Quadratic(10, 4)
    found = estimate(problem, queries=30_000)
    told = report(fedzo.FedZO(), found, devices=4, dim=10, rounds=50)
    assert told.constants == found.constants
    assert f"measured with {found.queries:,} queries" in told.text()
    assert "±" in told.text()
    assert "a lower bound" in told.text()


def test_report_refuses():
    with rejects("participants"):
        report(fedzo.FedZO(participants=5), ODD, devices=4, dim=10, rounds=50)
    with rejects("rounds"):
        report(fedzo.FedZO(), ODD, devices=4, dim=10, rounds=0)
    with fails("not-fedzo"):
        report(fedzo.FedAvg(), ODD, devices=4, dim=10, rounds=50)
