"""Streamed directions for torch's tensors, of any precision and on any device.

On a CPU the kernels of :mod:`fedzo.core.streams` do the work, a half-precision tensor by a
piece of float32 at a time. Elsewhere the same generator is written in torch's operations, with
the same bits for float32, bfloat16 and float16: where LLVM fuses a product and a sum into one
rounding, so does :func:`_fma`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedzo.core.directions import BITS
from fedzo.core.random import TILE
from fedzo.core.streams import Combination

Tensor = Any

_AT_ONCE = 1 << 18  # numbers: a temporary of them takes 1 or 2 MiB
_LOW = 0xFFFFFFFF


def add_to(step: Combination, out: Tensor, start: int = 0, base: Tensor | None = None) -> None:
    """Write ``base`` plus numbers ``start``, ... of the sum into ``out``, both contiguous.

    Without a base it is added to what is there.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from fedzo.core.random import Draws, Stream
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> step = Combination.of("rademacher", 6, at, np.array([0.5, 0.25]))
    >>> weight = torch.ones(2, 3, dtype=torch.bfloat16)
    >>> add_to(step, weight)
    >>> weight
    tensor([[1.7500, 0.7500, 0.2500],
            [0.2500, 1.7500, 1.2500]], dtype=torch.bfloat16)
    """
    import torch

    flat = out.detach().view(-1)
    base = flat if base is None else base.detach().view(-1)
    on_cpu = _on_cpu(flat)
    if on_cpu and flat.dtype in (torch.float32, torch.float64):
        step.add_to(flat.numpy(), start, base.numpy())
        return
    wide = flat.dtype if flat.dtype == torch.float64 else torch.float32
    for first, last in _pieces(flat.numel(), start):
        piece = base[first:last].to(wide, copy=True)
        if on_cpu:
            step.add_to(piece.numpy(), start + first)
        else:
            piece += numbers(step, start + first, start + last, piece)
        flat[first:last] = piece


def _on_cpu(tensor: Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _pieces(size: int, start: int) -> Iterator[tuple[int, int]]:
    """Cut [0, size) where a multiple of the piece's size from the vector's start is."""
    first = 0
    while first < size:
        last = min(size, (start + first) // _AT_ONCE * _AT_ONCE + _AT_ONCE - start)
        yield first, last
        first = last


def numbers(step: Combination, start: int, stop: int, like: Tensor) -> Tensor:
    """Return numbers ``start`` to ``stop`` of a sum in torch's operations, as a tensor ``like``."""
    import torch

    make, unit = (_signs, BITS) if step.kind == "rademacher" else (_normals, TILE)
    first, last, each = start // unit, -(-stop // unit), -(-step.dim // unit)
    total = torch.zeros((last - first) * unit, dtype=like.dtype, device=like.device)
    for address, row, c in zip(step.addresses, step.rows, step.coefficients, strict=True):
        parts = torch.arange(first, last, device=like.device) + int(row) * each
        row_numbers = make(parts, [int(word) for word in address]).to(like.dtype)
        total = _add_multiple(total, float(c), row_numbers)
    total = total[start - first * unit : stop - first * unit]
    if step.factors is not None:
        total = total * torch.from_numpy(step.factors[start:stop]).to(total)
    return total


def _add_multiple(total: Tensor, c: float, row: Tensor) -> Tensor:
    import torch

    if total.dtype == torch.float32:
        return _fma(row, float(np.float32(c)), total)
    return total + c * row


def _philox(counter: Tensor, second: Tensor, address: list[int]) -> list[Tensor]:
    """Philox 4x32-10 in 64-bit integers: products wrap, which leaves all their bits right."""
    k0, k1, _, device, round_ = address
    c0, c1, c2, c3 = counter, second, device, round_
    for _ in range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0, c1, c2, c3 = _high(p1) ^ c1 ^ k0, p1 & _LOW, _high(p0) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return [c0, c1, c2, c3]


def _high(product: Any) -> Any:
    return (product >> 32) & _LOW


