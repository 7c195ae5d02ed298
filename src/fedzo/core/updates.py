r"""Lazy updates: weighted sums of directions that are drawn when their numbers are needed.

An update of zeroth-order steps is a sum of directions, and a direction is a function of its
address (:mod:`fedzo.core.random`). So an update can be stored and sent as coefficients. Its d
numbers are drawn tile by tile, in a core's first cache, and added to a model without ever existing
as a whole. A module's parameters are pieces of one long vector; a sum can be added to each piece.

There is one order of summation. The terms of each device are summed in the device's own order and
in the model's precision, by fours as :func:`fedzo.core.directions.advance_kernel` does. The sums of
devices are added in float64, in device order. The bits do not depend on the number of cores, on the
processor, or on where a piece begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import DTypeLike, NDArray

from fedzo.core.directions import (
    BITS,
    STREAMABLE,
    DirectionBuffer,
    check_directions,
    check_signs,
    sign_words,
)
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
    use_wide_vectors,
)
from fedzo.core.types import Array

SIGNS = 16 * BITS  # signs made at a time
_WORTH_A_THREAD = 1 << 16  # fewer numbers are done before a thread has started
_SINGLE = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class DirectionSum:
    r"""A weighted sum of directions that is not materialised.

    .. math:: \frac{1}{D} \Bigl( z + \sum_i w_i \sum_{k, n} c_{k,n}\, g_{k,n} \Bigr)

    The :math:`g_{k,n}` are rows as a :class:`~fedzo.core.directions.DirectionBuffer` holds them:
    not scaled to unit length. NumPy takes the sum as an array, which materialises it.

    Attributes
    ----------
    dim : int
        d.
    kind : str
        The kind of directions.
    draws, rows : tuple of Draws, tuple of int
        The address of each step k, over all devices, and its first row there.
    coefficients : array, (steps, b2)
        c, in the model's precision. A direction with the coefficient 0 need not be drawn.
    steps : tuple of int
        How many of the steps are each device's.
    weights : tuple of float
        w, one per device.
    divisor : float
        D.
    dense : array, optional
        z, the sum of updates that came as arrays.
    in_place : bool
        Whether the sum moves the memory of x itself, since that is the problem's own.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.random import Draws, Stream
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> step = DirectionSum.of("rademacher", 6, [at], np.array([[0.5, 0.25]]))
    >>> x = np.ones(6)
    >>> step.add_to(x)
    >>> x
    array([1.75, 0.75, 0.25, 0.25, 1.75, 1.25])
    >>> np.asarray(join([step.scaled(3), step]))
    array([ 3., -1., -3., -3.,  3.,  1.])
    """

    dim: int
    kind: str = "sphere"
    draws: tuple[Draws, ...] = ()
    rows: tuple[int, ...] = ()
    coefficients: Array = field(default_factory=lambda: np.zeros((0, 0)))
    steps: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    divisor: float = 1.0
    dense: Array | None = None
    in_place: bool = False

    @classmethod
    def of(
        cls, kind: str, dim: int, draws: Sequence[Draws], coefficients: Array, row: int = 0
    ) -> DirectionSum:
        """Return the sum of one device's steps, each with an address and b2 coefficients.

        ``row`` is the direction of an address that the first coefficient belongs to.
        """
        assert len(draws) == len(coefficients), "one address per row of coefficients"
        count = row + coefficients.shape[1]
        check_directions(kind, count, dim)
        if kind in STREAMABLE:
            for at in draws:
                (check_signs if kind == "rademacher" else check_normals)(at, count, dim)
        places, rows = tuple(at.on(Stream.DIRECTIONS) for at in draws), (row,) * len(draws)
        return cls(dim, kind, places, rows, coefficients, (len(places),), (1.0,))

    def then(self, other: DirectionSum) -> DirectionSum:
        """Return the sum with the other's steps as further steps of the same device."""
        total = join([self, other])
        return replace(total, steps=(len(total.draws),), weights=(1.0,))

    def scaled(self, factor: float) -> DirectionSum:
        """Return a multiple."""
        dense = self.dense
        if dense is not None and factor != 1:
            dense = factor * dense.astype(np.float64)
        return replace(self, weights=tuple(factor * w for w in self.weights), dense=dense)

    def divided(self, divisor: float) -> DirectionSum:
        """Return a fraction: the sum is divided after it is taken."""
        return replace(self, divisor=self.divisor * divisor)

    def add_to(self, out: Any, start: int = 0, base: Any = None) -> None:
        """Write ``base`` plus numbers ``start``, ... of the sum into ``out``, on all cores.

        ``out`` is flat, float32 or float64. The base is ``out`` itself by default.
        """
        base = out if base is None else base
        if not isinstance(out, np.ndarray):  # in the memory of an accelerator
            out.add(self, start, base)
            return
        if not self.streamed:
            size = slice(start, start + out.size)
            out[:] = base + self._materialise()[size]
            return

        def work(first: int, last: int) -> None:
            self._add(out[first:last], start + first, base[first:last])

        share_out(work, out.size, start)

    def part(self, first: int, last: int) -> NDArray[np.float64]:
        """Return numbers ``first`` to ``last`` of the sum, drawn on this core alone."""
        out = np.zeros(last - first)
        self._add(out, first, out)
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return all d numbers, float64 by default."""
        out = np.zeros(self.dim, dtype or np.float64)
        self.add_to(out)
        return out

    @property
    def streamed(self) -> bool:
        """Whether there are directions to draw, and parts of them can be drawn by themselves."""
        return bool(self.draws) and self.kind in STREAMABLE

    @property
    def size(self) -> int:
        """d, as an array's."""
        return self.dim

    @property
    def nbytes(self) -> int:
        """The bytes of the d numbers in the model's precision."""
        return self.dim * self.coefficients.itemsize

    def table(self, shape: tuple[int, int]) -> NDArray[np.float64]:
        """Return the coefficient of each direction of a fixed set, (groups, b2).

        Terms of equal address are merged. In a fixed set the address's round is the group
        (:meth:`fedzo.core.estimator.Estimator.of_set`).

        >>> at = [Draws(0, Stream.DIRECTIONS, round=group) for group in (1, 0, 1)]
        >>> step = DirectionSum.of("sphere", 9, at, np.array([[1.0], [2.0], [4.0]]))
        >>> step.divided(2).table((3, 1)).tolist()
        [[1.0], [2.5], [0.0]]
        """
        sums = np.zeros(shape)
        weights = np.repeat(self.weights, self.steps)
        groups = [at.round for at in self.draws]
        if groups:
            np.add.at(sums, groups, weights[:, None] * self.coefficients.astype(np.float64))
        return sums / self.divisor

    def _add(self, out: Array, start: int, base: Array) -> None:
        _add_terms(out, base, start, self.dim, self.kind == "rademacher", self._arguments)

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        """What the kernels take of the sum."""
        addresses = np.array([at.address() for at in self.draws], np.uint64).reshape(-1, 5)
        ends, weights = np.cumsum(self.steps, dtype=np.int64), np.array(self.weights, np.float64)
        dense = np.empty(0) if self.dense is None else np.asarray(self.dense, np.float64)
        rows, coefficients = np.array(self.rows, np.int64), np.ascontiguousarray(self.coefficients)
        return addresses, rows, coefficients, ends, weights, float(self.divisor), dense

    def _materialise(self) -> NDArray[np.float64]:
        """Return the sum of directions that can only be drawn as a whole, if there are any."""
        total = np.zeros(self.dim)
        if self.dense is not None:
            total += self.dense
        dtype, terms = self.coefficients.dtype, zip(self.draws, self.coefficients, strict=True)
        start = np.zeros(self.dim, dtype)
        for steps, weight in zip(self.steps, self.weights, strict=True):
            own = np.zeros(self.dim, dtype)
            for at, moves in islice(terms, steps):
                buffer = DirectionBuffer(self.kind, moves.size, self.dim, dtype)
                buffer.draw(at)
                buffer.advance(moves, own, start)
            total += weight * own.astype(np.float64)
        return total / self.divisor


