"""A Flower app's configuration as an experiment: ``algorithm.local-steps`` is ``[algorithm]``'s.

Flower's run configuration is flat, in kebab case, and has no null. So a dotted key is a table
and a key of a fedzo configuration, with ``_`` for ``-``; an empty string is a setting left at
its default; ``config`` names a configuration to start from, a file or one that ships. Flower
refuses a key that the app does not declare, and does not say which: ``set`` is one that is
declared, and holds any others, as ``fedzo run --set`` takes them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flwr.app import Context

from fedzo.config.experiment import Experiment, merge_changes, parse_overrides
from fedzo.core.objective import Objective
from fedzo.errors import UsageError
from fedzo.problems import PROBLEMS

OWN = ("config", "run-dir", "resume", "set")  # what is for the app, not for the experiment
HELD_BY_NODES = "its problem is held by Flower's nodes"


def experiment_of(run_config: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a run configuration describes.

    >>> settings = {"config": "quadratic", "algorithm.local-steps": 2, "run.target": ""}
    >>> experiment_of(settings).algorithm.local_steps
    2
    >>> experiment_of({**settings, "set": "run.rounds=7 algorithm.directons=3"})
    Traceback (most recent call last):
    fedzo.errors.UsageError: algorithm.directons = 3: unknown key (did you mean 'directions'?); ...
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, value in run_config.items():
        if key in OWN or value == "":
            continue
        table, dot, name = key.replace("-", "_").partition(".")
        if not dot:
            raise UsageError(f"{key} = {value!r}: must be a table and a key, like run.rounds")
        tables.setdefault(table, {})[name] = value
    pairs = (each.partition("=") for each in shlex.split(str(run_config.get("set", ""))))
    more = parse_overrides(k.replace("-", "_") + equals + v for k, equals, v in pairs)
    if "name" in more.get("problem", {}):
        raise UsageError("set: give problem.name as a key of its own: the nodes read it too")
    tables = merge_changes(tables, more)
    problem = tables.get("problem", {})
    if ":" not in str(problem.get("name")):
        return _resolve(run_config.get("config"), tables)
    # A problem of the nodes' own: the server need not have it, and imports nothing of it.
    stand_in = {**tables, "problem": {"name": next(iter(PROBLEMS))}}
    made = _resolve(run_config.get("config"), stand_in)
    described = {**made.tables, "problem": {**problem, "python_only": HELD_BY_NODES}}
    return replace(made, tables=described, problem=_held_by_nodes)


def _resolve(source: Any, tables: Mapping[str, Mapping[str, Any]]) -> Experiment:
    return Experiment.load(str(source), tables) if source else Experiment.resolve(tables)


def _held_by_nodes() -> Objective:
    raise UsageError(HELD_BY_NODES)


@dataclass(frozen=True)
class ProblemOf:
    """Makes the problem of a resolved configuration, given as JSON, whatever the context.

    It is made once in each process. This module, which a simulation's workers import for it,
    must not import Flower's simulation engine: they would wait for themselves.
    """

    tables: str

    def __call__(self, context: Context) -> Objective:
        """Return the problem."""
        return _resolved(self.tables)


@lru_cache(maxsize=1)
def _resolved(tables: str) -> Objective:
    return Experiment.resolve(json.loads(tables)).problem()