def _signs(blocks: Tensor, address: list[int]) -> Tensor:
    """Return the ±1 of these blocks: see :func:`fedzo.core.directions.sign_words`."""
    import torch

    words = _philox(blocks & _LOW, address[2] + (blocks >> 32 << 20), address)
    bits = torch.stack(words, 1)[:, :, None] >> torch.arange(32, device=blocks.device)
    return (1 - 2 * (bits & 1)).view(-1)


def _normals(parts: Tensor, address: list[int]) -> Tensor:
    """Return the normals of these tiles: see :func:`fedzo.core.random.make_tile`."""
    import torch

    blocks, numbered = 3 * TILE // 16, (1 << 32) // (3 * TILE // 16)
    high = parts // numbered
    place = ((parts - high * numbered) * blocks)[:, None]
    counter = place + torch.arange(blocks, device=parts.device)
    a, b, c, d = _philox(counter, (address[2] + (high << 20))[:, None], address)
    words = torch.cat([torch.stack([a, c], 2), torch.stack([b, d], 2)], 1).view(len(parts), -1)
    # torch's float32 root may be off by a unit; of float64's that is lost in the rounding.
    lengths = _exponential(words[:, : TILE // 2]).double().sqrt().float()
    halves = words[:, TILE // 2 :, None] >> torch.tensor([0, 16], device=parts.device)
    sine, cosine = _circle(halves.view(len(parts), -1).to(torch.int16).to(torch.int32))
    return torch.cat([lengths * sine, lengths * cosine], 1).view(-1)


def _exponential(word: Tensor) -> Tensor:
    """Return -2 ln((word + 1/2) / 2^32): see :func:`fedzo.core.simd.exponential`."""
    import torch

    x = _fma(word.to(torch.float32), 2.0**-32 * (1 - 2.0**-24), 2.0**-33)
    bits = x.view(torch.int32)
    e = (bits - 0x3F3504F3) >> 23
    m = (bits - (e << 23)).view(torch.float32) - 1
    p = _horner(
        m,
        0.207571938831702,
        -0.3267622725029703,
        0.34424899317396234,
        -0.39768480879238766,
        0.4994311779325922,
        -0.6667121543817286,
        1.0000068860436738,
        -1.9999998357307614,
    )
    return _fma(m, p, e.to(torch.float32) * float(np.float32(-2 * math.log(2))))


def _circle(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return sine and cosine of an angle: see :func:`fedzo.core.simd.circle`."""
    import torch

    a = (w | 1).to(torch.float32) * float(np.float32(math.pi * 2.0**-16))
    z = a * a
    sine = _horner(
        z,
        2.605224888429445e-06,
        -1.9809075326363598e-04,
        8.333051065035776e-03,
        -1.6666657992088477e-01,
        9.999999957332509e-01,
    )
    cosine = _horner(
        z,
        2.3153931286930676e-05,
        -1.3853704342938627e-03,
        4.166358470991748e-02,
        -4.9999905348956103e-01,
        9.999999534715427e-01,
    )
    return a * sine, torch.where(w & 1 == 1, -cosine, cosine)


def _horner(x: Tensor, first: float, *others: float) -> Tensor:
    import torch

    p = torch.full_like(x, float(np.float32(first)))
    for coefficient in others:
        p = _fma(p, x, float(np.float32(coefficient)))
    return p


def _fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """Return a b + c of float32 numbers, rounded once.

    In float64 the product is exact, and what the sum loses is known exactly (Knuth's two-sum).
    Where something is lost, of the two float64 numbers around the true sum the odd one is
    taken: rounding that to float32 is rounding the true sum (Boldo & Melquiond 2008).
    """
    import torch

    product = a.double() * (b.double() if isinstance(b, torch.Tensor) else b)
    c = c.double() if isinstance(c, torch.Tensor) else torch.full_like(product, c)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)
    bits = total.view(torch.int64)
    outwards = (lost > 0) == (total > 0)
    odd = torch.where(outwards, bits + 1, bits - 1)
    bits = torch.where((lost != 0) & (bits & 1 == 0), odd, bits)
    return bits.view(torch.float64).float()
