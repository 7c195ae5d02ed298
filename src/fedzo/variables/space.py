"""Search spaces: what hyper-parameters may be, as a smooth image of free numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import InvalidValue, check_count, nearest, require
from fedzo.variables.bounds import Box

Array = NDArray[Any]
Value = float | int


@dataclass(frozen=True)
class Float:
    """A number in [low, high], on a linear scale or, with ``log``, on a logarithmic one.

    >>> Float(1e-4, 1.0, log=True).at(0.5)
    0.01
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _check_ends(self)

    def at(self, share: float) -> float:
        """Return the value at a share of the way from low to high."""
        return min(max(_between(self.low, self.high, self.log, share), self.low), self.high)

    def share(self, value: float) -> float:
        """Return where a value lies."""
        return _share(self.low, self.high, self.log, value)


@dataclass(frozen=True)
class Int:
    """A whole number in {low, ..., high}; each has its share, on the scale, of the way.

    It is rounded at the last moment: what the optimiser moves is a number between
    low - 1/2 and high + 1/2.

    >>> Int(1, 3).at(0.0), Int(1, 3).at(0.34), Int(1, 3).at(1.0), Int(1, 100, log=True).at(0.5)
    (1, 2, 3, 7)
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for key in ("low", "high"):
            check_count(key, getattr(self, key), least=-(1 << 53))
        _check_ends(self)

    def at(self, share: float) -> int:
        """Return the value at a share of the way from low to high."""
        value = round(_between(self.low - 0.5, self.high + 0.5, self.log, share))
        return min(max(value, self.low), self.high)

    def share(self, value: float) -> float:
        """Return where a value lies."""
        return _share(self.low - 0.5, self.high + 0.5, self.log, value)


class Space:
    """Hyper-parameters by name, and the map between them and points of R^d.

    A parameter's share of its range, on its own scale, is (1 + sin u) / 2: all have the same
    width, whatever their units, and the ends can be reached (see
    :class:`fedzo.variables.bounds.Box`).

    Examples
    --------
    >>> space = Space({"rate": Float(1e-4, 1.0, log=True), "layers": Int(1, 3)})
    >>> space.params(np.zeros(2))
    {'rate': 0.01, 'layers': 2}
    >>> space.params(space.point({"rate": 1e-3, "layers": 3}))
    {'rate': 0.001, 'layers': 3}
    """

    def __init__(self, parameters: Mapping[str, Float | Int]) -> None:
        given = isinstance(parameters, Mapping) and bool(parameters)
        require(given, "space", parameters, "at least one parameter by its name")
        for name, kind in parameters.items():
            allowed = "a fedzo.Float(low, high) or a fedzo.Int(low, high)"
            require(isinstance(kind, Float | Int), f"space.{name}", kind, allowed)
        self.parameters, self.dim = dict(parameters), len(parameters)
        self._box = Box([(-1.0, 1.0)] * self.dim, self.dim)

    def params(self, u: Array) -> dict[str, Value]:
        """Return the parameters at a point."""
        shares = (1 + self._box.decode(u)) / 2
        pairs = zip(self.parameters.items(), shares, strict=True)
        return {name: kind.at(float(share)) for (name, kind), share in pairs}

    def lengths(self) -> Array:
        """Return the typical length of each number of a point."""
        return self._box.lengths()

    def point(self, params: Mapping[str, Value]) -> Array:
        """Return a point that has these parameters.

        One at an end of its range is moved inside, by a hundredth of the way: see
        :meth:`fedzo.variables.bounds.Box.enter`.
        """
        for name in params:
            known = ", ".join(self.parameters) + nearest(name, self.parameters)
            require(name in self.parameters, name, params[name], f"one of the space's: {known}")
        shares = []
        for name, kind in self.parameters.items():
            value = params.get(name)
            share = kind.share(value) if isinstance(value, Real) else math.nan
            allowed = f"given, and between {kind.low:g} and {kind.high:g}"
            require(0 <= share <= 1, name, value, allowed)
            shares.append(share)
        return self._box.encode(2 * np.array(shares) - 1)


def _check_ends(kind: Float | Int) -> None:
    name = f"{type(kind).__name__}(low, high)"
    try:
        fits = -math.inf < kind.low < kind.high < math.inf and kind.high - kind.low < math.inf
    except TypeError:
        fits = False
    require(fits, name, (kind.low, kind.high), "two finite numbers, low < high")
    require(isinstance(kind.log, bool), "log", kind.log, "True or False")
    least = 1 if isinstance(kind, Int) else 0
    if kind.log and not (kind.low >= least and kind.low > 0 and kind.high / kind.low < math.inf):
        raise InvalidValue(
            "low", kind.low, "positive for a logarithmic scale, and high / low finite"
        )


def _between(low: float, high: float, log: bool, share: float) -> float:
    return float(low * (high / low) ** share if log else low + share * (high - low))


def _share(low: float, high: float, log: bool, value: float) -> float:
    if not low <= value <= high:
        return math.nan
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
