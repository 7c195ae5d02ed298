"""The theorems against closed forms and runs.

On a quadratic with A = λI every moment of FedZO is known, so E‖∇f(x^t)‖² follows a recursion
(``expected`` below) that is exact for any N, M, H, b1, b2, σ_g, σ_h and μ. Theorems are tested on
it without runs, and runs are tested against it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import algorithm_of, constants_of, squared_gradients

import fedzo
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.theory import Constants, Setting, bound, corollary, limit, report


def expected(problem, algorithm, rounds, square=None):
    """E‖∇f(x^t)‖² for t = 0, ..., T on a quadratic with A = λI, exactly.

    With y = x - x* and centres δ_i, a device's model has the mean a y + (1 - a) δ_i after H
    steps, a = (1 - ηλ)^H, and E‖x_i - δ_i‖² goes by ρ = 1 - 2ηλ + (ηλ)²(1 + (d - 1)/b2) a step,
    plus η² times the noise; M devices drawn without replacement are averaged.
    """
    lam, n, d = problem.smoothness, problem.devices, problem.dim
    eta, h, m = algorithm.learning_rate, algorithm.local_steps, algorithm.participants or n
    b1, b2 = algorithm.batch_size, algorithm.directions
    more = 1 + (d - 1) / b2
    rho = 1 - 2 * eta * lam + (eta * lam) ** 2 * more
    a, grown = (1 - eta * lam) ** h, rho**h
    bent = (d * algorithm.smoothing * lam) ** 2 / (4 * b2)
    noise = eta**2 * (more * problem.gradient_noise**2 / b1 + bent) * (1 - grown) / (1 - rho)
    loss = problem.losses(problem.optimum, np.arange(n)).mean()
    apart = 2 * loss / lam  # the mean ‖δ_i‖²
    factor = a**2 + (grown - a**2) / m
    added = (1 - a) ** 2 * (n - m) / (max(1, n - 1) * m) * apart
    added += ((grown - a**2) * apart + noise) / m
    if square is None:
        square = problem.metrics(problem.initial())["gradient_norm_squared"]
    squares = [square]
    for _ in range(rounds):
        squares.append(factor * squares[-1] + lam**2 * added)
    return np.array(squares)


@pytest.mark.slow
@pytest.mark.parametrize("participants", [None, 2])
def test_runs_follow_the_recursion(participants):
    """FedZO itself, 60 seeds: at every fifth round within 4.5 standard errors."""
    problem = Quadratic(10, 4, 1.5, condition=1.0, gradient_noise=2.0, dissimilarity=3.0)
    algorithm = fedzo.FedZO(
        learning_rate=0.05,
        smoothing=0.3,
        batch_size=2,
        directions=3,
        local_steps=3,
        participants=participants,
    )
    runs = squared_gradients(problem, algorithm, 20, range(60))
    exact = expected(problem, algorithm, 20)
    errors = runs.std(axis=0, ddof=1) / math.sqrt(len(runs))
    assert runs[0, 0] == pytest.approx(exact[0])
    assert np.all(np.abs(runs.mean(axis=0) - exact)[5::5] < 4.5 * errors[5::5])


sizes = st.fixed_dictionaries(
    {
        "devices": st.integers(2, 12),
        "dim": st.integers(1, 60),
        "rounds": st.integers(1, 400),
        "local_steps": st.integers(1, 12),
        "batch_size": st.integers(1, 30),
        "directions": st.integers(1, 80),
    }
)


@settings(max_examples=150, deadline=None)
@given(sizes, st.floats(0, 1), st.floats(0.01, 1), st.floats(0, 3), st.floats(0, 3))
def test_theorems_1_and_2_hold(sizes, share, part, gradient_noise, dissimilarity):
    """The exact min_t E‖∇f‖² is under the bound for any sizes and any η within the limit."""
    m = max(1, round(share * sizes["devices"]))
    setting = Setting(**sizes, participants=m)
    problem = Quadratic(
        setting.dim, setting.devices, 1.3, 1.0, gradient_noise, dissimilarity, seed=1
    )
    constants = constants_of(problem)
    eta, mu = part * limit(constants, setting).value, corollary(setting).smoothing
    exact = expected(problem, algorithm_of(setting, eta, mu), setting.rounds - 1)
    assert exact.min() <= bound(constants, setting, eta, mu).value


@settings(max_examples=150, deadline=None)
@given(sizes, st.floats(0.01, 1), st.floats(0, 3), st.floats(0, 3))
def test_printed_theorem_1_holds_with_single_samples_and_directions(
    sizes, part, gradient_noise, dissimilarity
):
    setting = Setting(**{**sizes, "batch_size": 1, "directions": 1})
    problem = Quadratic(
        setting.dim, setting.devices, 1.3, 1.0, gradient_noise, dissimilarity, seed=1
    )
    constants = constants_of(problem)
    eta = part * limit(constants, setting, printed=True).value
    mu = corollary(setting).smoothing
    exact = expected(problem, algorithm_of(setting, eta, mu), setting.rounds - 1)
    assert exact.min() <= bound(constants, setting, eta, mu, printed=True).value


def test_printed_theorem_1_fails_without_noise():
    """Many samples of a function that has no randomness: the printed limit lets FedZO diverge.

    One device, one step, one direction: x becomes (I - η d v vᵀ) x, which is *longer*, whatever
    v is, once ηd > 2. The printed limit is 1/144 for b1 = d; that is too long from d = 288 on.
    """
    dim, rounds = 400, 600
    start = np.ones(dim)
    constants = Constants(L=1.0, gap=dim / 2)
    setting = Setting(1, dim, rounds, batch_size=dim)
    eta = limit(constants, setting, printed=True).value
    assert eta == pytest.approx(1 / 144)
    result = fedzo.minimize(
        FunctionObjective(lambda x, _: 0.5 * x @ x, dim, 1),
        start,
        algorithm=algorithm_of(setting, eta, 1e-6),
        rounds=rounds,
        evaluate_every=1,
        workers=1,
    )
    squares = 2 * np.array([record["train_loss"] for record in result.history])  # ‖∇f‖² = 2f
    assert squares.min() >= 0.999 * squares[0]  # it never comes down
    assert squares[-1] > 5 * squares[0]
    promised = bound(constants, setting, eta, 1e-6, printed=True).value
    assert promised < 0.5 * squares.min()
    # What holds allows a step that is 200 times shorter, and with it the loss falls.
    assert limit(constants, setting).value == pytest.approx(1 / (72 * 401))


@pytest.mark.slow
def test_printed_theorem_1_fails_with_many_directions():
    """The noise of one sample stays however many directions it is seen along.

    The printed variance term vanishes as b2 grows; the run does not get below ησ_g²/2.
    """
    setting = Setting(1, 2, 4000, directions=200)
    problem = Quadratic(2, 1, condition=1.0, gradient_noise=1.0, dissimilarity=0.0)
    eta = limit(Constants(1.0, 1.0, 1.0), setting, printed=True).value
    algorithm = algorithm_of(setting, eta, 1e-4)
    floor = expected(problem, algorithm, 5000)[-1]
    assert floor == pytest.approx(eta / 2, rel=0.02)
    # Start where it ends up: then E‖∇f‖² is the floor in every round.
    constants = Constants(L=1.0, gap=floor / 2, sigma_g=1.0)
    assert expected(problem, algorithm, setting.rounds, floor).min() == pytest.approx(floor)
    assert bound(constants, setting, eta, 1e-4, printed=True).value < 0.6 * floor
    assert bound(constants, setting, eta, 1e-4).value > floor
    seen = squared_gradients(problem, algorithm, 4000, [0])[0, 500:]
    # Neighbouring rounds are alike for 1/(2η) rounds: some 50 independent values of ‖∇f‖², each
    # with a relative spread of 1 in two dimensions.
    assert seen.mean() == pytest.approx(floor, rel=3 / math.sqrt(50))


# The theorems, on runs


@pytest.mark.slow
@pytest.mark.parametrize("participants", [None, 4])
def test_runs_are_under_the_bound(participants):
    """A quadratic of condition 10, η at the limit: mean over 8 seeds, then the least round."""
    setting = Setting(8, 20, 150, participants, local_steps=2, batch_size=2, directions=10)
    problem = Quadratic(20, 8, dissimilarity=0.5, gradient_noise=0.5)
    constants = constants_of(problem)
    eta, mu = limit(constants, setting).value, corollary(setting).smoothing
    runs = squared_gradients(problem, algorithm_of(setting, eta, mu), 150, range(8))
    mean = runs[:, :150].mean(axis=0)
    error = runs.std(axis=0, ddof=1)[np.argmin(mean)] / math.sqrt(8)
    assert mean.min() + 4 * error < bound(constants, setting, eta, mu).value
    assert mean.min() < 0.5 * mean[0]  # and it does converge at that η


@pytest.mark.slow
def test_runs_over_the_air_are_under_the_bound():
    setting = Setting(20, 10, 120, local_steps=2, batch_size=2, directions=10)
    problem = Quadratic(10, 20, dissimilarity=0.5, gradient_noise=0.5)
    constants, uplink, least = constants_of(problem), fedzo.AirComp(snr_db=10.0), []
    for seed in range(4):  # M~ is each run's own
        algorithm = algorithm_of(setting, 1.0, corollary(setting).smoothing)
        told = report(
            algorithm, constants, devices=20, dim=10, rounds=120, uplink=uplink, seed=seed
        )
        least.append(told.setting)
    worst = min(least, key=lambda each: each.meeting)
    assert worst.theorem == 3
    assert worst.snr == pytest.approx(6.4)
    eta = limit(constants, worst).value
    runs = squared_gradients(
        problem, replace(algorithm, learning_rate=eta), 120, range(4), uplink=uplink
    )
    mean = runs[:, :120].mean(axis=0)
    mu = algorithm.smoothing
    assert mean.min() < bound(constants, worst, eta, mu).value
    assert mean.min() < mean[0]


STEPS = np.array([1, 2, 4, 8])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["local_steps", "participants"])
def test_linear_speedup(what):
    """At the corollaries' η and fixed T, ‖∇f‖² falls as (HM)^(-1/2) once noise dominates.

    Like devices, 400 rounds, the mean over the second half of them, where a strongly convex
    problem has forgotten its start. By the recursion the slopes are -0.518 (H) and -0.486
    (M): within 0.02 of -1/2, from terms of order ηH and ηd/b2. A run's mean has a relative
    error of about 0.1: 20 dimensions give sqrt(2/20), 200 rounds that are alike for 10 give
    another sqrt(2 * 10/200). Over 4 seeds and the spread of log H, that is 0.1 / 2 / (ln 2
    sqrt(5)) = 0.033 in the slope; three of them, and the 0.02, are the tolerance.
    """
    base = Setting(8, 20, 400, participants=1, directions=20)
    problem = Quadratic(20, 8, condition=1.0, dissimilarity=0.0)
    seen, exact = [], []
    for count in STEPS.tolist():
        setting = replace(base, **{what: count})
        algorithm = algorithm_of(setting, *corollary(setting))
        runs = squared_gradients(problem, algorithm, 400, range(4), every=5)
        seen.append(runs[:, 40:].mean())
        exact.append(expected(problem, algorithm, 400)[200:].mean())
    slope = np.polyfit(np.log(STEPS), np.log(exact), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.02)
    assert np.polyfit(np.log(STEPS), np.log(seen), 1)[0] == pytest.approx(-0.5, abs=0.12)
    assert seen == pytest.approx(exact, rel=4 * 0.1 / 2)
