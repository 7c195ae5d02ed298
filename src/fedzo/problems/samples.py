"""What devices hold: samples in whichever form torch's users have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import InvalidValue, require

Array = NDArray[Any]


def held_by_devices(data: Sequence[Any]) -> list[Samples]:
    """Return what each device holds, from a list with one entry a device.

    >>> import torch
    >>> inputs, labels = torch.zeros(6, 2), torch.zeros(6)
    >>> [len(own) for own in held_by_devices([(inputs[:4], labels[:4]), (inputs[4:], labels[4:])])]
    [4, 2]
    >>> held_by_devices((inputs, labels))
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: data = 'a tuple of tensors': must be a list with one entry a device,
    such as [(inputs, labels)] for one device
    """
    import torch

    allowed = "a list with one entry a device, such as [(inputs, labels)] for one device"
    array = torch.Tensor | np.ndarray
    if isinstance(data, tuple) and any(isinstance(part, array) for part in data):
        raise InvalidValue("data", "a tuple of tensors", allowed)
    if not isinstance(data, list | tuple):  # a data set, say, which has no end that is known
        raise InvalidValue("data", f"a {type(data).__name__}", allowed)
    require(len(data) > 0, "data", data, allowed)
    found = [Samples.of(one) for one in data]
    for device, samples in enumerate(found):
        require(len(samples) > 0, "data", f"no samples of device {device}", "not empty")
    return found


class NamedBatch(NamedTuple):
    """A batch, and what tells its samples from all others."""

    content: Any
    names: list[tuple[int, int]]


@dataclass(frozen=True)
class Samples:
    """A device's samples, and how some of them are put together."""

    items: Any
    collate: Callable[[list[Any]], Any] | None  # None: a tuple of tensors, indexed as a whole

    @classmethod
    def of(cls, data: Any) -> Samples:
        """Return what a device holds, whichever of the forms it has."""
        import torch

        array = torch.Tensor | np.ndarray
        if isinstance(data, tuple) and data and all(isinstance(part, array) for part in data):
            rows = [len(part) for part in data]
            allowed = "tensors with a row for each sample, as many in each of them"
            require(len(set(rows)) == 1, "data", f"tensors of {rows} rows", allowed)
            return cls(tuple(torch.as_tensor(part) for part in data), None)
        if isinstance(data, torch.utils.data.DataLoader):
            return cls(_indexed(data.dataset), data.collate_fn)
        return cls(_indexed(data), torch.utils.data.default_collate)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.items[0]) if self.collate is None else len(self.items)

    def batch(self, which: Array) -> Any:
        """Return some of them as one batch."""
        import torch

        if self.collate is not None:
            return self.collate([self.items[int(i)] for i in which])
        return tuple(part[torch.from_numpy(which).to(part.device)] for part in self.items)


def _indexed(data: Any) -> Any:
    """Return samples that have a number, and that can be asked for by it."""
    import torch

    endless = isinstance(data, torch.utils.data.IterableDataset)
    if endless or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        allowed = "tensors, a data set or a loader for each device, whose samples have numbers"
        raise InvalidValue("data", f"a {type(data).__name__}", allowed)
    return data
