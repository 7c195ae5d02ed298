"""Numbers over decades: the optimiser's u is the logarithm of x, where that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import InvalidValue, nearest, one_of, require

Array = NDArray[Any]
SCALES = ("linear", "log")


class Logarithm:
    """x = 10^u for the coordinates on a logarithmic scale, and x = u for the others.

    Parameters
    ----------
    scale : str or sequence of str
        ``linear`` or ``log``, for all coordinates or for each.
    dim : int
        How many coordinates there are.

    Examples
    --------
    >>> decades = Logarithm(["log", "linear"], dim=2)
    >>> decades.encode("x0", np.array([1e-3, 5.0]))
    array([-3.,  5.])
    >>> decades.decode(np.array([2.0, 5.0]))
    array([100.,   5.])
    """

    def __init__(self, scale: str | Sequence[str], dim: int) -> None:
        names = [scale] * dim if isinstance(scale, str) else list(scale)
        for name in names:
            if name not in SCALES:
                raise InvalidValue("scale", name, one_of(SCALES) + nearest(str(name), SCALES))
        allowed = f"one of {dim} words, or one for all"
        require(len(names) == dim, "scale", f"{len(names)} words", allowed)
        self.names = names
        self._log = np.array([name == "log" for name in names])

    def decode(self, u: Array) -> Array:
        """Return x, of one u or of a row of them."""
        exponents = np.where(self._log, u, 0.0)
        with np.errstate(over="ignore"):
            return np.where(self._log, 10.0**exponents, u)

    def encode(self, key: str, x: Array) -> Array:
        """Return the u of an x, in the precision of x; ``key`` is what x is called."""
        for j in np.flatnonzero(self._log & ~(x > 0)):
            raise InvalidValue(f"{key}[{j}]", float(x[j]), "> 0 on a logarithmic scale")
        return np.where(self._log, np.log10(np.where(self._log, x, 1.0)), x).astype(x.dtype)

    def bounds(self, pairs: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
        """Return the bounds of u that bounds of x are.

        >>> Logarithm("log", dim=1).bounds([(0.0, 1e4)])
        [(-inf, 4.0)]
        """
        return [
            _logarithms(*pair) if log else (pair[0], pair[1])
            for log, pair in zip(self._log, pairs, strict=True)
        ]


def _logarithms(low: float, high: float) -> tuple[float, float]:
    require(high > 0, "bounds", (low, high), "above 0 on a logarithmic scale")
    return (float(np.log10(low)) if low > 0 else -np.inf, float(np.log10(high)))
