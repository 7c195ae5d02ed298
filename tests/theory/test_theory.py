"""The theorems against closed forms and runs, and measured constants against known ones.

On a quadratic with A = λI every moment of FedZO is known, so E‖∇f(x^t)‖² follows a recursion
(``expected`` below) that is exact for any N, M, H, b1, b2, σ_g, σ_h and μ: theorems can be
tried on it without running anything, and runs can be tried on it.
"""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedzo
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue, UsageError
from fedzo.problems import FunctionObjective, Quadratic, softmax
from fedzo.theory import (
    Constants,
    Setting,
    best_local_steps,
    best_steps,
    bound,
    corollary,
    estimate,
    largest_local_steps,
    limit,
    moments,
    orders_of_local_steps,
    report,
    table_one,
)

ODD = Constants(L=1.7, gap=11.0, sigma_g=2.3, sigma_h=1.9, c_g=1.3, c_h=0.7)
SIZES = {
    "devices": 13,
    "dim": 29,
    "rounds": 311,
    "local_steps": 5,
    "batch_size": 3,
    "directions": 7,
}
FULL, PART = Setting(**SIZES), Setting(**SIZES, participants=6)
AIR = Setting(**SIZES, participants=6, snr=0.37)


def constants_of(problem):
    gap = problem.metrics(problem.initial())["optimality_gap"]
    return Constants(problem.smoothness, gap, problem.gradient_noise, problem.dissimilarity)


def algorithm_of(setting, learning_rate, smoothing):
    return fedzo.FedZO(
        learning_rate=learning_rate,
        smoothing=smoothing,
        batch_size=setting.batch_size,
        directions=setting.directions,
        local_steps=setting.local_steps,
        participants=setting.participants,
    )


def squared_gradients(problem, algorithm, rounds, seeds, uplink=None, every=1):
    """‖∇f(x^t)‖² of runs, at the start and after every so many rounds: (seeds, rounds + 1)."""
    return np.array(
        [
            [
                record["gradient_norm_squared"]
                for record in fedzo.minimize(
                    problem,
                    algorithm=algorithm,
                    uplink=uplink,
                    rounds=rounds,
                    evaluate_every=every,
                    workers=1,
                    seed=seed,
                ).history
            ]
            for seed in seeds
        ]
    )


# The formulas


def written_out(formula, constants, setting, learning_rate, smoothing, printed):
    """Evaluate a formula as it is displayed: a product of what stands side by side."""
    growth, variance, unlike = moments(constants, setting, printed)
    names = {
        "(f⁰ - f*)": ("gap", constants.gap),
        "σ̃²": ("v", variance),
        "σh": ("sh", constants.sigma_h),
        "c̃g": ("cg", growth),
        "c̃h": ("cth", unlike),
        "Ĉ": ("C", 1 + setting.noise_excess),
        "M̃": ("M", setting.meeting),
        "η": ("eta", learning_rate),
        "μ": ("mu", smoothing),
        "γ": ("snr", setting.snr),
    }
    known = {"N": setting.devices, "M": setting.meeting, "H": setting.local_steps}
    known |= {"T": setting.rounds, "d": setting.dim, "L": constants.L, "ch": constants.c_h}
    for shown, (name, value) in names.items():
        formula, known[name] = formula.replace(shown, name), value
    formula = re.sub(r"√(\w+)", r"sqrt(\1)", formula).replace("√", "sqrt")
    formula = formula.replace("²", "**2").replace("³", "**3")
    product = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formula)
    return eval(product, {"sqrt": math.sqrt}, known)


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("setting", [FULL, PART, AIR], ids=["full", "partial", "air"])
def test_terms_are_what_their_formulas_say(setting, printed):
    terms = limit(ODD, setting, printed).terms + bound(ODD, setting, 0.01, 0.02, printed).terms
    for term in terms:
        value = written_out(term.formula, ODD, setting, 0.01, 0.02, printed)
        assert term.value == pytest.approx(value, rel=1e-12), term


