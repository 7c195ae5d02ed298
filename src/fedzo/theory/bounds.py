r"""Theorems 1-3 of Fang et al. 2022: learning-rate limits and bounds.

The proofs use two numbers of the estimator, eq. (2),

.. math:: E\|e_i\|^2 \le 2 \tilde c_g \|\nabla f_i\|^2 + 2 \sigma_e^2 + \ldots,
          \qquad \tilde\sigma^2 = 3 \tilde c_g \sigma_h^2 + \sigma_e^2.

The paper takes the b1 b2 terms of eq. (2) to be independent. They are not: terms share directions
and samples, and with b1, b2 > 1 the printed theorems do not hold. Conditional on the batch the
directions *are* independent. This gives other numbers, and with them the rest of the proofs holds
unchanged:

=====================  ===================================  =============================
..                     here                                 ``printed=True``
=====================  ===================================  =============================
:math:`\tilde c_g`     (1 + d/b2) (1 + (c_g - 1)/b1)        1 + c_g d/(b1 b2)
:math:`\sigma_e^2`     (1 + d/b2) σ_g²/b1                   d σ_g²/(b1 b2)
=====================  ===================================  =============================

With directions that all devices of a step share, the directions of two devices are not independent.
What they add to the variance of the mean is not divided by M:

.. math:: \hat c_g = (1 + d/b_2) (M + (c_g - 1)/b_1), \qquad
          \hat\sigma^2 = 3 \hat c_g \sigma_h^2 + (1 + d/b_2) \sigma_g^2/b_1

take the places of :math:`\tilde c_g` and :math:`\tilde\sigma^2`, except in what comes from the
channel's noise. The samples stay independent, so σ_g² is still divided by M.

``docs/theory.md`` has the calculation and the counterexamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from fedzo.errors import (
    UsageError,
    check_counts,
    check_not_negative,
    check_positive,
    nearest,
    require,
)


@dataclass(frozen=True)
class Constants:
    r"""The constants of Assumptions 1-4 of a problem.

    Parameters
    ----------
    L : float
        Smoothness of every :math:`F_i(\cdot, \xi)` (Assumption 2).
    gap : float
        f(x⁰) - f*, or an upper bound of it (Assumption 1).
    sigma_g, c_g : float
        :math:`E\|\nabla F_i\|^2 \le c_g \|\nabla f_i\|^2 + \sigma_g^2` (Assumption 3).
    sigma_h, c_h : float
        :math:`\|\nabla f_i - \nabla f\|^2 \le c_h \|\nabla f\|^2 + \sigma_h^2` (Assumption 4).

    Examples
    --------
    >>> Constants.parse("L=2, gap=50, sigma_g=1")
    Constants(L=2.0, gap=50.0, sigma_g=1.0, sigma_h=0.0, c_g=1.0, c_h=0.0)
    """

    L: float
    gap: float
    sigma_g: float = 0.0
    sigma_h: float = 0.0
    c_g: float = 1.0
    c_h: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self, "L")
        for key in ("gap", "sigma_g", "sigma_h", "c_h"):
            check_not_negative(key, getattr(self, key))
        require(1 <= self.c_g < math.inf, "c_g", self.c_g, "a number >= 1")

    @classmethod
    def parse(cls, text: str) -> Constants:
        """Parse ``key=value, ...``; L and gap are required."""
        known = [field.name for field in fields(cls)]
        given: dict[str, float] = {}
        for part in text.split(","):
            key, _, value = (piece.strip() for piece in part.partition("="))
            if key not in known:
                names = ", ".join(known)
                words = f"{part.strip()!r}: not one of {names}{nearest(key, known)}"
                raise UsageError(words, code="unknown-constant")
            try:
                given[key] = float(value)
            except ValueError as error:
                words = f"{part.strip()!r}: must be {key}=number"
                raise UsageError(words, code="not-a-number") from error
        missing = [key for key in ("L", "gap") if key not in given]
        if missing:
            words = f"{text!r}: {' and '.join(missing)} missing"
            raise UsageError(words, code="missing-constant")
        return cls(**given)


@dataclass(frozen=True)
class Setting:
    r"""The sizes of a run that the theorems use.

    Parameters
    ----------
    devices, dim, rounds : int
        N, d and T.
    participants : int, optional
        M; all N by default. With ``snr``, :math:`\tilde M`, the fewest in any round.
    local_steps, batch_size, directions : int
        H, b1 and b2.
    snr : float, optional
        γ = P h_min²/σ_w² of an over-the-air uplink; None for one without errors.
    shared : bool
        All devices share their directions.
    coefficients : bool
        Coefficients are sent over the air, not updates.
    """

    devices: int
    dim: int
    rounds: int
    participants: int | None = None
    local_steps: int = 1
    batch_size: int = 1
    directions: int = 1
    snr: float | None = None
    shared: bool = False
    coefficients: bool = False

    def __post_init__(self) -> None:
        check_counts(self, "devices", "dim", "rounds", "local_steps", "batch_size", "directions")
        check_counts(self, optional=["participants"])
        allowed = f"at most the number of devices, {self.devices}"
        require(self.meeting <= self.devices, "participants", self.meeting, allowed)
        require(self.snr is None or self.snr > 0, "snr", self.snr, "a number > 0")
        if self.coefficients:
            require(self.dim > 2, "dim", self.dim, "at least 3 for coefficients over the air")

    @property
    def meeting(self) -> int:
        """How many updates are averaged: N, M or M~."""
        return self.devices if self.participants is None else self.participants

    @property
    def theorem(self) -> int:
        """The theorem for this setting: 1 all devices, 2 some of them, 3 over the air."""
        if self.snr is not None:
            return 3
        return 1 if self.meeting == self.devices else 2

    @property
    def samples(self) -> int:
        """The product b1 b2: pairs of a sample and a direction per estimate."""
        return self.batch_size * self.directions

    @property
    def noise_snr(self) -> float:
        """γ, and H γ (d - 2)/d for coefficients: their squares add up over the H steps."""
        steps = self.local_steps * (self.dim - 2) / self.dim if self.coefficients else 1.0
        return math.inf if self.snr is None else self.snr * steps

    @property
    def noise_excess(self) -> float:
        """Ĉ - 1 of theorem 3, NH/(8 M~ γ), which comes from the receiver's noise."""
        return self.devices * self.local_steps / (8 * self.meeting * self.noise_snr)

    @property
    def smoothing_excess(self) -> float:
        """κ - 1, which shared directions add to the terms in d μ²: 1/M, or 0."""
        return 1 / self.meeting if self.shared and self.meeting > 1 else 0.0


