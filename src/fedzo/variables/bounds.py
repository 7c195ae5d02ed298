"""Bounds and logarithmic scales of x, as smooth changes of variables.

The optimiser moves a free vector u, and the problem evaluates x(u). A projection would concern
every local step, every estimate (whose points x + μv lie beside x), and every uplink: an average
over the air does not lie in a box. With a change of variables, all algorithms and uplinks work
unchanged, and a function is never evaluated outside its bounds.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.types import Array
from fedzo.errors import FedzoWarning, InvalidValue, check_choice, normalised, require

SCALES = ("linear", "log")
Pairs = Sequence[tuple[float | None, float | None]]


class Ends(Protocol):
    """Bounds in the form of ``scipy.optimize.Bounds``: one per coordinate, or one for all."""

    lb: ArrayLike
    ub: ArrayLike


Bounds = Pairs | Ends

_INSIDE = 0.01  # how far a start on a bound is moved inside: a share of the width, or of 1


class Box:
    r"""The box of all x with low <= x <= high, in each coordinate.

    With the middle m and half the width h of two bounds, and a margin w, a coordinate is x = m + u
    but for the margins, and in those

    .. math:: x = m \pm \left(h - w + w \sin\frac{|u| - (h - w)}{w}\right),

    continued by reflection. With one bound it is :math:`low - 1 + \sqrt{1 + u^2}` or
    :math:`high + 1 - \sqrt{1 + u^2}`, and x = u without bounds. If both bounds are equal, x is
    constant. Inside, x moves exactly as u, so bounds that do not matter change nothing: learning
    rate and smoothing keep their units. A bound is reached at a finite u, so a function that falls
    towards it has an ordinary minimum there. (Under a sigmoid, this minimum would lie at infinity.)

    Parameters
    ----------
    bounds : sequence of pairs, or scipy.optimize.Bounds
        (low, high) of each coordinate; None or an infinity for an open end.
    dim : int
        The number of coordinates.
    margin : float
        w, as a share of h. With 1 it is :math:`x = m + h \sin(u / h)`.

    Examples
    --------
    >>> box = Box([(0.0, 4.0), (None, None), (1.0, None)], dim=3)
    >>> u = box.encode(np.array([3.0, -7.0, 5.0]))
    >>> box.decode(u).round(12)
    array([ 3., -7.,  5.])
    >>> box.decode(u + np.array([100.0, 0.0, -100.0])).round(2)  # never outside
    array([ 3.5 , -7.  , 95.11])
    """

    def __init__(self, bounds: Bounds, dim: int, margin: float = 0.2) -> None:
        pairs = [_pair(j, pair) for j, pair in enumerate(_pairs(bounds, dim))]
        allowed = f"{dim}, one (low, high) per number in x"
        require(len(pairs) == dim, "bounds", f"{len(pairs)} pairs", allowed)
        self.low, self.high = np.array(pairs).T
        has_low, has_high = np.isfinite(self.low), np.isfinite(self.high)
        self._both, self._free = has_low & has_high, ~has_low & ~has_high
        low, high = np.where(self._both, self.low, -1.0), np.where(self._both, self.high, 1.0)
        self._half, self._middle = high / 2 - low / 2, high / 2 + low / 2
        self._unit = margin * np.where(self._half > 0, self._half, 1.0)  # w
        self._inner = (1 - margin) * self._half  # where the margins begin
        self._end = self._inner + self._unit * np.pi / 2  # the u of a bound
        alone = np.where(has_low, self.low, self.high)
        self._one = np.where(self._both | self._free, 0.0, alone)
        self._sign = np.where(has_low, 1.0, -1.0)  # the direction to the inside

    def decode(self, u: Array) -> Array:
        """Return x(u), float64, for u of shape (..., dim)."""
        u = np.asarray(u, np.float64)
        wave = self._end * (1 - np.abs(np.mod(u / self._end + 1, 4) - 2))  # beyond the bounds
        turned = np.where(np.abs(u) <= self._end, u, wave)
        near = np.maximum(np.abs(turned) - self._inner, 0.0)
        away = np.minimum(np.abs(turned), self._inner) + self._unit * np.sin(near / self._unit)
        two = self._middle + np.sign(turned) * np.where(self._half > 0, away, 0.0)
        one = self._one + self._sign * (np.hypot(1, u) - 1)
        x = np.where(self._free, u, np.where(self._both, two, one))
        return np.clip(x, self.low, self.high)  # rounding may exceed a bound

    def encode(self, x: Array) -> Array:
        """Return the u of an x, in the precision of x; with a warning if x is not in the bounds.

        An x on a bound is first moved inside, by 1 % of the width, or by 0.01 if there is a single
        bound. On a bound x(u) is flat, and an optimiser that starts there sees no slope.

        >>> box = Box([(0.0, 4.0)], dim=1)
        >>> box.decode(box.encode(np.array([4.0]))).round(12)
        array([3.96])
        """
        outside = np.flatnonzero(~((self.low <= x) & (x <= self.high)))
        if outside.size:
            j = int(outside[0])
            warnings.warn(
                f"x0[{j}] = {x[j]:g} is outside its bounds, {self.low[j]:g} and {self.high[j]:g}: "
                "moved inside",
                FedzoWarning,
                stacklevel=2,
            )
            x = np.clip(x, self.low, self.high).astype(x.dtype)
        inside = _INSIDE * 2 * np.where(self._both, self._half, 0.5)
        x64 = np.where(x == self.low, self.low + inside, x)
        x64 = np.where(x == self.high, self.high - inside, x64)
        away = np.abs(x64 - self._one)
        one = np.sqrt(away) * np.sqrt(away + 2)  # (1 + away)² may be too large a number
        apart = np.abs(x64 - self._middle)
        near = np.clip((apart - self._inner) / self._unit, 0, 1)
        two = np.minimum(apart, self._inner) + self._unit * np.arcsin(near)
        two = np.sign(x64 - self._middle) * two
        return np.where(self._free, x, np.where(self._both, two, one)).astype(x.dtype)

    def lengths(self) -> Array:
        """Return a typical length of each coordinate of u: a quarter of the width, NaN if open.

        >>> Box([(-5.0, 5.0), (0.0, None)], dim=2).lengths()
        array([2.5, nan])
        """
        return np.where(self._both & (self._half > 0), self._half / 2, np.nan)

    def pairs(self) -> list[list[float]]:
        """Return the bounds as lists for a configuration, infinities for open ends.

        >>> Box([(0, None)], dim=1).pairs()
        [[0.0, inf]]
        """
        return [[float(low), float(high)] for low, high in zip(self.low, self.high, strict=True)]


class LogScale:
    """x = 10^u for coordinates on a logarithmic scale, and x = u for the others.

    Parameters
    ----------
    scale : str or sequence of str
        ``linear`` or ``log``: one for all coordinates, or one per coordinate.
    dim : int
        The number of coordinates.

    Attributes
    ----------
    chosen : array of bool
        Which coordinates are on a logarithmic scale.

    Examples
    --------
    >>> scale = LogScale(["log", "linear"], dim=2)
    >>> scale.encode("x0", np.array([1e-3, 5.0]))
    array([-3.,  5.])
    >>> scale.decode(np.array([2.0, 5.0]))
    array([100.,   5.])
    """

    def __init__(self, scale: str | Sequence[str], dim: int) -> None:
        names = [scale] * dim if isinstance(scale, str) else list(scale)
        for name in names:
            check_choice("scale", name, SCALES)
        allowed = f"one of {dim} words, or one for all"
        require(len(names) == dim, "scale", f"{len(names)} words", allowed)
        self.names = names
        self.chosen = np.array([name == "log" for name in names])

    def decode(self, u: Array) -> Array:
        """Return x(u), for u of shape (..., dim)."""
        exponents = np.where(self.chosen, u, 0.0)
        with np.errstate(over="ignore"):
            return np.where(self.chosen, 10.0**exponents, u)

    def encode(self, key: str, x: Array) -> Array:
        """Return the u of an x, in the precision of x; ``key`` names x in an error."""
        for j in np.flatnonzero(self.chosen & ~(x > 0)):
            raise InvalidValue(f"{key}[{j}]", float(x[j]), "> 0 on a logarithmic scale")
        return np.where(self.chosen, np.log10(np.where(self.chosen, x, 1.0)), x).astype(x.dtype)

    def bounds(self, pairs: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
        """Return the bounds of u for given bounds of x.

        >>> LogScale("log", dim=1).bounds([(0.0, 1e4)])
        [(-inf, 4.0)]
        """
        return [
            _logarithms(*pair) if log else (pair[0], pair[1])
            for log, pair in zip(self.chosen, pairs, strict=True)
        ]


def _logarithms(low: float, high: float) -> tuple[float, float]:
    require(high > 0, "bounds", (low, high), "above 0 on a logarithmic scale")
    return (float(np.log10(low)) if low > 0 else -np.inf, float(np.log10(high)))


def _pairs(bounds: Bounds, dim: int) -> Sequence[Any]:
    """Return one entry per coordinate, not yet checked.

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
        low, high = (normalised("", end, float | None) for end in pair)
        low, high = -np.inf if low is None else low, np.inf if high is None else high
    except (TypeError, ValueError):
        low = high = np.nan
    allowed = "a pair (low, high) with low <= high, None for an open end"
    require(low <= high and low < np.inf and high > -np.inf, f"bounds[{j}]", pair, allowed)
    return low, high
