"""What was given in Python, as the tables of a configuration that makes it again.

Where no configuration can, ``python_only`` in its [problem] says why, and it is refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms import Algorithm
from fedzo.core.importing import own_folder
from fedzo.core.objective import Objective, is_plain, name_of
from fedzo.problems import PROBLEMS, FunctionObjective
from fedzo.runs.inputs import checked_start
from fedzo.runs.options import RunOptions
from fedzo.runs.parts import describe_parts, has_server
from fedzo.uplinks import Uplink

Array = NDArray[Any]
NOT_IMPORTABLE = "is defined where no other program can import it"


def describe_job(
    algorithm: Algorithm, uplink: Uplink, run: RunOptions, problem: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the tables of a configuration for what was given in Python.

    Examples
    --------
    >>> from fedzo import FedZO, Ideal
    >>> tables = describe_job(FedZO(), Ideal(), RunOptions(rounds=3), {"name": "quadratic"})
    >>> tables["problem"], tables["run"]["rounds"]
    ({'name': 'quadratic'}, 3)
    """
    described = {key: value for key, value in problem.items() if key != "seed"}
    parts = describe_parts(algorithm, uplink)
    table = {field.name: getattr(run, field.name) for field in fields(run)}
    if "seed" in problem:  # a configuration has it under another name
        table["data_seed"] = problem["seed"]
    reason = _why_not_again("algorithm", algorithm) or _why_not_again("uplink", uplink)
    if reason and "python_only" not in problem:
        described["python_only"] = reason
    names = [str(keys.get("name", keys.get("kind"))) for keys in (described, *parts.values())]
    folders = {own_folder(name.partition(":")[0]) for name in names if ":" in name} - {None}
    if len(folders) == 1:
        table["modules"] = str(folders.pop())
    return {"problem": described, **parts, "run": table}


def describe_problem(fun: object, objective: Objective, start: Array) -> dict[str, Any]:
    """Return the [problem] table of a problem that was given in Python.

    Examples
    --------
    >>> from fedzo.problems import Quadratic
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
    own, maker, initial = objective.factory_kwargs, _found(objective.factory), objective.initial()
    plain = {key: value for key, value in own.items() if is_plain(value)}
    table = {"name": names.get(objective.factory, objective.factory), **plain}
    if maker is None:
        reason = f"its problem {NOT_IMPORTABLE}"
    elif lost := [key for key, value in own.items() if not _comes_back(key, value, maker)]:
        reason = f"its problem was made with {', '.join(lost)} in Python"
    elif start.dtype != checked_start(initial).dtype or not np.array_equal(
        start, np.asarray(initial)
    ):
        reason = "its x0 was given in Python"
    else:
        return table
    return {**table, "dim": objective.dim, "devices": objective.devices, "python_only": reason}


def _why_not_again(table: str, part: Any) -> str:
    """Return why a part cannot be made from its table, in words; nothing if it can."""
    what = {"server": "server step"}.get(table, table)
    kind = _found(name_of(type(part)))
    if kind is None:
        return f"its {what} {NOT_IMPORTABLE}"
    own = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    server = own.pop("server") if table == "algorithm" and has_server(kind) else None
    if lost := [key for key, value in own.items() if not _comes_back(key, value, kind)]:
        return f"its {what} was made with {', '.join(lost)} in Python"
    return "" if server is None else _why_not_again("server", server)


def _found(name: str) -> Any:
    """Return what another program finds under a name too, None if it finds nothing."""
    module, _, attribute = name.partition(":")
    return None if module == "__main__" else getattr(sys.modules.get(module), attribute, None)


def _comes_back(key: str, value: object, maker: Any) -> bool:
    """Return whether an argument is the same when it was written to TOML, which has no null."""
    if is_plain(value) and not _holds_none(value):
        return True
    parameter = inspect.signature(maker).parameters.get(key)
    return parameter is not None and parameter.default is value


def _holds_none(value: object) -> bool:
    return any(map(_holds_none, value)) if isinstance(value, list | tuple) else value is None