def test_theorems_as_the_paper_prints_them():
    """Eq. (7)-(8), (10)-(11), (18)-(19) typed in a second time, with numbers."""
    cg, ch = 1 + 1.3 * 29 / 21, 1.7
    var = 3 * cg * 1.9**2 + 29 * 2.3**2 / 21
    eta, mu, L = 0.001, 0.01, 1.7
    noisy = 1 + 13 * 5 / (8 * 6 * 0.37)
    expected = {
        FULL: (
            [13 / (72 * cg * ch * L), 2 / (13 * 25 * L), 1 / (3 * cg**0.5 * 5 * L)],
            [
                4 * 11 / (5 * 311 * eta),
                eta * 24 * L / 13 * var,
                29 * L**2 * mu**2 / 12,
                5 * L**2 * mu**2,
            ],
        ),
        PART: (
            [
                6 / (192 * cg * ch * L),
                6 / (72 * 0.7 * 5 * L),
                2 / (6 * 25 * L),
                1 / (3 * cg**0.5 * 5 * L),
                1 / (3 * (6 * 125) ** 0.5 * L),
            ],
            [
                4 * 11 / (5 * 311 * eta),
                eta * 32 * L / 6 * var,
                eta * 36 * 5 * L * 1.9**2 / 6,
                29 * L**2 * mu**2 / 24,
                13 * L**2 * mu**2,
            ],
        ),
        AIR: (
            [
                6 / (288 * cg * ch * L),
                6 / (108 * 0.7 * 5 * L),
                3 / (2 * 13 * 25 * L),
                1 / (3 * cg**0.5 * 5 * L),
                1 / (2 * (3 * 13 * 125) ** 0.5 * L),
                (6 * 0.37) ** 0.5 / (L * (2 * cg * 13 * 125) ** 0.5),
                36 * 0.37 / (36 * cg * ch * 13 * 5 * L),
            ],
            [
                4 * 11 / (5 * 311 * eta),
                eta * 32 * L / 6 * noisy * var,
                eta * 36 * 5 * L * 1.9**2 / 6,
                noisy * 29 * L**2 * mu**2 / 36,
                (12 + noisy / 9) * L**2 * mu**2,
            ],
        ),
    }
    for setting, (limits, terms) in expected.items():
        found = limit(ODD, setting, printed=True)
        assert [t.value for t in found.terms] == pytest.approx(limits)
        assert found.value == pytest.approx(min(limits))
        assert found.binding.value == found.value
        total = bound(ODD, setting, eta, mu, printed=True)
        assert [t.value for t in total.terms] == pytest.approx(terms)
        assert total.value == pytest.approx(sum(terms))


def test_a_single_sample_and_direction_need_no_correction():
    """With b1 = b2 = 1 and c_g = 1 the two differ by what 1 + d is more than d."""
    one = replace(FULL, batch_size=1, directions=1)
    plain = replace(ODD, c_g=1.0)
    here, paper = moments(plain, one), moments(plain, one, printed=True)
    assert here.growth == paper.growth
    assert here.variance - paper.variance == pytest.approx(plain.sigma_g**2)


def test_like_devices_have_no_term_for_being_unlike():
    found = limit(replace(ODD, c_h=0.0), PART)
    term = next(term for term in found.terms if term.name == "unlike devices")
    assert term.value == math.inf
    assert found.value < math.inf


def test_over_the_air_without_noise_has_no_terms_for_it():
    found = limit(ODD, replace(AIR, snr=math.inf))
    assert [term.value for term in found.terms[-2:]] == [math.inf, math.inf]
    assert replace(AIR, snr=math.inf).noise_excess == 0


def test_corollaries():
    assert corollary(FULL) == pytest.approx(
        ((13 * 21) ** 0.5 * (29 * 5 * 311) ** -0.5, (29 * 21 * 13 * 5 * 311) ** -0.25)
    )
    assert corollary(PART) == corollary(AIR)
    many = replace(FULL, directions=10)  # b1 b2 = 30 > d = 29
    assert corollary(many) == pytest.approx(
        ((13 / (5 * 311)) ** 0.5, 29**-0.5 * (13 * 5 * 311) ** -0.25)
    )


@pytest.mark.parametrize("case", [FULL, PART, AIR], ids=["full", "partial", "air"])
def test_corollaries_rates(case):
    """16 times the rounds: a quarter of the bound, at the corollary's η and μ, in every term."""
    before = bound(ODD, case, *corollary(case))
    longer = replace(case, rounds=16 * case.rounds)
    after = bound(ODD, longer, *corollary(longer))
    for one, other in zip(before.terms, after.terms, strict=True):
        assert other.value == pytest.approx(one.value / 4)