Offset = DirectionSum | None  # from a model; None is zero


def as_sum(delta: Any) -> DirectionSum:
    """Return an update as a lazy sum; an array is the dense part of one.

    >>> as_sum(np.ones(3, np.float32)).nbytes
    12
    """
    if isinstance(delta, DirectionSum):
        return delta
    return DirectionSum(delta.size, coefficients=np.zeros((0, 0), delta.dtype), dense=delta)


def join(sums: Sequence[DirectionSum]) -> DirectionSum:
    """Return the sum of sums of one kind of directions, their devices one after the other."""
    kinds = {(own.dim, own.kind, own.divisor) for own in sums}
    if len(kinds) > 1:
        raise TypeError(f"cannot add sums of different dimension, kind or divisor: {kinds}")
    dense = [own.dense for own in sums if own.dense is not None]
    width = max(own.coefficients.shape[1] for own in sums)
    tables = [
        np.pad(own.coefficients, ((0, 0), (0, width - own.coefficients.shape[1]))) for own in sums
    ]
    return replace(
        sums[0],
        draws=tuple(at for own in sums for at in own.draws),
        rows=tuple(row for own in sums for row in own.rows),
        coefficients=np.concatenate(tables),
        steps=tuple(count for own in sums for count in own.steps),
        weights=tuple(weight for own in sums for weight in own.weights),
        dense=np.asarray(np.sum(dense, axis=0, dtype=np.float64)) if dense else None,
        in_place=any(own.in_place for own in sums),
    )


