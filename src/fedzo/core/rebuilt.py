"""Updates from their coefficients: drawn again by columns, on all cores, and not held.

An update is a sum of directions that anybody can draw again. A core draws a few thousand columns
of all of them, adds them up and goes on to the next few thousand, so that a server that hears M
devices takes no memory for their directions or their updates: only the new model is written. The
numbers and the order of each sum are those of the device, and so is every bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedzo.core import streams
from fedzo.core.directions import BY_COLUMNS, KINDS, advance_kernel, draw_columns
from fedzo.core.estimator import Estimator
from fedzo.core.random import TILE, Draws
from fedzo.core.streams import Combination, share_out

Array = NDArray[Any]

_AT_ONCE = 320 * TILE  # numbers that are drawn at a time: they stay in a core's cache


class Term(NamedTuple):
    """One device's update, by what it is made of."""

    at: Draws  # where the device draws
    coefficients: Array  # (H, b2)
    weight: float = 1


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """A weighted mean of updates that is built where it is needed, a few columns at a time.

    Attributes
    ----------
    estimator : Estimator
        Whose directions they are.
    dim : int
        d.
    terms : tuple of Term
        The updates, in device order.
    shares : float
        What their weighted sum is divided by.
    streamed : bool
        Whether the devices draw number by number (:mod:`fedzo.core.streams`), which adds up in
        another order than directions that are held.

    Examples
    --------
    >>> from fedzo.core.random import Stream
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> estimator = Estimator(smoothing=1e-3, directions=2, kind="rademacher")
    >>> one = Rebuilt(estimator, 6, (Term(at, np.array([[0.5, 0.25]])),))
    >>> np.asarray(one)
    array([ 0.75, -0.25, -0.75, -0.75,  0.75,  0.25])
    >>> (one.scaled(3) + one).divided(4).moved(np.ones(6))
    array([1.75, 0.75, 0.25, 0.25, 1.75, 1.25])
    """

    estimator: Estimator
    dim: int
    terms: tuple[Term, ...]
    shares: float = 1
    streamed: bool = False

    def __add__(self, other: Rebuilt) -> Rebuilt:
        """Return the sum of both, the other's terms after one's own."""
        return replace(self, terms=self.terms + other.terms)

    def scaled(self, factor: float) -> Rebuilt:
        """Return a multiple."""
        return replace(self, terms=tuple(t._replace(weight=factor * t.weight) for t in self.terms))

    def divided(self, shares: float) -> Rebuilt:
        """Return a fraction."""
        return replace(self, shares=shares * self.shares)

    def moved(self, x: Array) -> Array:
        """Return x plus the mean, added in float64 and rounded once."""
        out = np.empty_like(x)
        self._fill(out, x)
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the mean itself, in float64."""
        out = np.empty(self.dim)
        self._fill(out, None)
        return out.astype(dtype or np.float64, copy=False)

    @property
    def nbytes(self) -> int:
        """How many bytes an update has when it is built."""
        return self.dim * self.terms[0].coefficients.itemsize

    def _fill(self, out: Array, base: Array | None) -> None:
        def work(first: int, last: int) -> None:
            for part in self._parts(first, last):
                total = self._mean(part)
                out[part] = total if base is None else base[part] + total

        if self._whole:
            work(0, self.dim)
        else:
            share_out(work, self.dim, 0)

    @property
    def _whole(self) -> bool:
        """Whether directions can only be drawn as a whole."""
        return self.estimator.kind not in BY_COLUMNS

    def _parts(self, first: int, last: int) -> Iterator[slice]:
        width = max(_AT_ONCE // self.estimator.directions // TILE, 8) * TILE
        width = self.dim if self._whole else width
        for start in range(first, last, width):
            yield slice(start, min(start + width, last))

    def _mean(self, part: slice) -> NDArray[np.float64]:
        total = np.zeros(part.stop - part.start)
        for term in self.terms:
            own = self._update(term, part)
            total += own if term.weight == 1 else term.weight * own.astype(np.float64)
        if self.shares != 1:
            total /= self.shares
        return total

    def _update(self, term: Term, part: slice) -> Array:
        """Return some numbers of an update, as its device has summed them."""
        kind, moves, size = self.estimator.kind, term.coefficients, part.stop - part.start
        delta = np.zeros(size, moves.dtype)
        places = [self.estimator.address(term.at._replace(step=k)) for k in range(len(moves))]
        if self.streamed and kind in streams.KINDS:
            Combination.of(kind, self.dim, places, moves).add_part(delta, part.start)
            return delta
        rows = np.empty((self.estimator.directions, size), moves.dtype)
        start, x = np.zeros(size, moves.dtype), np.empty(size, moves.dtype)
        for place, step in zip(places, moves, strict=True):
            if self._whole:
                KINDS[kind](rows, place)
            else:
                draw_columns(kind, rows, place, self.dim, part.start)
            advance_kernel(step, rows, delta, start, x)
        return delta
