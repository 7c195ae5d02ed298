"""The base class of server optimizers."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedzo.core.types import Array
from fedzo.core.updates import SIGNS, as_sum, share_out
from fedzo.errors import require

ServerState = tuple[Array, ...]
Moved = tuple[Array, ServerState]  # x^{t+1}, and the next state

_PIECE = 16 * SIGNS  # numbers that apply is given at a time: they stay in a core's cache


class Trial(NamedTuple):
    """Points to evaluate in place of a step, and the number of samples for each, over devices."""

    points: Array  # (k, d)
    samples: int


class ServerOptimizer:
    """A frozen dataclass: its fields are hyper-parameters, its state is a tuple of arrays.

    A subclass defines :meth:`apply`, and :meth:`init` if it has a state. Its state follows from the
    updates alone, so the coefficients of all rounds are enough to replay the server.

    Attributes
    ----------
    elementwise : bool
        Whether each number of the result depends on the same number of x, the update and all arrays
        of the state only, which then have x's shape. A lazy update of a large model is then drawn
        and applied piece by piece, on all cores, and never exists as a whole. False by default: it
        is always right, and takes two more vectors of the model's size.
    """

    elementwise: ClassVar[bool] = False

    def init(self, x0: Array) -> ServerState:
        """Return the state before round 0."""
        return ()

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Return x^{t+1} and the next state, from the mean update Δ^t as float64 numbers.

        The arguments must not be changed, and x^{t+1} has the precision of x.
        """
        raise NotImplementedError

    def step(self, t: int, state: ServerState, x: Array, delta: Any) -> tuple[Array, ServerState]:
        """Return the same as :meth:`apply`, for an update that may be lazy.

        x itself is overwritten if it is the problem's own memory.
        """
        update = as_sum(delta)
        if not (self.elementwise and update.streamed):
            return self.apply(t, state, x, np.asarray(delta))
        moved = x if update.in_place else np.empty_like(x)
        after = tuple(np.empty_like(array) for array in state)

        def work(first: int, last: int) -> None:
            for start in range(first, last, _PIECE):
                part = slice(start, min(start + _PIECE, last))
                own = tuple(array[part] for array in state)
                numbers = update.part(part.start, part.stop)
                moved[part], own = self.apply(t, own, x[part], numbers)
                for array, new in zip(after, own, strict=True):
                    array[part] = new

        share_out(work, x.size)
        return moved, after

    def direction_scale(self, state: ServerState) -> Array | None:
        """Return the factor of each number of this round's directions; None for no scaling.

        Devices then send their moves along the directions as drawn, and :meth:`apply` receives the
        mean of those.
        """
        return None

    def trial(self, state: ServerState) -> Trial | None:
        """Return points whose values the optimizer needs before its next step; None for none."""
        return None

    def tried(self, state: ServerState, x: Array, values: Array) -> Moved:
        """Return x and the state after a :meth:`trial`, from the mean value at each point."""
        raise NotImplementedError


def check_share(settings: object, *keys: str) -> None:
    """Raise unless these settings are numbers in [0, 1).

    >>> from fedzo.server import Momentum
    >>> Momentum(beta=1.0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: beta = 1.0: must be a number in [0, 1)
    """
    for key in keys:
        value = getattr(settings, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number and 0 <= value < 1, key, value, "a number in [0, 1)")
