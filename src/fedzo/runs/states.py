"""States of algorithms as lists of arrays, which is what a checkpoint holds, and their models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def flatten(state: Any) -> tuple[Array, ...]:
    """Return the arrays of a state, which is an array or a tuple of states.

    >>> flatten((np.array([1.0]), (np.array([2.0]), np.array([3.0]))))
    (array([1.]), array([2.]), array([3.]))
    """
    if not isinstance(state, tuple):
        return (state,)
    return tuple(array for part in state for array in flatten(part))


def unflatten(like: Any, arrays: Sequence[Array]) -> Any:
    """Return the state of the same shape as another that these arrays make."""
    return _filled(like, iter(arrays))


def _filled(like: Any, arrays: Iterator[Array]) -> Any:
    if not isinstance(like, tuple):
        return next(arrays)
    parts = [_filled(part, arrays) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def fingerprint(x: Array) -> str:
    """Return a short name for a model, another one for every other model."""
    return hashlib.sha256(np.ascontiguousarray(x).data).hexdigest()[:16]


def all_finite(x: Array) -> bool:
    """Return whether all numbers of a model are finite, looking at a few at a time.

    >>> all_finite(np.array([1.0, np.inf]))
    False
    """
    flat = x.reshape(-1)
    return all(np.isfinite(flat[i : i + 65536]).all() for i in range(0, flat.size, 65536))
