"""Randomness without state: every draw is a pure function of its address.

A draw is addressed by ``(seed, stream, round, device, step, task)``. The address *is* the key and
the counter of a counter-based generator, Philox 4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011)::

    key     = seed (64 bits)
    counter = (block, step << 8 | stream, device, task << 26 | round)      four 32-bit words

A draw of more than 2^32 blocks, as a network's directions may need, has a block number of 44
bits. The upper 12 bits lie in the upper half of ``step``'s 24, so ``step`` must be below 2^12.

Two addresses never share a draw. A run resumes without stored generator state, any worker can do
any part of the work, and anyone who knows the seed can rebuild any vector. No global generator is
read or written.

Normal numbers are float32 products and sums, each rounded once. No kernel here fuses a product
and a sum, and every sum has a fixed order, so all processors, torch devices and languages draw the
same bits.

The kernels are plain loops that LLVM turns into vector code. That needs polynomials in place of
calls into libm, intrinsics that reinterpret the bits of a float, and, on CPUs with AVX-512, a
request for its whole registers (:func:`use_wide_vectors`).
"""

from __future__ import annotations

import atexit
import enum
import math
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import float32, int32, njit, types, uint32, uint64
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from fedzo.errors import FedzoWarning, require


def ensure_cache() -> None:
    """Give numba a temporary cache folder if it cannot write to any of its default places.

    An account without a home that runs another account's installation has no such place, and
    numba would refuse to compile. The folder is private and deleted with the process, so that
    no other account can put code into it.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if numba.config.CACHE_DIR or any(
        map(_writable, (Path(__file__).parent / "__pycache__", Path(cache) / "numba"))
    ):
        return
    folder = tempfile.mkdtemp(prefix="fedzo-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = folder
    os.environ.setdefault("MPLCONFIGDIR", folder)  # or Matplotlib warns of the same at length
    message = "no folder to cache compiled code in: each start takes some seconds longer"
    warnings.warn(message, FedzoWarning, stacklevel=2)


def _writable(folder: Path) -> bool:
    """Return whether files can be created in a folder, or the folder itself."""
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), None)
    return there is not None and os.path.isdir(there) and os.access(there, os.W_OK)


ensure_cache()  # before the first kernel is decorated


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
    """Raise unless one address has ``count`` rows of ``dim`` normal numbers."""
    check_room(draws, (count, dim), count * -(-dim // TILE), _NUMBERED)


def check_room(draws: Draws, shape: tuple[int, int], parts: int, numbered: int) -> None:
    """Raise unless the block counter reaches ``parts``, of which 32 bits reach ``numbered``."""
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


@intrinsic
def use_wide_vectors(_typing_context: Any) -> Any:
    """Ask LLVM for 512-bit vectors in the kernel that calls this.

    LLVM prefers 256 bits on CPUs that have 512, a default made for code that is seldom in
    a vector loop. The attribute is set on this one function, not on the user's other numba
    code, nor on a kernel that this one is inlined into; CPUs without AVX-512 ignore it.
    """

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        # llvmlite keeps a list of attributes it knows, and this one is not on it; the
        # attributes are a set whose members are printed as they are.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def float_bits(_typing_context: Any, _x: Any) -> Any:
    """Return the bits of a float32 as a uint32."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def bits_float(_typing_context: Any, _bits: Any) -> Any:
    """Return the float32 that has these 32 bits."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


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


def _float32(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(map(np.float32, numbers))


# The coefficients of polynomials, those of the highest powers first.
LOGARITHM = _float32(  # -2 ln(1 + m) / m
    0.207571938831702,
    -0.3267622725029703,
    0.34424899317396234,
    -0.39768480879238766,
    0.4994311779325922,
    -0.6667121543817286,
    1.0000068860436738,
    -1.9999998357307614,
)
SINE = _float32(  # sin(a) / a, in a^2
    2.605224888429445e-06,
    -1.9809075326363598e-04,
    8.333051065035776e-03,
    -1.6666657992088477e-01,
    9.999999957332509e-01,
)
COSINE = _float32(  # cos(a), in a^2
    2.3153931286930676e-05,
    -1.3853704342938627e-03,
    4.166358470991748e-02,
    -4.9999905348956103e-01,
    9.999999534715427e-01,
)


@njit(inline="always")
def _horner(x: Any, coefficients: Any) -> Any:
    y = coefficients[0]
    for i in range(1, len(coefficients)):
        y = y * x + coefficients[i]
    return y


@njit(inline="always")
def exponential(word: Any) -> Any:
    """-2 ln(x), relative error below 6e-7, of x = (word + 1/2) / 2^32 to float32's precision.

    The factor is 2^-32 less one unit in its last place: x stays below 1, so the result, the
    square of a length, is never 0. x is split as 2^e (1 + m) with 1 + m in [sqrt(1/2),
    sqrt(2)), and ln(1 + m) is m times a polynomial, the best of degree 7.
    """
    x = float32(word) * float32(2.0**-32 * (1 - 2.0**-24)) + float32(2.0**-33)
    bits = float_bits(x)
    e = int32(uint32(bits - uint32(0x3F3504F3))) >> int32(23)  # 0x3f3504f3 is sqrt(1/2)
    m = bits_float(uint32(bits - (uint32(e) << uint32(23)))) - float32(1)
    return float32(e) * float32(-2 * math.log(2)) + m * _horner(m, LOGARITHM)


@njit(inline="always")
def circle(half: Any) -> Any:
    """Sine and cosine of an angle uniform on 2^16 points of the circle, error below 2e-7.

    With w a signed 16-bit number, (w | 1) π / 2^16 is an angle in the right half of the
    circle, where one polynomial each is enough. The lowest bit of w throws the cosine to the left
    half. The points lie evenly on the whole circle: for every polynomial of sine and cosine of a
    degree below 2^16, their mean is the integral over the circle, exactly.
    """
    w = int32(half)
    a = float32(w | int32(1)) * float32(math.pi * 2.0**-16)
    z = a * a
    sine, cosine = _horner(z, SINE), _horner(z, COSINE)
    return a * sine, bits_float(float_bits(cosine) ^ (uint32(w) << uint32(31)))


@njit(inline="always")
def _box_muller(out: Any, lengths: Any, angles: Any) -> Any:
    """Make a tile of normals (Box & Muller 1958)."""
    for j in range(TILE // 2):
        length = math.sqrt(exponential(lengths[j]))
        sine, cosine = circle(angles[j])
        out[j] = length * sine
        out[TILE // 2 + j] = length * cosine


@njit(inline="always")
def sum_of_squares(x: Any, lanes: Any) -> Any:
    """Return the sum of the squares of a tile x; ``lanes`` is memory for 16 numbers.

    The order of the sum is written out, so it does not depend on the processor or on how arrays
    lie in memory. The loops have constant lengths, so that LLVM unrolls the inner ones and makes
    vectors of the outer ones.
    """
    for j in range(16):
        a = x[j] * x[j]
        b = x[64 + j] * x[64 + j]
        c = x[128 + j] * x[128 + j]
        d = x[192 + j] * x[192 + j]
        for i in range(1, 4):
            a += x[16 * i + j] * x[16 * i + j]
            b += x[64 + 16 * i + j] * x[64 + 16 * i + j]
            c += x[128 + 16 * i + j] * x[128 + 16 * i + j]
            d += x[192 + 16 * i + j] * x[192 + 16 * i + j]
        lanes[j] = (a + b) + (c + d)
    for j in range(8):
        lanes[j] += lanes[8 + j]
    for j in range(4):
        lanes[j] += lanes[4 + j]
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])


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


@njit(nogil=True, cache=True, error_model="numpy")
def normals_kernel(rows: Any, squares: Any, address: Any) -> None:
    """Fill rows with normals and return their squared norms: the work of :func:`fill_normals`."""
    use_wide_vectors()
    here = unsigned(address)
    words, rest = np.empty(WORDS, np.uint64), np.empty(TILE, rows.dtype)
    lanes = np.empty(16, rows.dtype)
    count, dim = rows.shape
    flat = rows.reshape(-1)  # numba knows a slice of this to be contiguous, but not a row's slice
    for n in range(count):
        square = 0.0
        for tile in range(tiles(dim)):
            start = n * dim + tile * TILE
            left = dim - tile * TILE
            if left >= TILE:
                make_tile(flat[start : start + TILE], n * tiles(dim) + tile, words, here)
                square += sum_of_squares(flat[start : start + TILE], lanes)
            else:
                make_tile(rest, n * tiles(dim) + tile, words, here)
                rest[left:] = 0
                flat[start : start + left] = rest[:left]
                square += sum_of_squares(rest, lanes)
        squares[n] = square
