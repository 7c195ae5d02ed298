"""Bounds on x as a smooth change of variables: the optimiser's u is free, x = x(u) is not.

Why not projection: the optimiser would have to know of it, in each local step and in each
estimate, whose points x + μv lie beside x; and an average over the air is no point of a box.
A change of variables is the problem's own business. Every algorithm and every uplink works
as it is, and a function is never asked for a value outside its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.errors import InvalidValue, require

Array = NDArray[Any]
Pairs = Sequence[tuple[float | None, float | None]]


class Ends(Protocol):
    """Bounds as ``scipy.optimize.Bounds`` has them: a number each, or one for all."""

    lb: ArrayLike
    ub: ArrayLike


Bounds = Pairs | Ends

_INSIDE = 0.01  # where a start on a bound is moved to: a share of the width, or of 1


class Box:
    r"""The box of all x with low <= x <= high, in each coordinate.

    With the middle m and half the width h of two bounds, or one bound, a coordinate is

    .. math:: x = m + h \sin(u / h), \qquad x = low - 1 + \sqrt{1 + u^2}, \qquad
              x = high + 1 - \sqrt{1 + u^2},

    and x = u without any; where the bounds are equal, x is what they are. Far from bounds, x
    moves as much as u does: learning rate and smoothing keep their units. A bound is reached,
    at a finite u, and a function that falls towards it has an ordinary minimum there. (Under
    a sigmoid it would lie at infinity.)

    Parameters
    ----------
    bounds : sequence of pairs, or scipy.optimize.Bounds
        (low, high) of each coordinate, None or an infinity for an open end.
    dim : int
        How many coordinates there are.

    Examples
    --------
    >>> box = Box([(0.0, 4.0), (None, None), (1.0, None)], dim=3)
    >>> u = box.encode(np.array([3.0, -7.0, 5.0]))
    >>> box.decode(u).round(12)
    array([ 3., -7.,  5.])
    >>> box.decode(u + np.array([100.0, 0.0, -100.0])).round(2)  # never outside
    array([ 2.51, -7.  , 95.11])
    """

    def __init__(self, bounds: Bounds, dim: int) -> None:
        pairs = [_pair(j, pair) for j, pair in enumerate(_pairs(bounds, dim))]
        allowed = f"{dim}, one (low, high) for each number in x"
        require(len(pairs) == dim, "bounds", f"{len(pairs)} pairs", allowed)
        self.low, self.high = np.array(pairs).T
        has_low, has_high = np.isfinite(self.low), np.isfinite(self.high)
        self._both, self._free = has_low & has_high, ~has_low & ~has_high
        low, high = np.where(self._both, self.low, -1.0), np.where(self._both, self.high, 1.0)
        self._half, self._middle = high / 2 - low / 2, high / 2 + low / 2
        self._unit = np.where(self._half > 0, self._half, 1.0)  # of u
        alone = np.where(has_low, self.low, self.high)
        self._one = np.where(self._both | self._free, 0.0, alone)
        self._sign = np.where(has_low, 1.0, -1.0)  # which way is in, from the only bound

    def decode(self, u: Array) -> Array:
        """Return x(u), float64, of one u or of a row of them."""
        u = np.asarray(u, np.float64)
        two = self._middle + self._half * np.sin(u / self._unit)
        one = self._one + self._sign * (np.hypot(1, u) - 1)
        x = np.where(self._free, u, np.where(self._both, two, one))
        return np.clip(x, self.low, self.high)  # of rounding there may be a last bit

    def encode(self, x: Array) -> Array:
        """Return the u of an x that lies inside, in the precision of x.

        An x on a bound is first moved inside, by a hundredth of the width, or of 1 beside a
        single bound. On a bound x(u) is flat: an optimiser that starts there sees no slope.

        >>> box = Box([(0.0, 4.0)], dim=1)
        >>> box.decode(box.encode(np.array([4.0]))).round(12)
        array([3.96])
        """
        for j in np.flatnonzero(~((self.low <= x) & (x <= self.high))):
            allowed = f"between its bounds, {self.low[j]:g} and {self.high[j]:g}"
            raise InvalidValue(f"x0[{j}]", float(x[j]), allowed)
        inside = _INSIDE * 2 * np.where(self._both, self._half, 0.5)
        x64 = np.where(x == self.low, self.low + inside, x)
        x64 = np.where(x == self.high, self.high - inside, x64)
        away = np.abs(x64 - self._one)
        one = np.sqrt(away) * np.sqrt(away + 2)  # (1 + away)² may be too large a number
        two = self._half * np.arcsin(np.clip((x64 - self._middle) / self._unit, -1, 1))
        return np.where(self._free, x, np.where(self._both, two, one)).astype(x.dtype)

    def lengths(self) -> Array:
        """Return a typical length of each coordinate of u: a quarter of the width, NaN if open.

        >>> Box([(-5.0, 5.0), (0.0, None)], dim=2).lengths()
        array([2.5, nan])
        """
        return np.where(self._both & (self._half > 0), self._half / 2, np.nan)

    def pairs(self) -> list[list[float]]:
        """Return the bounds as a configuration can hold them, infinities for open ends.

        >>> Box([(0, None)], dim=1).pairs()
        [[0.0, inf]]
        """
        return [[float(low), float(high)] for low, high in zip(self.low, self.high, strict=True)]


def _pairs(bounds: Bounds, dim: int) -> Sequence[Any]:
    """Return one entry for each coordinate, whatever it is.

    >>> from types import SimpleNamespace
    >>> _pairs(SimpleNamespace(lb=0.0, ub=[1.0, 2.0]), dim=2)
    [(0.0, 1.0), (0.0, 2.0)]
    """
    try:
        if not (hasattr(bounds, "lb") and hasattr(bounds, "ub")):
            return list(bounds)
        low, high = (np.broadcast_to(end, dim).tolist() for end in (bounds.lb, bounds.ub))
    except (TypeError, ValueError) as error:
        raise InvalidValue("bounds", bounds, f"{dim} pairs (low, high), as x has") from error
    return list(zip(low, high, strict=True))


def _pair(j: int, pair: Any) -> tuple[float, float]:
    try:
        low, high = pair
        low, high = -np.inf if low is None else float(low), np.inf if high is None else float(high)
    except (TypeError, ValueError):
        low = high = np.nan
    allowed = "a pair (low, high) with low <= high, None for an open end"
    require(low <= high and low < np.inf and high > -np.inf, f"bounds[{j}]", pair, allowed)
    return low, high
