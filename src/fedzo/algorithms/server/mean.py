"""The paper's server: it adds the mean update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedzo.algorithms.server.base import Array, Kept, ServerStep
from fedzo.core.rebuilt import Rebuilt
from fedzo.core.streams import Combination


@dataclass(frozen=True)
class Mean(ServerStep):
    r"""The paper's server: :math:`x^{t+1} = x^t + \Delta^t`.

    Examples
    --------
    >>> import numpy as np
    >>> Mean().apply(0, (), np.array([1.0, 2.0]), np.array([0.5, -1.0]))
    (array([1.5, 1. ]), ())
    """

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Add the mean update, in the precision that it is summed in."""
        return (x + delta).astype(x.dtype), kept

    def take(self, t: int, kept: Kept, x: Array, delta: Any) -> tuple[Array, Kept]:
        """Add it as it is drawn, where it is known by its coefficients: it is never built."""
        if isinstance(delta, Combination | Rebuilt):
            return delta.moved(x), kept
        return self.apply(t, kept, x, delta)
