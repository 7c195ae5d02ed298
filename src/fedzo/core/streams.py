"""Directions that never exist as a whole: sums of them are added to a model as they are drawn.

A network's direction is as large as the network. Its numbers are a function of their place
(:mod:`fedzo.core.random`), so they need not be kept: a kernel makes 256 at a time in the first
cache, adds a multiple of them to the model's numbers, and forgets them. They are the numbers
of :class:`fedzo.core.directions.Frame` at the same address, to the bit.

A module's parameters are pieces of one long vector x. Each is a flat array here, with the
``start`` of its piece; the work on it is shared among all cores, and its bits do not depend on
how many there are, nor on where the pieces begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import DTypeLike, NDArray

from fedzo.core.directions import BITS, check_signs, sign_words
from fedzo.core.machine import cores
from fedzo.core.random import (
    TILE,
    WORDS,
    Draws,
    Stream,
    check_normals,
    make_tile,
    sum_of_squares,
    tiles,
    unsigned,
)
from fedzo.core.simd import use_wide_vectors
from fedzo.errors import InvalidValue, check_count, nearest, one_of

Array = NDArray[Any]

KINDS = ("sphere", "gaussian", "rademacher")  # the others are not drawn number by number
SIGNS = 16 * BITS  # signs made at a time
_WORTH_A_THREAD = 1 << 16  # numbers; fewer are done before a thread would have begun


@dataclass(frozen=True, eq=False)
class Combination:
    r"""A sum of directions that is never built: :math:`\sum_r c_r\, g_r`.

    The :math:`g_r` are rows as a :class:`~fedzo.core.directions.Frame` has them, normals or
    ±1 that are not scaled to their length, so that whoever knows seed and coefficients needs
    nothing else. Whoever needs the numbers themselves takes it as an array, which builds it.

    Attributes
    ----------
    kind, dim
        The kind of directions, and d.
    addresses, rows
        Where each row is drawn, (R, 5), and which row it is there.
    coefficients
        What each row is multiplied by, float64.
    dtype
        The model's precision, in which the sum is built.
    in_place
        Whether it moves the memory of x itself, where that is a problem's own.
    factors
        What each number of the sum is multiplied by, shape (d,); None: one.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.random import Draws, Stream
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> step = Combination.of("rademacher", 6, at, np.array([0.5, 0.25]))
    >>> x = np.zeros(6)
    >>> step.add_to(x)
    >>> x
    array([ 0.75, -0.25, -0.75, -0.75,  0.75,  0.25])
    >>> (step + step).scaled(0.5).build()[2:4]  # all of it, for those who want to look
    array([-0.75, -0.75])
    """

    kind: str
    dim: int
    addresses: NDArray[np.uint64]
    rows: NDArray[np.int64]
    coefficients: NDArray[np.float64]
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    in_place: bool = False
    factors: Array | None = None

    @classmethod
    def of(cls, kind: str, dim: int, at: Draws | Sequence[Draws], coefficients: Array) -> Self:
        """Return the sum of an address's rows, (b2,), or of those of several addresses, (H, b2)."""
        table = np.atleast_2d(np.asarray(coefficients, np.float64))
        places = [at] if isinstance(at, Draws) else at
        assert len(places) == len(table), "an address for each row of coefficients"
        count = table.shape[1]
        for place in places:
            check_streamed(kind, count, dim, place)
        words = [place.on(Stream.DIRECTIONS).address() for place in places]
        addresses = np.repeat(np.array(words, np.uint64), count, axis=0)
        return cls(kind, dim, addresses, np.tile(np.arange(count), len(table)), table.reshape(-1))

    def __add__(self, other: Any) -> Combination:
        """Return the sum of both, the other's terms after one's own."""
        if not isinstance(other, Combination) or (self.kind, self.dim) != (other.kind, other.dim):
            return NotImplemented
        return replace(
            self,
            addresses=np.concatenate((self.addresses, other.addresses)),
            rows=np.concatenate((self.rows, other.rows)),
            coefficients=np.concatenate((self.coefficients, other.coefficients)),
        )

    def term(self, number: int, factor: float = 1.0) -> Combination:
        """Return one of the terms, times a factor."""
        one = slice(number, number + 1)
        return replace(
            self,
            addresses=self.addresses[one],
            rows=self.rows[one],
            coefficients=factor * self.coefficients[one],
        )

    def scaled(self, factor: float) -> Combination:
        """Return a multiple."""
        return replace(self, coefficients=factor * self.coefficients)

    def divided(self, shares: float) -> Combination:
        """Return a fraction."""
        return self.scaled(1 / shares)

    def add_to(self, out: Array, start: int = 0, base: Array | None = None) -> None:
        """Write ``base`` plus numbers ``start``, ... of the sum into ``out``: flat, float32 or 64.

        Without a base it is added to what is there.
        """
        base = out if base is None else base

        def work(first: int, last: int) -> None:
            self.add_part(out[first:last], start + first, base[first:last])

        share_out(work, out.size, start)

    def add_part(self, out: Array, start: int, base: Array | None = None) -> None:
        """Do the same on this core alone."""
        kernel = _add_signs if self.kind == "rademacher" else _add_normals
        base, c = out if base is None else base, self.coefficients.astype(out.dtype)
        if self.factors is None:
            kernel(out, base, start, self.dim, self.addresses, self.rows, c)
            return
        for first in range(0, out.size, _WORTH_A_THREAD):  # a small temporary
            part = slice(first, first + _WORTH_A_THREAD)
            total = np.zeros_like(out[part])
            kernel(total, total, start + first, self.dim, self.addresses, self.rows, c)
            total *= self.factors[start + first : start + first + total.size]
            np.add(base[part], total, out=out[part])

    def moved(self, x: Array) -> Array:
        """Return x plus the sum, in x's own memory if it is to be moved in place."""
        out = x if self.in_place else x.copy()
        self.add_to(out)
        return out

    def build(self, dtype: DTypeLike | None = None) -> Array:
        """Return the sum itself, d numbers."""
        out = np.zeros(self.dim, self.dtype if dtype is None else dtype)
        self.add_to(out)
        return out

    astype = build  # as an array's, for those who take either

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the sum itself, for NumPy."""
        return self.build(dtype)

    @property
    def nbytes(self) -> int:
        """How many bytes it has when it is built."""
        return self.dim * self.dtype.itemsize


def check_streamed(kind: str, count: int, dim: int, at: Draws) -> None:
    """Raise unless so many directions of this kind can be drawn number by number."""
    if kind not in KINDS:
        allowed = f"{one_of(KINDS)} where directions are streamed" + nearest(kind, KINDS)
        raise InvalidValue("direction_kind", kind, allowed)
    check_count("directions", count)
    (check_signs if kind == "rademacher" else check_normals)(at, count, dim)


def scales(
    kind: str, count: int, dim: int, at: Draws, dtype: DTypeLike = np.float32
) -> NDArray[np.float64]:
    """Return what each row is to be multiplied by to be a direction, E[v v^T] = I/d.

    For the sphere that takes a pass over the numbers, made and forgotten; they are those of
    :attr:`fedzo.core.directions.Frame.scales`, to the bit.

    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> scales("rademacher", 3, 16, at)
    array([0.25, 0.25, 0.25])
    """
    if kind != "sphere":
        return np.full(count, 1 / math.sqrt(dim))
    return np.array([1 / math.sqrt(_squared_norm(n, dim, at, dtype)) for n in range(count)])


def _squared_norm(row: int, dim: int, at: Draws, dtype: DTypeLike) -> float:
    """Add up the squares of a row, tile by tile, in the order in which a held row's are."""
    address, total = np.array(at.on(Stream.DIRECTIONS).address(), np.uint64), 0.0
    at_once = TILE << 14  # the squares of so many numbers' tiles take 128 KiB
    for start in range(0, dim, at_once):
        size = min(at_once, dim - start)
        squares = np.empty(tiles(size))

        def work(first: int, last: int, start: int = start, out: Array = squares) -> None:
            part = out[first // TILE : tiles(last)]
            numbers = np.empty(TILE, dtype)
            _tile_squares(part, numbers, start + first, start + last, dim, row, address)

        share_out(work, size, start)
        total = _sum_in_order(total, squares)
    return total


def share_out(work: Callable[[int, int], None], size: int, start: int) -> None:
    """Do the work on [0, size) in parts, on all cores; they end where tiles of the vector do."""
    workers = _threads()
    if size < _WORTH_A_THREAD or workers is None:
        work(0, size)
        return
    for job in [workers.submit(work, *part) for part in _parts(size, start, workers._max_workers)]:
        job.result()


def _parts(size: int, start: int, count: int) -> Iterator[tuple[int, int]]:
    """Cut [0, size) into about equal parts at whole multiples of a tile from the vector's start."""
    first = 0
    for k in range(1, count + 1):
        last = size if k == count else (start + size * k // count) // SIGNS * SIGNS - start
        if last > first:
            yield first, last
            first = last


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor | None:
    count = cores()
    return ThreadPoolExecutor(count, "fedzo-streams") if count > 1 else None


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _add_normals(
    out: Any, base: Any, start: Any, dim: Any, addresses: Any, rows: Any, coefficients: Any
) -> None:
    """out[j] = base[j] + sum_r c_r g_r[start + j]; ``out`` may be ``base``.

    The sum of a tile is made in memory of its own, so that no loop reads what it writes.
    """
    use_wide_vectors()
    words, normals = np.empty(WORDS, np.uint64), np.empty(TILE, np.float32)
    total = np.empty(TILE, out.dtype)
    for tile in range(start // TILE, tiles(start + out.size)):
        for j in range(TILE):
            total[j] = 0
        for r in range(rows.size):
            make_tile(normals, rows[r] * tiles(dim) + tile, words, unsigned(addresses[r]))
            c = coefficients[r]
            for j in range(TILE):
                total[j] += c * normals[j]
        first = max(tile * TILE, start)
        last = min(tile * TILE + TILE, start + out.size)
        _write(
            out[first - start : last - start],
            base[first - start : last - start],
            total[first - tile * TILE : last - tile * TILE],
        )


@njit(inline="always")
def _write(out: Any, base: Any, total: Any) -> None:
    for j in range(total.size):
        total[j] += base[j]
    for j in range(total.size):
        out[j] = total[j]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _add_signs(
    out: Any, base: Any, start: Any, dim: Any, addresses: Any, rows: Any, coefficients: Any
) -> None:
    """out[j] = base[j] + sum_r ±c_r, by the signs g_r[start + j]; ``out`` may be ``base``.

    A row's signs are added from one memory into another: LLVM makes vectors of that loop, and
    of one that adds in place it does not.
    """
    use_wide_vectors()
    words = np.empty(SIGNS // 64, np.uint64)
    bits = words.view(np.uint32)
    zeros = np.zeros(SIGNS, out.dtype)
    odd, even = np.empty_like(zeros), np.empty_like(zeros)
    blocks = -(-dim // BITS)
    for group in range(start // SIGNS, -(-(start + out.size) // SIGNS)):
        total = zeros
        for r in range(rows.size):
            here = unsigned(addresses[r])
            block = rows[r] * blocks + group * (SIGNS // BITS)
            for j in range(SIGNS // BITS):
                a, b, c, d = sign_words(block + j, here)
                words[2 * j] = (a & uint64(0xFFFFFFFF)) | (b << uint64(32))
                words[2 * j + 1] = (c & uint64(0xFFFFFFFF)) | (d << uint64(32))
            plus = coefficients[r]
            minus = -plus
            before, total = total, odd if r % 2 else even
            for i in range(bits.size):
                word = bits[i]
                for j in range(32):
                    sign = minus if word & (uint32(1) << uint32(j)) else plus
                    total[32 * i + j] = before[32 * i + j] + sign
        first = max(group * SIGNS, start)
        last = min(group * SIGNS + SIGNS, start + out.size)
        _write(
            out[first - start : last - start],
            base[first - start : last - start],
            total[first - group * SIGNS : last - group * SIGNS],
        )


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _tile_squares(
    out: Any, numbers: Any, start: Any, stop: Any, dim: Any, row: Any, address: Any
) -> None:
    """Tell the sum of the squares of each tile of a row from ``start``, where one begins.

    ``numbers`` is memory for a tile. Made here its size would be known to LLVM, which would
    then add in another order than :func:`fedzo.core.random.normals_kernel` does.
    """
    use_wide_vectors()
    words, here = np.empty(WORDS, np.uint64), unsigned(address)
    for i in range(out.size):
        tile = start // TILE + i
        make_tile(numbers, row * tiles(dim) + tile, words, here)
        if stop - tile * TILE >= TILE:
            out[i] = sum_of_squares(numbers)
        else:
            out[i] = sum_of_squares(numbers[: stop - tile * TILE])


@njit(nogil=True, cache=True)
def _sum_in_order(total: Any, numbers: Any) -> Any:
    for number in numbers:
        total += number
    return total