@given(
    st.integers(1, 30),
    st.integers(1, 10**7),
    st.integers(1, 200),
    st.integers(1, 40),
    st.sampled_from([None, 0.5, 30.0]),
)
def test_largest_local_steps(n, rounds, dim, samples, snr):
    """At the ends of the range the condition holds, one beyond it does not."""
    constants = replace(ODD, L=0.3)
    setting = Setting(n, dim, rounds, max(1, n // 2), batch_size=samples, snr=snr)
    least, most, binding = largest_local_steps(constants, setting)

    def allowed(h):
        tried = replace(setting, local_steps=h)
        return corollary(tried).learning_rate <= limit(constants, tried).value and (
            tried.noise_excess <= 1
        )

    tried = {h: allowed(h) for h in {1, least - 1, least, most, most + 1, 2 * most} if h >= 1}
    assert all(ok == (least <= h <= most) for h, ok in tried.items())
    assert binding in {term.name for term in limit(constants, setting).terms} | {"corollary 3"}


def test_largest_local_steps_scale_as_the_paper_says():
    """(dT)^(1/3)/N: 8 times the rounds double H, twice the devices halve it."""
    constants = Constants(L=1.0, gap=1.0)
    base = Setting(devices=4, dim=50, rounds=10**11)
    most = largest_local_steps(constants, base).most
    assert largest_local_steps(constants, replace(base, rounds=8 * 10**11)).most == pytest.approx(
        2 * most, rel=0.01
    )
    assert largest_local_steps(constants, replace(base, devices=8)).most == pytest.approx(
        most / 2, rel=0.01
    )
    order = min(orders_of_local_steps(base).values())
    assert most / order == pytest.approx(2 ** (2 / 3), rel=0.01)  # (2/L)^(2/3), from eq. (7)


@pytest.mark.parametrize("case", [FULL, PART, AIR], ids=["full", "partial", "air"])
def test_best_steps(case):
    """No other η within the limit has a lower bound."""
    for constants in (ODD, replace(ODD, gap=1e-4)):
        eta, mu = best_steps(constants, case)
        least = bound(constants, case, eta, mu).value
        most = limit(constants, case).value
        assert eta <= most
        for other in most * np.geomspace(1e-4, 1, 50):
            assert least <= bound(constants, case, other, mu).value * (1 + 1e-12)


def test_best_local_steps():
    best = best_local_steps(ODD, FULL, most=50)

    def value(h):
        tried = replace(FULL, local_steps=h)
        return bound(ODD, tried, *best_steps(ODD, tried)).value

    assert value(best.local_steps) <= 1.001 * min(value(h) for h in range(1, 51))


def test_table_one():
    rows = {row.algorithm: row for row in table_one(FULL)}
    assert rows["FedZO"].value == pytest.approx((29 / (13 * 5 * 311 * 21)) ** 0.5)
    assert rows["FedZO"].most == pytest.approx((29 * 311 / 21) ** (1 / 3) / 13)
    assert rows["FedAvg"].value == pytest.approx((13 * 5 * 311) ** -0.5)
    assert rows["FedAvg"].most == pytest.approx(311 ** (1 / 3) / 13)
    assert rows["ZONE-S"].value == pytest.approx(29**3 / 311)
    assert rows["DZOPA"].value == pytest.approx((29 / (13 * 311)) ** 0.5)
    assert rows["ZO-SGD"].value == pytest.approx((29 / 311) ** 0.5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("L=1", "gap missing"),
        ("L=1, gab=2", "did you mean 'gap'"),
        ("L=one, gap=2", "must be L=number"),
        ("L=0, gap=2", "L = 0.0: must be a number > 0"),
        ("L=1, gap=2, c_g=0.5", "c_g = 0.5: must be a number >= 1"),
        ("L=1, gap=nan", "gap = nan"),
    ],
)
def test_constants_refused(text, complaint):
    with pytest.raises((UsageError, InvalidValue), match=re.escape(complaint)):
        Constants.parse(text)


# The algebra of the proofs


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
    frame = estimator.frame(dim, np.float64)
    squares = []
    for step in range(4000):
        at = Draws(3, Stream.DIRECTIONS, step=step)
        coefficients, _ = estimator.estimate(problem, x, b1, frame, at)
        squares.append(np.sum((coefficients @ frame.rows) ** 2))
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


# The theorems, on an isotropic quadratic


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


# Measuring constants


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("dim", "devices", "noise", "unlike"), [(20, 6, 3.0, 1.0), (100, 25, 1.0, 2.0)]
)
def test_estimate_on_a_quadratic(dim, devices, noise, unlike, seed):
    """L to 0.1 %, σ_g and σ_h to 15 %, and to 5 of the errors that are told; the gap exactly."""
    problem = Quadratic(dim, devices, 2.0, gradient_noise=noise, dissimilarity=unlike)
    found = estimate(problem, queries=300_000, lower_bound=problem.minimum, seed=seed)
    known, told = constants_of(problem), found.constants
    assert 0.999 * 2.0 <= told.L <= 2.0 + 1e-6
    assert told.gap == pytest.approx(known.gap)
    assert found.start == pytest.approx(known.gap + problem.minimum)
    assert problem.minimum <= found.best < found.start
    for key in ("sigma_g", "sigma_h"):
        value, truth, error = getattr(told, key), getattr(known, key), found.errors[key]
        # σ_h is the largest of the *sampled* devices': below that of all, if not all are.
        assert value == pytest.approx(truth, rel=0.15), key
        assert abs(value - truth) < 5 * error, key
        assert error < 0.1 * truth
    assert told.c_g == pytest.approx(1.0, abs=0.1)
    assert told.c_h == pytest.approx(0.0, abs=0.05)
    assert found.queries <= 300_000


