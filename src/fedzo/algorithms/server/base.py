"""What a server step is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import require

Array = NDArray[Any]
Kept = tuple[Array, ...]


class Trial(NamedTuple):
    """Points to be tried in place of a step, and on how many samples each, over all devices."""

    points: Array  # (k, d)
    samples: int


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

    def take(self, t: int, kept: Kept, x: Array, delta: Any) -> tuple[Array, Kept]:
        """Do the same from a mean update that may not have been built yet."""
        return self.apply(t, kept, x, np.asarray(delta))

    def stretch(self, kept: Kept) -> Array | None:
        """Return what each number of this round's directions is multiplied by; None: nothing.

        Devices then send their moves along the directions as drawn, and :meth:`apply` is given the
        mean of those.
        """
        return None

    def trial(self, kept: Kept) -> Trial | None:
        """Return points whose values it wants to know before it takes a step; None: it does not."""
        return None

    def tried(self, kept: Kept, x: Array, values: Array) -> tuple[Array, Kept]:
        """Return x and what is kept after the values of :meth:`trial`, a mean for each point."""
        raise NotImplementedError


def check_share(settings: object, *keys: str) -> None:
    """Raise unless these settings are numbers in [0, 1).

    >>> from fedzo.algorithms.server import Momentum
    >>> Momentum(beta=1.0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: beta = 1.0: must be a number in [0, 1)
    """
    for key in keys:
        value = getattr(settings, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number and 0 <= value < 1, key, value, "a number in [0, 1)")
