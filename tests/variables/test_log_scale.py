"""Numbers over decades, typical lengths and further arguments of a plain function."""

import numpy as np
import pytest

import fedzo
from fedzo.problems import FunctionObjective
from fedzo.variables.bounds import LogScale
from raising import rejects


def test_decoding_undoes_encoding():
    decades = LogScale(["log", "linear", "log"], dim=3)
    x = np.array([1e-6, -3.0, 1e5])
    assert decades.decode(decades.encode("x0", x)) == pytest.approx(x, rel=1e-12)


def test_parameters_over_decades_are_found():
    goal = np.array([3e-5, 2.0, 4e4])

    def distance(x, device):
        return float(np.sum(np.log(x / goal) ** 2))

    result = fedzo.minimize(
        distance, np.array([1e-6, 1.0, 1e5]), devices=2, scale="log", max_queries=2000
    )
    assert result.x == pytest.approx(goal, rel=1e-3)


def test_a_logarithmic_scale_stays_inside_its_bounds():
    seen = []

    def rate(x, device):
        seen.append(x.copy())
        return float((np.log10(x[0]) + 7) ** 2)

    result = fedzo.minimize(
        rate, [1e-2], devices=1, scale="log", bounds=[(1e-4, 1.0)], max_queries=150, workers=1
    )
    points = np.array(seen)
    assert points.min() >= 1e-4 * (1 - 1e-12)
    assert points.max() <= 1 + 1e-12
    assert result.x == pytest.approx([1e-4], rel=1e-2)


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, None),
        ({"x_scale": 3.0}, [3, 3]),
        ({"x_scale": [1e-6, 1e6]}, [1e-6, 1e6]),
        ({"bounds": [(-5, 5), (None, None)]}, [2.5, np.nan]),
        ({"scale": ["log", "linear"]}, [1, np.nan]),
        ({"scale": "log", "bounds": [(1e-4, 1), (1, None)]}, [1, 1]),
    ],
)
def test_typical_lengths(options, lengths):
    objective = FunctionObjective(lambda x, device: 0.0, 2, 1, **options)
    if lengths is None:
        assert objective.scale is None
    else:
        assert np.array_equal(objective.scale, lengths, equal_nan=True)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"scale": "lgo"}, "scale"),
        ({"scale": ["log"]}, "scale"),
        ({"x_scale": 0.0}, "x_scale"),
        ({"x_scale": [1.0, 2.0, 3.0]}, "x_scale"),
        ({"args": 3}, "args"),
        ({"scale": "log"}, "x0[1]"),
        ({"scale": "log", "bounds": [(0, 1), (-2, -1)]}, "bounds"),
    ],
)
def test_impossible_settings_are_rejected(options, key):
    with rejects(key):
        fedzo.minimize(lambda x, device: 0.0, [1.0, -1.0], devices=1, **options)
