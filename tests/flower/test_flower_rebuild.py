"""Rebuilding by columns on several threads: the same bits, in less memory."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fedzo
from fedzo.core.directions import KINDS
from fedzo.core.federation import Update, Work
from fedzo.flower.rebuild import rebuild


def sent(dtype, steps=3, directions=7, device=4):
    numbers = np.random.default_rng(0).normal(size=(steps, directions)).astype(dtype)
    return Update(device, np.empty(0, dtype), 1, 8, numbers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [100, 4096, 4097, 12_289, 20_000])
def test_same_bits_as_whole_directions(kind, dtype, dim):
    if kind == "orthogonal" and dim > 5000:
        pytest.skip("it is not drawn by columns, and takes long")
    algorithm = fedzo.FedZO(directions=7, local_steps=3, direction_kind=kind)
    work, update = Work(algorithm, np.zeros(dim, dtype), round=9, seed=3), sent(dtype)
    with ThreadPoolExecutor(3) as threads:
        found = rebuild(work, update, threads)
    assert found.dtype == dtype
    assert np.array_equal(found, work.rebuild(update))


def test_takes_no_more_memory_than_two_models():
    algorithm = fedzo.FedZO(directions=20, local_steps=1)
    work = Work(algorithm, np.zeros(10**6, np.float32), round=0, seed=0)
    update = sent(np.float32, steps=1, directions=20)
    with ThreadPoolExecutor(2) as threads:
        rebuild(work, update, threads)  # compiled
        tracemalloc.start()
        rebuild(work, update, threads)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 2 * work.x.nbytes
