"""Lazy sums of directions for torch's tensors, of any precision and on any device.

On a CPU the kernels of :mod:`fedzo.core.updates` do the work. Elsewhere the same generator is
written in torch's operations, with the same bits. :class:`DeviceArray` lets x and the state of a
server optimizer stay there.
"""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from fedzo.core.directions import BITS
from fedzo.core.random import COSINE, LOGARITHM, SINE, TILE, Draws
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum

Tensor = Any

_AT_ONCE = 1 << 18  # numbers: a temporary of them takes 1 or 2 MiB
_ON_DEVICE = 1 << 21  # on an accelerator, where each operation costs a launch
_KEPT = 1 << 16  # uniform numbers of a piece that are kept
_LOW = 0xFFFFFFFF


def add_to(
    step: Any,
    out: Tensor,
    start: int = 0,
    base: Tensor | None = None,
    rounding: Draws | None = None,
) -> None:
    """Write ``base`` plus numbers ``start``, ... of the sum into ``out``, both contiguous.

    The base is ``out`` itself by default. ``step`` is a lazy sum, another offset with ``add_to``,
    or None for the base alone. In half precision the sum is float32, rounded once: to the nearest
    number, or, with an address for ``rounding``, at random so that the mean is right. All points of
    an estimate are rounded with the same address, so that their differences are right on average
    and vary as little as possible.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from fedzo.core.random import Draws, Stream
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS, round=5, device=2)
    >>> step = DirectionSum.of("rademacher", 6, [at], np.array([[0.5, 0.25]], np.float32))
    >>> weight = torch.ones(2, 3, dtype=torch.bfloat16)
    >>> add_to(step, weight)
    >>> weight
    tensor([[1.7500, 0.7500, 0.2500],
            [0.2500, 1.7500, 1.2500]], dtype=torch.bfloat16)
    """
    import torch

    flat = out.detach().view(-1)
    base = flat if base is None else base.detach().view(-1)
    kernels, half = has_kernels(flat), flat.dtype not in (torch.float32, torch.float64)
    if step is None and not (half and rounding):
        flat.copy_(base)
        return
    if kernels and not half:
        step.add_to(flat.numpy(), start, base.numpy())
        return
    wide = flat.dtype if flat.dtype == torch.float64 else torch.float32
    for first, last in _pieces(flat, start):
        piece = base[first:last].to(wide, copy=True)
        if step is None:
            pass
        elif kernels or not _is_generated_on(piece):
            moved = piece.cpu()
            step.add_to(moved.numpy(), start + first)
            piece = moved.to(piece.device)
        elif isinstance(step, DirectionSum):
            piece = (piece + numbers(step, start + first, start + last, piece.device)).to(wide)
        else:
            step.add_to(DeviceArray(piece), start + first)
        if half and rounding:
            piece = _rounded(piece, flat.dtype, start + first, rounding)
        flat[first:last] = piece


def _rounded(piece: Tensor, dtype: Any, start: int, at: Draws) -> Tensor:
    """Return float32 numbers that are rounded at random to a half precision; the mean is kept.

    Of a float32 the last 16 bits are cut off for bfloat16, 13 for float16, after a uniform number
    of as many bits is added. The uniform numbers belong to places of the long vector.
    """
    import torch

    bits, place = 16 if dtype == torch.bfloat16 else 13, (at, start, piece.numel(), piece.device)
    # All points of an estimate are rounded alike; of a large model they are drawn for each point.
    uniform = (_uniform if piece.numel() <= _KEPT else _uniform.__wrapped__)(*place)
    raised = piece.view(torch.int32) + (uniform >> (16 - bits))
    return (raised & -(1 << bits)).view(torch.float32)


@lru_cache(maxsize=64)
def _uniform(at: Draws, start: int, size: int, device: Any) -> Tensor:
    """Return numbers ``start``, ... of a long vector of uniform 16-bit numbers, as int32."""
    import torch

    first, last, address = start // 8, -(-(start + size) // 8), list(at.address())
    blocks = torch.arange(first, last, device=device)
    words = _philox(blocks & _LOW, address[2] + (blocks >> 32 << 20), address)
    halves = torch.stack(words, 1)[:, :, None] >> torch.tensor([0, 16], device=device)
    return (halves.view(-1)[start - 8 * first :][:size] & 0xFFFF).to(torch.int32)


