"""The algebra of the proofs, and the moments of the estimator that they use."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.problems import Quadratic
from fedzo.theory import Constants, Setting, limit, moments


@given(
    st.integers(2, 40),
    st.integers(1, 40),
    st.floats(0.1, 10),
    st.floats(0, 5),
    st.floats(1, 50),
    st.floats(0.01, 100),
)
def test_constants_of_the_proofs(n, h, smooth, c_h, growth, snr):
    """Q1 <= 6HL/N, Q2 <= 8HL/M, Q3 <= 8HL/M~, and the steps after them, at the largest η.

    The conditions give a little more than the paper takes: 4 2/3, 6 2/3 and 7 1/6.
    """
    m = n // 2
    constants = Constants(smooth, gap=1.0, c_g=growth, c_h=c_h)
    for setting, room, most in (
        (Setting(n, 10, 10, local_steps=h), 6, 4 + 2 / 3),
        (Setting(n, 10, 10, m, local_steps=h), 8, 6 + 2 / 3),
        (Setting(n, 10, 10, m, local_steps=h, snr=snr), 8, 7 + 1 / 6),
    ):
        tilde, _, unlike = moments(constants, setting)
        eta, k = limit(constants, setting).value, setting.meeting
        each = eta * smooth**2 + 6 * eta**2 * tilde * smooth**3 / k
        if setting.theorem > 1:
            each += 18 * eta**2 * h * smooth**3
        if setting.theorem == 3:
            each += 3 * tilde * n * h * smooth**3 * eta**2 / (k**2 * snr)
        q = 2 * h * smooth / k + each * h**3
        assert q <= most * h * smooth / k * (1 + 1e-9)
        assert most <= room
        lost = 3 * tilde * unlike * eta**2 * room * h * smooth / k
        if setting.theorem > 1:
            lost += 9 * eta**2 * h**2 * smooth * c_h / k
        if setting.theorem == 3:
            lost += 3 * tilde * unlike * eta**2 * n * h**2 * smooth / (k**2 * snr)
        assert lost <= eta * h / 4 * (1 + 1e-9)  # leaves ηH/4 of ηH/2 before ‖∇f‖²
        assert eta <= 1 / (2 * h * smooth)  # what Lemmas 1 and 3 ask for


def test_sampling_without_replacement():
    """T8 is (N - M)/(N - 1) of what independent sampling would give: the paper's is above it."""
    rng = Draws(5, Stream.PROBLEM)
    away = rng.normals(6, 3)
    away -= away.mean(axis=0)
    n, m = 6, 4
    seen = [
        np.sum(away[Draws(s, Stream.PARTICIPANTS).subset(n, m)].mean(axis=0) ** 2)
        for s in range(4000)
    ]
    independent = np.mean(np.sum(away**2, axis=1)) / m
    exact = independent * (n - m) / (n - 1)
    error = np.std(seen) / math.sqrt(len(seen))
    assert abs(np.mean(seen) - exact) < 4 * error
    assert np.mean(seen) + 4 * error < independent


# The second moment of the estimator


def second_moment(slope, noise, mu, curvatures, b1, b2):
    """E‖e‖² of eq. (2) for F = ½ xᵀAx + ξᵀx, exactly; ξ ~ N(0, noise²/d I), slope = ‖∇f‖.

    Terms that share a direction, (d - 1)‖g‖²/b2, or a sample, noise²/b1, do not average out
    over b1 b2 terms; only what is peculiar to a pair does.
    """
    d, trace = len(curvatures), np.sum(curvatures)
    bend = (trace**2 + 2 * np.sum(curvatures**2)) / (d * (d + 2))  # E(vᵀAv)²
    return (
        slope**2
        + ((d - 1) * slope**2 + (d * mu) ** 2 * bend / 4) / b2
        + noise**2 / b1
        + (d - 1) * noise**2 / (b1 * b2)
    )


def moment_bound(slope, noise, mu, smooth, dim, b1, b2, printed):
    """What the proof of Lemma 3 has for it, with its own numbers or with those that hold."""
    setting = Setting(1, dim, 1, batch_size=b1, directions=b2)
    growth, variance, _ = moments(Constants(smooth, 1.0, sigma_g=noise), setting, printed)
    pairs = b1 * b2 if printed else b2
    flat = 2 * (smooth * mu) ** 2 + (dim * smooth * mu) ** 2 / (2 * pairs)
    return 2 * growth * slope**2 + 2 * variance + flat


CASES = [  # dim, b1, b2, noise, whether the printed bound holds
    (10, 1, 1, 1.0, True),
    (10, 8, 1, 0.0, False),  # no noise at all: more samples cannot help
    (20, 10, 4, 0.3, False),
    (4, 1, 40, 8.0, False),  # more directions cannot take the noise of one sample away
    (4, 2, 2, 1.0, True),
]


@pytest.mark.parametrize(("dim", "b1", "b2", "noise", "holds"), CASES)
def test_second_moment_of_the_estimator(dim, b1, b2, noise, holds):
    """The closed form, against 4000 estimates (5 standard errors), and both bounds on it."""
    problem = Quadratic(dim, devices=1, gradient_noise=noise, dissimilarity=0.0)
    estimator, x = Estimator(smoothing=0.2, directions=b2), problem.optimum + 0.5
    buffer = estimator.buffer(dim, np.float64)
    squares = []
    for step in range(4000):
        at = Draws(3, Stream.DIRECTIONS, step=step)
        coefficients, _ = estimator.estimate(problem, x, b1, buffer, at)
        squares.append(np.sum((coefficients @ buffer.rows) ** 2))
    slope = np.linalg.norm(problem.hessian(x - problem.optimum))
    exact = second_moment(slope, noise, 0.2, np.logspace(0, -1, dim), b1, b2)
    assert abs(np.mean(squares) - exact) < 5 * np.std(squares) / math.sqrt(len(squares))
    sizes = (slope, noise, 0.2, problem.smoothness, dim, b1, b2)
    assert exact <= moment_bound(*sizes, printed=False)
    assert (exact <= moment_bound(*sizes, printed=True)) == holds


@given(
    st.integers(1, 500),
    st.integers(1, 100),
    st.integers(1, 100),
    st.floats(0, 10),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_corrected_second_moment_holds(dim, b1, b2, slope, noise, mu):
    exact = second_moment(slope, noise, mu, np.logspace(0, -1, dim), b1, b2)
    assert exact <= moment_bound(slope, noise, mu, 1.0, dim, b1, b2, printed=False) * (1 + 1e-12)
