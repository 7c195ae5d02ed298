r"""Questions that a search puts to a federation, and the account it keeps of the answers.

A search is a generator: it yields a question, is sent the federation's answer, and ends when there
is nothing left to ask. All devices get the same question, and what comes back are values only:

* :class:`Points`: the values at k points; the answer is their mean over the devices;
* :class:`Stencil`: the slopes at one point along the coordinates. Where it is *shared out*, each
  device measures only its own share of the coordinates, so a gradient takes d + N values of the
  whole federation in place of N (d + 1). What the devices' differences make of it is corrected by
  slopes that all of them measured at an earlier point: see :mod:`~fedzo.algorithms.quasi_newton`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream

Array = NDArray[Any]
EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
FEW = 8  # values


class Spent(Exception):  # noqa: N818 - reads as the sentence it prints
    """The next question would take more queries than are left."""


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
    def told_by_all(self) -> NDArray[np.bool_]:
        """Which of these numbers all devices answer, so that they can be compared."""
        return np.ones(self.size, bool)

    def answer(self, objective: Objective, device: int, batch: Any) -> tuple[Array, int]:
        """Return a device's values, and how many it asked for."""
        values = _values(objective, self.points, batch)
        return values, len(values)


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
    def told_by_all(self) -> NDArray[np.bool_]:
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
        values = _values(objective, np.concatenate([self.x[None], *sides]), batch)
        ahead, behind = values[1 : 1 + len(asked)], values[1 + len(asked) :]
        rise = (ahead - behind) / 2 if self.central else ahead - values[0]
        slopes = np.zeros(self.x.size)
        slopes[asked] = rise / self.steps[asked]
        every = [slopes] if self.everyone else []
        told = np.concatenate([values[:1], np.where(own, slopes, 0.0), own.astype(float), *every])
        return told, len(values)


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


def _values(objective: Objective, points: Array, batch: Any) -> Array:
    """Return the mean over a batch of the values at each point."""
    values = np.asarray(objective.values(points, batch), np.float64)
    return np.asarray(values.mean(axis=1))


class Slopes(NamedTuple):
    """A federation's answer to a stencil."""

    fun: float  # f(x)
    own: Array  # the slopes as the devices measured their own coordinates
    every: Array  # the mean slopes of all devices; as ``own`` where they were shared out