class Term(NamedTuple):
    """One term of a limit or a bound: its name, its formula in the paper, its value."""

    name: str
    formula: str
    value: float


@dataclass(frozen=True)
class Limit:
    """The largest η that a theorem allows: the least of several terms."""

    terms: tuple[Term, ...]

    @property
    def value(self) -> float:
        """The limit."""
        return self.binding.value

    @property
    def binding(self) -> Term:
        """The term that is least."""
        return min(self.terms, key=lambda term: term.value)

    def broken(self, learning_rate: float) -> list[Term]:
        """Return the terms that this η exceeds."""
        return [term for term in self.terms if learning_rate > term.value]


@dataclass(frozen=True)
class Bound:
    """An upper bound of the least E‖∇f(x^t)‖²: a sum of terms."""

    terms: tuple[Term, ...]

    @property
    def value(self) -> float:
        """The sum."""
        return sum(term.value for term in self.terms)


class Moments(NamedTuple):
    """The two numbers of the estimator that the proofs use, and c̃_h = 1 + c_h."""

    growth: float  # c̃_g
    variance: float  # σ̃²
    unlike: float  # c̃_h


def moments(constants: Constants, setting: Setting, printed: bool = False) -> Moments:
    r"""Return :math:`\tilde c_g`, :math:`\tilde\sigma^2` and :math:`\tilde c_h` of theorem 1.

    ``printed`` gives the paper's, which are too small when b1 > 1 or b2 > 1.

    Examples
    --------
    >>> constants = Constants(L=1.0, gap=1.0, sigma_h=1.0)
    >>> setting = Setting(devices=50, dim=7850, rounds=100, batch_size=25, directions=20)
    >>> moments(constants, setting, printed=True)
    Moments(growth=16.7, variance=50.09..., unlike=1.0)
    >>> moments(constants, setting)
    Moments(growth=393.5, variance=1180.5, unlike=1.0)
    """
    c, b1, b2, d = constants, setting.batch_size, setting.directions, setting.dim
    if printed:
        growth, variance = 1 + c.c_g * d / (b1 * b2), d * c.sigma_g**2 / (b1 * b2)
    else:
        growth = (1 + d / b2) * ((setting.meeting if setting.shared else 1) + (c.c_g - 1) / b1)
        variance = (1 + d / b2) * c.sigma_g**2 / b1
    return Moments(growth, 3 * growth * c.sigma_h**2 + variance, 1 + c.c_h)


