"""A record of named arrays as one vector, and back: what Flower calls a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedzo.errors import InvalidValue, nearest, require

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Named arrays, of which some are optimised, in their order, as one vector.

    The others, such as a count of batches, stay as they are.

    Examples
    --------
    >>> arrays = {"weight": np.ones((2, 3), np.float32), "count": np.array(7)}
    >>> layout = Layout.of(ArrayRecord({k: FlowerArray(v) for k, v in arrays.items()}))
    >>> layout.vector().shape, layout.record(np.zeros(6))["weight"].numpy().shape
    ((6,), (2, 3))
    """

    arrays: Mapping[str, Array]
    trained: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Sequence[str] | None = None) -> Layout:
        """Return the layout of a record.

        ``trainable`` are names of arrays, or patterns of them; None: all arrays of floats.
        """
        arrays = {name: np.asarray(array.numpy()) for name, array in record.items()}
        floats = [name for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating)]
        if not floats:
            raise InvalidValue("initial_arrays", f"{len(arrays)} arrays", "arrays of floats")
        for pattern in trainable or ():
            allowed = f"the name of an array or a pattern that one has{nearest(pattern, floats)}"
            fits = any(fnmatchcase(name, pattern) for name in floats)
            require(fits, "trainable", pattern, allowed)
        wanted = ["*"] if trainable is None else trainable
        trained = (name for name in floats if any(fnmatchcase(name, one) for one in wanted))
        return cls(arrays, tuple(trained))

    def vector(self) -> Array:
        """Return what is optimised as one vector."""
        return np.concatenate([self.arrays[name].reshape(-1) for name in self.trained])

    def record(self, x: Array) -> ArrayRecord:
        """Return a vector as a record of the same names, shapes and types."""
        made, at = {}, 0
        for name, array in self.arrays.items():
            if name in self.trained:
                own = x[at : at + array.size].reshape(array.shape).astype(array.dtype)
                made[name], at = FlowerArray(np.ascontiguousarray(own)), at + array.size
            else:
                made[name] = FlowerArray(array)
        return ArrayRecord(made)
