"""Parts that do not fit together are rejected at once; all others run. `make fuzz` tries more."""

import pytest

from combinations import AXES, arguments, check, tuples
from fedzo.errors import Exit
from fedzo.runs.registry import ALGORITHMS, SERVER_OPTIMIZERS, UPLINKS


@pytest.mark.parametrize("uplink", UPLINKS)
def test_every_algorithm_and_server_optimizer_over_an_uplink(uplink, tmp_path):
    cases = [{"algorithm.name": name} for name in ALGORITHMS]
    cases += [{"server.name": name} for name in SERVER_OPTIMIZERS]
    codes = [check({"uplink.name": uplink, **case}, tmp_path / "run") for case in cases]
    assert UPLINKS[uplink].wants_shared_directions or Exit.DONE in codes


@pytest.mark.parametrize("uplink", UPLINKS)
def test_every_kind_of_directions_over_an_uplink(uplink, tmp_path):
    """With shared and fixed directions, which the uplinks of coefficients use."""
    keys = ("algorithm.direction_kind", "algorithm.difference", "algorithm.smoothing")
    sets = ({"algorithm.shared_directions": True}, {"algorithm.fixed_directions": 4})
    for case in tuples(1, {key: AXES[key] for key in keys}):
        for directions in sets:
            check({"uplink.name": uplink, **directions, **case}, tmp_path / "run")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_auto_is_chosen_or_rejected(algorithm, tmp_path):
    for key in ("algorithm.smoothing", "algorithm.learning_rate"):
        check({"algorithm.name": algorithm, key: "auto"}, tmp_path / "run")


def test_an_attack_within_eps_over_the_air(tmp_path):
    """Its candidates are compared by values, which the channel does not carry."""
    case = {"config": "attack-eps", "uplink.name": "aircomp"}
    assert "server.divisions=1" in arguments(case)
    assert check(case, tmp_path / "run") == Exit.NOTHING_RUN


def test_an_extra_that_is_missing_is_told_before_the_first_round(tmp_path, monkeypatch):
    monkeypatch.setattr("fedzo.algorithms.search.population.find_spec", lambda name: None)
    assert check({"algorithm.name": "tpe"}, tmp_path / "run") == Exit.NOTHING_RUN