def limit(constants: Constants, setting: Setting, printed: bool = False) -> Limit:
    r"""Return the condition on η of the theorem for this setting: eq. (7), (10) or (18).

    If c_h = 0, the term that divides by it is infinite and never binds.

    Examples
    --------
    >>> constants = Constants(L=1.0, gap=1.0, sigma_g=1.0)
    >>> found = limit(constants, Setting(devices=10, dim=20, rounds=100, local_steps=5))
    >>> [(term.name, round(term.value, 5)) for term in found.terms]
    [('variance', 0.00661), ('drift', 0.008), ('local steps', 0.01455)]
    >>> found.binding.formula
    'N / (72 c̃g c̃h L)'
    """
    growth, _, unlike = moments(constants, setting, printed)
    smooth, c_h, n, m = constants.L, constants.c_h, setting.devices, setting.meeting
    h = setting.local_steps
    g = "ĉg" if setting.shared else "c̃g"
    steps = Term("local steps", f"1 / (3 √{g} H L)", 1 / (3 * math.sqrt(growth) * h * smooth))
    if setting.theorem == 1:
        terms = [
            Term("variance", f"N / (72 {g} c̃h L)", n / (72 * growth * unlike * smooth)),
            Term("drift", "2 / (N H² L)", 2 / (n * h**2 * smooth)),
            steps,
        ]
    elif setting.snr is None:
        terms = [
            Term("variance", f"M / (192 {g} c̃h L)", m / (192 * growth * unlike * smooth)),
            Term("unlike devices", "M / (72 ch H L)", ratio(m, 72 * c_h * h * smooth)),
            Term("drift", "2 / (M H² L)", 2 / (m * h**2 * smooth)),
            steps,
            Term("sampled drift", "1 / (3 √(M H³) L)", 1 / (3 * math.sqrt(m * h**3) * smooth)),
        ]
    else:
        snr = setting.noise_snr
        own = moments(constants, replace(setting, shared=False), printed).growth
        drift = math.sqrt(m * snr / (2 * own * n * h**3)) / smooth
        noise = m**2 * snr / (36 * own * unlike * n * h * smooth)
        sampled = 1 / (2 * math.sqrt(3 * n * h**3) * smooth)
        terms = [
            Term("variance", f"M̃ / (288 {g} c̃h L)", m / (288 * growth * unlike * smooth)),
            Term("unlike devices", "M̃ / (108 ch H L)", ratio(m, 108 * c_h * h * smooth)),
            Term("drift", "3 / (2 N H² L)", 3 / (2 * n * h**2 * smooth)),
            steps,
            Term("sampled drift", "1 / (2 √(3 N H³) L)", sampled),
            Term("drift in noise", "√(M̃ γ) / (L √(2 c̃g N H³))", drift),
            Term("noise", "M̃² γ / (36 c̃g c̃h N H L)", noise),
        ]
    return Limit(tuple(terms))


def bound(
    constants: Constants,
    setting: Setting,
    learning_rate: float,
    smoothing: float,
    printed: bool = False,
) -> Bound:
    r"""Return the bound on :math:`\min_t E\|\nabla f(x^t)\|^2`: eq. (8), (11) or (19).

    It holds for an η within :func:`limit`; above the limit, the sum has no meaning.

    Examples
    --------
    >>> constants = Constants(L=1.0, gap=1.0, sigma_g=1.0)
    >>> setting = Setting(devices=10, dim=20, rounds=1000, local_steps=5)
    >>> found = bound(constants, setting, learning_rate=0.005, smoothing=0.001)
    >>> [(term.name, round(term.value, 6)) for term in found.terms]
    [('start', 0.16), ('variance', 0.252), ('smoothing, d', 2e-06), ('smoothing', 5e-06)]
    >>> found.terms[1].formula
    '24 η L σ̃² / N'
    """
    _, variance, _ = moments(constants, setting, printed)
    smooth, m, h = constants.L, setting.meeting, setting.local_steps
    across = setting.dim * (smooth * smoothing) ** 2  # d L² μ²
    more = setting.smoothing_excess  # κ - 1
    around = (smooth * smoothing) ** 2  # L² μ²
    way = h * setting.rounds * learning_rate
    start = Term("start", "4 (f⁰ - f*) / (H T η)", ratio(4 * constants.gap, way))
    each = learning_rate * smooth / m
    sampling = 36 * each * h * constants.sigma_h**2
    # The formulas of shared directions have σ̂², and κ or Ĉ + 1/M̃, where the others have σ̃², 1 or Ĉ.
    ours = setting.shared
    s, once = ("σ̂²", "(1 + 1/{}) ") if ours else ("σ̃²", "")
    noisy_s, c = ("(σ̂² + (Ĉ-1) σ̃²)", "(Ĉ + 1/M̃)") if ours else ("Ĉ σ̃²", "Ĉ")
    if setting.theorem == 1:
        terms = [
            Term("variance", f"24 η L {s} / N", 24 * each * variance),
            Term("smoothing, d", once.format("N") + "d L² μ² / 12", (1 + more) * across / 12),
            Term("smoothing", "5 L² μ²", 5 * around),
        ]
    elif setting.snr is None:
        terms = [
            Term("variance", f"32 η L {s} / M", 32 * each * variance),
            Term("sampling", "36 η H L σh² / M", sampling),
            Term("smoothing, d", once.format("M") + "d L² μ² / 24", (1 + more) * across / 24),
            Term("smoothing", "13 L² μ²", 13 * around),
        ]
    else:
        noise, noisy = setting.noise_excess, 1 + setting.noise_excess + more  # Ĉ - 1, Ĉ
        own = moments(constants, replace(setting, shared=False), printed).variance
        terms = [
            Term("variance", f"32 η L {noisy_s} / M̃", 32 * each * (variance + noise * own)),
            Term("sampling", "36 η H L σh² / M̃", sampling),
            Term("smoothing, d", f"{c} d L² μ² / 36", noisy * across / 36),
            Term("smoothing", f"(12 + {c}/9) L² μ²", (12 + noisy / 9) * around),
        ]
    return Bound((start, *terms))


def ratio(a: float, b: float) -> float:
    """Return a / b; infinite if b is 0, and 0 for 0 / 0."""
    return a / b if b > 0 else math.inf if a > 0 else 0.0
