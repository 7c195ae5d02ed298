"""The account that a search keeps: the queries left, the noise of the values, the best so far."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.questions import Points, Question, Stencil
from fedzo.core.random import Draws, Stream

Array = NDArray[Any]
EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
FEW = 8  # values


class Spent(Exception):  # noqa: N818 - reads as the sentence it prints
    """The next question would take more queries than are left."""


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
        self.reserved = 0.0  # of what is left, for what must still be asked at the end
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
        if cost > self.left - self.reserved:
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
        answer = yield from self.ask(Stencil(x, steps, everyone, central, turn))
        with np.errstate(divide="ignore", invalid="ignore"):
            own = answer[1 : 1 + d] / answer[1 + d : 1 + 2 * d]
        return Slopes(float(answer[0]), own, answer[1 + 2 * d :] if everyone else own)

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
    >>> Pace(asked=0, fun=10.0).is_slow(asked=50, fun=10.0, window=40, slow=0.1)  # nothing at all
    True
    """

    def __init__(self, asked: int, fun: float) -> None:
        self._trail = [(asked, fun)]

    def is_slow(self, asked: int, fun: float, window: float, slow: float) -> bool:
        """Tell whether the last ``window`` queries brought at most a share ``slow`` of it all."""
        self._trail.append((asked, fun))
        before = [f for a, f in self._trail if a <= asked - window]
        return bool(before) and before[-1] - fun <= slow * (self._trail[0][1] - fun)