class UpdateMean:
    """The weighted mean of a stream of updates, which may be arrays or lazy sums.

    Arrays are summed in float64 as they arrive, in device order. Lazy sums are not drawn here.

    Examples
    --------
    >>> mean = UpdateMean(dim=2)
    >>> mean.add(np.array([1.0, 0.0]))
    >>> mean.add(np.array([5.0, 4.0]), weight=3)
    >>> mean.value()
    array([4., 3.])
    """

    def __init__(self, dim: int) -> None:
        self._dim, self._weight = dim, 0.0
        self._dense: Array | None = None
        self._lazy: list[DirectionSum] = []

    def add(self, delta: Array | DirectionSum, weight: float = 1) -> None:
        """Add an update to the mean."""
        self._weight += weight
        update = as_sum(delta)
        if update.draws:
            self._lazy.append(update.scaled(weight))
        elif update.dense is not None:
            if self._dense is None:
                self._dense = np.zeros(self._dim)
            own = update.dense
            self._dense += own if weight == 1 else weight * own.astype(np.float64)

    def value(self) -> Any:
        """Return the mean: an array of d float64 numbers, or a lazy sum if one was added.

        The mean of no updates is zero.
        """
        weight = self._weight or 1.0
        if self._lazy:
            total = join(self._lazy)
            return replace(total, dense=self._dense).divided(weight)
        return np.zeros(self._dim) if self._dense is None else self._dense / weight


def scales(kind: str, count: int, dim: int, at: Draws, like: Any = _SINGLE) -> NDArray[np.float64]:
    """Return the factor that makes each of b2 = ``count`` rows a direction with E[v v^T] = I/d.

    For the sphere this takes a pass over the numbers, which are drawn on the CPU and not stored, in
    the precision of the array ``like``. The factors are those of ``scales`` of
    :class:`~fedzo.core.directions.DirectionBuffer`, to the bit.

    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> scales("rademacher", 3, 16, at)
    array([0.25, 0.25, 0.25])
    """
    if kind != "sphere":
        return np.full(count, 1 / math.sqrt(dim))
    return np.array([1 / math.sqrt(_squared_norm(n, dim, at, like)) for n in range(count)])


