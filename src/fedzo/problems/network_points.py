"""Run a torch module at perturbed parameters, and with the quicker number of threads.

:class:`PlainModule` writes each point into the parameters, and x back afterwards.

:class:`InPlaceModule` puts the parameters of a module into one array, x. To run the module at
x + step, each layer is given other memory with its part of x + step just before it runs, and its
own memory back just after. So x never changes, and the memory is that of the largest layer.
Which layer reads which parameter is found by observing one run, because it need not be the layer
that owns the parameter: embeddings are tied, and attention reads the weights of its output layer.

:class:`BatchedModule` runs several points in one pass by ``torch.func.vmap``. If few parameters are
trained, most of the work is then done once for all points.

:class:`FrozenCache` holds the outputs of layers that run before any trained parameter is read: they
are the same for a sample every time. These layers are found by observing one run. In a chain of
frozen layers only the last is cached: a layer whose output only frozen layers read is not run at
all if they are cached.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import MADV_DONTNEED, mmap
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedzo.core.files import in_file
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum
from fedzo.core.updates_torch import DeviceArray, add_to, has_kernels, tensor_of
from fedzo.errors import UsageError, first_line, require
from fedzo.problems.network_inputs import Piece, map_tree, parts_of

Module = Any
Tensor = Any
Tree = Any  # a tensor, or tuples, lists and dictionaries of them
T = TypeVar("T")
Values = NDArray[np.float64]
Losses = Callable[[Any], Values]  # of a batch, with the present parameters of the module


def can_be_in_place(module: Module, pieces: Sequence[Piece]) -> bool:
    """Return whether x can be the module's memory, and layers be observed while they run."""
    import torch

    scripted = any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules())
    return not (_elsewhere(pieces) or scripted or _compiled(module) or _renormed(module))


def _elsewhere(pieces: Sequence[Piece]) -> str:
    """Return the device that x cannot lie on; empty if there is none."""
    devices = {str(piece.tensor.device): piece.tensor.device.type for piece in pieces}
    if len(devices) > 1:
        return ", ".join(devices)
    return next((name for name, kind in devices.items() if kind == "mps"), "")


def _compiled(module: Module) -> bool:
    """Return whether torch.compile hides what a layer of the module reads."""
    return any(
        type(layer).__name__ == "OptimizedModule"  # to import it takes seconds
        or vars(layer).get("_compiled_call_impl") is not None
        for layer in module.modules()
    )


def _renormed(module: Module) -> str:
    """Return the name of a layer that changes its weights while it runs, if there is one."""
    import torch

    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, kinds)]
    return next((name or "module" for name, layer in layers if layer.max_norm is not None), "")


class PlainModule:
    """A module whose parameters are a copy of x, except while it runs at other points."""

    def __init__(self, pieces: Sequence[Piece], dtype: DTypeLike) -> None:
        self.pieces, self._dtype = pieces, dtype
        self._x: Array | None = None  # what the parameters are a copy of
        self._base = np.empty(0, dtype)

    def initial(self) -> Array:
        """Return a copy of the parameters."""
        x = np.empty(self.pieces[-1].stop, self._dtype)
        for _, tensor, start, stop in self.pieces:
            x[start:stop] = tensor.detach().reshape(-1).double().cpu().numpy()
        return x

    def place(self, x: Array) -> None:
        """Write x into the parameters."""
        self._x = x
        self._write(x, None)

    def values(
        self,
        losses: Losses,
        batch: Any,
        x: Array,
        walked: DirectionSum | None,
        steps: Sequence[Any],
        rounding: Draws | None = None,
    ) -> Array:
        """Return the losses of a batch at x + walked + steps[k]; the module then holds x."""
        base, self._x = self.base(x, walked), x
        try:
            return np.array([self._at(losses, batch, base, step, rounding) for step in steps])
        finally:
            self.release()

    def base(self, x: Array, walked: DirectionSum | None) -> Array:
        """Return x + walked, in memory that the next call overwrites."""
        if walked is None:
            return x
        self._base = self._base if self._base.size else np.empty_like(x)
        walked.add_to(self._base, 0, x)
        return self._base

    def _at(self, losses: Losses, batch: Any, *point: Any) -> Values:
        self._write(*point)
        return losses(batch)

    def _write(self, base: Array, step: Any, rounding: Draws | None = None) -> None:
        for _, tensor, start, stop in self.pieces:
            add_to(step, tensor, start, tensor_of(base[start:stop]).to(tensor.device), rounding)

    def release(self) -> None:
        """Leave x in the module, whatever ended a run at another point."""
        if self._x is not None:
            self._write(self._x, None)

    def snapshot(self, x: Array) -> Array:
        """Return x: rounds do not change it."""
        return x

    def to_user(self, x: Array) -> Array:
        """Return a copy of x."""
        return x.copy()


