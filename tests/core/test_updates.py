"""Lazy sums of directions: the bits of held directions, wherever a piece begins, in less memory."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedzo
from driving import steps_of
from fedzo.core import updates
from fedzo.core.directions import KINDS, STREAMABLE, DirectionBuffer
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Update
from fedzo.core.updates import DirectionSum, UpdateMean, as_sum, join, scales
from fedzo.problems import Quadratic
from fedzo.runs.registry import SERVER_OPTIMIZERS
from raising import rejects

HERE = Draws(seed=11, stream=Stream.DIRECTIONS, round=3, device=5, step=2)


def held(kind, count, dim, dtype, at=HERE):
    buffer = DirectionBuffer(kind, count, dim, dtype)
    buffer.draw(at)
    return buffer


def one_step(kind, dim, coefficients, at=HERE, dtype=np.float32):
    return DirectionSum.of(kind, dim, [at], np.array([coefficients], dtype))


@pytest.mark.parametrize("kind", STREAMABLE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 127, 256, 2049, 200_003])
def test_rows_and_scales_are_those_of_a_buffer(kind, dtype, dim):
    buffer = held(kind, 3, dim, dtype)
    for n in range(3):
        row = DirectionSum.of(kind, dim, [HERE], np.ones((1, 1), dtype), row=n)
        assert np.array_equal(np.asarray(row, dtype), buffer.rows[n])
        same = one_step(kind, dim, np.eye(3)[n], dtype=dtype)
        assert np.array_equal(np.asarray(same, dtype), buffer.rows[n])
    assert np.array_equal(scales(kind, 3, dim, HERE, np.empty(0, dtype)), buffer.scales)


@pytest.mark.parametrize("kind", STREAMABLE)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_piece_is_the_same_wherever_it_begins(kind, data):
    dim = 5000
    start = data.draw(st.integers(0, dim))
    stop = data.draw(st.integers(start, dim))
    step = one_step(kind, dim, [0.5, -0.25, 2.0, 0.1, 0.7])
    total = join([step.scaled(3), step]).divided(4)
    for own in (step, total):
        whole = np.asarray(own, np.float32)
        piece = np.zeros(stop - start, np.float32)
        own.add_to(piece, start)
        assert np.array_equal(piece, whole[start:stop])
        assert np.array_equal(own.part(start, stop), np.asarray(own)[start:stop])


@pytest.mark.parametrize("kind", STREAMABLE)
def test_bits_do_not_depend_on_the_number_of_cores(kind, monkeypatch):
    step = one_step(kind, 300_001, [0.3, -0.7])
    bits = np.asarray(step).tobytes(), scales(kind, 2, 300_001, HERE).tobytes()
    monkeypatch.setattr(updates, "_threads", lambda: None)
    alone = np.asarray(step).tobytes(), scales(kind, 2, 300_001, HERE).tobytes()
    assert bits == alone


@pytest.mark.parametrize("kind", STREAMABLE)
def test_the_base_is_kept_and_the_sum_is_right(kind):
    """A sum of three products is off by at most three roundings of its largest partial sum."""
    dim, c = 70_000, np.array([0.5, -0.3, 0.1])
    base = np.linspace(-1, 1, dim, dtype=np.float32)
    kept, out = base.copy(), np.full(dim, np.nan, np.float32)
    step = one_step(kind, dim, c)
    step.add_to(out, 0, base)
    assert np.array_equal(base, kept)
    rows = held(kind, 3, dim, np.float64).rows
    largest = np.abs(base) + np.abs(c) @ np.abs(rows)
    assert np.all(np.abs(out - (base + c @ rows)) <= 4 * np.finfo(np.float32).eps * largest)
    step.add_to(base)  # in place is the same
    assert np.array_equal(base, out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_devices_are_summed_in_float64(kind, dtype):
    """Each device's own sum in the model's precision, then the weighted mean of those."""
    places = [[HERE._replace(device=i, step=k) for k in range(2)] for i in range(3)]
    tables = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(dtype)
    own = [DirectionSum.of(kind, 300, *pair) for pair in zip(places, tables, strict=True)]
    weights, dense = (2.0, 1.0, 3.0), np.linspace(-1, 1, 300)
    mean = UpdateMean(300)
    for step, weight in zip(own, weights, strict=True):
        mean.add(step, weight)
    mean.add(dense, 4.0)
    each = [weight * np.asarray(step) for step, weight in zip(own, weights, strict=True)]
    assert all(np.array_equal(x, x.astype(dtype)) for x in map(np.asarray, own))
    expected = (4 * dense + each[0] + each[1] + each[2]) / 10
    assert np.array_equal(np.asarray(mean.value()), expected)
    moved = np.ones(300, dtype)
    mean.value().add_to(moved)
    assert np.array_equal(moved, (1 + expected).astype(dtype))


def test_scaling_and_adding():
    table = np.array([[0.5, 1.0], [2.0, -1.0], [0.25, 0.0]])
    places = [HERE._replace(step=2 + k) for k in range(3)]
    whole = DirectionSum.of("gaussian", 1000, places, table)
    assert np.array_equal(np.asarray(whole.scaled(3.0)), 3 * np.asarray(whole))
    assert np.array_equal(np.asarray(whole.divided(3.0)), np.asarray(whole) / 3)
    point = DirectionSum.of("gaussian", 1000, [HERE], np.ones((1, 1)), row=1)
    assert np.array_equal(np.asarray(join([whole, point])), np.asarray(whole) + np.asarray(point))
    assert whole.nbytes == 8000
    assert whole.size == 1000


def test_sums_of_unlike_kinds_are_not_added():
    with pytest.raises(TypeError):
        join([one_step("gaussian", 10, [1.0]), one_step("rademacher", 10, [1.0])])


def test_the_mean_of_arrays_is_an_array():
    mean = UpdateMean(2)
    assert mean.value().tolist() == [0.0, 0.0]
    mean.add(np.array([1.0, 2.0], np.float32))
    mean.add(as_sum(np.array([2.0, 4.0])), 2.0)
    assert mean.value().tolist() == [5 / 3, 10 / 3]


@pytest.mark.parametrize(
    ("kind", "dim", "numbered"), [("gaussian", 256_000, 2**32 // 48), ("rademacher", 2**21, 2**32)]
)
def test_beyond_32_bits_the_block_number_goes_on_in_the_step(kind, dim, numbered):
    """Part number 2^32 / (blocks of a part) + p has the counter of part p, 4096 steps later."""
    part = 256 if kind == "gaussian" else 128
    row = numbered // (dim // part) + 1
    parts_before = row * (dim // part) - numbered  # of the row, beyond the last that 32 bits number
    far = np.zeros(1000, np.float32)
    DirectionSum.of(kind, dim, [HERE], np.ones((1, 1), np.float32), row).add_to(far)
    later = one_step(kind, 2**30, [1.0], HERE._replace(step=HERE.step + 4096))
    near = np.zeros(1000, np.float32)
    later.add_to(near, parts_before * part)
    assert np.array_equal(far, near)
    first = np.zeros(1000, np.float32)
    one_step(kind, 2**30, [1.0]).add_to(first, parts_before * part)
    assert not np.array_equal(far, first)


@pytest.mark.parametrize(
    ("kind", "dim"), [("gaussian", 2**35), ("sphere", 2**35), ("rademacher", 2**40)]
)
def test_large_draws_leave_4096_steps(kind, dim):
    one_step(kind, dim, [1.0], HERE._replace(step=4095))
    with rejects("step"):
        one_step(kind, dim, [1.0], HERE._replace(step=4096))
    with rejects("directions x dim"):
        one_step(kind, dim, np.ones(2**14))


def test_an_unknown_kind_is_rejected():
    with rejects("direction_kind"):
        one_step("gausian", 10, [1.0])


def test_moments_far_out_in_a_large_vector():
    """A million numbers from 2^38 on: mean and variance within 5 standard errors."""
    numbers = np.zeros(1_000_000)
    one_step("gaussian", 2**40, [1.0], HERE._replace(step=0)).add_to(numbers, 2**38)
    assert abs(numbers.mean()) < 5 / math.sqrt(numbers.size)
    assert abs(numbers.var() - 1) < 5 * math.sqrt(2 / numbers.size)


# ------------------------------------------------------------------- updates from coefficients


def sent(dtype, steps=3, directions=7, device=4):
    numbers = np.random.default_rng(device).normal(size=(steps, directions)).astype(dtype)
    return Update(device, np.empty(0, dtype), 1, 8, numbers)


def from_whole_directions(work, update):
    estimator = work.algorithm.estimator
    dtype = update.coefficients.dtype
    buffer = DirectionBuffer(estimator.kind, estimator.directions, work.x.size, dtype)
    start, delta = np.zeros((2, work.x.size), dtype)
    for k, moves in enumerate(update.coefficients):
        buffer.draw(estimator.address(work.draws(update.device)._replace(step=k)))
        buffer.advance(moves, delta, start)
    return delta


def work_of(kind, dim, dtype=np.float32, **settings):
    settings = {"directions": 7, "local_steps": 3, "direction_kind": kind, **settings}
    return steps_of(fedzo.FedZO(**settings), np.linspace(-1, 1, dim).astype(dtype), round=9, seed=3)


# Orthogonal ones are not drawn by columns, and take long.
CASES = [
    (k, d) for k in KINDS for d in (100, 4096, 12_289, 70_001) if k != "orthogonal" or d < 5000
]


@pytest.mark.parametrize(("kind", "dim"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_as_whole_directions(kind, dtype, dim):
    work, update = work_of(kind, dim, dtype), sent(dtype)
    found = work.rebuild(update)
    assert found.dtype == dtype
    assert np.array_equal(found, from_whole_directions(work, update))


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["mean", "adam", "sign_momentum", "normalised"])
def test_a_lazy_mean_moves_the_model_by_the_mean(name, dtype, weights):
    """To the bit, by pieces for optimizers that are element-wise."""
    server = SERVER_OPTIMIZERS[name]()
    work = work_of("sphere", 70_001, dtype)
    dense, lazy = UpdateMean(70_001), UpdateMean(70_001)
    for i, weight in enumerate(weights):
        update = sent(dtype, device=i)
        dense.add(work.rebuild(update), weight)
        lazy.add(work.rebuilt(update), weight)
    assert np.array_equal(np.asarray(lazy.value()), dense.value())
    state = server.init(work.x)
    moved, after = server.step(0, state, work.x, lazy.value())
    right, expected = server.apply(0, state, work.x, dense.value())
    assert np.array_equal(moved, right)
    assert moved.dtype == dtype
    for one, other in zip(after, expected, strict=True):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype == np.float32


@pytest.mark.parametrize("name", ["mean", "adam"])
def test_a_round_takes_no_more_memory_than_the_next_model_and_state(name):
    """Of 20 devices with 20 directions each: besides, only what a core draws at a time."""
    work, mean = work_of("sphere", 10**6, directions=20, local_steps=1), UpdateMean(10**6)
    for device in range(20):
        mean.add(work.rebuilt(sent(np.float32, 1, 20, device)))
    server = SERVER_OPTIMIZERS[name]()
    state = server.init(work.x)
    tracemalloc.start()
    server.step(0, state, work.x, mean.value())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < (2 + len(state)) * work.x.nbytes


def test_one_update_is_rebuilt_where_directions_are_shared():
    """It agrees with the mean of the devices' own updates to rounding."""
    problem = Quadratic(dim=300, devices=6)
    algorithm = fedzo.FedZO(learning_rate=0.1, directions=5, shared_directions=True)
    ideal, seeds = (
        fedzo.minimize(problem, algorithm=algorithm, uplink=uplink, rounds=1)
        for uplink in (fedzo.Ideal(), fedzo.Seeds())
    )
    assert np.abs(ideal.last - seeds.last).max() < 1e-14 * np.abs(ideal.last).max()
