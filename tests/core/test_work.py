"""A round's work: pure, with an address for every device, and the same after a journey."""

import pickle

import numpy as np
import pytest

from fedzo import DZOPA, FedZO, ZoneS
from fedzo.core.federation import Replies
from fedzo.core.random import Draws, Stream
from fedzo.core.work import Work
from fedzo.problems import Quadratic

PROBLEM = Quadratic(dim=6, devices=5)
ALGORITHM = FedZO(directions=3, local_steps=2, batch_size=2)
X = np.linspace(-1, 1, 6)


def same(one, two):
    assert one.delta.tobytes() == two.delta.tobytes()
    assert (one.device, one.weight, one.queries) == (two.device, two.weight, two.queries)


def test_it_is_the_algorithms_local_at_the_devices_address():
    work = Work(ALGORITHM, X, round=4, seed=9)
    at = Draws(9, Stream.DIRECTIONS, 4, 2)
    assert work.at(2) == at
    same(work(PROBLEM, 2), ALGORITHM.local(PROBLEM, 2, X, at))


def test_it_is_pure():
    work = Work(ALGORITHM, X.copy(), round=4, seed=9)
    first = work(PROBLEM, 1)
    work(PROBLEM, 3)
    same(work(PROBLEM, 1), first)
    assert np.array_equal(work.x, X)


@pytest.mark.parametrize("other", [{"round": 5}, {"seed": 8}], ids=str)
def test_another_address_is_another_update(other):
    work = Work(ALGORITHM, X, **{"round": 4, "seed": 9})
    elsewhere = Work(ALGORITHM, X, **({"round": 4, "seed": 9} | other))
    assert not np.array_equal(work(PROBLEM, 1).delta, elsewhere(PROBLEM, 1).delta)


@pytest.mark.parametrize("algorithm", [ALGORITHM, DZOPA(directions=3), ZoneS(directions=3)])
def test_it_travels(algorithm):
    work = Work(algorithm, X, round=1, seed=2)
    same(pickle.loads(pickle.dumps(work))(PROBLEM, 3), work(PROBLEM, 3))


def test_rows_are_the_devices_own_models():
    rows = np.arange(18.0).reshape(3, 6)
    work = Work(ALGORITHM, rows, round=0, seed=1, rows=(4, 0, 2))
    for device, row in ((4, 0), (0, 1), (2, 2)):
        same(work(PROBLEM, device), Work(ALGORITHM, rows[row], 0, 1)(PROBLEM, device))
    with pytest.raises(ValueError, match="not in tuple"):
        work(PROBLEM, 3)


def test_only_what_devices_need_is_sent():
    rows = np.arange(18.0).reshape(3, 6)
    work = Work(ALGORITHM, rows, round=0, seed=1, rows=(4, 0, 2))
    part = work.only([2, 4])
    assert part.rows == (2, 4)
    assert np.array_equal(part.x, rows[[2, 0]])
    for device in (2, 4):
        same(part(PROBLEM, device), work(PROBLEM, device))
    shared = Work(ALGORITHM, X, round=0, seed=1)
    assert shared.only([2]) is shared


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shared", [False, True])
def test_coefficients_rebuild_the_update_to_the_bit(dtype, shared):
    algorithm = FedZO(directions=3, local_steps=4, batch_size=2, shared_directions=shared)
    work = Work(algorithm, X.astype(dtype), round=7, seed=3)
    for device in (0, 3):
        update = work(PROBLEM, device)
        assert update.coefficients.shape == (4, 3)
        assert work.rebuild(update).tobytes() == update.delta.tobytes()


def test_replies_know_the_work_unless_it_is_a_stand_in():
    work = Work(ALGORITHM, X, round=0, seed=1)
    assert Replies([], work).work is work
    assert Replies([], lambda objective, device: None).work is None
