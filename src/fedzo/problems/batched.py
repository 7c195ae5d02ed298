"""Several points in one batched run of a module, by ``torch.func.vmap``.

Where little is trained, a run at another point repeats most of its work: with the points side by
side, what does not depend on them is run once, and what does is a batched product. The memory that
it takes grows with the number of points in a run, so that is chosen by a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.streams import Combination
from fedzo.errors import UsageError
from fedzo.problems.scratch import Piece, parts_of

Array = NDArray[Any]
Module = Any
Tensor = Any


class Batched:
    """A module that is run at several points at once, within so many bytes."""

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
        self.at_once = 0  # points in a run; known after the first

    def values(
        self, base: Array, steps: Sequence[Combination | None], batch: Any
    ) -> NDArray[np.float64]:
        """Return the loss of each sample at base + steps[k], for each k, (k, b)."""
        import torch

        with torch.no_grad():
            if not self.at_once:
                self.at_once = max(1, self._limit // self._bytes_a_point(base, batch))
            values = []
            for first in range(0, len(steps), self.at_once):
                points = self._points(base, steps[first : first + self.at_once])
                values.append(self._run(points, batch).double().cpu().numpy())
        return np.concatenate(values)

    def _points(self, base: Array, steps: Sequence[Combination | None]) -> dict[str, Tensor]:
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
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"batched_memory: the module or its loss cannot be batched by vmap: {reason}"
            ) from error

    def _bytes_a_point(self, base: Array, batch: Any) -> int:
        """Return what a point takes: its parameters twice, and the outputs of all layers."""
        import torch
        from torch.nn.modules.module import register_module_forward_hook

        sizes: list[int] = []

        def note(layer: Module, args: Any, out: Any) -> None:
            if not list(layer.children()):
                sizes.extend(p.nbytes for p in parts_of(out) if isinstance(p, torch.Tensor))

        hook = register_module_forward_hook(note)
        try:
            self._whole(batch)
        finally:
            hook.remove()
        return 2 * base.nbytes + sum(sizes)
