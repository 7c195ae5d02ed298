"""Fixtures that the tests of runs share."""

import pytest

from fedzo.problems import Quadratic, softmax


@pytest.fixture(scope="session")
def problems():
    return {"quadratic": Quadratic(dim=12, devices=10), "softmax": softmax(devices=10)}