@pytest.mark.slow
def test_estimated_errors_are_honest():
    """Over 40 seeds, two standard errors hold the truth in most cases, and are not too wide."""
    problem = Quadratic(12, 4, gradient_noise=2.0, dissimilarity=1.0)
    off = []
    for seed in range(40):
        found = estimate(problem, queries=30_000, seed=seed)
        off.append(
            [
                (found.constants.sigma_g - 2.0) / found.errors["sigma_g"],
                (found.constants.sigma_h - 1.0) / found.errors["sigma_h"],
            ]
        )
    inside = np.mean(np.abs(off) < 2, axis=0)
    assert np.all(inside > 0.75)  # 95 % were the errors exact and normal; they are Student's
    assert np.all(np.std(off, axis=0) > 0.5)


class Scaled(fedzo.Objective):
    """F_i(x, ξ) = (a_i + τξ) ‖x‖²/2: all of ∇F's spread, and all unlikeness, grows with ‖∇f‖."""

    def __init__(self, dim, scales, spread):
        self.dim, self.devices = dim, len(scales)
        self.scales, self.spread = np.asarray(scales), spread

    def initial(self):
        return np.full(self.dim, 2.0)

    def batch(self, device, size, draws):
        return self.scales[device] + self.spread * draws.normals(size)

    def values(self, points, batch):
        return 0.5 * np.sum(points**2, axis=1)[:, None] * batch

    def losses(self, x, devices):
        return 0.5 * self.scales[devices] * (x @ x)


def test_estimate_of_what_grows_with_the_gradient():
    """E‖∇F‖² = (1 + τ²/a²)‖∇f_i‖² and ‖∇f_i - ∇f‖² = (a_i/ā - 1)²‖∇f‖²: no σ, only c."""
    found = estimate(Scaled(10, [1.0, 1.0], spread=0.5), queries=200_000)
    assert found.constants.c_g == pytest.approx(1.25, rel=0.1)
    assert abs(found.constants.c_g - 1.25) < 4 * found.errors["c_g"]
    # The spread τ²‖∇f‖² = 10 at x⁰ is measured from 8 x 32 samples, to sqrt(2/256) of itself;
    # by how much one device is above the line of both, three of these at most, is left.
    assert found.constants.sigma_g**2 < 3 * math.sqrt(2 / 256) * 10
    found = estimate(Scaled(10, [0.5, 1.5], spread=0.0), queries=200_000)
    assert found.constants.c_h == pytest.approx(0.25, rel=1e-6)
    assert found.constants.sigma_h == pytest.approx(0.0, abs=1e-3)
    assert (found.constants.c_g, found.constants.sigma_g) == (1.0, 0.0)
    assert abs(found.constants.L - 1.5) < 1e-6


