r"""Random directions v_1, ..., v_b2 along which values of an objective are taken.

All kinds of directions have

.. math:: E[v v^T] = I / d,

so eq. (2) of the paper, with its factor d/μ, is right for each kind: for a linear function its
expectation is the gradient exactly. μ also has the same meaning for all kinds, a step of length μ
(for ``gaussian``: of root-mean-square length μ).

================  ==========================================================================
``sphere``        uniform on the unit sphere, independent: the paper's, the default
``gaussian``      N(0, I/d), independent. Nesterov & Spokoiny's smoothing by N(0, I) with
                  their parameter μ' is this one with μ = μ' sqrt(d)
``rademacher``    entries ±1/sqrt(d), independent
``orthogonal``    b2 <= d orthonormal vectors, uniform (Haar): each is uniform on the sphere
``coordinate``    b2 <= d different unit vectors e_j, uniform: with b2 = d the estimate is the
                  full finite difference (Kiefer & Wolfowitz 1952)
================  ==========================================================================

The last two are drawn without replacement, so an estimate over b2 = d of them has no
variance from the directions at all. All kinds but ``coordinate`` are symmetric: the forward
difference then has no bias of first order in μ. Along e_j it has the bias μ/2 ∂²f/∂x_j².
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, uint32, uint64
from numpy.typing import DTypeLike, NDArray

from fedzo.core.random import (
    Draws,
    check_room,
    fill_normals,
    philox,
    unsigned,
    use_wide_vectors,
    with_high,
)
from fedzo.core.types import Array
from fedzo.errors import check_choice, check_count, require


class DirectionBuffer:
    """Memory that holds the directions of one estimate after another.

    The directions are ``rows``, (b2, d), that are not normalised, and one factor per row:
    v_n = scales[n] * rows[n]. The scales go into the steps and the coefficients, so b2 x d numbers
    are never divided by a norm.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.random import Draws, Stream
    >>> buffer = DirectionBuffer("sphere", count=3, dim=1000, dtype=np.float32)
    >>> buffer.draw(Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2, step=1))
    >>> v = buffer.vectors()
    >>> v.shape, v.dtype, np.linalg.norm(v, axis=1).round(6).tolist()
    ((3, 1000), dtype('float32'), [1.0, 1.0, 1.0])
    """

    def __init__(self, kind: str, count: int, dim: int, dtype: DTypeLike) -> None:
        check_directions(kind, count, dim)
        self.kind = kind
        self.rows: Array = np.empty((count, dim), dtype)
        self.scales: NDArray[np.float64] = np.ones(count)

    def draw(self, draws: Draws) -> None:
        """Fill the buffer with the directions of one address."""
        self.scales = KINDS[self.kind](self.rows, draws)

    def advance(self, coefficients: Array, delta: Array, start: Array) -> Array:
        """Add ``coefficients @ rows`` to ``delta`` in place; return ``start + delta``."""
        x = np.empty_like(start)
        advance_kernel(coefficients.astype(self.rows.dtype, copy=False), self.rows, delta, start, x)
        return x

    def vectors(self) -> Array:
        """Return a copy of the directions v, (b2, d)."""
        return np.asarray(self.rows * self.scales[:, None].astype(self.rows.dtype))


def check_directions(kind: str, count: int, dim: int | None = None) -> None:
    """Raise unless ``count`` directions of this kind exist in ``dim`` dimensions."""
    check_choice("direction_kind", kind, KINDS)
    check_count("directions", count)
    if dim is not None and kind in WITHOUT_REPLACEMENT:
        allowed = f"at most the problem's dimension, {dim}, for {kind} directions"
        require(count <= dim, "directions", count, allowed)


def _sphere(rows: Array, draws: Draws) -> NDArray[np.float64]:
    return 1 / np.sqrt(fill_normals(rows, draws))


def _gaussian(rows: Array, draws: Draws) -> NDArray[np.float64]:
    fill_normals(rows, draws)
    return np.full(len(rows), 1 / math.sqrt(rows.shape[1]))


def _rademacher(rows: Array, draws: Draws) -> NDArray[np.float64]:
    check_signs(draws, *rows.shape)
    _fill_signs(rows, draws.address())
    return np.full(len(rows), 1 / math.sqrt(rows.shape[1]))


def _orthogonal(rows: Array, draws: Draws) -> NDArray[np.float64]:
    fill_normals(rows, draws)
    q, r = np.linalg.qr(rows.T)
    # QR is unique up to signs; the factor with a positive diagonal makes Q Haar-distributed
    # (Mezzadri, "How to generate random matrices from the classical compact groups", 2007).
    rows[:] = (q * np.where(np.diagonal(r) < 0, -1, 1).astype(rows.dtype)).T
    return np.ones(len(rows))


def _coordinate(rows: Array, draws: Draws) -> NDArray[np.float64]:
    count, dim = rows.shape
    rows[:] = 0
    rows[np.arange(count), draws.subset(dim, count)] = 1
    return np.ones(count)


KINDS: dict[str, Callable[[Array, Draws], NDArray[np.float64]]] = {
    "sphere": _sphere,
    "gaussian": _gaussian,
    "rademacher": _rademacher,
    "orthogonal": _orthogonal,
    "coordinate": _coordinate,
}
WITHOUT_REPLACEMENT = ("orthogonal", "coordinate")
STREAMABLE = ("sphere", "gaussian", "rademacher")  # each number is drawn by itself

BITS = 128  # signs that a block of Philox makes


def check_signs(draws: Draws, count: int, dim: int) -> None:
    """Raise unless one address has enough signs for ``count`` rows of ``dim`` numbers."""
    check_room(draws, (count, dim), count * -(-dim // BITS), 1 << 32)


@njit(inline="always")
def sign_words(block: Any, unsigned_address: Any) -> Any:
    """Return four words of 32 signs each, the blocks of all rows counted in order."""
    k0, k1, c1, c2, c3 = unsigned_address
    number = uint64(block)
    return philox(number, with_high(c1, number >> uint64(32)), c2, c3, k0, k1)


@njit(nogil=True, cache=True)
def _fill_signs(rows: Any, address: Any) -> None:
    """Fill with ±1, a bit of a Philox block for each entry; each row starts at a block."""
    count, dim = rows.shape
    blocks = -(-dim // BITS)
    here, flat = unsigned(address), rows.reshape(-1)
    for n in range(count):
        for block in range(blocks):
            words = sign_words(n * blocks + block, here)
            for i in range(4):
                first = block * BITS + i * 32
                out = flat[n * dim + first : n * dim + min(first + 32, dim)]
                word = uint32(words[i])
                for j in range(out.size):
                    out[j] = 1 - 2 * int((word >> uint32(j)) & uint32(1))


@njit(nogil=True, cache=True)
def advance_kernel(coefficients: Any, rows: Any, delta: Any, start: Any, x: Any) -> None:
    """Add ``coefficients @ rows`` to ``delta``, and write ``start + delta`` into ``x``.

    2048 columns at a time stay in the first cache. Rows are summed by fours. This order is part of
    every result: :mod:`fedzo.core.updates` sums directions that are not held in the same one.
    """
    use_wide_vectors()
    count, dim = rows.shape
    flat = rows.reshape(-1)
    for first in range(0, dim, 2048):
        last = min(first + 2048, dim)
        total = delta[first:last]
        for n in range(0, count - 3, 4):
            r0 = flat[n * dim + first : n * dim + last]
            r1 = flat[(n + 1) * dim + first : (n + 1) * dim + last]
            r2 = flat[(n + 2) * dim + first : (n + 2) * dim + last]
            r3 = flat[(n + 3) * dim + first : (n + 3) * dim + last]
            c0, c1 = coefficients[n], coefficients[n + 1]
            c2, c3 = coefficients[n + 2], coefficients[n + 3]
            for j in range(total.size):
                total[j] += (c0 * r0[j] + c1 * r1[j]) + (c2 * r2[j] + c3 * r3[j])
        for n in range(count - count % 4, count):
            row = flat[n * dim + first : n * dim + last]
            for j in range(total.size):
                total[j] += coefficients[n] * row[j]
        for j in range(first, last):
            x[j] = start[j] + delta[j]
