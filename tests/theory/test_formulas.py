"""The formulas of the theorems, corollaries and Table I against the paper."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_cases import AIR, FULL, ODD, PART

from fedzo.theory import (
    Constants,
    Setting,
    best_local_steps,
    best_steps,
    bound,
    corollary,
    largest_local_steps,
    limit,
    moments,
    orders_of_local_steps,
    table_one,
)
from raising import fails, rejects


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
    ("text", "code"),
    [
        ("L=1", "missing-constant"),
        ("L=1, gab=2", "unknown-constant"),
        ("L=one, gap=2", "not-a-number"),
    ],
)
def test_constants_that_cannot_be_parsed(text, code):
    with fails(code):
        Constants.parse(text)


@pytest.mark.parametrize(
    ("text", "key"), [("L=0, gap=2", "L"), ("L=1, gap=2, c_g=0.5", "c_g"), ("L=1, gap=nan", "gap")]
)
def test_impossible_constants(text, key):
    with rejects(key):
        Constants.parse(text)