def has_kernels(tensor: Tensor) -> bool:
    """Return whether the compiled kernels can work in the memory of a tensor."""
    return bool(tensor.device.type == "cpu")


def _is_generated_on(tensor: Tensor) -> bool:
    """Return whether the generator runs on the device of a tensor: MPS has no float64."""
    return bool(tensor.device.type != "mps")


def tensor_of(x: Any) -> Tensor:
    """Return the memory of an array as a tensor."""
    import torch

    return x.tensor if isinstance(x, DeviceArray) else torch.from_numpy(x)


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A vector in the memory of a torch device, which NumPy's functions take as an array.

    Element-wise functions run on the device, by IEEE operations that make NumPy's bits. All others
    are given a copy in main memory.

    Examples
    --------
    >>> import torch
    >>> x = DeviceArray(torch.ones(3))
    >>> x[:2] = np.sqrt(x[:2] + 3)
    >>> np.asarray(x)
    array([2., 2., 1.], dtype=float32)
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        self.shape, self.ndim, self.size = tuple(tensor.shape), tensor.ndim, tensor.numel()
        self.itemsize, self.nbytes, self.base = tensor.itemsize, tensor.nbytes, None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return a copy in main memory."""
        return np.array(self.tensor.cpu().numpy(), dtype)

    def __getitem__(self, part: Any) -> Any:
        """Return a part of the same memory."""
        return DeviceArray(self.tensor[part])

    def __setitem__(self, part: Any, value: Any) -> None:
        """Write into a part of the memory."""
        self.tensor[part] = self._here(value)

    def __array_ufunc__(
        self, function: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        """Run an element-wise function on the device, any other one in main memory."""
        import torch

        target = out[0] if out else None
        if method != "__call__" or not (target is None or isinstance(target, DeviceArray)):
            options |= {} if out is None else {"out": out}
            return getattr(function, method)(*map(_on_host, inputs), **options)
        given = [self._here(one, options.get("dtype")) for one in inputs]
        found = DeviceArray(getattr(torch, function.__name__)(*given))
        if target is None:
            return found
        target[...] = found
        return target

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Make new vectors on the device, and give other functions copies in main memory."""
        import torch

        if function in (np.zeros_like, np.empty_like):
            kind = torch.from_numpy(function(np.empty(0, self.dtype), *args[1:], **kwargs)).dtype
            return DeviceArray(torch.zeros_like(args[0].tensor, dtype=kind))
        given = {key: _on_host(value) for key, value in kwargs.items()}
        return function(*map(_on_host, args), **given)

    def _here(self, value: Any, dtype: Any = None) -> Tensor:
        """Return an operand on this device.

        A number is a tensor, too: CUDA multiplies by the reciprocal of a number of the host.
        """
        import torch

        if not isinstance(value, torch.Tensor):
            value = tensor_of(value if isinstance(value, DeviceArray) else np.array(value))
        kind = None if dtype is None else torch.from_numpy(np.empty(0, dtype)).dtype
        return value.to(self.tensor.device, kind)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the numbers in another precision."""
        return self if self.dtype == dtype and not copy else DeviceArray(self._here(self, dtype))

    def copy(self) -> Any:
        """Return a copy on the device."""
        return DeviceArray(self.tensor.clone())

    def reshape(self, *shape: int) -> Any:
        """Return the vector with another shape."""
        return DeviceArray(self.tensor.reshape(*shape))

    def all(self) -> bool:
        """Return whether all numbers are true."""
        return bool(self.tensor.all())

    def add(self, step: DirectionSum, start: int, base: Any) -> None:
        """Write ``base`` plus numbers ``start``, ... of a sum into this memory."""
        add_to(step, self.tensor, start, base.tensor)

    def part_of(self, step: DirectionSum, first: int, last: int) -> Any:
        """Return numbers ``first`` to ``last`` of a sum, drawn on this device, as float64."""
        return DeviceArray(numbers(step, first, last, self.tensor.device))


def _on_host(value: Any) -> Any:
    """Return what has device arrays with copies in main memory in their place."""
    if isinstance(value, list | tuple):
        return type(value)(map(_on_host, value))
    return np.asarray(value) if isinstance(value, DeviceArray) else value


def _pieces(flat: Tensor, start: int) -> Iterator[tuple[int, int]]:
    """Cut a vector at multiples of the piece's size from the start of the long vector."""
    first, size = 0, flat.numel()
    most = _AT_ONCE if has_kernels(flat) else _ON_DEVICE
    while first < size:
        last = min(size, (start + first) // most * most + most - start)
        yield first, last
        first = last


def numbers(step: DirectionSum, start: int, stop: int, device: Any) -> Tensor:
    """Return numbers ``start`` to ``stop`` of a sum in torch's operations, in float64."""
    import torch

    unit = BITS if step.kind == "rademacher" else TILE
    first, last = start // unit, -(-stop // unit)
    wide = torch.zeros((last - first) * unit, dtype=torch.float64, device=device)
    if step.dense is not None:
        own = torch.from_numpy(np.asarray(step.dense[start:stop], np.float64)).to(device)
        wide[start - first * unit : stop - first * unit] = own
    dtype = torch.from_numpy(step.coefficients[:0]).dtype
    terms = zip(step.draws, step.rows, step.coefficients, strict=True)
    for steps, weight in zip(step.steps, step.weights, strict=True):
        total = torch.zeros(wide.shape, dtype=dtype, device=device)
        for at, row, c in islice(terms, steps):
            for n in _groups(c):
                rows = [
                    float(c[k]) * _row(step, at, row + k, first, last, device).to(dtype) for k in n
                ]
                total += rows[0] if len(n) == 1 else (rows[0] + rows[1]) + (rows[2] + rows[3])
        wide += weight * total.double()
    wide /= torch.tensor(step.divisor, dtype=torch.float64, device=device)  # no reciprocal of it
    return wide[start - first * unit : stop - first * unit]


def _groups(c: Any) -> Iterator[range]:
    """Yield the rows that are summed together: four at a time, and the rest one by one."""
    fours = len(c) - len(c) % 4
    yield from (range(n, n + 4) for n in range(0, fours, 4) if c[n : n + 4].any())
    yield from (range(n, n + 1) for n in range(fours, len(c)))


def _row(step: DirectionSum, at: Draws, row: int, first: int, last: int, device: Any) -> Tensor:
    """Return parts ``first`` to ``last`` of a row: tiles of normals, or blocks of signs."""
    import torch

    make, unit = (_signs, BITS) if step.kind == "rademacher" else (_normals, TILE)
    parts = torch.arange(first, last, device=device) + row * -(-step.dim // unit)
    return make(parts, list(at.address()))


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
    """Return -2 ln((word + 1/2) / 2^32): see :func:`fedzo.core.random.exponential`."""
    import torch

    x = word.to(torch.float32) * (2.0**-32 * (1 - 2.0**-24)) + 2.0**-33
    bits = x.view(torch.int32)
    e = (bits - 0x3F3504F3) >> 23
    m = (bits - (e << 23)).view(torch.float32) - 1
    return e.to(torch.float32) * float(np.float32(-2 * math.log(2))) + m * _horner(m, LOGARITHM)


def _circle(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return sine and cosine of an angle: see :func:`fedzo.core.random.circle`."""
    import torch

    a = (w | 1).to(torch.float32) * float(np.float32(math.pi * 2.0**-16))
    z = a * a
    sine, cosine = _horner(z, SINE), _horner(z, COSINE)
    return a * sine, torch.where(w & 1 == 1, -cosine, cosine)


def _horner(x: Tensor, coefficients: Iterable[np.float32]) -> Tensor:
    y = x * 0
    for coefficient in coefficients:
        y = y * x + float(coefficient)
    return y