class InPlaceModule:
    """A module whose parameters lie in ``memory``, x, and that runs at points beside them."""

    def __init__(self, module: Module, pieces: Sequence[Piece], dtype: DTypeLike) -> None:
        import torch

        self.module, self.pieces = module, pieces
        allowed = "False: the layers of a module that torch.compile has compiled are not observed"
        require(not _compiled(module), "in_place", True, allowed)
        allowed = f"False: max_norm of the layer {_renormed(module)} would change x"
        require(not _renormed(module), "in_place", True, allowed)
        wrong = _elsewhere(pieces)
        require(not wrong, "in_place", True, f"False for parameters on {wrong}")
        where, kind = pieces[0].tensor.device, torch.from_numpy(np.empty(0, dtype)).dtype
        self._memory = torch.empty(pieces[-1].stop, dtype=kind, device=where)
        self.rounds = False  # whether a parameter has half precision, and x is more precise
        for _, tensor, start, stop in pieces:
            # A storage of its own, or a saved parameter would take the whole memory with it.
            own = torch.from_dlpack(self._memory[start:stop]).view(tensor.shape)
            own.copy_(tensor.detach())
            if tensor.dtype == kind:
                tensor.data = own
            self.rounds |= tensor.dtype != kind
        self.memory: Any = DeviceArray(self._memory)
        if has_kernels(self._memory):
            self.memory = self._memory.numpy()
        self._point: tuple[Any, ...] = ()  # step, base and rounding while the module runs there
        self._readers: dict[Module, list[int]] | None = None
        self._swapped: dict[int, Tensor] = {}  # a swapped piece's own memory
        self._inside: dict[Module, list[int]] = {}  # the swapped pieces of each layer that runs
        self._hooks: list[Any] = []
        self._spare = torch.empty(0)

    def initial(self) -> Array:
        """Return x itself."""
        return self.memory  # type: ignore[no-any-return]

    def place(self, x: Array) -> None:
        """Copy x into the memory, unless it is that."""
        if x is not self.memory:
            _copy(x, self.memory)
        if self.rounds:
            for _, tensor, start, stop in self.pieces:
                add_to(None, tensor, start, self._memory[start:stop])

    def values(
        self,
        losses: Losses,
        batch: Any,
        x: Array,
        walked: DirectionSum | None,
        steps: Sequence[Any],
        rounding: Draws | None = None,
    ) -> Array:
        """Return the losses of a batch at x + walked + steps[k]; the memory does not change."""
        if self._readers is None:
            self._watch(losses, batch)
        base = tensor_of(x)
        sums = [walked.then(s) if walked and s else walked or s for s in steps]
        return np.array([self._at(losses, batch, step, base, rounding) for step in sums])

    def _at(self, losses: Losses, batch: Any, step: Any, base: Tensor, rounding: Any) -> Values:
        if step is None and not self.rounds and base.data_ptr() == self._memory.data_ptr():
            return losses(batch)
        self._point = step, base, rounding
        try:
            self._swap(None)
            return losses(batch)
        finally:
            self._restore(list(self._swapped))
            self._inside.clear()
            self._point = ()

    def snapshot(self, x: Array) -> Array:
        """Return a copy of x in a temporary file, if x is the memory."""
        return in_file(x) if x is self.memory else x

    def to_user(self, x: Array) -> Array:
        """Return x; a copy of x that lies on an accelerator."""
        return x if isinstance(x, np.ndarray) else np.asarray(x)

    def release(self) -> None:
        """Remove the hooks from the module; a later run adds them again."""
        while self._hooks:
            self._hooks.pop().remove()
        self._readers = None

    def _watch(self, losses: Losses, batch: Any) -> None:
        """Run the module once to find which layers read each parameter; add hooks to them."""
        readers = _readers(self.module, self.pieces, lambda: losses(batch))
        read = {number for numbers in readers.values() for number in numbers}
        # An expert that this batch does not use, or what compiled code reads, is not observed: it
        # is perturbed around the whole run.
        hidden = [number for number in range(len(self.pieces)) if number not in read]
        readers[None] = [*readers.get(None, []), *hidden]
        self._readers = readers
        largest = max(map(self._size, readers.values()))
        self._spare = self._memory.new_empty(0 if self.rounds else largest)
        for layer in readers:
            if layer is not None:
                # First and last: hooks of the layer may read its parameters, as weight_norm's do.
                before = layer.register_forward_pre_hook(self._before, prepend=True)
                self._hooks += [before, layer.register_forward_hook(self._after, always_call=True)]

    def _before(self, layer: Module, _: Any) -> None:
        if self._point:
            self._inside[layer] = self._swap(layer)

    def _after(self, layer: Module, *_: Any) -> None:
        if self._point:
            self._restore(self._inside.pop(layer, []))

    def _swap(self, layer: Module | None) -> list[int]:
        """Give the parameters that a layer reads other memory, which holds x + step."""
        assert self._readers is not None
        step, base, rounding = self._point
        numbers = [i for i in self._readers.get(layer, []) if i not in self._swapped]
        spare, used = self._spare, 0
        if self._swapped or self.rounds:  # a layer inside another, which uses the spare memory
            spare = spare.new_empty(self._size(numbers))
        for number in numbers:
            _, tensor, start, stop = self.pieces[number]
            part = spare[used : used + stop - start]
            if tensor.dtype != part.dtype:
                part = part.new_empty(stop - start, dtype=tensor.dtype)
            add_to(step, part, start, base[start:stop].to(part.device), rounding)
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


