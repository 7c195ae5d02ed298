"""Run a torch module at perturbed parameters, and with the quicker number of threads.

To run a module at x + step, its parameters are given other memory, which holds x + step, and their
own memory back afterwards. So the module holds x whatever ends the run.

In place, the parameters of a module lie in one array, x, and each layer is given the other memory
just before it runs, and its own memory back just after. So no second copy of x is held, only that
of the largest layer. Which layer reads which parameter is found by observing one run, because it
need not be the layer that owns the parameter: embeddings are tied, and attention reads the weights
of its output layer.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import MADV_DONTNEED, mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedzo.core.files import in_file
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum
from fedzo.core.updates_torch import DeviceArray, add_to, has_kernels, tensor_of
from fedzo.errors import UsageError, require
from fedzo.problems.network_inputs import Piece, parts_of

Module = Any
Tensor = Any
Values = NDArray[np.float64]
Losses = Callable[[Any], Values]  # of a batch, with the present parameters of the module


def why_not_in_place(pieces: Sequence[Piece]) -> str:
    """Return why x cannot be the memory of the parameters; empty if it can."""
    devices = {str(piece.tensor.device) for piece in pieces}
    possible = len(devices) == 1 and pieces[0].tensor.device.type != "mps"
    return "" if possible else f"the parameters are on {', '.join(sorted(devices))}"


class ModulePoints:
    """A module that holds x, and runs at other points.

    In place, ``memory`` is x: the memory of the parameters, or a float32 copy of parameters in half
    precision. Otherwise it is None, and the parameters are a copy of x.
    """

    def __init__(
        self, module: Module, pieces: Sequence[Piece], dtype: DTypeLike, in_place: bool
    ) -> None:
        import torch

        self.module, self.pieces, self._dtype = module, pieces, dtype
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        self.rounds = any(piece.tensor.dtype != kind for piece in pieces)
        self._changes = False  # whether the module changes its parameters while it runs
        self._watched = False
        self.memory: Any = None
        self._held: Any = None  # the last x that was placed
        self._base = np.empty(0, dtype)
        self._spare = pieces[0].tensor.new_empty(0)
        self._point: tuple[Any, ...] = ()  # step, base and rounding while the module runs there
        self._readers: dict[Module, list[int]] | None = None
        self._swapped: dict[int, Tensor] = {}  # a swapped piece's own memory
        self._inside: dict[Module, list[int]] = {}  # the swapped pieces of each layer that runs
        self._hooks: list[Any] = []
        if not in_place:
            return
        why = why_not_in_place(pieces)
        require(not why, "in_place", True, f"False: {why}")
        memory = self._spare.new_empty(pieces[-1].stop, dtype=kind)
        for _, tensor, start, stop in pieces:
            # A storage of its own, or a saved parameter would take the whole memory with it.
            own = torch.from_dlpack(memory[start:stop]).view(tensor.shape)
            own.copy_(tensor.detach())
            if tensor.dtype == kind:
                tensor.data = own
        self.memory = memory.numpy() if has_kernels(memory) else DeviceArray(memory)

    def initial(self) -> Array:
        """Return x itself if in place, or else a copy of the parameters."""
        if self.memory is not None:
            return self.memory  # type: ignore[no-any-return]
        x = np.empty(self.pieces[-1].stop, self._dtype)
        for _, tensor, start, stop in self.pieces:
            x[start:stop] = tensor.detach().reshape(-1).double().cpu().numpy()
        return x

    def place(self, x: Array) -> None:
        """Write x into the module."""
        self._held = x
        if self.memory is not None:
            if x is not self.memory:
                _copy(x, self.memory)
            x = self.memory
        if self.memory is None or self.rounds:
            for _, tensor, start, stop in self.pieces:
                add_to(None, tensor, start, tensor_of(x[start:stop]).to(tensor.device))

    def values(
        self,
        losses: Losses,
        batch: Any,
        x: Array,
        walked: DirectionSum | None = None,
        steps: Sequence[Any] = (None,),
        rounding: Draws | None = None,
    ) -> Array:
        """Return the losses of a batch at x + walked + steps[k]; the module does not change."""
        if not self._watched:
            self._watch(lambda: losses(batch))
        if walked is not None and self.memory is None:
            self._base = self._base if self._base.size else np.empty_like(x)
            walked.add_to(self._base, 0, x)
            x = self._base
        elif walked is not None:
            steps = [walked if step is None else walked.then(step) for step in steps]
        found = []
        for step in steps:
            with self.at(x, step, rounding):
                found.append(losses(batch))
        return np.array(found)

    @contextmanager
    def at(
        self, x: Array, step: Any = None, rounding: Draws | None = None, *, whole: bool = False
    ) -> Iterator[None]:
        """Let the module be at x + step: each layer while it runs, or the ``whole`` module."""
        random = self.rounds and rounding is not None
        if step is None and x is self._held and not (random or self._changes):
            yield
            return
        try:
            self._point = step, tensor_of(x), rounding
            self._swap(range(len(self.pieces)) if whole else self._readers_of(None))
            yield
        finally:
            self._restore()

    def snapshot(self, x: Array) -> Array:
        """Return a copy of x in a temporary file, if x is the memory."""
        return in_file(x) if x is self.memory else x

    def to_user(self, x: Array) -> Array:
        """Return a copy of x in main memory; x itself in place, if it is there."""
        if self.memory is None:
            return x.copy()
        return x if isinstance(x, np.ndarray) else np.asarray(x)

    def release(self) -> None:
        """Leave x in the module and remove the hooks; a later run adds them again."""
        self._restore()
        while self._hooks:
            self._hooks.pop().remove()
        self._readers, self._watched = None, False

    def _watch(self, run: Callable[[], object]) -> None:
        """Run the module once to find what changes parameters, and which layers read them."""
        start = self.snapshot(self.initial())
        before = [piece.tensor._version for piece in self.pieces]
        layers = list(self.module.modules())
        # To import OptimizedModule takes seconds.
        compiled = any(
            type(layer).__name__ == "OptimizedModule"
            or vars(layer).get("_compiled_call_impl") is not None
            for layer in layers
        )
        try:
            if self.memory is None or compiled:  # compiled code cannot be observed
                run()
            else:
                self._readers = _readers(self.module, self.pieces, run)
        finally:
            self._changes = before != [piece.tensor._version for piece in self.pieces]
            if self._changes:
                self.place(start)
            own = dict(self.module.named_parameters())
            replaced = [piece for piece in self.pieces if own.get(piece.name) is not piece.tensor]
            for name, tensor, _, _ in replaced:
                layer, _, key = name.rpartition(".")
                setattr(self.module.get_submodule(layer), key, tensor)
        if replaced:
            message = f"the module replaces its parameter {replaced[0].name} while it runs"
            raise UsageError(f"{message}: change its numbers instead", code="replaces")
        self._watched = True
        for layer in self._readers or ():
            if layer is not None:
                # First and last: hooks of the layer may read its parameters, as weight_norm's do.
                before = layer.register_forward_pre_hook(self._before, prepend=True)
                self._hooks += [before, layer.register_forward_hook(self._after, always_call=True)]

    def _readers_of(self, layer: Module) -> Sequence[int]:
        return range(len(self.pieces)) if self._readers is None else self._readers[layer]

    def _before(self, layer: Module, _: Any) -> None:
        if self._point:
            self._inside[layer] = self._swap(self._readers_of(layer))

    def _after(self, layer: Module, *_: Any) -> None:
        if self._point:
            self._give_back(self._inside.pop(layer, []))

    def _swap(self, numbers: Sequence[int]) -> list[int]:
        """Give pieces other memory, which holds x + step."""
        step, base, rounding = self._point
        numbers = [i for i in numbers if i not in self._swapped]
        spare, used, size = self._spare, 0, sum(self._size(number) for number in numbers)
        if self._swapped:  # a layer inside another, which uses the spare memory
            spare = spare.new_empty(size)
        elif spare.numel() < size:
            spare = self._spare = spare.new_empty(size)
        for number in numbers:
            _, tensor, start, stop = self.pieces[number]
            part = spare[used : used + self._size(number)]
            used += part.numel()
            if not part.numel():
                part = tensor.new_empty(stop - start)
            add_to(step, part, start, base[start:stop].to(part.device), rounding)
            self._swapped[number] = tensor.data
            tensor.data = part.view(tensor.shape)
        return numbers

    def _size(self, number: int) -> int:
        """Return how much of the spare memory a piece takes: none if its type differs."""
        tensor = self.pieces[number].tensor
        fits = (tensor.dtype, tensor.device) == (self._spare.dtype, self._spare.device)
        return int(tensor.numel()) if fits else 0

    def _give_back(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.pieces[number].tensor.data = self._swapped[number]
            del self._swapped[number]

    def _restore(self) -> None:
        """Give all pieces their own memory back."""
        self._give_back(list(self._swapped))
        self._inside.clear()
        self._point = ()


def _readers(
    module: Module, pieces: Sequence[Piece], run: Callable[[], object]
) -> dict[Module, list[int]]:
    """Return the pieces that each layer reads while it runs; None is outside all layers.

    Outside is also a piece that no layer was seen to read, such as that of an expert that this
    batch does not use, or what compiled code reads: it is perturbed around the whole run.
    """
    import torch
    from torch.nn.modules import module as hooks

    numbers = {id(piece.tensor): number for number, piece in enumerate(pieces)}
    readers: dict[Module, dict[int, None]] = {None: {}}  # numbers in order
    inside: list[Module] = [None]

    class Observer(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            if any(isinstance(part, torch.Tensor) for part in parts_of(result)):  # not a shape
                read = [numbers[id(one)] for one in parts_of((args, kwargs)) if id(one) in numbers]
                readers.setdefault(inside[-1], {}).update(dict.fromkeys(read))
            return result

    def after(*_: Any) -> None:
        inside.pop()

    first = hooks.register_module_forward_pre_hook(lambda layer, _: inside.append(layer))
    last = hooks.register_module_forward_hook(after, always_call=True)
    try:
        with Observer():
            run()
    finally:
        first.remove()
        last.remove()
    seen = {number for found in readers.values() for number in found}
    readers[None] |= dict.fromkeys(set(range(len(pieces))) - seen)
    return {layer: list(found) for layer, found in readers.items() if found or layer is None}


def _copy(x: Array, target: Array) -> None:
    """Copy x in small parts. If x is a file, release the pages that were read."""
    file: Any = x.base
    for first in range(0, x.size, 1 << 16):
        target[first : first + (1 << 16)] = x[first : first + (1 << 16)]
        if isinstance(file, mmap):
            file.madvise(MADV_DONTNEED)


_FIRST = 6  # passes that are timed in turns before a choice
_SELDOM = 4096  # passes between two checks of the other choice, at most


@dataclass
class _Passes:
    """The passes of one batch size, by the number of threads."""

    choices: Sequence[int]
    seconds: dict[int, float] = field(default_factory=dict)
    count: int = 0
    next_check: int = 64

    def choose(self) -> int:
        """Return the number of threads for the next pass."""
        if self.count < _FIRST:
            return self.choices[self.count % len(self.choices)]
        best = min(self.seconds, key=self.seconds.__getitem__)
        if self.count < self.next_check:
            return best
        self.next_check += min(self.count, _SELDOM)
        return next((other for other in self.choices if other != best), best)

    def note(self, threads: int, seconds: float) -> None:
        """Take down the time of a pass."""
        before = self.seconds.get(threads, seconds)
        if self.count < _FIRST:
            self.seconds[threads] = min(before, seconds)
        else:  # a pass that another program interrupts does not count as many
            self.seconds[threads] = 0.7 * before + 0.3 * min(seconds, 4 * before)
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
        if (size, most) not in self._passes:
            first, again = values(), _with_threads(1, values)
            same = np.array_equal(first, again, equal_nan=True)
            self._passes[size, most] = _Passes((most, 1) if same else (most,))
            return first
        passes = self._passes[size, most]
        threads, began = passes.choose(), time.perf_counter()
        found = _with_threads(threads, values)
        passes.note(threads, time.perf_counter() - began)
        return found


def _with_threads(threads: int, values: Callable[[], Values]) -> Values:
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        return values()
    finally:
        torch.set_num_threads(before)
