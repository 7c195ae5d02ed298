"""Directions: E[v v^T] = I/d for every kind, and what is particular to each."""

import math

import numpy as np
import pytest

from fedzo.core.directions import KINDS, DirectionBuffer
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from raising import rejects

HERE = Draws(seed=4, stream=Stream.DIRECTIONS, round=1, device=2)


def drawn(kind, count, dim, dtype=np.float64, step=0):
    buffer = DirectionBuffer(kind, count, dim, dtype)
    buffer.draw(HERE._replace(step=step))
    return buffer.vectors()


@pytest.mark.parametrize("kind", KINDS)
def test_second_moment_is_identity_over_d(kind):
    """Every kind, to the constant: each entry of the mean of v v^T within 5 standard errors.

    |v_i v_j| has a standard deviation of at most sqrt(E v_i^4) <= sqrt(1/d) (coordinate
    directions: v_i^4 = v_i^2, mean 1/d), so n draws leave sqrt(1/d/n). Draws without
    replacement are negatively correlated, which only helps.
    """
    dim, count, draws = 4, 4, 20_000
    total = np.zeros((dim, dim))
    for step in range(draws):
        v = drawn(kind, count, dim, step=step)
        total += v.T @ v
    n = count * draws
    assert np.abs(total / n - np.eye(dim) / dim).max() < 5 * math.sqrt(1 / dim / n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lengths(kind, dtype):
    """Length one exactly, but for gaussian: there of mean square one (variance 2/d)."""
    v = drawn(kind, 50, 300, dtype)
    assert v.dtype == dtype
    squares = np.sum(v.astype(np.float64) ** 2, axis=1)
    if kind == "gaussian":
        assert abs(squares.mean() - 1) < 5 * math.sqrt(2 / 300 / 50)
        assert squares.std() > 0.5 * math.sqrt(2 / 300)
    else:
        np.testing.assert_allclose(squares, 1, rtol=100 * np.finfo(dtype).eps)


def test_sphere_is_uniform_in_three_dimensions():
    """Archimedes: a coordinate of a uniform point on the 2-sphere is uniform on [-1, 1]."""
    from scipy import stats

    v = drawn("sphere", 50_000, 3)
    for axis in range(3):
        assert stats.kstest(v[:, axis], stats.uniform(-1, 2).cdf).pvalue > 1e-4


@pytest.mark.parametrize("dim", [1, 31, 32, 33, 128, 129, 300])
def test_rademacher_entries(dim):
    v = drawn("rademacher", 7, dim)
    np.testing.assert_allclose(np.abs(v), 1 / math.sqrt(dim))


def test_rademacher_signs_are_fair_and_differ():
    v = np.sign(drawn("rademacher", 400, 1000))
    assert abs(v.mean()) < 5 / math.sqrt(v.size)
    gram = v @ v.T / 1000 - np.eye(400)
    assert np.abs(gram).max() < 7 / math.sqrt(1000)  # 80,000 pairs, 7 standard deviations


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_orthogonal_is_orthonormal(dtype):
    v = drawn("orthogonal", 20, 50, dtype)
    np.testing.assert_allclose(v @ v.T, np.eye(20), atol=50 * np.finfo(dtype).eps)


def test_orthogonal_is_haar():
    """Without the correction of signs, QR's first vector would always point one way."""
    first = np.array([drawn("orthogonal", 3, 3, step=k)[0, 0] for k in range(4000)])
    from scipy import stats

    assert stats.kstest(first, stats.uniform(-1, 2).cdf).pvalue > 1e-4


def test_coordinate_takes_each_once():
    v = drawn("coordinate", 6, 6)
    assert np.array_equal(v.sum(axis=0), np.ones(6))
    assert np.array_equal(v.sum(axis=1), np.ones(6))


@pytest.mark.parametrize("kind", ["orthogonal", "coordinate"])
def test_no_more_than_d_without_replacement(kind):
    with rejects("directions"):
        DirectionBuffer(kind, 6, 5, np.float64)


def test_unknown_kind():
    with pytest.raises(InvalidValue, match="did you mean 'sphere'"):
        DirectionBuffer("spere", 1, 1, np.float64)
