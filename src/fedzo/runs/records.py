"""What a record of the history holds, and how its numbers are made."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import UsageError

# What a metric of a problem may not be called.
RESERVED = {
    "left_out",
    "round",
    "train_loss",
    "participants",
    "queries",
    "evaluation_queries",
    "uplink_bytes",
    "downlink_bytes",
    "channel_uses",
    "energy",
    "seconds",
}


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among a problem's or a round's metrics.

    >>> numbers_of({"accuracy": np.float32(0.5), "note": "good"})
    {'accuracy': 0.5}
    """
    numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, Real | np.number)}
    taken = sorted(RESERVED & numbers.keys())
    if taken:
        raise UsageError(f"metrics may not be called {', '.join(taken)}: the history has these")
    return numbers


def mean_of(losses: NDArray[Any]) -> float:
    """Return the mean of finite numbers, whose sum may be beyond the largest of them.

    >>> mean_of(np.array([1e308, 1.2e308]))
    1.1e+308
    """
    with np.errstate(over="ignore"):
        mean = float(losses.mean())
    return mean if np.isfinite(mean) else float((losses / len(losses)).sum())
