"""Whether a model rounds its scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_DECIMALS = 4  # scores with more of them are as good as exact


def step_of(scores: Array) -> float | None:
    """Return the step between scores that are rounded to few decimals; None: they are not.

    >>> step_of(np.array([[0.25, 0.75], [0.5, 0.5]])), step_of(np.array([[0.0, 1.0]]))
    (0.01, 1.0)
    >>> step_of(np.array([[1 / 3, 2 / 3]], np.float32)) is None
    True
    """
    exact = scores.astype(np.float64)
    close = 4 * np.finfo(scores.dtype).eps * np.maximum(np.abs(exact), 1e-3)
    for decimals in range(_DECIMALS + 1):
        if np.all(np.abs(np.round(exact, decimals) - exact) <= close):
            return float(10.0**-decimals)
    return None
