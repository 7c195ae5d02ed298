"""Every algorithm against `conformance.py`."""

import pytest

from conformance import CHECKS
from fedzo.runs.registry import ALGORITHMS

SETTINGS = {
    "fedzo": {"learning_rate": 0.02, "directions": 3, "batch_size": 2, "local_steps": 2},
    "zo_sgd": {"learning_rate": 0.02, "directions": 3, "batch_size": 4},
    "dzopa": {"learning_rate": 0.02, "directions": 3, "batch_size": 2},
    "zone_s": {"penalty": 3.0, "directions": 3, "batch_size": 2},
    "fedavg": {"learning_rate": 0.02, "batch_size": 2, "local_steps": 2},
    "fedbuff": {"learning_rate": 0.02, "batch_size": 2, "participants": 3, "buffer": 2},
    "fedprox": {"learning_rate": 0.02, "batch_size": 2, "proximal": 0.5},
    "scaffold": {"learning_rate": 0.02, "batch_size": 2, "participants": 3},
    "adaptive": {"batch_size": 2},
    "lbfgs": {"batch_size": 2},
    "cma": {"batch_size": 2},
    "tpe": {"batch_size": 2},
}


def test_every_algorithm_is_covered():
    assert set(SETTINGS) == set(ALGORITHMS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_conformance(name, check):
    check(ALGORITHMS[name](**SETTINGS[name]))
