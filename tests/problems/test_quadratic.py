"""The quadratic's constants are what they are said to be."""

import math

import numpy as np
import pytest

from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue
from fedzo.problems import Quadratic

HERE = Draws(seed=1, stream=Stream.BATCHES)


@pytest.fixture(scope="module")
def problem():
    return Quadratic(
        dim=12,
        devices=7,
        smoothness=3.0,
        condition=30.0,
        gradient_noise=0.8,
        dissimilarity=1.7,
        seed=5,
    )


def test_spectrum(problem):
    matrix = problem.hessian(np.eye(12))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    eigenvalues = np.linalg.eigvalsh(matrix)
    assert eigenvalues[-1] == pytest.approx(3.0)
    assert eigenvalues[0] == pytest.approx(3.0 / 30)
    assert np.abs(matrix - np.diag(np.diag(matrix))).max() > 0.01  # not a trivial, diagonal one


def test_optimum_and_minimum(problem):
    everyone = np.arange(7)
    f = problem.losses(problem.optimum, everyone).mean()
    assert f == pytest.approx(problem.minimum)
    for v in Draws(0, Stream.INIT).normals(10, 12):
        assert problem.losses(problem.optimum + 0.1 * v, everyone).mean() > f


def test_dissimilarity_is_exact_and_does_not_depend_on_x(problem):
    """c_h = 0: the largest |grad f_i - grad f| is σ_h at any x."""
    for x in Draws(0, Stream.INIT).normals(3, 12):
        gradients = np.array(
            [
                problem.gradient(x, problem.batch(i, 1, HERE)._replace(noise=np.zeros((1, 12))))
                for i in range(7)
            ]
        )
        spread = np.linalg.norm(gradients - gradients.mean(axis=0), axis=1)
        assert spread.max() == pytest.approx(1.7)


def test_gradient_noise(problem):
    """E|grad F - grad f|^2 = σ_g^2: |ξ|^2 has mean σ² and standard deviation σ² sqrt(2/d)."""
    noise = problem.batch(2, 20_000, HERE).noise
    squares = np.sum(noise**2, axis=1)
    assert abs(squares.mean() - 0.64) < 5 * 0.64 * math.sqrt(2 / 12 / 20_000)
    assert np.abs(noise.mean(axis=0)).max() < 5 * 0.8 / math.sqrt(12 * 20_000)


def test_values_and_gradient_agree(problem):
    batch = problem.batch(3, 4, HERE)
    x, *directions = Draws(0, Stream.INIT).normals(6, 12)
    gradient = problem.gradient(x, batch)
    for v in directions:
        ahead, behind = problem.values(np.stack([x + 1e-4 * v, x - 1e-4 * v]), batch).mean(axis=1)
        assert gradient @ v == pytest.approx((ahead - behind) / 2e-4, rel=1e-7)


def test_metrics(problem):
    x = Draws(0, Stream.INIT).normals(12)
    gap = problem.losses(x, np.arange(7)).mean() - problem.minimum
    metrics = problem.metrics(x)
    assert metrics["optimality_gap"] == pytest.approx(gap)
    slope = problem.hessian(x - problem.optimum)
    assert metrics["gradient_norm_squared"] == pytest.approx(slope @ slope)


@pytest.mark.parametrize(
    "bad",
    [
        {"dim": 0},
        {"devices": 0},
        {"smoothness": 0.0},
        {"condition": 0.5},
        {"gradient_noise": -1.0},
        {"dissimilarity": -1.0},
        {"devices": 1, "dissimilarity": 1.0},
    ],
)
def test_impossible_settings(bad):
    with pytest.raises(InvalidValue):
        Quadratic(**bad)


def test_one_device_alone():
    alone = Quadratic(dim=3, devices=1, dissimilarity=0.0)
    assert alone.minimum == 0.0
