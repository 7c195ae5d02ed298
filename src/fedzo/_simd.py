"""Small numba pieces that let LLVM turn plain loops into wide vector code.

Three things stand between a loop of transcendental functions and the vector units: calls
into libm (so the functions here are polynomials), the reinterpretation of a float's bits
(so there is :func:`float_bits` and :func:`bits_float`), and LLVM's habit of using half of
an AVX-512 register (so a kernel calls :func:`use_wide_vectors`).
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint32, uint64
from numba.extending import intrinsic


@intrinsic
def use_wide_vectors(_typing_context: Any) -> Any:
    """Ask LLVM for 512-bit vectors in the kernel that calls this.

    LLVM prefers 256 bits on CPUs that have 512, a default made for code that is seldom in
    a vector loop. The attribute is set on this one function, not on the user's other numba
    code; CPUs without AVX-512 ignore it.
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
def log_uniform(word: Any) -> Any:
    """ln((word + 1/2) / 2^32), float32 arithmetic, absolute error below 4e-7 + 1e-7 |ln|.

    The argument is split as 2^e m with m in [sqrt(1/2), sqrt(2)), and ln(m) is a degree-9
    polynomial in m - 1 (the classical single-precision one of the Cephes library).
    """
    x = float32(word) * float32(2.0**-32) + float32(2.0**-33)
    bits = float_bits(x)
    e = int32(uint32(bits - uint32(0x3F3504F3))) >> int32(23)  # 0x3f3504f3 is sqrt(1/2)
    m = bits_float(uint32(bits - (uint32(e) << uint32(23)))) - float32(1)
    p = float32(7.0376836292e-2)
    p = p * m + float32(-1.1514610310e-1)
    p = p * m + float32(1.1676998740e-1)
    p = p * m + float32(-1.2420140846e-1)
    p = p * m + float32(1.4249322787e-1)
    p = p * m + float32(-1.6668057665e-1)
    p = p * m + float32(2.0000714765e-1)
    p = p * m + float32(-2.4999993993e-1)
    p = p * m + float32(3.3333331174e-1)
    return float32(e) * float32(math.log(2)) + (m + m * m * (p * m - float32(0.5)))


@njit(inline="always")
def sincos_uniform(word: Any) -> Any:
    """Return sine and cosine of an angle uniform on the circle, error below 2e-7.

    The word, read as a signed integer, is an angle in [-pi/2, pi/2), the right half of the
    circle, where one polynomial each will do (least-squares fits at Chebyshev points); the
    word's lowest bit, far below what float32 resolves of the angle, throws the cosine to
    the left half.
    """
    a = float32(int32(word)) * float32(math.pi * 2.0**-32)
    z = a * a
    sine = float32(2.605166305e-06)
    sine = sine * z + float32(-1.9809046826e-04)
    sine = sine * z + float32(8.3330506344e-03)
    sine = sine * z + float32(-1.6666657972e-01)
    sine = sine * z + float32(9.9999999572e-01)
    cosine = float32(-2.605107657e-07)
    cosine = cosine * z + float32(2.4760135909e-05)
    cosine = cosine * z + float32(-1.3888360862e-03)
    cosine = cosine * z + float32(4.1666636212e-02)
    cosine = cosine * z + float32(-4.9999999357e-01)
    cosine = cosine * z + float32(9.9999999978e-01)
    return a * sine, bits_float(float_bits(cosine) ^ (word << uint32(31)))


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
