"""Small numba pieces that let LLVM turn plain loops into wide vector code.

A worker's steps alternate between Python and compiled code, and each time it comes back it
has to win the GIL from the other workers. So what belongs together is compiled together,
down to the matrix product, and runs to its end without the GIL.

Three things stand between a loop of transcendental functions and the vector units: calls
into libm (so the functions here are polynomials), the reinterpretation of a float's bits
(so there is :func:`float_bits` and :func:`bits_float`), and LLVM's habit of using half of
an AVX-512 register (so a kernel calls :func:`use_wide_vectors`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint32, uint64
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray


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


def aligned_rows(rows: int, columns: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return memory whose rows start at cache lines; ``columns`` is rounded up for that.

    >>> aligned_rows(3, 785, np.float32).shape
    (3, 800)
    """
    size = np.dtype(dtype).itemsize
    columns = -(-columns * size // 64) * 64 // size
    memory = np.empty(rows * columns + 64 // size, dtype)
    first = -memory.ctypes.data % 64 // size
    return memory[first : first + rows * columns].reshape(rows, columns)


@njit(inline="always")
def _add_multiple(a: Any, w: Any, y: Any) -> Any:
    return (
        a[0] + w * y[0],
        a[1] + w * y[1],
        a[2] + w * y[2],
        a[3] + w * y[3],
        a[4] + w * y[4],
    )


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def dot_products(tall: Any, length: Any, samples: Any, out: Any) -> None:
    """out[r, m] = sum_k tall[r * length + k] samples[m, k]: a matrix product, tall times wide.

    ``tall`` is flat, its rows have ``length`` numbers; ``samples`` has at least five rows,
    which may be longer. Of BLAS this product of a few hundred by a few dozen rows would get
    less than half of what the machine can do, most of the rest going into packing. Here
    five rows of the one meet five of the other in 25 registers, from which LLVM makes 25
    vectors; the last five of either overlap with those before them.
    """
    use_wide_vectors()
    rows, count = tall.size // length, samples.shape[0]
    flat, stride = samples.reshape(-1), samples.shape[1]
    o = tall.dtype.type(0)
    zero = (o, o, o, o, o)
    if rows < 5:
        for r in range(rows):
            for m in range(count):
                total = o
                for k in range(length):
                    total += tall[r * length + k] * samples[m, k]
                out[r, m] = total
        return
    for next_m in range(0, count, 5):
        m = min(next_m, count - 5)
        x0 = flat[m * stride : m * stride + length]
        x1 = flat[(m + 1) * stride : (m + 1) * stride + length]
        x2 = flat[(m + 2) * stride : (m + 2) * stride + length]
        x3 = flat[(m + 3) * stride : (m + 3) * stride + length]
        x4 = flat[(m + 4) * stride : (m + 4) * stride + length]
        for next_r in range(0, rows, 5):
            r = min(next_r, rows - 5)
            t0 = tall[r * length : (r + 1) * length]
            t1 = tall[(r + 1) * length : (r + 2) * length]
            t2 = tall[(r + 2) * length : (r + 3) * length]
            t3 = tall[(r + 3) * length : (r + 4) * length]
            t4 = tall[(r + 4) * length : (r + 5) * length]
            a0, a1, a2, a3, a4 = zero, zero, zero, zero, zero
            for k in range(length):
                y = (x0[k], x1[k], x2[k], x3[k], x4[k])
                a0 = _add_multiple(a0, t0[k], y)
                a1 = _add_multiple(a1, t1[k], y)
                a2 = _add_multiple(a2, t2[k], y)
                a3 = _add_multiple(a3, t3[k], y)
                a4 = _add_multiple(a4, t4[k], y)
            for i in range(5):
                out[r, m + i] = a0[i]
                out[r + 1, m + i] = a1[i]
                out[r + 2, m + i] = a2[i]
                out[r + 3, m + i] = a3[i]
                out[r + 4, m + i] = a4[i]
