"""A record of named arrays as one vector, and back: what Flower calls a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedzo.errors import InvalidValue

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Named arrays, of which those of floats are optimised, in their order, as one vector.

    Others, such as a count of batches, stay as they are.

    Examples
    --------
    >>> arrays = {"weight": np.ones((2, 3), np.float32), "count": np.array(7)}
    >>> layout = Layout.of(ArrayRecord({k: FlowerArray(v) for k, v in arrays.items()}))
    >>> layout.vector().shape, layout.record(np.zeros(6))["weight"].numpy().shape
    ((6,), (2, 3))
    """

    arrays: Mapping[str, Array]

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """Return the layout of a record."""
        arrays = {name: np.asarray(array.numpy()) for name, array in record.items()}
        if not any(_is_float(array) for array in arrays.values()):
            raise InvalidValue("initial_arrays", f"{len(arrays)} arrays", "arrays of floats")
        return cls(arrays)

    def vector(self) -> Array:
        """Return all floats as one vector."""
        return np.concatenate([a.reshape(-1) for a in self.arrays.values() if _is_float(a)])

    def record(self, x: Array) -> ArrayRecord:
        """Return a vector as a record of the same names, shapes and types."""
        made, at = {}, 0
        for name, array in self.arrays.items():
            if _is_float(array):
                own = x[at : at + array.size].reshape(array.shape).astype(array.dtype)
                made[name], at = FlowerArray(np.ascontiguousarray(own)), at + array.size
            else:
                made[name] = FlowerArray(array)
        return ArrayRecord(made)


def _is_float(array: Array) -> bool:
    return bool(np.issubdtype(array.dtype, np.floating))
