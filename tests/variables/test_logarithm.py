"""Numbers over decades, typical lengths and further arguments of a plain function."""

import numpy as np
import pytest

import fedzo
from fedzo.errors import InvalidValue
from fedzo.problems import FunctionObjective
from fedzo.variables.logarithm import Logarithm


def test_decoding_undoes_encoding():
    decades = Logarithm(["log", "linear", "log"], dim=3)
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
    ("options", "message"),
    [
        ({"scale": "lgo"}, "scale = 'lgo': must be one of 'linear', 'log' (did you mean 'log'?)"),
        ({"scale": ["log"]}, "scale = '1 words': must be one of 2 words, or one for all"),
        ({"x_scale": 0.0}, "x_scale = 0.0: must be a number > 0, or 2 of them"),
        ({"x_scale": [1.0, 2.0, 3.0]}, "a number > 0, or 2 of them"),
        ({"args": 3}, "args = 3: must be a tuple, such as (1.0,)"),
        ({"scale": "log"}, "x0[1] = -1.0: must be > 0 on a logarithmic scale"),
        ({"scale": "log", "bounds": [(0, 1), (-2, -1)]}, "above 0 on a logarithmic scale"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(InvalidValue) as caught:
        fedzo.minimize(lambda x, device: 0.0, [1.0, -1.0], devices=1, **options)
    assert message in str(caught.value)


def test_further_arguments_reach_the_function():
    def shifted(x, device, shift, factor):
        return factor * float(np.sum((x - shift) ** 2))

    result = fedzo.minimize(shifted, np.zeros(2), devices=2, args=(4.0, 3.0))
    assert result.x == pytest.approx([4, 4], abs=1e-4)