def _copy(x: Array, target: Array) -> None:
    """Copy x in small parts. If x is a file, release the pages that were read."""
    file: Any = x.base
    for first in range(0, x.size, 1 << 16):
        target[first : first + (1 << 16)] = x[first : first + (1 << 16)]
        if isinstance(file, mmap):
            file.madvise(MADV_DONTNEED)


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


class Call(NamedTuple):
    """One call of a layer, with the times of its begin and end in the observed run."""

    layer: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Tree
    began: int
    ended: int
    read: bool  # whether a trained parameter had been read before it ended


class FrozenCache:
    """A cache of the outputs of frozen layers, within ``limit`` bytes.

    Attributes
    ----------
    layers
        The outermost layers whose outputs are cached.
    skipped
        Frozen layers whose outputs only these read.
    used
        Bytes in the cache. When it is full, further outputs are computed each time.
    """

    def __init__(self, module: Module, pieces: Sequence[Piece], limit: int) -> None:
        self._module, self._pieces, self._limit = module, pieces, limit
        self.layers: list[Module] = []
        self.skipped: list[Module] = []
        self.used = 0
        self._kept: dict[Any, Tree] = {}
        self._watched = False

    @contextmanager
    def answering(self, samples: Sequence[Any]) -> Iterator[None]:
        """Take the outputs of frozen layers from the cache, for a batch with these sample names."""
        numbers = range(len(self.layers))
        if all((number, sample) in self._kept for sample in samples for number in numbers):
            for layer in self.skipped:
                layer.forward = lambda *args, **kwargs: None
        for number, layer in enumerate(self.layers):
            layer.forward = self._answerer(number, layer.forward, samples)
        try:
            yield
        finally:
            for layer in (*self.layers, *self.skipped):
                layer.__dict__.pop("forward", None)

    def watch(self, losses: Callable[[], Any]) -> None:
        """Run the module once to find its frozen layers; later calls do nothing."""
        if self._watched:
            return
        calls, uses, count = _watch(self._module, self._pieces, losses)
        able = [
            call
            for call in calls
            if not call.read
            and sum(call.layer is other.layer for other in calls) == 1
            and _is_by_sample(call, count)
        ]
        outermost = [
            call
            for call in able
            if not any(other.began < call.began and call.ended < other.ended for other in able)
        ]
        seen = {
            part
            for clock, parts in uses
            if not any(call.began <= clock < call.ended for call in outermost)
            for part in parts
        }
        for call in outermost:
            ends = any(id(part) in seen for part in parts_of(call.out))
            (self.layers if ends else self.skipped).append(call.layer)
        self._watched = True
        if not self.layers:
            message = (
                "frozen_memory: no layer runs before the first trained parameter is read and has "
                "one output per sample, so there is nothing to cache; use frozen_memory = 0"
            )
            raise UsageError(message, code="nothing-frozen")

    def _answerer(
        self, number: int, forward: Callable[..., Tree], samples: Sequence[Any]
    ) -> Callable[..., Tree]:
        import torch

        def answer(*args: Any, **kwargs: Any) -> Tree:
            names = [(number, sample) for sample in samples]
            new = [i for i, name in enumerate(names) if name not in self._kept]
            made = {}
            if new:
                some, count = torch.tensor(new), len(samples)
                out = forward(*_rows(args, some, count), **_rows(kwargs, some, count))
                for place, i in enumerate(new):
                    made[names[i]] = _row(out, place)
                    self._keep(names[i], made[names[i]])
            parts = [made[n] if n in made else self._kept[n] for n in names]
            return map_tree(lambda *rows: torch.stack(rows), *parts)

        return answer

    def _keep(self, name: Any, output: Tree) -> None:
        size = sum(part.nbytes for part in parts_of(output))
        if name not in self._kept and self.used + size <= self._limit:
            self._kept[name] = output
            self.used += size


