"""Small numba pieces that let LLVM turn plain loops into wide vector code.

A worker's steps alternate between Python and compiled code, and each time it comes back it
has to win the GIL from the other workers. So what belongs together is compiled together,
and runs to its end without the GIL; matrix products are BLAS's, which numba calls there.

Three things stand between a loop of transcendental functions and the vector units: calls
into libm (so the functions here are polynomials), the reinterpretation of a float's bits
(so there is :func:`float_bits` and :func:`bits_float`), and LLVM's habit of using half of
an AVX-512 register (so a kernel calls :func:`use_wide_vectors`).
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint32, uint64
from numba.extending import intrinsic

from fedzo.errors import FedzoWarning


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


@intrinsic
def bits_double(_typing_context: Any, _bits: Any) -> Any:
    """Return the float64 that has these 64 bits."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), codegen


@njit(inline="always")
def exponential(word: Any) -> Any:
    """-2 ln(x), relative error below 6e-7, of x = (word + 1/2) / 2^32 to float32's precision.

    The factor is 2^-32 less one unit in its last place: x stays below 1, so the result, the
    square of a length, is never 0. x is split as 2^e (1 + m) with 1 + m in [sqrt(1/2),
    sqrt(2)), and ln(1 + m) is m times a polynomial, the best of degree 7. The coefficients
    are those of -2 ln(1 + m) / m.
    """
    x = float32(word) * float32(2.0**-32 * (1 - 2.0**-24)) + float32(2.0**-33)
    bits = float_bits(x)
    e = int32(uint32(bits - uint32(0x3F3504F3))) >> int32(23)  # 0x3f3504f3 is sqrt(1/2)
    m = bits_float(uint32(bits - (uint32(e) << uint32(23)))) - float32(1)
    p = float32(0.207571938831702)
    p = p * m + float32(-0.3267622725029703)
    p = p * m + float32(0.34424899317396234)
    p = p * m + float32(-0.39768480879238766)
    p = p * m + float32(0.4994311779325922)
    p = p * m + float32(-0.6667121543817286)
    p = p * m + float32(1.0000068860436738)
    p = p * m + float32(-1.9999998357307614)
    return float32(e) * float32(-2 * math.log(2)) + m * p


@njit(inline="always")
def circle(half: Any) -> Any:
    """Sine and cosine of an angle uniform on 2^16 points of the circle, error below 2e-7.

    With w a signed 16-bit number, (w | 1) π / 2^16 is an angle in the right half of the
    circle, where one polynomial each will do, and the bit that was set throws the cosine to
    the left half. The points lie evenly on the whole circle, so for every polynomial of
    sine and cosine of a degree below 2^16 their mean is the integral over the circle, exactly.
    """
    w = int32(half)
    a = float32(w | int32(1)) * float32(math.pi * 2.0**-16)
    z = a * a
    sine = float32(2.605224888429445e-06)
    sine = sine * z + float32(-1.9809075326363598e-04)
    sine = sine * z + float32(8.333051065035776e-03)
    sine = sine * z + float32(-1.6666657992088477e-01)
    sine = sine * z + float32(9.999999957332509e-01)
    cosine = float32(2.3153931286930676e-05)
    cosine = cosine * z + float32(-1.3853704342938627e-03)
    cosine = cosine * z + float32(4.166358470991748e-02)
    cosine = cosine * z + float32(-4.9999905348956103e-01)
    cosine = cosine * z + float32(9.999999534715427e-01)
    return a * sine, bits_float(float_bits(cosine) ^ (uint32(w) << uint32(31)))


@njit(inline="always")
def exp(x: Any) -> Any:
    """e^x for float64 x <= 0, relative error below 1e-15; below -700 the result is e^-700.

    e^x = 2^k e^r with |r| <= ln(2)/2, and e^r is its Taylor polynomial of degree 13. NaN
    stays NaN.
    """
    x = x if not x < -700.0 else -700.0
    # Adding 1.5 * 2^52 rounds to the nearest integer and leaves it in the low bits.
    k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = float64(1 / 6227020800)
    p = p * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * bits_double(uint64(int64(k) + int64(1023)) << uint64(52))
