"""Perturbed parameters that exist one layer at a time, while the layer is run.

The parameters of a module are put into one long memory, x. To run the module at x + step, each
layer is given other memory just before it is run, with its part of x + step in it, and its own
back just after. So x is never changed, nothing has to be restored, and there is never more than
a layer's worth of perturbed parameters.

Which layer reads which parameter is found out by watching one run: it need not be the one that
a parameter belongs to (tied embeddings, attention that reads its output layer's weights).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedzo.core.streams import Combination
from fedzo.errors import InvalidValue, UsageError

Array = NDArray[Any]
Module = Any
Tensor = Any
T = TypeVar("T")


class Piece(NamedTuple):
    """A trainable parameter, and where it lies in x."""

    name: str
    tensor: Tensor
    start: int
    stop: int


class Scratch:
    """A module whose parameters lie in ``memory``, and which can be run beside them."""

    def __init__(self, module: Module, pieces: Sequence[Piece], dtype: DTypeLike) -> None:
        import torch

        self.module, self.pieces = module, pieces
        self.memory = np.empty(pieces[-1].stop, dtype)
        for name, tensor, start, stop in pieces:
            own = torch.from_numpy(self.memory[start:stop]).view(tensor.shape)
            if tensor.device.type != "cpu" or tensor.dtype != own.dtype:
                right = (
                    f"False: {name} is {tensor.dtype} on {tensor.device}, not {own.dtype} on cpu"
                )
                raise InvalidValue("in_place", True, right)
            own.copy_(tensor.detach())
            tensor.data = own
        self._step: Combination | None = None
        self._readers: dict[Module, list[int]] | None = None
        self._swapped: dict[int, Tensor] = {}  # a swapped piece's own memory
        self._spare = torch.empty(0)

    def run(self, losses: Callable[[Any], T], batch: Any, step: Combination | None) -> T:
        """Return ``losses(batch)`` with the module's parameters at x + step."""
        if self._readers is None:
            self._watch(losses, batch)
        if step is None:
            return losses(batch)
        self._step = step
        outside = self._swap(None)
        try:
            return losses(batch)
        finally:
            self._restore(outside)
            self._step = None

    def _watch(self, losses: Callable[[Any], object], batch: Any) -> None:
        """Run the module once to see which layer reads which parameter, and stand by them."""
        import torch

        readers = _readers(self.module, self.pieces, lambda: losses(batch))
        read = {number for numbers in readers.values() for number in numbers}
        for number, piece in enumerate(self.pieces):
            if number not in read:
                raise UsageError(f"trainable: the loss does not depend on {piece.name}")
        self._readers = readers
        sizes = [
            sum(self.pieces[number].tensor.numel() for number in numbers)
            for numbers in readers.values()
        ]
        self._spare = torch.empty(max(sizes), dtype=self.pieces[0].tensor.dtype)
        for layer in readers:
            if layer is not None:
                layer.register_forward_pre_hook(self._before)
                layer.register_forward_hook(self._after, always_call=True)

    def _before(self, layer: Module, _: Any) -> None:
        if self._step is not None:
            layer.__dict__["_fedzo_swapped"] = self._swap(layer)

    def _after(self, layer: Module, *_: Any) -> None:
        if self._step is not None:
            self._restore(layer.__dict__.pop("_fedzo_swapped", []))

    def _swap(self, layer: Module | None) -> list[int]:
        """Give the parameters that a layer reads other memory, with x + step in it."""
        import torch

        assert self._readers is not None
        assert self._step is not None
        numbers = [i for i in self._readers.get(layer, []) if i not in self._swapped]
        spare, used = self._spare, 0
        if self._swapped:  # a layer inside another: the spare memory is taken
            spare = torch.empty(
                sum(self.pieces[i].tensor.numel() for i in numbers), dtype=spare.dtype
            )
        for number in numbers:
            _, tensor, start, stop = self.pieces[number]
            part = spare[used : used + stop - start]
            self._step.add_to(part.numpy(), start, self.memory[start:stop])
            self._swapped[number] = tensor.data
            tensor.data = part.view(tensor.shape)
            used += stop - start
        return numbers

    def _restore(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.pieces[number].tensor.data = self._swapped.pop(number)


def _readers(
    module: Module, pieces: Sequence[Piece], run: Callable[[], object]
) -> dict[Module, list[int]]:
    """Return the pieces that each layer reads while it is run; None is outside all layers."""
    import torch
    from torch.nn.modules.module import (
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )

    numbers = {id(piece.tensor): number for number, piece in enumerate(pieces)}
    readers: dict[Module, list[int]] = {}
    inside: list[Module] = [None]

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            if any(
                isinstance(part, torch.Tensor) for part in parts_of(result)
            ):  # not a shape or a type
                for part in parts_of((args, kwargs or {})):
                    if id(part) in numbers:
                        found = readers.setdefault(inside[-1], [])
                        if numbers[id(part)] not in found:
                            found.append(numbers[id(part)])
            return result

    hooks = [
        register_module_forward_pre_hook(lambda layer, _: inside.append(layer)),
        register_module_forward_hook(lambda *_: _drop(inside), always_call=True),
    ]
    try:
        with Watch():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return readers


def _drop(stack: list[Any]) -> None:
    stack.pop()


def parts_of(value: Any) -> Iterator[Any]:
    """Yield what lies in nested tuples, lists and mappings."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from parts_of(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from parts_of(part)
    else:
        yield value
