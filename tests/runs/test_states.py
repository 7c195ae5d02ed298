"""States as lists of arrays, means of large numbers, and the names of what is complained about."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzo.errors import InvalidValue, UsageError, check_count, naming
from fedzo.runs import flatten, unflatten
from fedzo.runs.history import mean_loss
from raising import rejects


class Pair(NamedTuple):
    x: Any
    kept: Any = ()


def array(seed, dtype=np.float64):
    return np.arange(seed, seed + 3, dtype=dtype)


STATES = [
    array(1),
    (),
    (array(1),),
    Pair(array(1)),
    Pair(array(1), (array(2), array(3, np.float32))),
    Pair(Pair(array(1), ()), (Pair(array(2), (array(3),)), ())),
]


@pytest.mark.parametrize("state", STATES, ids=range(len(STATES)))
def test_a_state_comes_back_as_it_was(state):
    arrays = flatten(state)
    assert all(isinstance(one, np.ndarray) for one in arrays)
    again = unflatten(state, [one.copy() for one in arrays])
    assert shape(again) == shape(state)
    for one, other in zip(flatten(again), arrays, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def shape(state):
    """Return the types that a state is made of."""
    return [type(state), *map(shape, state)] if isinstance(state, tuple) else type(state)


def test_arrays_come_in_the_order_of_the_fields():
    state = Pair(Pair(array(1), array(2)), (array(3), array(4)))
    assert [one[0] for one in flatten(state)] == [1, 2, 3, 4]
    turned = unflatten(state, flatten(state)[::-1])
    assert turned.x.x[0] == 4
    assert turned.kept[1][0] == 1


# --- means


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1.7e308, 1.7e308), min_size=1, max_size=9))
def test_the_mean_of_finite_numbers_is_finite_and_right(numbers):
    """Against fractions: n additions round by at most n u times the sum of absolute values."""
    exact = sum(map(Fraction, numbers)) / len(numbers)
    found = mean_loss(np.array(numbers))
    assert np.isfinite(found)
    most = sum(abs(Fraction(one)) for one in numbers) * 2 * len(numbers) / 2**53
    assert abs(Fraction(found) - exact) <= most + Fraction(5e-324) * len(numbers)


def test_a_sum_beyond_the_largest_number():
    largest = np.finfo(np.float64).max
    assert mean_loss(np.full(4, largest)) == largest
    assert mean_loss(np.full(4, -largest)) == -largest
    assert mean_loss(np.full(2, 3e38, np.float32)) == np.float32(3e38)


def test_losses_whose_sum_is_too_large_are_a_finite_history():
    import fedzo

    result = fedzo.minimize(lambda x, i: 1e308 + i, np.zeros(2), devices=3, rounds=0)
    assert result.fun == pytest.approx(1e308)


# --- naming


def test_naming_puts_the_table_in_front():
    with rejects("run.rounds") as caught, naming("run"):
        check_count("rounds", 0)
    assert caught.value.value == 0
    assert isinstance(caught.value.__cause__, InvalidValue)


@pytest.mark.parametrize("error", [UsageError("no"), ValueError("no"), KeyboardInterrupt()])
def test_naming_leaves_everything_else_alone(error):
    with pytest.raises(type(error)) as caught, naming("run"):
        raise error
    assert caught.value is error
