r"""Questions that a search puts to a federation.

A search is a generator: it yields a question, is sent the federation's answer, and ends when there
is nothing left to ask. All devices get the same question, and what comes back are values only:

* :class:`Points`: the values at k points; the answer is their mean over the devices;
* :class:`Stencil`: the slopes at one point along the coordinates. Where it is *shared out*, each
  device measures only its own share of the coordinates, so a gradient takes d + N values of the
  whole federation in place of N (d + 1). What the devices' differences make of it is corrected by
  slopes that all of them measured at an earlier point: see :mod:`~fedzo.algorithms.descent`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import Objective

Array = NDArray[Any]


@dataclass(frozen=True)
class Points:
    """The values at the rows of ``points``, (k, d)."""

    points: Array

    def pack(self) -> Array:
        """Return the question as the array that is sent."""
        return self.points

    def queries(self, devices: int) -> int:
        """Return how many values the whole federation is asked for."""
        return len(self.points) * devices

    @property
    def size(self) -> int:
        """How many numbers a device answers with."""
        return len(self.points)

    @property
    def answered_by_all(self) -> NDArray[np.bool_]:
        """Which of these numbers all devices answer, so that they can be compared."""
        return np.ones(self.size, bool)

    def answer(self, objective: Objective, device: int, batch: Any) -> tuple[Array, int]:
        """Return a device's values, and how many it asked for."""
        return _values(objective, self.points, batch)


@dataclass(frozen=True)
class Stencil:
    r"""The slopes :math:`(F_i(x + h_j e_j) - F_i(x)) / h_j` along the coordinates j at x.

    A device answers with F_i(x), the slopes of its own coordinates and which these are (others
    zero), and, unless they are shared out, the slopes of all coordinates. Means of such answers
    are the federation's: a slope's is divided by that of who measured it.

    Parameters
    ----------
    x, steps : array
        The point, and h.
    everyone : bool
        Every device measures every coordinate.
    central : bool
        :math:`(F_i(x + h_j e_j) - F_i(x - h_j e_j)) / 2 h_j` instead.
    turn : int
        By how many places the shares are passed on: in N turns every device has every coordinate.

    Examples
    --------
    >>> owners(device=1, devices=2, dim=5)
    array([False,  True, False,  True, False])
    >>> owners(device=1, devices=2, dim=5, turn=1)
    array([ True, False,  True, False,  True])
    >>> owners(device=4, devices=6, dim=3)  # more devices than coordinates
    array([False,  True, False])
    """

    x: Array
    steps: Array
    everyone: bool
    central: bool
    turn: int = 0

    def pack(self) -> Array:
        """Return the question as the array that is sent: flat, so that it is not points."""
        kind = [float(self.everyone), float(self.central), float(self.turn)]
        return np.concatenate([self.x, self.steps, kind])

    def queries(self, devices: int) -> int:
        """Return how many values the whole federation is asked for."""
        dim, sides = self.x.size, 1 + self.central
        each = devices * dim if self.everyone else max(dim, devices)
        return devices + sides * each

    @property
    def size(self) -> int:
        """How many numbers a device answers with."""
        return 1 + (2 + self.everyone) * self.x.size

    @property
    def answered_by_all(self) -> NDArray[np.bool_]:
        """Which of these numbers all devices answer: not the slopes of a device's own."""
        numbers = np.arange(self.size)
        return np.asarray((numbers == 0) | (numbers > 2 * self.x.size))

    def answer(self, objective: Objective, device: int, batch: Any) -> tuple[Array, int]:
        """Return a device's answer, and how many values it asked for."""
        own = owners(device, objective.devices, self.x.size, self.turn)
        asked = np.arange(self.x.size) if self.everyone else np.flatnonzero(own)
        moves = np.zeros((len(asked), self.x.size))
        moves[np.arange(len(asked)), asked] = self.steps[asked]
        sides = [self.x + moves, self.x - moves] if self.central else [self.x + moves]
        values, asked_for = _values(objective, np.concatenate([self.x[None], *sides]), batch)
        ahead, behind = values[1 : 1 + len(asked)], values[1 + len(asked) :]
        rise = (ahead - behind) / 2 if self.central else ahead - values[0]
        slopes = np.zeros(self.x.size)
        slopes[asked] = rise / self.steps[asked]
        every = [slopes] if self.everyone else []
        answer = [values[:1], np.where(own, slopes, 0.0), own.astype(float), *every]
        return np.concatenate(answer), asked_for


Question = Points | Stencil
Asking = Generator[Question, Array, Any]


def owners(device: int, devices: int, dim: int, turn: int = 0) -> NDArray[np.bool_]:
    """Return which coordinates are a device's own: every N-th, or one where N > d."""
    coordinates = np.arange(dim)
    if devices > dim:
        return np.asarray(coordinates == (device + turn) % dim)
    return np.asarray((coordinates + turn) % devices == device)


def unpack(packed: Array) -> Question:
    """Return the question that an array is.

    >>> question = Stencil(np.ones(2), np.full(2, 0.1), everyone=True, central=False)
    >>> unpack(question.pack()).steps, unpack(np.eye(2)).size
    (array([0.1, 0.1]), 2)
    """
    if packed.ndim == 2:
        return Points(packed)
    dim = (packed.size - 3) // 2
    everyone, central, turn = packed[2 * dim :]
    return Stencil(packed[:dim], packed[dim : 2 * dim], bool(everyone), bool(central), int(turn))


def _values(objective: Objective, points: Array, batch: Any) -> tuple[Array, int]:
    """Return the mean over a batch of the values at each point, and how many values these were."""
    values = np.asarray(objective.values(points, batch), np.float64)
    return np.asarray(values.mean(axis=1)), values.size
