"""Streamed directions are the held ones, to the bit, wherever a piece begins."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedzo.core import streams
from fedzo.core.directions import Frame
from fedzo.core.random import Draws, Stream
from fedzo.core.streams import KINDS, Combination, scales
from raising import rejects

HERE = Draws(seed=11, stream=Stream.DIRECTIONS, round=3, device=5, step=2)


def held(kind, count, dim, dtype, at=HERE):
    frame = Frame(kind, count, dim, dtype)
    frame.draw(at)
    return frame


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 127, 256, 2049, 200_003])
def test_rows_and_scales_are_those_of_a_frame(kind, dtype, dim):
    frame = held(kind, 3, dim, dtype)
    for n in range(3):
        row = Combination.of(kind, dim, HERE, np.eye(3)[n]).build(dtype)
        assert np.array_equal(row, frame.rows[n])
    assert np.array_equal(scales(kind, 3, dim, HERE, dtype), frame.scales)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_piece_is_the_same_wherever_it_begins(kind, data):
    dim = 5000
    start = data.draw(st.integers(0, dim))
    stop = data.draw(st.integers(start, dim))
    step = Combination.of(kind, dim, HERE, np.array([0.5, -0.25, 2.0]))
    whole = step.build(np.float32)
    piece = np.zeros(stop - start, np.float32)
    step.add_to(piece, start)
    assert np.array_equal(piece, whole[start:stop])


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_number_of_cores(kind, monkeypatch):
    step = Combination.of(kind, 300_001, HERE, np.array([0.3, -0.7]))
    bits = step.build(np.float32).tobytes(), scales(kind, 2, 300_001, HERE).tobytes()
    monkeypatch.setattr(streams, "_threads", lambda: None)
    alone = step.build(np.float32).tobytes(), scales(kind, 2, 300_001, HERE).tobytes()
    assert bits == alone


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_is_kept_and_the_sum_is_right(kind):
    """A sum of three products is off by at most three roundings of its largest partial sum."""
    dim, c = 70_000, np.array([0.5, -0.3, 0.1])
    base = np.linspace(-1, 1, dim, dtype=np.float32)
    kept, out = base.copy(), np.full(dim, np.nan, np.float32)
    step = Combination.of(kind, dim, HERE, c)
    step.add_to(out, 0, base)
    assert np.array_equal(base, kept)
    rows = held(kind, 3, dim, np.float64).rows
    largest = np.abs(base) + np.abs(c) @ np.abs(rows)
    assert np.all(np.abs(out - (base + c @ rows)) <= 4 * np.finfo(np.float32).eps * largest)
    step.add_to(base)  # in place is the same
    assert np.array_equal(base, out)


def test_steps_are_drawn_one_after_the_other():
    table = np.array([[0.5, 1.0], [2.0, -1.0], [0.25, 0.0]])
    places = [HERE._replace(step=2 + k) for k in range(3)]
    whole = Combination.of("gaussian", 1000, places, table)
    apart = [
        Combination.of("gaussian", 1000, HERE._replace(step=2 + k), table[k]) for k in range(3)
    ]
    joined = apart[0] + apart[1] + apart[2]
    assert np.array_equal(whole.build(), joined.build())
    assert np.array_equal(whole.scaled(2.0).build(), 2 * whole.build())  # a power of two is exact


def test_sums_of_unlike_kinds_are_refused():
    one = Combination.of("gaussian", 10, HERE, np.ones(1))
    with pytest.raises(TypeError):
        one + Combination.of("rademacher", 10, HERE, np.ones(1))


@pytest.mark.parametrize(
    ("kind", "dim", "numbered"), [("gaussian", 256_000, 2**32 // 48), ("rademacher", 2**21, 2**32)]
)
def test_beyond_32_bits_the_block_number_goes_on_in_the_step(kind, dim, numbered):
    """Part number 2^32 / (blocks of a part) + p has the counter of part p, 4096 steps later."""
    part = 256 if kind == "gaussian" else 128
    row = numbered // (dim // part) + 1
    parts_before = row * (dim // part) - numbered  # of the row, beyond the last that 32 bits number
    address = np.array([HERE.address()], np.uint64)
    far = np.zeros(1000, np.float32)
    Combination(kind, dim, address, np.array([row]), np.ones(1)).add_to(far)
    later = Combination.of(kind, 2**30, HERE._replace(step=HERE.step + 4096), np.ones(1))
    near = np.zeros(1000, np.float32)
    later.add_to(near, parts_before * part)
    assert np.array_equal(far, near)
    first = np.zeros(1000, np.float32)
    Combination.of(kind, 2**30, HERE, np.ones(1)).add_to(first, parts_before * part)
    assert not np.array_equal(far, first)


@pytest.mark.parametrize(
    ("kind", "dim"), [("gaussian", 2**35), ("sphere", 2**35), ("rademacher", 2**40)]
)
def test_large_draws_leave_4096_steps(kind, dim):
    Combination.of(kind, dim, HERE._replace(step=4095), np.ones(1))
    with rejects("step"):
        Combination.of(kind, dim, [HERE, HERE._replace(step=4096)], np.ones((2, 1)))
    with rejects("directions x dim"):
        Combination.of(kind, dim, HERE, np.ones(2**14))


@pytest.mark.parametrize("kind", ["orthogonal", "coordinate", "gausian"])
def test_kinds_that_cannot_be_streamed_are_refused(kind):
    with rejects("direction_kind"):
        Combination.of(kind, 10, HERE, np.ones(1))


def test_moments_far_out_in_a_large_vector():
    """A million numbers from 2^38 on: mean and variance within 5 standard errors."""
    numbers = np.zeros(1_000_000)
    Combination.of("gaussian", 2**40, HERE._replace(step=0), np.ones(1)).add_to(numbers, 2**38)
    assert abs(numbers.mean()) < 5 / math.sqrt(numbers.size)
    assert abs(numbers.var() - 1) < 5 * math.sqrt(2 / numbers.size)
