"""Table I of the paper: rates of convergence, as functions."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedzo.theory.bounds import Setting


class Rate(NamedTuple):
    """A row of Table I, evaluated: orders, so only ratios between rows mean something."""

    algorithm: str
    formula: str
    value: float
    local_steps: str = ""  # the largest H, as the table has it
    most: float = math.nan


def table_one(setting: Setting) -> tuple[Rate, ...]:
    """Return Table I for a setting, every O(.) with constant 1.

    T counts rounds for FedZO and FedAvg, and iterations for the others. The table is for
    full participation: N is all devices whatever ``participants`` says. ZONE-S asks for O(T)
    samples an iteration besides.

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