def _squared_norm(row: int, dim: int, at: Draws, like: Any) -> float:
    """Return the sum of the squares of a row, tile by tile, in the order of a held row's."""
    address, total = np.array(at.on(Stream.DIRECTIONS).address(), np.uint64), 0.0
    at_once = TILE << 14  # the squares of their tiles take 128 KiB
    for start in range(0, dim, at_once):
        size = min(at_once, dim - start)
        squares = np.empty(tiles(size))

        def work(first: int, last: int, start: int = start, out: Array = squares) -> None:
            part = out[first // TILE : tiles(last)]
            memory = np.empty(TILE, like.dtype), np.empty(16, like.dtype)
            _tile_squares(part, *memory, start + first, start + last, dim, row, address)

        share_out(work, size, start)
        total = float(np.cumsum(np.append(total, squares))[-1])  # one after the other
    return total


def share_out(work: Callable[[int, int], None], size: int, start: int = 0) -> None:
    """Do ``work(first, last)`` on parts of [0, size), on all cores.

    ``start`` is where the range begins in the long vector: parts end at multiples of
    :data:`SIGNS` from the vector's start.
    """
    workers = _threads()
    if size < _WORTH_A_THREAD or workers is None:
        work(0, size)
        return
    for job in [workers.submit(work, *part) for part in _parts(size, start, workers._max_workers)]:
        job.result()


def _parts(size: int, start: int, count: int) -> Iterator[tuple[int, int]]:
    first = 0
    for k in range(1, count + 1):
        last = size if k == count else (start + size * k // count) // SIGNS * SIGNS - start
        if last > first:
            yield first, last
            first = last


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor | None:
    count = cores()
    return ThreadPoolExecutor(count, "fedzo-updates") if count > 1 else None


# The kernels write base + numbers start, ... of a sum into out, which may be base. A row with the
# coefficient 0 is not drawn: it adds nothing.

_NONE, _SEVERAL = -1, -2


@njit(nogil=True, cache=True, error_model="numpy")
def _add_terms(out: Any, base: Any, start: Any, dim: Any, signs: Any, terms: Any) -> None:
    use_wide_vectors()
    addresses, rows, coefficients, ends, weights, divisor, dense = terms
    size, drawn, words = (
        SIGNS if signs else TILE,
        np.zeros(4 * TILE, np.float32),
        np.empty(WORDS, np.uint64),
    )
    bits, blocks = np.zeros(4 * SIGNS // 64, np.uint64), -(-dim // BITS)
    total, spare = np.empty(size, coefficients.dtype), np.empty(size, coefficients.dtype)
    wide = np.empty(size, np.float64)
    plain = _is_plain(out, total, weights, divisor, dense)
    for tile in range(start // size, -(-(start + out.size) // size)):
        if not plain:
            _begin(wide, dense, tile * size)
        step = 0
        for i in range(ends.size):
            total[:] = 0
            while step < ends[i]:
                here, row, c = _address(addresses, step), rows[step], coefficients[step]
                if signs:
                    first = row * blocks + tile * size // BITS
                    total, spare = _add_step_of_signs(total, spare, bits, here, first, blocks, c)
                else:
                    _add_step_of_normals(total, drawn, words, here, row * tiles(dim) + tile, dim, c)
                step += 1
            if not plain:
                wide += weights[i] * total
        if plain:
            _end(out, base, start, tile * size, total)
        else:
            wide /= divisor
            _end(out, base, start, tile * size, wide)


@njit(inline="always")
def _is_plain(out: Any, total: Any, weights: Any, divisor: Any, dense: Any) -> Any:
    """Whether the sum of one device is all: then float64 would change no bit of base + total."""
    one = weights.size == 1 and weights[0] == 1 and divisor == 1 and dense.size == 0
    return one and out.itemsize == total.itemsize


@njit(inline="always")
def _address(a: Any, step: Any) -> Any:
    """Return the words of an address as Philox takes them."""
    return a[step, 0], a[step, 1], a[step, 2], a[step, 3], a[step, 4]


@njit(inline="always")
def _begin(wide: Any, dense: Any, first: Any) -> None:
    """Start the float64 sum over devices with the dense part."""
    wide[:] = 0
    if dense.size:
        here = dense[first : first + wide.size]
        wide[: here.size] = here


@njit(inline="always")
def _end(out: Any, base: Any, start: Any, first: Any, total: Any) -> None:
    """Write base + total, from number ``first`` of the vector on, where that is within out.

    The sum is made in the memory of total, so that no loop reads what it writes: LLVM would not
    vectorise that.
    """
    lo, hi = max(first, start), min(first + total.size, start + out.size)
    own, target = total[lo - first : hi - first], out[lo - start : hi - start]
    added = base[lo - start : hi - start]
    for j in range(own.size):
        own[j] += added[j]
    for j in range(own.size):
        target[j] = own[j]


@njit(inline="always")
def _add_step_of_normals(
    total: Any, drawn: Any, words: Any, here: Any, first: Any, dim: Any, c: Any
) -> None:
    """Add the rows of a step to a tile: four at a time, and the rest one by one."""
    n, count = 0, c.size
    while n < count:
        width, lone = 4 if n < count - count % 4 else 1, _NONE
        for k in range(width):
            if c[n + k] != 0:
                lone = k if lone == _NONE else _SEVERAL
                tile = first + (n + k) * tiles(dim)
                make_tile(drawn[k * TILE : (k + 1) * TILE], tile, words, here)
        if lone >= 0:
            c0, row = c[n + lone], drawn[lone * TILE : (lone + 1) * TILE]
            for j in range(TILE):
                total[j] += c0 * row[j]
        elif lone == _SEVERAL:
            c0, c1, c2, c3 = c[n], c[n + 1], c[n + 2], c[n + 3]
            for j in range(TILE):
                low = c0 * drawn[j] + c1 * drawn[TILE + j]
                total[j] += low + (c2 * drawn[2 * TILE + j] + c3 * drawn[3 * TILE + j])
        n += width


@njit(inline="always")
def _add_step_of_signs(
    total: Any, spare: Any, drawn: Any, here: Any, first: Any, blocks: Any, c: Any
) -> Any:
    """Add the rows of a step to a group of numbers, as ±c by their bits.

    They are added from one memory into another: LLVM vectorises that loop, but not one that adds
    in place. Returns the memory of the sum, and the other.
    """
    n, count, size = 0, c.size, SIGNS // 64
    bits = drawn.view(np.uint32)
    while n < count:
        width, lone = 4 if n < count - count % 4 else 1, _NONE
        for k in range(width):
            if c[n + k] != 0:
                lone = k if lone == _NONE else _SEVERAL
                _fill_words(drawn[k * size : (k + 1) * size], first + (n + k) * blocks, here)
        if lone >= 0:
            _add_row_of_signs(spare, total, bits[2 * lone * size :], c[n + lone])
            total, spare = spare, total
        elif lone == _SEVERAL:
            _add_four_of_signs(spare, total, bits, c, n)
            total, spare = spare, total
        n += width
    return total, spare


@njit(inline="always")
def _add_row_of_signs(out: Any, before: Any, bits: Any, plus: Any) -> None:
    minus = -plus
    for k in range(SIGNS // 32):
        word = bits[k]
        for j in range(32):
            sign = minus if word & (uint32(1) << uint32(j)) else plus
            out[32 * k + j] = before[32 * k + j] + sign


@njit(inline="always")
def _add_four_of_signs(out: Any, before: Any, bits: Any, c: Any, n: Any) -> None:
    size = SIGNS // 32
    c0, c1, c2, c3 = c[n], c[n + 1], c[n + 2], c[n + 3]
    for k in range(size):
        v0, v1, v2, v3 = bits[k], bits[size + k], bits[2 * size + k], bits[3 * size + k]
        for j in range(32):
            bit = uint32(1) << uint32(j)
            s0 = -c0 if v0 & bit else c0
            s1 = -c1 if v1 & bit else c1
            s2 = -c2 if v2 & bit else c2
            s3 = -c3 if v3 & bit else c3
            out[32 * k + j] = before[32 * k + j] + ((s0 + s1) + (s2 + s3))


@njit(inline="always")
def _fill_words(words: Any, block: Any, here: Any) -> None:
    """Fill with the bits of the signs of a group."""
    for j in range(SIGNS // BITS):
        a, b, c, d = sign_words(block + j, here)
        words[2 * j] = (a & uint64(0xFFFFFFFF)) | (b << uint64(32))
        words[2 * j + 1] = (c & uint64(0xFFFFFFFF)) | (d << uint64(32))


@njit(nogil=True, cache=True, error_model="numpy")
def _tile_squares(
    out: Any, tile: Any, lanes: Any, start: Any, stop: Any, dim: Any, row: Any, address: Any
) -> None:
    """Write the sum of the squares of each tile of a row from ``start``, where a tile begins."""
    use_wide_vectors()
    words, here = np.empty(WORDS, np.uint64), unsigned(address)
    for i in range(out.size):
        number = start // TILE + i
        make_tile(tile, row * tiles(dim) + number, words, here)
        if stop - number * TILE < TILE:
            tile[stop - number * TILE :] = 0
        out[i] = sum_of_squares(tile, lanes)
