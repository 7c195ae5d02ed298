"""Run a torch module at perturbed parameters: one layer at a time, or several points at once.

:class:`InPlaceModule` puts the parameters of a module into one array, x. To run the module at
x + step, each layer is given other memory with its part of x + step just before it runs, and its
own memory back just after. So x never changes, and the memory is that of the largest layer.
Which layer reads which parameter is found by observing one run, because it need not be the layer
that owns the parameter: embeddings are tied, and attention reads the weights of its output layer.

:class:`BatchedModule` runs several points in one pass by ``torch.func.vmap``. If few parameters are
trained, most of the work is then done once for all points.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum
from fedzo.core.updates_torch import add_to
from fedzo.errors import UsageError, first_line, require
from fedzo.problems.network_inputs import Piece, parts_of

Module = Any
Tensor = Any
T = TypeVar("T")


def can_be_in_place(module: Module, pieces: Sequence[Piece]) -> bool:
    """Return whether x can be the module's memory, and layers be observed while they run."""
    import torch

    fits = all(piece.tensor.device.type == "cpu" for piece in pieces)
    scripted = any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules())
    return fits and not scripted and not _compiled(module)


def _compiled(module: Module) -> bool:
    """Return whether torch.compile hides what a layer of the module reads."""
    return any(
        type(layer).__name__ == "OptimizedModule"  # to import it takes seconds
        or vars(layer).get("_compiled_call_impl") is not None
        for layer in module.modules()
    )