def test_estimate_in_high_dimension():
    """A logistic loss of d = 2000, curved along one direction of its own on each device.

    ln(1 + exp(-aᵀx)) has the curvature ‖a‖²/4 at x = 0, along a, and less anywhere else.
    """
    dim, devices = 2000, 3
    a = Draws(2, Stream.PROBLEM).normals(devices, dim) / 50
    objective = FunctionObjective(
        lambda x, device: float(np.logaddexp(0, -a[device] @ x)), dim, devices
    )
    found = estimate(objective, np.zeros(dim), queries=60_000, step=0.05)
    steepest = np.max(np.sum(a**2, axis=1)) / 4
    assert 0.95 * steepest < found.constants.L <= steepest
    assert found.constants.gap == pytest.approx(math.log(2))
    assert (found.constants.sigma_g, found.errors["sigma_g"]) == (0.0, 0.0)
    # At x = 0 the gradients are -a_i/2; what is fitted must be the largest unlikeness there. K
    # of d directions see a square with a relative error of sqrt(2/K) in each repetition.
    middle = a.mean(axis=0)
    unlike = np.max(np.sum((a - middle) ** 2, axis=1)) / 4
    told = found.constants.c_h * (middle @ middle) / 4 + found.constants.sigma_h**2
    error = math.sqrt(2 / (found.plan.directions * found.plan.repeats))
    assert told == pytest.approx(unlike, rel=4 * error)


@pytest.mark.slow
def test_estimate_on_softmax():
    """d = 7850 in float32: unlikeness against gradients, and L within what is known of it."""
    problem = softmax()
    found = estimate(problem, queries=300_000)
    x, at = problem.initial(), Draws(0, Stream.BATCHES)
    gradients = np.array([problem.gradient(x, problem.batch(i, 2000, at)) for i in range(50)])
    unlike = np.max(np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1))
    # The largest of 20 sampled devices is below that of 50, and a bit of the estimate is noise.
    assert 0.6 * unlike < found.constants.sigma_h**2 < 1.3 * unlike
    # Curvature is at most ‖a‖²/2 for a sample a; at x = 0, with p = 1/10, it is ‖a‖²/10.
    squares = np.sum((problem.data.train_inputs / 255.0) ** 2, axis=1) + 1
    assert 0.1 * squares.mean() < found.constants.L < 0.5 * squares.max()
    assert found.constants.gap == pytest.approx(math.log(10))


@pytest.mark.parametrize("queries", [3_000, 20_000, 100_000])
def test_estimate_keeps_to_its_budget(queries):
    asked = 0

    class Counted(Quadratic):
        def values(self, points, batch):
            nonlocal asked
            values = super().values(points, batch)
            asked += values.size
            return values

    problem = Counted(50, 10)
    found = estimate(problem, queries=queries)
    assert found.queries == asked + 2 * problem.devices  # and f, twice, over all devices
    assert found.queries <= queries


def test_estimate_is_a_function_of_its_seed():
    problem = Quadratic(10, 3)
    assert estimate(problem, queries=20_000, seed=4) == estimate(problem, queries=20_000, seed=4)


def test_estimate_refuses():
    problem = Quadratic(10, 3)
    with pytest.raises(InvalidValue, match="queries = 100: must be at least"):
        estimate(problem, queries=100)
    with pytest.raises(InvalidValue, match="step = 0"):
        estimate(problem, step=0)
    with pytest.raises(InvalidValue, match="of the objective's dimension, 10"):
        estimate(problem, np.zeros(9))
    with pytest.raises(InvalidValue, match="lower_bound = 1000"):
        estimate(problem, queries=20_000, lower_bound=1000.0)
    broken = FunctionObjective(lambda x, device: math.nan, 3, 2)
    with pytest.raises(UsageError, match="not finite"):
        estimate(broken, np.zeros(3), queries=20_000)


