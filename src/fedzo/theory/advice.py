"""Choices: the corollaries' η and μ, the η and H of the least bound, the largest H; Table I."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fedzo.theory.bounds import Constants, Setting, bound, limit, ratio


class Steps(NamedTuple):
    """A learning rate and a smoothing parameter."""

    learning_rate: float  # η
    smoothing: float  # μ


def corollary(setting: Setting) -> Steps:
    r"""Return η and μ of corollary 1, 2 or 3, with M, or :math:`\tilde M`, for N.

    For b1 b2 <= d, :math:`\eta = \sqrt{M b_1 b_2 / (dHT)}` and
    :math:`\mu = (d b_1 b_2 M H T)^{-1/4}`. For b1 b2 > d the text after corollary 1 has
    :math:`\eta = \sqrt{N/(HT)}` and :math:`\mu = d^{-1/2} (NHT)^{-1/4}`; the paper gives no such
    case for corollaries 2 and 3; the same formula with M is used.

    Examples
    --------
    >>> corollary(Setting(devices=4, dim=100, rounds=100, batch_size=5, directions=5))
    Steps(learning_rate=0.1, smoothing=0.0316...)
    >>> corollary(Setting(devices=4, dim=100, rounds=100, batch_size=25, directions=5))
    Steps(learning_rate=0.2, smoothing=0.0223...)
    """
    m, d, samples = setting.meeting, setting.dim, setting.samples
    way = setting.local_steps * setting.rounds  # HT
    if samples <= d:
        return Steps(math.sqrt(m * samples / (d * way)), (d * samples * m * way) ** -0.25)
    return Steps(math.sqrt(m / way), d**-0.5 * (m * way) ** -0.25)


def best_steps(constants: Constants, setting: Setting) -> Steps:
    r"""Return the η that makes the bound least, within the limit, and the corollary's μ.

    As a function of η the bound is :math:`a/\eta + b\eta + c`, least at :math:`\sqrt{a/b}`. In μ it
    only grows. With the corollary's μ its terms vanish as fast as the others; any smaller μ that
    the precision of the losses allows is as good.

    Examples
    --------
    >>> constants = Constants(L=1.0, gap=10.0, sigma_g=1.0)
    >>> setting = Setting(devices=10, dim=20, rounds=100_000, local_steps=5)
    >>> steps = best_steps(constants, setting)
    >>> round(steps.learning_rate, 5), round(limit(constants, setting).value, 5)
    (0.00126, 0.00661)
    """
    at_one = bound(constants, setting, 1.0, 0.0).terms
    falling, growing = at_one[0].value, sum(term.value for term in at_one[1:])
    free = math.sqrt(ratio(falling, growing)) if falling > 0 else 0.0
    most = limit(constants, setting).value
    return Steps(min(free, most) or most, corollary(setting).smoothing)


def orders_of_local_steps(setting: Setting) -> Mapping[str, float]:
    r"""Return the orders whose least is the largest H, by remark 2 and after corollary 2.

    The paper gives orders, :math:`O((dT)^{1/3} (b_1 b_2)^{-1/3} M^{-1})`, :math:`O(T M^{-1})` and,
    unless all devices take part, :math:`O(d/(b_1 b_2))`. It gives no constants. The numbers here
    have **constant 1**: they are proportional to the largest H, not equal to it. If b1 b2 > d,
    d/(b1 b2) is taken as 1, which follows from the other η of :func:`corollary`.

    >>> orders_of_local_steps(Setting(devices=10, dim=64, rounds=1000))
    {'drift': 4.0, 'local steps': 100.0}
    """
    m, t = setting.meeting, setting.rounds
    thin = max(1.0, setting.dim / setting.samples)
    orders = {"drift": math.cbrt(thin * t) / m, "local steps": t / m}
    return orders if setting.theorem == 1 else {**orders, "sampling": thin}


class LocalStepsRange(NamedTuple):
    """The range of H that a theorem allows with its corollary's η: from ``least`` to ``most``.

    Below ``least`` the η, which falls as H grows, is above the variance term: HT is too small.
    ``binding`` names the term that forbids more than ``most``. If T is too small, ``least`` is
    above ``most``, and no H is ``possible``.
    """

    least: int
    most: int
    binding: str

    @property
    def possible(self) -> bool:
        """Whether any H is allowed."""
        return self.least <= self.most


def largest_local_steps(constants: Constants, setting: Setting) -> LocalStepsRange:
    r"""Return the exact range of H in which the corollary's η satisfies the theorem's condition.

    Every term of the condition is a power of H, and so is η. So the variance term is met from some
    H on, and every other term up to some H; two bisections find them. Corollary 3 also needs
    :math:`8 \tilde M \gamma \ge NH`.

    Examples
    --------
    >>> constants = Constants(L=1.0, gap=1.0, sigma_g=1.0)
    >>> largest_local_steps(constants, Setting(devices=10, dim=20, rounds=10**6))
    LocalStepsRange(least=1, most=43, binding='drift')
    >>> largest_local_steps(constants, Setting(devices=10, dim=20, rounds=1000))
    LocalStepsRange(least=12, most=4, binding='drift')
    """

    def broken(h: int) -> set[str]:
        tried = replace(setting, local_steps=h)
        names = {t.name for t in limit(constants, tried).broken(corollary(tried)[0])}
        return names | ({"corollary 3"} if tried.noise_excess > 1 else set())

    searched = range(1, 1 << 40)
    least = 1 + bisect_left(searched, True, key=lambda h: "variance" not in broken(h))
    most = bisect_left(searched, True, key=lambda h: bool(broken(h) - {"variance"}))
    binding = min(broken(most + 1) - {"variance"}, default="none")
    return LocalStepsRange(least, most, binding)


def best_local_steps(constants: Constants, setting: Setting, most: int = 1000) -> Setting:
    """Return the setting with the H, up to ``most``, whose best bound is least for the same T.

    Bounds that agree in four digits count as equal; then the smallest H is returned.

    >>> constants = Constants(L=1.0, gap=10.0, sigma_g=1.0)
    >>> best_local_steps(constants, Setting(devices=10, dim=20, rounds=10_000)).local_steps
    10
    """

    def value(tried: Setting) -> float:
        return float(f"{bound(constants, tried, *best_steps(constants, tried)).value:.4g}")

    return min((replace(setting, local_steps=h) for h in range(1, most + 1)), key=value)


class Rate(NamedTuple):
    """A row of Table I. The values are orders: only ratios between rows mean something."""

    algorithm: str
    formula: str
    value: float
    local_steps: str = ""  # the formula of the largest H
    most: float = math.nan


def table_one(setting: Setting) -> tuple[Rate, ...]:
    """Return Table I for a setting, every O(.) with constant 1.

    T counts rounds for FedZO and FedAvg, and iterations for the others. The table is for
    full participation: N is the number of all devices, whatever ``participants`` is. ZONE-S also
    needs O(T) samples per iteration.

    Examples
    --------
    >>> for row in table_one(Setting(devices=10, dim=100, rounds=1000, local_steps=5)):
    ...     print(f"{row.algorithm:8}{row.formula:21}{row.value:.3g}")
    FedZO   √(d / (N H T b1 b2)) 0.0447
    FedAvg  √(1 / (N H T))       0.00447
    ZONE-S  d³ / T               1e+03
    DZOPA   √(d / (N T))         0.1
    ZO-SGD  √(d / T)             0.316
    """
    n, d, t = setting.devices, setting.dim, setting.rounds
    way, samples = setting.local_steps * t, setting.samples
    return (
        Rate(
            "FedZO",
            "√(d / (N H T b1 b2))",
            math.sqrt(d / (n * way * samples)),
            "min{(d T / (b1 b2))^⅓ / N, T / N}",
            min(math.cbrt(d * t / samples), t) / n,
        ),
        Rate("FedAvg", "√(1 / (N H T))", math.sqrt(1 / (n * way)), "T^⅓ / N", math.cbrt(t) / n),
        Rate("ZONE-S", "d³ / T", d**3 / t),
        Rate("DZOPA", "√(d / (N T))", math.sqrt(d / (n * t))),
        Rate("ZO-SGD", "√(d / T)", math.sqrt(d / t)),
    )
