"""What a caller hands over, a function or an objective and a start, checked to fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.objective import Objective, initial_of, missing, name_of
from fedzo.errors import InvalidValue, UsageError, check_count, require
from fedzo.problems.function import FunctionObjective, FunctionOptions

Array = NDArray[Any]


def as_objective(
    fun: Callable[[Array, int], Any] | Objective,
    x0: ArrayLike | None,
    devices: int | None,
    options: FunctionOptions,
) -> tuple[Objective, Array]:
    """Return a function or objective as an objective, and where to start, checked to agree."""
    if isinstance(fun, Objective):
        if options:
            key, value = next(iter(options.items()))
            raise InvalidValue(key, value, "left out: it is for plain functions, not an Objective")
        if devices not in (None, fun.devices):
            raise InvalidValue("devices", devices, f"left out, or the objective's {fun.devices}")
        for key, count in (("dim", fun.dim), ("devices", fun.devices)):
            try:
                check_count(key, count)
            except InvalidValue as error:
                raise UsageError(f"{name_of(fun)}: {error}") from error
        start = checked_start(initial_of(fun) if x0 is None else x0)
        if x0 is None and start.size != fun.dim:
            raise UsageError(
                f"{name_of(fun)}: initial() has {start.size} numbers, dim is {fun.dim}"
            )
        allowed = f"of the objective's dimension, {fun.dim}"
        require(start.size == fun.dim, "x0", f"an array of {start.size}", allowed)
        return fun, start
    if not callable(fun) or isinstance(fun, type):
        raise UsageError(f"{name_of(fun)} is neither a function nor an Objective{missing(fun)}")
    if x0 is None:
        raise InvalidValue("x0", None, "given: a function has no starting point of its own")
    if devices is None:
        raise InvalidValue("devices", None, "given: a function does not tell how many there are")
    check_count("devices", devices)
    start = checked_start(x0)
    objective = FunctionObjective(fun, start.size, devices, **options)
    return objective, objective.encode(start)


def checked_start(x0: ArrayLike) -> Array:
    """Return a copy of a starting point, in float32 or float64, checked to be a finite vector."""
    start = np.array(x0)  # a copy: nobody else writes to it
    if start.dtype not in (np.float32, np.float64):
        require(start.dtype.kind in "biuf", "x0", x0, "an array of real numbers")
        start = start.astype(np.float64)
    shape = f"an array of shape {start.shape}"
    require(start.ndim == 1 and start.size > 0, "x0", shape, "one-dimensional and not empty")
    require(bool(np.isfinite(start).all()), "x0", "an array", "finite")
    return start
