"""What a device is asked for in a round, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.rebuilt import Rebuilt, Term
from fedzo.core.wrappers import ScaledObjective

Array = NDArray[Any]


class Update(NamedTuple):
    """What one device answers to one round's work.

    Attributes
    ----------
    device : int
        Whose answer it is.
    delta : array or Combination
        Δ_i^t, how far the device's model moved; a :class:`~fedzo.core.streams.Combination` where
        the model is too large for another vector of its size.
    weight : float
        Its share in the average, before the shares are made to sum to one.
    queries : int
        How many values F_i(x, ξ) it took.
    coefficients : array, optional
        (H, b2): what Δ_i^t is made of, where it is a combination of the round's directions.
    values : array, optional
        (k,) float64: the device's loss at each of k points, where the work was to evaluate those;
        ``delta`` is empty then.
    """

    device: int
    delta: Any
    weight: float
    queries: int
    coefficients: Array | None = None
    values: Array | None = None


@dataclass(frozen=True)
class Work:
    """One round's work: a pure function of (objective, device), the same wherever it is done.

    Attributes
    ----------
    algorithm : Algorithm
        Whose ``local`` is done.
    x : array
        Where devices start: x^t, or one row for each device of ``rows``.
    round : int
        t.
    seed : int
        The federation's.
    rows : tuple of int, optional
        Whose rows x has, where each device has a model of its own.
    state : optional
        What the algorithm has before the round, for devices elsewhere that follow the server's
        steps by themselves.
    stretch : array, optional
        What each number of all directions is multiplied by; the moves of an answer are along the
        directions as drawn.
    """

    algorithm: Any
    x: Array
    round: int
    seed: int
    rows: tuple[int, ...] | None = None
    state: Any = None
    stretch: Array | None = None

    def __call__(self, objective: Objective, device: int) -> Update:
        """Return what the device answers."""
        x = self.x if self.rows is None else self.x[self.rows.index(device)]
        if self.stretch is not None:
            objective, x = ScaledObjective(objective, x, self.stretch), np.zeros_like(x)
        update: Update = self.algorithm.local(objective, device, x, self.at(device))
        return update

    def at(self, device: int) -> Draws:
        """Return the address of a device's draws in this round."""
        return Draws(self.seed, Stream.DIRECTIONS, self.round, device)

    def only(self, devices: Sequence[int]) -> Work:
        """Return the same work with what these devices need of x, to be sent to them."""
        if self.rows is None:
            return self
        kept = [self.rows.index(device) for device in devices]
        return replace(self, x=self.x[kept], rows=tuple(devices))

    def rebuild(self, update: Update) -> Array:
        """Return the Δ_i^t that an update's coefficients make, as the device itself summed it.

        The directions are drawn again and go through the same kernel in the same order, so the
        result is the device's own to the bit, on machines whose vector units are alike.
        """
        assert update.coefficients is not None
        return np.asarray(self.rebuilt(update), update.coefficients.dtype)

    def rebuilt(self, update: Update, streamed: bool = False) -> Rebuilt:
        """Return the same without building it yet: see :class:`fedzo.core.rebuilt.Rebuilt`."""
        assert update.coefficients is not None
        term = Term(self.at(update.device), update.coefficients)
        return Rebuilt(self.algorithm.estimator, self.x.size, (term,), streamed=streamed)
