"""What the frozen part of a module makes of a sample, kept so that it is made once.

Layers that are run before any trained parameter is read make the same of a sample every time.
Which these are is found out by watching one run; from then on they answer from what is kept. Of a
chain of them only the end is kept: a layer whose output nobody but frozen layers looks at is not
run at all where they can answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedzo.errors import UsageError
from fedzo.problems.scratch import Piece, parts_of

Module = Any
Tensor = Any
Tree = Any  # a tensor, or tuples, lists and dictionaries of them


class Call(NamedTuple):
    """One run of a layer: what it was given and made, and how far the watching had come."""

    layer: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Tree
    began: int
    ended: int
    read: bool  # whether a trained parameter had been read before it ended


class Frozen:
    """The outputs of frozen layers, sample by sample, in a given number of bytes.

    Attributes
    ----------
    layers
        The layers that answer from what is kept: the outermost that can.
    skipped
        Frozen layers that only these look at.
    used
        Bytes that are kept. When there is no room for more, what is not kept is computed.
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
        """Let the frozen layers answer for the samples of a batch, which names tell apart."""
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
        """Run the module once, to see what is frozen; later calls do nothing."""
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
            raise UsageError(
                "frozen_memory: no layer is run before the first trained parameter is read, "
                "with an output for each sample: there is nothing to keep"
            )

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
            return _stack(parts)

        return answer

    def _keep(self, name: Any, output: Tree) -> None:
        size = sum(part.nbytes for part in parts_of(output))
        if name not in self._kept and self.used + size <= self._limit:
            self._kept[name] = output
            self.used += size


def _watch(
    module: Module, pieces: Sequence[Piece], losses: Callable[[], Any]
) -> tuple[list[Call], list[tuple[int, set[int]]], int]:
    """Return the runs of all layers inside a module, what was looked at when, and b."""
    import torch
    from torch.nn.modules.module import (
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )

    trained = {id(piece.tensor) for piece in pieces}
    state = {"clock": 0, "read": False}
    begun: list[int] = []
    calls: list[Call] = []
    uses: list[tuple[int, set[int]]] = []

    class Watch(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            parts = {id(part) for part in parts_of((args, kwargs or {}))}
            state["read"] |= bool(parts & trained)
            uses.append((state["clock"], parts))
            return function(*args, **(kwargs or {}))

    def before(layer: Module, args: Any) -> None:
        state["clock"] += 1
        begun.append(state["clock"])

    def after(layer: Module, args: Any, kwargs: Any, out: Tree) -> None:
        state["clock"] += 1
        began, read = begun.pop(), bool(state["read"])
        calls.append(Call(layer, args, kwargs, out, began, state["clock"], read))

    hooks = [
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, with_kwargs=True),
    ]
    try:
        with Watch():
            count = len(losses())
    finally:
        for hook in hooks:
            hook.remove()
    return [call for call in calls if call.layer is not module], uses, count


def _is_by_sample(call: Call, count: int) -> bool:
    """Tell whether a layer makes of a sample what it makes of it among others."""
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
    """Return the rows of those samples, of everything that has a row for each."""
    import torch

    def some(part: Any) -> Any:
        by_sample = isinstance(part, torch.Tensor) and part.shape[:1] == (count,)
        return part[rows.to(part.device)] if by_sample else part

    return _map(some, tree)


def _row(tree: Tree, place: int) -> Tree:
    """Return a sample's output by itself."""
    return _map(lambda part: part[place].clone(), tree)


def _map(function: Callable[[Any], Any], tree: Tree) -> Tree:
    if isinstance(tree, tuple | list | dict):
        return _like(tree, [_map(function, part) for part in _children(tree)])
    return function(tree)


def _stack(trees: Sequence[Tree]) -> Tree:
    import torch

    first = trees[0]
    if isinstance(first, tuple | list | dict):
        each = zip(*(_children(tree) for tree in trees), strict=True)
        return _like(first, [_stack(parts) for parts in each])
    return torch.stack(list(trees))


def _children(tree: Tree) -> list[Tree]:
    return list(tree.values() if isinstance(tree, dict) else tree)


def _like(tree: Tree, parts: list[Tree]) -> Tree:
    """Return a container of the same type, be it named as Hugging Face's outputs are, or plain."""
    if isinstance(tree, dict):
        named = dict(zip(tree, parts, strict=True))
        return type(tree)(**named) if type(tree) is not dict else named
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
