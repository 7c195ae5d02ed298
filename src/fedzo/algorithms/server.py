r"""Server steps: what the server makes of the mean update that it hears.

The paper's server adds it, :math:`x^{t+1} = x^t + \Delta^t`. Others treat it as a gradient estimate
of their own: in the manner of optax, a step is a pure function of what it kept and what it hears.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fedzo.core.streams import Combination

Array = NDArray[Any]
Kept = tuple[Array, ...]


class ServerStep:
    """A frozen dataclass: its fields are its numbers; what it keeps is a tuple of arrays.

    Everything it keeps can be rebuilt from the updates that were heard, so whoever has the
    coefficients of all rounds can follow the server.
    """

    def init(self, x0: Array) -> Kept:
        """Return what is kept before round 0."""
        return ()

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Return x^{t+1} and what is kept after round t, from the mean update Δ^t."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(ServerStep):
    r"""The paper's server: :math:`x^{t+1} = x^t + \Delta^t`.

    Examples
    --------
    >>> import numpy as np
    >>> Mean().apply(0, (), np.array([1.0, 2.0]), np.array([0.5, -1.0]))
    (array([1.5, 1. ]), ())
    """

    def apply(self, t: int, kept: Kept, x: Array, delta: Any) -> tuple[Array, Kept]:
        """Add the mean update, in the precision that it is summed in."""
        if isinstance(delta, Combination):
            return delta.moved(x), kept
        return (x + delta).astype(x.dtype), kept
