"""Updates rebuilt by columns on several cores: the bits of whole directions, in less memory."""

import tracemalloc

import numpy as np
import pytest

import fedzo
from driving import steps_of
from fedzo.core import streams
from fedzo.core.directions import KINDS, Frame
from fedzo.core.streams import Combination
from fedzo.core.tasks import Update
from fedzo.problems import Quadratic
from fedzo.uplinks.base import Mean


def sent(dtype, steps=3, directions=7, device=4):
    numbers = np.random.default_rng(device).normal(size=(steps, directions)).astype(dtype)
    return Update(device, np.empty(0, dtype), 1, 8, numbers)


def from_whole_directions(work, update):
    estimator = work.algorithm.estimator
    frame = Frame(estimator.kind, estimator.directions, work.x.size, update.coefficients.dtype)
    start, delta = np.zeros((2, work.x.size), update.coefficients.dtype)
    for k, moves in enumerate(update.coefficients):
        frame.draw(estimator.address(work.draws(update.device)._replace(step=k)))
        frame.advance(moves, delta, start)
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


@pytest.mark.parametrize("kind", streams.KINDS)
@pytest.mark.parametrize("dim", [100, 70_001])
def test_same_bits_as_devices_that_stream(kind, dim):
    work, update = work_of(kind, dim), sent(np.float32)
    places = [work.draws(4)._replace(step=k) for k in range(len(update.coefficients))]
    whole = Combination.of(kind, dim, places, update.coefficients).build(np.float32)
    assert np.array_equal(np.asarray(work.rebuilt(update, streamed=True), np.float32), whole)


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_of_what_is_not_built_is_the_mean(dtype, weights):
    work = work_of("sphere", 70_001, dtype)
    updates = [sent(dtype, device=i)._replace(weight=w) for i, w in enumerate(weights)]
    built, unbuilt = Mean(70_001), Mean(70_001)
    for update in updates:
        built.add(update._replace(delta=work.rebuild(update)))
        unbuilt.add(update._replace(delta=work.rebuilt(update)))
    assert np.array_equal(np.asarray(unbuilt.value()), built.value())
    moved, _ = work.algorithm.server.take(0, (), work.x, unbuilt.value())
    right, _ = work.algorithm.server.apply(0, (), work.x, built.value())
    assert np.array_equal(moved, right)
    assert moved.dtype == dtype


def test_a_round_takes_no_more_memory_than_two_models():
    """Of 20 devices with 20 directions each: the new model, and what a core draws at a time."""
    work, mean = work_of("sphere", 10**6, directions=20, local_steps=1), Mean(10**6)
    for device in range(20):
        update = sent(np.float32, 1, 20, device)
        mean.add(update._replace(delta=work.rebuilt(update)))
    tracemalloc.start()
    work.algorithm.server.take(0, (), work.x, mean.value())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * work.x.nbytes


def test_one_update_is_rebuilt_where_directions_are_shared():
    """It agrees with the mean of the devices' own updates to rounding."""
    problem = Quadratic(dim=300, devices=6)
    algorithm = fedzo.FedZO(learning_rate=0.1, directions=5, shared_directions=True)
    ideal, seeds = (
        fedzo.minimize(problem, algorithm=algorithm, uplink=uplink, rounds=1)
        for uplink in (fedzo.Ideal(), fedzo.Seeds())
    )
    assert np.abs(ideal.last - seeds.last).max() < 1e-14 * np.abs(ideal.last).max()
