"""States of algorithms as lists of arrays: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


def flatten(state: Any) -> tuple[Array, ...]:
    """Return the arrays of a state, which is an array or a tuple of states.

    >>> import numpy as np
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
