"""Randomness without state: every draw is a pure function of where it is used.

A draw is addressed by ``(seed, stream, round, device, step, task)``. The address *is* the key and
the counter of a counter-based generator, Philox 4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011)::

    key     = seed (64 bits)
    counter = (block, step << 8 | stream, device, task << 26 | round)      four 32-bit words

A draw of more than 2^32 blocks, as a network's directions may need, has a block number of 44
bits, whose upper 12 lie in the upper half of ``step``'s 24; its step is then below 2^12.

So two addresses never share a draw, nothing has to be stored for a run to resume exactly,
any worker may do any part of the work, and anybody who knows the seed can rebuild any vector.
No global generator is read or written.
"""

from __future__ import annotations

import enum
import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import DTypeLike, NDArray

from fedzo.core.simd import circle, exponential, use_wide_vectors
from fedzo.errors import require


class Stream(enum.IntEnum):
    """What a draw is for. The numbers are part of every result: never change one."""

    DIRECTIONS = 1
    BATCHES = 2
    PARTICIPANTS = 3
    PARTITION = 4
    INIT = 5
    PROBLEM = 6
    CHANNEL = 7
    NOISE = 8
    SEARCH = 9
    CHOICES = 10


class Draws(NamedTuple):
    """All the random numbers of one address; asking twice gives the same numbers twice.

    Examples
    --------
    >>> here = Draws(seed=7, stream=Stream.BATCHES, round=3, device=12, step=0)
    >>> here.integers(1200, 5)
    array([1178,  461,  223,   70,  434])
    >>> here.integers(1200, 5)
    array([1178,  461,  223,   70,  434])
    >>> here._replace(step=1).subset(10, 4)
    array([0, 4, 6, 7])
    """

    seed: int
    stream: Stream
    round: int = 0
    device: int = 0
    step: int = 0
    task: int = 0

    def address(self) -> tuple[int, int, int, int, int]:
        """Return the key's two words and the counter's upper three."""
        seed, stream, round_, device, step, task = self
        if (seed | device << 32 | round_ << 38 | step << 40 | task << 58) >> 64 != 0:
            self._complain()  # one of them is too large, or negative
        return seed & 0xFFFFFFFF, seed >> 32, step << 8 | stream, device, task << 26 | round_

    def _complain(self) -> None:
        check_seed("seed", self.seed)
        for key, bits in (("round", 26), ("device", 32), ("step", 24), ("task", 6)):
            value = getattr(self, key)
            require(0 <= value < 1 << bits, key, value, f"a whole number in [0, 2^{bits})")

    def on(self, stream: Stream) -> Draws:
        """Return the same place's draws for another purpose."""
        return self._replace(stream=stream)

    def words(self, count: int) -> NDArray[np.uint32]:
        """Return independent words, uniform on {0, ..., 2^32 - 1}."""
        out = np.empty(count, np.uint32)
        _words_kernel(out, self.address())
        return out

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return float64 numbers uniform on [0, 1), 53 random bits each."""
        words = self.words(2 * count).astype(np.uint64)
        return np.asarray(((words[::2] << 21) | (words[1::2] >> 11)) * 2.0**-53, np.float64)

    def integers(self, high: int, count: int) -> NDArray[np.int64]:
        """Return whole numbers uniform on {0, ..., high - 1}, independent (with replacement).

        Each is floor(u high) of a 53-bit u, so probabilities are right to high / 2^53.
        """
        out = np.empty(count, np.int64)
        integers_kernel(out, high, self.address())
        return out

    def subset(self, population: int, size: int) -> NDArray[np.int64]:
        """Return a uniform random subset of {0, ..., population - 1}, sorted.

        Floyd's method (Bentley, "Programming pearls: a sample of brilliance", CACM 1987):
        time and memory grow with ``size`` only, never with ``population``.
        """
        if size == population:
            return np.arange(size)
        chosen: set[int] = set()
        uniform = self.uniform(size).tolist()
        for u, top in zip(uniform, range(population - size, population), strict=True):
            pick = int(u * (top + 1))
            chosen.add(top if pick in chosen else pick)
        return np.sort(np.fromiter(chosen, np.int64, size))

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return a uniform random order of {0, ..., count - 1}."""
        return np.argsort(self.uniform(count), kind="stable")

    def normals(self, *shape: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return independent standard normal numbers, a matrix row by row."""
        out = np.empty(shape, dtype)
        fill_normals(out.reshape(-1, shape[-1]), self)
        return out


def check_seed(key: str, seed: Any) -> None:
    """Raise unless the seed fits the generator's key."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    require(whole and 0 <= seed < 1 << 64, key, seed, "a whole number in [0, 2^64)")


def fill_normals(rows: NDArray[Any], draws: Draws) -> NDArray[np.float64]:
    """Fill each row with independent N(0, 1) numbers in place; return the rows' squared norms.

    Philox and Box-Muller, 256 numbers at a time: the words of one tile stay in the first
    cache, and every loop over them is vectorised. A pair of numbers is a length and an
    angle. The length gets 32 bits, so magnitudes go up to 6.8; the angle gets 16, which
    leave all moments of a pair below the 2^16-th as they should be (see ``circle``).

    Row n starts at its own block, so a row can be rebuilt without the ones before it. The
    numbers are made in float32 and, where ``rows`` is float64, widened: one address names
    the same vector in both precisions, and norms are exact to the precision of ``rows``.
    """
    check_normals(draws, *rows.shape)
    squares = np.empty(len(rows), np.float64)
    normals_kernel(rows, squares, draws.address())
    return squares


def check_normals(draws: Draws, count: int, dim: int) -> None:
    """Raise unless one address has so many normal numbers."""
    check_room(draws, (count, dim), count * -(-dim // TILE), _NUMBERED)


def check_room(draws: Draws, shape: tuple[int, int], parts: int, numbered: int) -> None:
    """Raise unless the block counter reaches so many parts, of which 32 bits can number some."""
    if parts > numbered:
        most = f"at most {numbered << 12} parts of a row from one address, not {parts}"
        require(parts <= numbered << 12, "directions x dim", shape, most)
        allowed = f"below 4096 where directions x dim is as large as {shape[0]} x {shape[1]}"
        require(draws.step < 1 << 12, "step", draws.step, allowed)


TILE = 256  # numbers made at a time
_BLOCKS = 48  # Philox blocks for them: 128 words for the lengths, 64 for the angles
_NUMBERED = (1 << 32) // _BLOCKS  # tiles that 32 bits of a block number are enough for
WORDS = 2 * _BLOCKS  # memory that a tile takes to make: two 32-bit words side by side in each


@njit(inline="always")
def tiles(dim: Any) -> Any:
    """Return how many tiles a row takes."""
    return -(-dim // TILE)


_LOW = uint64(0xFFFFFFFF)
_HALF = uint64(32)


@njit(inline="always")
def philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Philox 4x32-10 of one counter and key, as uint64 whose **low** halves are the words.

    The high halves are left as they fall: the next multiplication reads low halves only,
    so clearing them in every round would be work for nothing.
    """
    for _ in range(10):
        p0 = (c0 & _LOW) * uint64(0xD2511F53)
        p1 = (c2 & _LOW) * uint64(0xCD9E8D57)
        c0 = (p1 >> _HALF) ^ c1 ^ k0
        c2 = (p0 >> _HALF) ^ c3 ^ k1
        c1 = p1
        c3 = p0
        k0 = k0 + uint64(0x9E3779B9)
        k1 = k1 + uint64(0xBB67AE85)
    return c0, c1, c2, c3


@njit(inline="always")
def unsigned(a: Any) -> Any:
    """Return an address's words as what :func:`philox` takes."""
    return uint64(a[0]), uint64(a[1]), uint64(a[2]), uint64(a[3]), uint64(a[4])


@njit(cache=True)  # too short to be worth giving up the GIL
def _words_kernel(out: Any, address: Any) -> None:
    k0, k1, c1, c2, c3 = unsigned(address)
    for block in range((out.size + 3) // 4):
        words = philox(uint64(block), c1, c2, c3, k0, k1)
        for i in range(min(4, out.size - 4 * block)):
            out[4 * block + i] = uint32(words[i])


@njit(cache=True)
def integers_kernel(out: Any, high: Any, address: Any) -> None:
    """Fill with numbers below ``high``: the work of :meth:`Draws.integers`."""
    k0, k1, c1, c2, c3 = unsigned(address)
    for block in range((out.size + 1) // 2):
        w = philox(uint64(block), c1, c2, c3, k0, k1)
        for i in range(min(2, out.size - 2 * block)):
            bits = ((w[2 * i] & _LOW) << uint64(21)) | ((w[2 * i + 1] & _LOW) >> uint64(11))
            out[2 * block + i] = int(float(bits) * 2.0**-53 * high)


@njit(inline="always")
def _box_muller(out: Any, lengths: Any, angles: Any) -> Any:
    """Make a tile of normals (Box & Muller 1958)."""
    for j in range(TILE // 2):
        length = math.sqrt(exponential(lengths[j]))
        sine, cosine = circle(angles[j])
        out[j] = length * sine
        out[TILE // 2 + j] = length * cosine


@njit(inline="always")
def sum_of_squares(numbers: Any) -> Any:
    """Add up in a loop of its own, for the sum's order must not depend on anything.

    In a loop that also stores, LLVM picks at run time between a vector and a scalar version,
    by how the arrays lie in memory, and the two add in different orders.
    """
    total = numbers.dtype.type(0)
    for j in range(numbers.size):
        total += numbers[j] * numbers[j]
    return total


@njit(inline="always")
def with_high(c1: Any, high: Any) -> Any:
    """Return the counter's second word with a block number's bits above the 32nd in it."""
    return c1 + (uint64(high) << uint64(20))


@njit(inline="always")
def make_tile(out: Any, tile: Any, words: Any, unsigned_address: Any) -> None:
    """Fill ``out`` with the 256 normals of a tile, the tiles of all rows counted in order."""
    k0, k1, c1, c2, c3 = unsigned_address
    high = tile // _NUMBERED
    block, c1 = uint64((tile - high * _NUMBERED) * _BLOCKS), with_high(c1, high)
    some, others = words[:_BLOCKS], words[_BLOCKS:]
    for j in range(_BLOCKS):
        a, b, c, d = philox(block + uint64(j), c1, c2, c3, k0, k1)
        some[j] = (a & _LOW) | (c << _HALF)
        others[j] = (b & _LOW) | (d << _HALF)
    _box_muller(out, words.view(np.uint32)[: TILE // 2], words.view(np.int16)[TILE:])


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def normals_kernel(rows: Any, squares: Any, address: Any) -> None:
    """Fill rows with normals, and tell their squared norms: the work of :func:`fill_normals`."""
    use_wide_vectors()
    here = unsigned(address)
    words, rest = np.empty(WORDS, np.uint64), np.empty(TILE, rows.dtype)
    count, dim = rows.shape
    flat = rows.reshape(-1)  # numba knows a slice of this to be contiguous, a row's slice not
    for n in range(count):
        square = 0.0
        for tile in range(tiles(dim)):
            start = n * dim + tile * TILE
            left = dim - tile * TILE
            if left >= TILE:
                make_tile(flat[start : start + TILE], n * tiles(dim) + tile, words, here)
                square += sum_of_squares(flat[start : start + TILE])
            else:
                make_tile(rest, n * tiles(dim) + tile, words, here)
                flat[start : start + left] = rest[:left]
                square += sum_of_squares(rest[:left])
        squares[n] = square


def fill_columns(rows: NDArray[Any], draws: Draws, dim: int, first: int) -> None:
    """Fill rows with the columns from ``first`` on of what :func:`fill_normals` draws, (b2, dim).

    ``first`` is a multiple of 256. So a direction that is too long for memory is drawn in parts.

    >>> whole, part = np.empty((3, 1000)), np.empty((3, 300))
    >>> draws = Draws(seed=1, stream=Stream.DIRECTIONS)
    >>> _ = fill_normals(whole, draws)
    >>> fill_columns(part, draws, dim=1000, first=512)
    >>> bool((part == whole[:, 512:812]).all())
    True
    """
    assert first % TILE == 0
    columns_kernel(rows, dim, first // TILE, draws.address())


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def columns_kernel(rows: Any, dim: Any, first: Any, address: Any) -> None:
    """Fill rows from a tile on: the work of :func:`fill_columns`."""
    use_wide_vectors()
    here = unsigned(address)
    words, rest = np.empty(WORDS, np.uint64), np.empty(TILE, rows.dtype)
    count, width = rows.shape
    flat = rows.reshape(-1)
    for n in range(count):
        for i in range(tiles(width)):
            start, left, tile = n * width + i * TILE, width - i * TILE, n * tiles(dim) + first + i
            if left >= TILE:
                make_tile(flat[start : start + TILE], tile, words, here)
            else:
                make_tile(rest, tile, words, here)
                flat[start : start + left] = rest[:left]