def test_estimate_says_when_it_cannot_know():
    """With far fewer queries than dimensions the largest curvature is not found, and it says so."""
    problem = Quadratic(300, 3)
    poor, rich = (estimate(problem, queries=queries) for queries in (2_000, 100_000))
    assert poor.constants.L < 0.8
    assert "too few to be sure" in poor.notes["L"]
    assert rich.constants.L > 0.99
    assert "too few" not in rich.notes["L"]


def test_estimate_without_a_lower_bound():
    """f - 100 is below zero everywhere: only what was seen is known."""
    objective = FunctionObjective(lambda x, device: float(x @ x) - 100, 5, 2)
    found = estimate(objective, np.ones(5), queries=20_000, lower_bound=None)
    assert found.constants.gap == pytest.approx(5.0)  # the line search finds the minimum
    with pytest.raises(InvalidValue, match="lower_bound"):
        estimate(objective, np.ones(5), queries=20_000)


# The report


def test_report_names_what_is_broken():
    algorithm = fedzo.FedZO(learning_rate=0.1, direction_kind="gaussian", weighting="size")
    found = report(algorithm, ODD, devices=10, dim=50, rounds=100)
    assert found.setting.theorem == 1
    assert not found.allowed
    first, *others = found.warnings
    for term in found.limit.broken(0.1):
        assert term.name in first
    assert others == [
        "direction_kind = 'gaussian' is outside the theorems",
        "weighting = 'size' is outside the theorems",
    ]
    text = found.text()
    assert "<- binds" in text
    assert "no bound" in text


def test_report_is_quiet_within_the_theory():
    constants = Constants(L=1.0, gap=10.0, sigma_g=1.0)
    algorithm = fedzo.FedZO(learning_rate=1e-5, participants=5)
    found = report(algorithm, constants, devices=10, dim=50, rounds=100)
    assert found.setting.theorem == 2
    assert found.warnings == ()
    assert found.allowed
    assert "warnings" not in found.text()
    advised = replace(algorithm, learning_rate=found.advised.learning_rate)
    again = report(advised, constants, devices=10, dim=50, rounds=100)
    assert again.bound.value < found.bound.value
    assert again.warnings == ()


def test_report_over_the_air_counts_this_runs_channels():
    algorithm, uplink = fedzo.FedZO(local_steps=2), fedzo.AirComp(snr_db=-3.0, h_min=1.2)
    problem = Quadratic(6, 5)
    found = report(
        algorithm, constants_of(problem), devices=5, dim=6, rounds=30, uplink=uplink, seed=7
    )
    result = fedzo.minimize(
        problem, algorithm=algorithm, uplink=uplink, rounds=30, seed=7, evaluate_every=1
    )
    counts = [record["participants"] for record in result.history[1:]]
    heard = [count for count in counts if count > 0]
    assert 0 < len(heard) < 30
    assert found.setting.meeting == min(heard)
    assert found.setting.rounds == len(heard)
    assert found.setting.snr == pytest.approx(10**-0.3 * 1.44)
    assert any(f"nobody takes part in {30 - len(heard)} rounds" in w for w in found.warnings)
    assert any("8 M̃ γ >= N H" in w for w in found.warnings)
    nowhere = fedzo.AirComp(h_min=50.0)
    with pytest.raises(UsageError, match="reaches h_min"):
        report(algorithm, ODD, devices=5, dim=6, rounds=3, uplink=nowhere)


def test_report_of_measured_constants():
    problem = Quadratic(10, 4)
    found = estimate(problem, queries=30_000)
    told = report(fedzo.FedZO(), found, devices=4, dim=10, rounds=50)
    assert told.constants == found.constants
    assert f"measured with {found.queries:,} queries" in told.text()
    assert "±" in told.text()
    assert "a lower bound" in told.text()


def test_report_refuses():
    with pytest.raises(InvalidValue, match="participants = 5: must be at most the number of"):
        report(fedzo.FedZO(participants=5), ODD, devices=4, dim=10, rounds=50)
    with pytest.raises(InvalidValue, match="rounds = 0"):
        report(fedzo.FedZO(), ODD, devices=4, dim=10, rounds=0)
    with pytest.raises(UsageError, match="about fedzo, not FedAvg"):
        report(fedzo.FedAvg(), ODD, devices=4, dim=10, rounds=50)