class Account:
    """What a search knows besides its own plans: what is left, the noise, and the best so far.

    Parameters
    ----------
    x0 : array
        Where the search starts.
    devices : int
        N.
    left : float
        How many queries there are, over all devices.
    draws : Draws
        Where its random numbers come from.
    """

    def __init__(self, x0: Array, devices: int, left: float, draws: Draws) -> None:
        self.x, self.fun = x0.astype(np.float64), math.inf
        self.devices, self.dim, self.left, self.asked = devices, x0.size, left, 0
        self.kept = 0.0  # of what is left, for what must still be asked at the end
        self.noise = 0.0  # the standard deviation of a mean value
        self._x0, self._at_start = self.x, np.empty(0)  # where it starts; noisy values there
        self._floor = TINY  # what counts as nothing: of a value that is exactly zero
        self._draws, self._drawn = draws._replace(stream=Stream.SEARCH), 0

    def draw(self) -> Draws:
        """Return the next address of random numbers."""
        self._drawn += 1
        return self._draws._replace(step=self._drawn)

    def error(self, fun: float) -> float:
        """Return how uncertain a mean value of this size is: by noise or by rounding."""
        return max(self.noise, 4 * EPS * abs(fun), self._floor)

    def device_error(self, fun: float) -> float:
        """Return the same of one device's value, whose noise is not averaged."""
        return max(self.noise * math.sqrt(self.devices), 4 * EPS * abs(fun), self._floor)

    def ask(self, question: Question) -> Generator[Question, Array, Array]:
        """Put a question, if it can be paid for."""
        cost = question.queries(self.devices)
        if cost > self.left - self.kept:
            raise Spent
        self.asked += cost
        self.left -= cost
        answer = yield question
        return answer

    def values(self, points: Array) -> Generator[Question, Array, Array]:
        """Return the mean values at points, infinite where there is none, and keep the best.

        Of noisy values the lowest is only the luckiest: those are settled by :meth:`compare`.
        """
        points = np.atleast_2d(points)
        values = yield from self.ask(Points(points))
        values = np.where(np.isfinite(values), values, np.inf)
        lowest = int(np.argmin(values))
        if not self.noise and values[lowest] < self.fun:
            self.x, self.fun = points[lowest].copy(), float(values[lowest])
        return values

    def slopes(
        self, x: Array, steps: Array, *, everyone: bool, central: bool, turn: int = 0
    ) -> Generator[Question, Array, Slopes]:
        """Return f and its slopes at x; those that nobody measured are not numbers."""
        d = self.dim
        told = yield from self.ask(Stencil(x, steps, everyone, central, turn))
        with np.errstate(divide="ignore", invalid="ignore"):
            own = told[1 : 1 + d] / told[1 + d : 1 + 2 * d]
        return Slopes(float(told[0]), own, told[1 + 2 * d :] if everyone else own)

    def compare(self, candidates: list[Array], repeats: int) -> Generator[Question, Array, Array]:
        """Take for the best the candidate of the lowest mean over some repeats; return the means.

        The first is given up only for one that is lower beyond the noise: by two and a half times
        the error of the difference. Where it is x0, its values at the start count, too.
        """
        points = np.repeat(np.array(candidates), repeats, axis=0)
        known = self._at_start if np.array_equal(candidates[0], self._x0) else self._at_start[:0]
        values = yield from self.values(points[min(known.size, repeats) :])
        values = np.concatenate([known[:repeats], values])
        repeated = values.reshape(len(candidates), repeats)
        means, deviations = repeated.mean(axis=1), repeated.std(axis=1, ddof=1)
        if repeats < FEW:  # so few do not tell how much they vary
            deviations = np.full(len(candidates), self.noise)
        errors = deviations / math.sqrt(repeats)
        lowest = int(np.argmin(means))
        if not means[lowest] < means[0] - 2.5 * math.hypot(errors[0], errors[lowest]):
            lowest = 0
        self.x, self.fun = candidates[lowest].copy(), float(means[lowest])
        return np.asarray(means)

    def start(self) -> Generator[Question, Array, None]:
        """Measure f at x0 and the noise of its values: a few repeats, more where they differ."""
        x0 = self.x
        values = yield from self.values(np.array([x0] * 3))
        # A sum of many terms is rounded differently in batches of different sizes.
        rounding = 100 * EPS * float(np.max(np.abs(values)))
        if np.isfinite(values).all() and np.ptp(values) > rounding:
            count = 5 if 8 * self.devices <= 0.1 * self.left else 2
            more = yield from self.values(np.array([x0] * count))
            values = np.concatenate([values, more])
            self._at_start = values[np.isfinite(values)]
            self.noise = float(np.std(values[np.isfinite(values)], ddof=1))
        self.x, self.fun = x0, float(np.mean(values))
        self._floor = max(EPS**2 * abs(self.fun), TINY) if math.isfinite(self.fun) else TINY


class Pace:
    """How fast a descent lowers f, per query.

    Examples
    --------
    >>> pace = Pace(asked=0, fun=10.0)
    >>> pace.is_slow(asked=50, fun=1.0, window=40, slow=0.1)  # 9 in the last 50 queries
    False
    >>> pace.is_slow(asked=100, fun=0.9, window=40, slow=0.1)  # 0.1, of 9.1 so far
    True
    """

    def __init__(self, asked: int, fun: float) -> None:
        self._trail = [(asked, fun)]

    def is_slow(self, asked: int, fun: float, window: float, slow: float) -> bool:
        """Tell whether the last ``window`` queries brought less than a share ``slow`` of it all."""
        self._trail.append((asked, fun))
        before = [f for a, f in self._trail if a <= asked - window]
        return bool(before) and before[-1] - fun < slow * (self._trail[0][1] - fun)
