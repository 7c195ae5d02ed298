"""Cache the outputs of the frozen layers of a torch module, sample by sample.

A layer that runs before any trained parameter is read has the same output for a sample every time.
These layers are found by observing one run. From then on their outputs come from the cache. In a
chain of frozen layers only the last is cached: a layer whose output only frozen layers read is not
run at all if they are cached.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedzo.errors import UsageError
from fedzo.problems.network_inputs import Piece, map_tree, parts_of
from fedzo.problems.network_points import observe

Module = Any
Tensor = Any
Tree = Any  # a tensor, or tuples, lists and dictionaries of them


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
