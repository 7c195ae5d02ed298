"""A function or an objective and a start, as a caller gives them, checked to fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.capabilities import InPlace
from fedzo.core.objective import Objective, check_objective, name_of
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
        check_objective(fun, "fun is")
        if options:
            key, value = next(iter(options.items()))
            raise InvalidValue(
                key, value, "omitted: it is for plain functions, and fun is an Objective"
            )
        if devices not in (None, fun.devices):
            raise InvalidValue(
                "devices", devices, f"{fun.devices}, as the objective has it, or omitted"
            )
        for key, count in (("dim", fun.dim), ("devices", fun.devices)):
            try:
                check_count(key, count)
            except InvalidValue as error:
                raise UsageError(f"{name_of(fun)}: {error}") from error
        start = _start(fun, x0)
        if x0 is None and start.size != fun.dim:
            raise UsageError(
                f"{name_of(fun)}: initial() has {start.size} numbers, dim is {fun.dim}"
            )
        allowed = f"of the objective's dimension, {fun.dim}"
        require(start.size == fun.dim, "x0", f"an array of {start.size}", allowed)
        return fun, start
    if not callable(fun) or isinstance(fun, type):
        what = "a class" if isinstance(fun, type) else f"an object of type {type(fun).__name__}"
        raise UsageError(
            f"fun is {what}, {name_of(fun)}: it must be a function of (x, device), or an object of "
            "a subclass of fedzo.Objective"
        )
    if x0 is None:
        raise InvalidValue("x0", None, "given: a function has no starting point of its own")
    if devices is None:
        raise InvalidValue("devices", None, "given: a function does not tell how many there are")
    check_count("devices", devices)
    start = checked_start(x0)
    objective = FunctionObjective(fun, start.size, devices, **options)
    return objective, objective.encode(start)


def _start(objective: Objective, x0: ArrayLike | None) -> Array:
    """Return where a run starts: a copy, or the problem's own memory where x is moved in place."""
    if objective.capability(InPlace) is None:
        return checked_start(objective.initial() if x0 is None else x0)
    start = objective.initial()
    if x0 is not None:
        given = checked_start(x0)
        allowed = f"of the objective's dimension, {start.size}"
        require(given.size == start.size, "x0", f"an array of {given.size}", allowed)
        start[:] = given
    return start


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
