"""What a caller hands over, a function or an objective and a start, checked to fit together."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.objective import Objective, check_objective, is_plain, name_of
from fedzo.errors import InvalidValue, UsageError, check_count, require
from fedzo.problems import PROBLEMS
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
    if not objective.in_place:
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


def describe_problem(fun: object, objective: Objective, start: Array) -> dict[str, Any]:
    """Return the [problem] table of a problem that was given in Python.

    Running a configuration with this table makes the same problem again. Where that cannot be,
    ``python_only`` says why, and such a configuration is refused.

    >>> from fedzo.problems.quadratic import Quadratic
    >>> problem = Quadratic(dim=3, gradient_noise=0.5)
    >>> table = describe_problem(problem, problem, problem.initial())
    >>> table["name"], table["gradient_noise"]
    ('quadratic', 0.5)
    >>> describe_problem(problem, problem, np.ones(3))["python_only"]
    'its x0 was given in Python'
    """
    if isinstance(objective, FunctionObjective):
        table: dict[str, Any] = {"name": name_of(fun), "dim": objective.dim}
        table |= {"devices": objective.devices, "max_queries": objective.meter.max_queries}
        if objective.box is not None:
            table["bounds"] = objective.box.pairs()
        if objective.logarithm is not None:
            table["scale"] = objective.logarithm.names
        if objective.scale is not None:
            table["x_scale"] = objective.scale.tolist()
        return table | {"python_only": "its problem is a function that was given in Python"}
    names = {factory: name for name, factory in PROBLEMS.items()}
    own, maker, initial = objective.made_with, _maker(objective), np.asarray(objective.initial())
    plain = {key: value for key, value in own.items() if is_plain(value)}
    table = {"name": names.get(objective.made_by, objective.made_by), **plain}
    if maker is None:
        reason = "its problem is defined where no other program can import it"
    elif lost := [key for key, value in own.items() if not _comes_back(key, value, maker)]:
        reason = f"its problem was made with {', '.join(lost)} in Python"
    elif start.dtype != checked_start(initial).dtype or not np.array_equal(start, initial):
        reason = "its x0 was given in Python"
    else:
        return table
    return {**table, "dim": objective.dim, "devices": objective.devices, "python_only": reason}


def _maker(objective: Objective) -> Any:
    """Return what made the objective, where another program finds it under its name too."""
    module, _, name = objective.made_by.partition(":")
    return None if module == "__main__" else getattr(sys.modules.get(module), name, None)


def _comes_back(key: str, value: object, maker: Any) -> bool:
    """Tell whether an argument is the same when it was written to TOML, which has no null."""
    if is_plain(value) and not _holds_none(value):
        return True
    parameter = inspect.signature(maker).parameters.get(key)
    return parameter is not None and parameter.default is value


def _holds_none(value: object) -> bool:
    return any(map(_holds_none, value)) if isinstance(value, list | tuple) else value is None
