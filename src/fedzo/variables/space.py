"""Search spaces of hyper-parameters, mapped to free numbers.

A parameter may exist only ``when`` a choice has a given value, such as the width of one kernel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import Parameters, check_count, nearest, require
from fedzo.variables.bounds import Box

Value = Any  # a number, or one of the options of a choice
Condition = tuple[str, Any]  # the name of a choice, and one of its options


@dataclass(frozen=True)
class Float(Parameters):
    """A number in [low, high], on a linear scale or, with ``log``, on a logarithmic one.

    >>> Float(1e-4, 1.0, log=True).at(0.5)
    0.01
    """

    low: float
    high: float
    log: bool = False
    when: Condition | None = None

    levels = 0

    def __post_init__(self) -> None:
        _check_ends(self)

    def at(self, share: float) -> float:
        """Return the value at a share of the way from low to high."""
        return min(max(_between(self.low, self.high, self.log, share), self.low), self.high)

    def share(self, value: float) -> float:
        """Return the share of the way at which a value lies."""
        return _share(self.low, self.high, self.log, value)


@dataclass(frozen=True)
class Int(Parameters):
    """A whole number in {low, ..., high}, on a linear or a logarithmic scale.

    The optimiser moves a real number between low - 1/2 and high + 1/2, which is rounded.

    >>> Int(1, 3).at(0.0), Int(1, 3).at(0.34), Int(1, 3).at(1.0), Int(1, 100, log=True).at(0.5)
    (1, 2, 3, 7)
    """

    low: int
    high: int
    log: bool = False
    when: Condition | None = None

    def __post_init__(self) -> None:
        for key in ("low", "high"):
            check_count(key, getattr(self, key), least=-(1 << 53))
        _check_ends(self)

    def at(self, share: float) -> int:
        """Return the value at a share of the way from low to high."""
        if not self.log:
            return self.low + min(int(share * self.levels), self.levels - 1)
        value = round(_between(self.low - 0.5, self.high + 0.5, True, share))
        return min(max(value, self.low), self.high)

    def share(self, value: float) -> float:
        """Return the share of the way at which a value lies."""
        return _share(self.low - 0.5, self.high + 0.5, self.log, value)

    @property
    def levels(self) -> int:
        """The number of steps of equal width; 0 on a logarithmic scale."""
        return 0 if self.log else self.high - self.low + 1


@dataclass(frozen=True)
class Choice(Parameters):
    """One of several options without an order.

    >>> Choice(["linear", "rbf"]).at(0.7), Choice(["linear", "rbf"]).share("linear")
    ('rbf', 0.25)
    """

    options: Sequence[Any]
    when: Condition | None = None

    def __post_init__(self) -> None:
        given = isinstance(self.options, list | tuple) and len(self.options) >= 2
        different = given and all(self.options.count(option) == 1 for option in self.options)
        allowed = "a list of two or more different options"
        require(different, "Choice(options)", self.options, allowed)

    def at(self, share: float) -> Any:
        """Return the option at a share of the way from the first to the last."""
        return self.options[min(int(share * len(self.options)), len(self.options) - 1)]

    def share(self, value: Any) -> float:
        """Return the share of the way at which an option lies."""
        if value not in self.options:
            return math.nan
        return (self.options.index(value) + 0.5) / len(self.options)

    @property
    def levels(self) -> int:
        """Minus the number of options: they have no order."""
        return -len(self.options)


Kind = Float | Int | Choice


class Space:
    """Hyper-parameters by name, and the map between them and points of R^d.

    The share of a parameter's range, on its own scale, is (1 + sin u) / 2. All parameters have the
    same width, independent of units, and the ends can be reached (see
    :class:`fedzo.variables.bounds.Box`).

    Examples
    --------
    >>> space = Space({"rate": Float(1e-4, 1.0, log=True), "layers": Int(1, 3)})
    >>> space.params(np.zeros(2))
    {'rate': 0.01, 'layers': 2}
    >>> space.params(space.point({"rate": 1e-3, "layers": 3}))
    {'rate': 0.001, 'layers': 3}
    """

    def __init__(self, parameters: Mapping[str, Kind]) -> None:
        given = isinstance(parameters, Mapping) and bool(parameters)
        require(given, "space", parameters, "at least one parameter by its name")
        earlier: dict[str, Kind] = {}
        for name, kind in parameters.items():
            allowed = "a fedzo.Float(low, high), a fedzo.Int(low, high) or a fedzo.Choice(options)"
            require(isinstance(kind, Kind), f"space.{name}", kind, allowed)
            _check_condition(name, kind, earlier)
            earlier[name] = kind
        self.parameters, self.dim = dict(parameters), len(parameters)
        self._box = Box([(-1.0, 1.0)] * self.dim, self.dim, margin=1.0)

    def params(self, u: Array) -> dict[str, Value]:
        """Return the parameters at a point, without those whose condition does not hold."""
        shares = (1 + self._box.decode(u)) / 2
        found: dict[str, Value] = {}
        for (name, kind), share in zip(self.parameters.items(), shares, strict=True):
            if kind.when is None or found.get(kind.when[0], _ABSENT) == kind.when[1]:
                found[name] = kind.at(float(share))
        return found

    @property
    def levels(self) -> tuple[int, ...]:
        """For each parameter: its number of levels, minus its number of options, or 0."""
        return tuple(kind.levels for kind in self.parameters.values())

    @property
    def conditions(self) -> tuple[tuple[int, int] | tuple[()], ...]:
        """For each parameter: the choice and the option that it needs, as indices, or ()."""
        names = list(self.parameters)
        found: list[tuple[int, int] | tuple[()]] = []
        for kind in self.parameters.values():
            choice = self.parameters[kind.when[0]] if kind.when else None
            if kind.when and isinstance(choice, Choice):
                index = list(choice.options).index(kind.when[1])
                found.append((names.index(kind.when[0]), index))
            else:
                found.append(())
        return tuple(found)

    def lengths(self) -> Array:
        """Return a typical length of each number of a point, shape (dim,)."""
        return self._box.lengths()

    def point(self, params: Mapping[str, Value]) -> Array:
        """Return a point that has these parameters.

        A value at an end of its range is moved inside by 1 % of the range: see
        :meth:`fedzo.variables.bounds.Box.encode`.
        """
        for name in params:
            known = ", ".join(self.parameters) + nearest(name, self.parameters)
            require(name in self.parameters, name, params[name], f"one of the space's: {known}")
        shares = []
        for name, kind in self.parameters.items():
            value = params.get(name)
            if kind.when is not None and params.get(kind.when[0], _ABSENT) != kind.when[1]:
                shares.append(0.5)
                continue
            if isinstance(kind, Choice):
                share, allowed = kind.share(value), f"one of {list(kind.options)}"
            else:
                share = kind.share(float(value)) if isinstance(value, Real) else math.nan
                allowed = f"given, and between {kind.low:g} and {kind.high:g}"
            require(0 <= share <= 1, name, value, allowed)
            shares.append(share)
        return self._box.encode(2 * np.array(shares) - 1)


_ABSENT = object()  # the value of a parameter whose condition does not hold


def _check_condition(name: str, kind: Kind, earlier: Mapping[str, Kind]) -> None:
    """Raise unless a parameter depends on an option of an earlier choice."""
    if kind.when is None:
        return
    choices = {other: k for other, k in earlier.items() if isinstance(k, Choice)}
    pair = isinstance(kind.when, tuple) and len(kind.when) == 2
    known = pair and kind.when[0] in choices and kind.when[1] in choices[kind.when[0]].options
    allowed = "a pair (name, option) of a fedzo.Choice before it in the space"
    require(known, f"space.{name}.when", kind.when, allowed)


def _check_ends(kind: Float | Int) -> None:
    name = f"{type(kind).__name__}(low, high)"
    fits = -math.inf < kind.low < kind.high < math.inf and kind.high - kind.low < math.inf
    ends = (kind.low, kind.high)
    require(fits, name, ends, "two finite numbers, low < high")
    least = 1 if isinstance(kind, Int) else 0
    positive = kind.low >= least and kind.low > 0
    fits = not kind.log or (positive and kind.high / kind.low < math.inf)
    log = f"{type(kind).__name__}(low, high, log=True)"
    allowed = f"two numbers, low {'>= 1' if least else '> 0'}, high / low finite"
    require(fits, log, ends, allowed)


def _between(low: float, high: float, log: bool, share: float) -> float:
    return float(low * (high / low) ** share if log else low + share * (high - low))


def _share(low: float, high: float, log: bool, value: float) -> float:
    if not low <= value <= high:
        return math.nan
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