class InPlaceModule:
    """A module whose parameters lie in ``memory``, and that runs at points beside them."""

    def __init__(self, module: Module, pieces: Sequence[Piece], dtype: DTypeLike) -> None:
        import torch

        self.module, self.pieces = module, pieces
        allowed = "False: the layers of a module that torch.compile has compiled are not observed"
        require(not _compiled(module), "in_place", True, allowed)
        self.memory = np.empty(pieces[-1].stop, dtype)
        self.rounds = False  # whether a parameter has half precision, and x is more precise
        for name, tensor, start, stop in pieces:
            own = torch.from_numpy(self.memory[start:stop]).view(tensor.shape)
            allowed = f"False: {name} is on {tensor.device}, not on cpu"
            require(tensor.device.type == "cpu", "in_place", True, allowed)
            own.copy_(tensor.detach())
            if tensor.dtype == own.dtype:
                tensor.data = own
            self.rounds |= tensor.dtype != own.dtype
        self._step: Any = None
        self._rounding: Draws | None = None
        self._running = False  # at x + step
        self._readers: dict[Module, list[int]] | None = None
        self._swapped: dict[int, Tensor] = {}  # a swapped piece's own memory
        self._inside: dict[Module, list[int]] = {}  # the swapped pieces of each layer that runs
        self._hooks: list[Any] = []
        self._spare = torch.empty(0)

    def run(
        self, losses: Callable[[Any], T], batch: Any, step: Any, rounding: Draws | None = None
    ) -> T:
        """Return ``losses(batch)`` with the module's parameters at x + step."""
        if self._readers is None:
            self._watch(losses, batch)
        if step is None and not self.rounds:
            return losses(batch)
        self._step, self._rounding, self._running = step, rounding, True
        try:
            self._swap(None)
            return losses(batch)
        finally:
            self._restore(list(self._swapped))
            self._inside.clear()
            self._step, self._running = None, False

    def release(self) -> None:
        """Remove the hooks from the module; a later run adds them again."""
        while self._hooks:
            self._hooks.pop().remove()
        self._readers = None

    def _watch(self, losses: Callable[[Any], object], batch: Any) -> None:
        """Run the module once to find which layers read each parameter; add hooks to them."""
        import torch

        readers = _readers(self.module, self.pieces, lambda: losses(batch))
        read = {number for numbers in readers.values() for number in numbers}
        # An expert that this batch does not use, or what compiled code reads, is not observed: it
        # is perturbed around the whole run.
        hidden = [number for number in range(len(self.pieces)) if number not in read]
        readers[None] = [*readers.get(None, []), *hidden]
        self._readers = readers
        largest = max(map(self._size, readers.values()))
        self._spare = torch.from_numpy(np.empty(0 if self.rounds else largest, self.memory.dtype))
        for layer in readers:
            if layer is not None:
                after = layer.register_forward_hook(self._after, always_call=True)
                self._hooks += [layer.register_forward_pre_hook(self._before), after]

    def _before(self, layer: Module, _: Any) -> None:
        if self._running:
            self._inside[layer] = self._swap(layer)

    def _after(self, layer: Module, *_: Any) -> None:
        if self._running:
            self._restore(self._inside.pop(layer, []))

    def _swap(self, layer: Module | None) -> list[int]:
        """Give the parameters that a layer reads other memory, which holds x + step."""
        import torch

        assert self._readers is not None
        numbers = [i for i in self._readers.get(layer, []) if i not in self._swapped]
        spare, used = self._spare, 0
        if self._swapped or self.rounds:  # a layer inside another, which uses the spare memory
            spare = torch.empty(self._size(numbers), dtype=spare.dtype)
        for number in numbers:
            _, tensor, start, stop = self.pieces[number]
            part = spare[used : used + stop - start]
            if tensor.dtype != part.dtype:
                part = torch.empty(stop - start, dtype=tensor.dtype)
            base = torch.from_numpy(self.memory[start:stop])
            add_to(self._step, part, start, base, self._rounding)
            self._swapped[number] = tensor.data
            tensor.data = part.view(tensor.shape)
            used += stop - start
        return numbers

    def _size(self, numbers: Sequence[int]) -> int:
        return sum(self.pieces[number].tensor.numel() for number in numbers)

    def _restore(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.pieces[number].tensor.data = self._swapped.pop(number)


def _readers(
    module: Module, pieces: Sequence[Piece], run: Callable[[], object]
) -> dict[Module, list[int]]:
    """Return the pieces that each layer reads while it runs; None is outside all layers."""
    import torch

    numbers = {id(piece.tensor): number for number, piece in enumerate(pieces)}
    readers: dict[Module, dict[int, None]] = {}
    inside: list[Module] = [None]

    def called(arguments: Any, result: Any) -> None:
        if any(isinstance(part, torch.Tensor) for part in parts_of(result)):  # not a shape
            for part in parts_of(arguments):
                if id(part) in numbers:
                    readers.setdefault(inside[-1], {})[numbers[id(part)]] = None  # in order

    def after(layer: Module, *_: Any) -> None:
        inside.pop()

    observe(run, called, lambda layer, _: inside.append(layer), after)
    return {layer: list(found) for layer, found in readers.items()}


def observe(
    run: Callable[[], T],
    called: Callable[[Any, Any], object],
    before: Callable[[Module, Any], None],
    after: Callable[[Module, Any, Any, Any], None],
) -> T:
    """Return ``run()``, and report every torch function and every layer that it runs.

    ``called(arguments, result)`` is called after each function, and
    ``before(layer, args)`` and ``after(layer, args, kwargs, output)`` around each layer.
    """
    import torch
    from torch.nn.modules import module as hooks

    class Observer(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            called((args, kwargs or {}), result)
            return result

    first = hooks.register_module_forward_pre_hook(before)
    last = hooks.register_module_forward_hook(after, with_kwargs=True, always_call=True)
    try:
        with Observer():
            return run()
    finally:
        first.remove()
        last.remove()


class BatchedModule:
    """A module that runs at several points at once, within ``limit`` bytes."""

    def __init__(
        self,
        module: Module,
        loss: Callable[[Module, Any], Tensor],
        pieces: Sequence[Piece],
        limit: int,
    ) -> None:
        import torch

        class Whole(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.module = module

            def forward(self, batch: Any) -> Tensor:
                return loss(self.module, batch)

        self._whole, self._pieces, self._limit = Whole(), pieces, limit
        self.at_once = 0  # points per pass; known after the first call

    def values(
        self, base: Array, steps: Sequence[DirectionSum | None], batch: Any
    ) -> NDArray[np.float64]:
        """Return the loss of each sample at base + steps[k], shape (k, b)."""
        import torch

        with torch.no_grad():
            if not self.at_once:
                self.at_once = max(1, self._limit // self._bytes_per_point(base, batch))
            values = []
            for first in range(0, len(steps), self.at_once):
                points = self._points(base, steps[first : first + self.at_once])
                values.append(self._run(points, batch).double().cpu().numpy())
        return np.concatenate(values)

    def _points(self, base: Array, steps: Sequence[DirectionSum | None]) -> dict[str, Tensor]:
        import torch

        rows = np.repeat(base[None], len(steps), 0)
        for row, step in zip(rows, steps, strict=True):
            if step is not None:
                step.add_to(row)
        every = torch.from_numpy(rows)
        return {
            f"module.{name}": every[:, start:stop].view(-1, *tensor.shape).to(tensor)
            for name, tensor, start, stop in self._pieces
        }

    def _run(self, points: dict[str, Tensor], batch: Any) -> Tensor:
        import torch

        def at(point: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(self._whole, point, (batch,))

        try:
            return torch.func.vmap(at)(points)
        except (RuntimeError, ValueError) as error:
            message = f"vmap cannot batch the module or its loss: {first_line(error)}"
            raise UsageError(f"batched_memory: {message}", code="not-batchable") from error

    def _bytes_per_point(self, base: Array, batch: Any) -> int:
        """Return the memory of a point: its parameters twice, and the outputs of all layers."""
        import torch

        sizes: list[int] = []

        def left(layer: Module, args: Any, kwargs: Any, out: Any) -> None:
            if not list(layer.children()):
                sizes.extend(p.nbytes for p in parts_of(out) if isinstance(p, torch.Tensor))

        observe(lambda: self._whole(batch), lambda *_: None, lambda *_: None, left)
        return 2 * base.nbytes + sum(sizes)