def _watch(
    module: Module, pieces: Sequence[Piece], losses: Callable[[], Any]
) -> tuple[list[Call], list[tuple[int, set[int]]], int]:
    """Return the calls of all layers inside a module, the tensors used at each time, and b."""
    trained = {id(piece.tensor) for piece in pieces}
    clock, read = 0, False
    begun: list[int] = []
    calls: list[Call] = []
    uses: list[tuple[int, set[int]]] = []

    def called(arguments: Any, result: Any) -> None:
        nonlocal read
        parts = {id(part) for part in parts_of(arguments)}
        read = read or bool(parts & trained)
        uses.append((clock, parts))

    def before(layer: Module, _: Any) -> None:
        nonlocal clock
        clock += 1
        begun.append(clock)

    def after(layer: Module, args: Any, kwargs: Any, out: Tree) -> None:
        nonlocal clock
        clock += 1
        calls.append(Call(layer, args, kwargs, out, begun.pop(), clock, read))

    count = len(observe(losses, called, before, after))
    return [call for call in calls if call.layer is not module], uses, count


def _is_by_sample(call: Call, count: int) -> bool:
    """Return whether the output of a layer for a sample is independent of the other samples."""
    import torch

    parts = list(parts_of(call.out))
    if not parts or not all(isinstance(p, torch.Tensor) and p.shape[:1] == (count,) for p in parts):
        return False
    first = torch.tensor([0])
    alone = call.layer(*_rows(call.args, first, count), **_rows(call.kwargs, first, count))
    return all(
        torch.allclose(one[0].double(), many[0].double(), rtol=1e-3, atol=1e-5)
        for one, many in zip(parts_of(alone), parts, strict=True)
    )


def _rows(tree: Tree, rows: Tensor, count: int) -> Tree:
    """Return these rows of every tensor that has one row per sample."""
    import torch

    def some(part: Any) -> Any:
        by_sample = isinstance(part, torch.Tensor) and part.shape[:1] == (count,)
        return part[rows.to(part.device)] if by_sample else part

    return map_tree(some, tree)


def _row(tree: Tree, place: int) -> Tree:
    """Return the output of one sample."""
    return map_tree(lambda part: part[place].clone(), tree)


_FIRST = 6  # passes that are timed in turns before a choice
_CHECK, _SELDOM = 64, 4096  # passes between two checks of the other choice, at least and at most


@dataclass
class _Passes:
    """The passes of one batch size, with one thread (False) and with several (True)."""

    same: bool = False  # whether both choices return the same bits
    count: int = 0
    seconds: dict[bool, float] = field(default_factory=dict)
    check: int = _CHECK
    next_check: int = _FIRST + _CHECK

    def choose(self) -> bool:
        """Return whether the next pass uses several threads."""
        if self.count < _FIRST:
            return self.count % 2 == 0
        best = min(self.seconds, key=self.seconds.__getitem__)
        if self.count < self.next_check:
            return best
        clear = self.seconds[not best] > 1.5 * self.seconds[best]
        self.check = min(2 * self.check, _SELDOM) if clear else _CHECK
        self.next_check = self.count + self.check
        return not best

    def note(self, several: bool, seconds: float) -> None:
        before = self.seconds.get(several, seconds)
        if self.count < _FIRST:
            self.seconds[several] = min(before, seconds)
        else:  # a pass that another program interrupts does not count as many
            self.seconds[several] = 0.7 * before + 0.3 * min(seconds, 4 * before)
        self.count += 1


class ThreadChoice:
    """Runs passes with one thread or with torch's own number, whichever is quicker at the moment.

    Small modules are quicker with one thread, by far if other programs use the cores: threads wait
    for each other at the end of every operation. The first pass of each batch size is run both
    ways. Only if both return the same bits is there a choice, so that a run does not depend on it.
    The other choice is timed again from time to time. Torch's number is restored after each pass.

    Examples
    --------
    >>> import torch
    >>> ThreadChoice().run(4, lambda: np.ones(4))
    array([1., 1., 1., 1.])
    """

    def __init__(self) -> None:
        self._passes: dict[Hashable, _Passes] = {}

    def run(self, size: Hashable, values: Callable[[], Values]) -> Values:
        """Return ``values()``, a pass of a batch of this size."""
        import torch

        most = torch.get_num_threads()
        if most == 1:
            return values()
        passes = self._passes.get((size, most))
        if passes is None:
            first, again = values(), _with_one_thread(values, most)
            equal = np.array_equal(first, again, equal_nan=True)
            self._passes[size, most] = _Passes(same=equal)
            return first
        several = not passes.same or passes.choose()
        began = time.perf_counter()
        found = values() if several else _with_one_thread(values, most)
        passes.note(several, time.perf_counter() - began)
        return found


def _with_one_thread(values: Callable[[], Values], most: int) -> Values:
    import torch

    torch.set_num_threads(1)
    try:
        return values()
    finally:
        torch.set_num_threads(most)
