"""Configurations: read TOML, check every setting, and return an experiment that can run.

The keys of a table are the parameters of the part that the table makes: ``[algorithm]`` has those
of the class that ``name`` names, ``[uplink]`` and ``[server]`` likewise, ``[problem]`` has those of
the problem's factory, and ``[run]`` those of
:class:`RunOptions`. There is no second list of keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedzo.algorithms import Algorithm
from fedzo.core.engine import LocalEngine
from fedzo.core.files import read_toml, typed
from fedzo.core.importing import import_path
from fedzo.core.objective import Objective, check_objective
from fedzo.errors import (
    TABLES,
    FedzoError,
    ModelError,
    UsageError,
    naming,
    nearest,
    one_of,
    require,
    shown,
)
from fedzo.runs.loop import Job, check_parts
from fedzo.runs.minimize import Backend, as_objective, perform
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import (
    COMPONENTS,
    arguments_of,
    make,
    make_parts,
    maker,
    names_of,
    parameters_of,
    suggest,
)
from fedzo.runs.result import Callbacks, Result, as_watchers
from fedzo.uplinks import Uplink
from fedzo.uplinks.base import RunSetting

Tables = dict[str, dict[str, Any]]
Changes = Mapping[str, Mapping[str, Any]]  # new values, by table and key

_SHIPPED: Any = files("fedzo.config") / "shipped"


@dataclass(frozen=True)
class Experiment:
    """A checked configuration.

    ``tables`` holds every setting, defaults included, as ``config.toml`` of a run does.

    Examples
    --------
    >>> changes = {"run": {"rounds": 20}, "algorithm": {"local_steps": 2}}
    >>> experiment = Experiment.load("quadratic", changes)
    >>> experiment.algorithm.local_steps, experiment.options.rounds
    (2, 20)
    >>> result = experiment.run()
    >>> result.nit
    20
    """

    name: str
    tables: Tables
    problem: Callable[[], Objective]
    algorithm: Algorithm
    uplink: Uplink
    options: RunOptions
    flower: FlowerSettings

    @classmethod
    def load(cls, source: str, changes: Changes | None = None) -> Experiment:
        """Read a configuration, change some of its settings, and check the result.

        Parameters
        ----------
        source : str
            A TOML file, the folder of a run, or the name of a shipped configuration.
        changes : mapping, optional
            New values by table and key, such as ``{"run": {"rounds": 20}}``. A change of the name
            of a part drops the settings that only the old part has: FedAvg has no smoothing.
        """
        path = _find(source)
        tables = read_toml(path)
        run = tables.setdefault("run", {})
        if isinstance(run, dict):  # custom parts may lie beside the configuration
            import_path(Path(str(run.get("modules") or path.parent)))
        _apply(changes or {}, tables)
        parts = [keys for keys in tables.values() if isinstance(keys, dict)]
        custom = any(":" in name for keys in parts for name in names_of(keys))
        if isinstance(run, dict) and custom:  # parts as ``module:name``
            run.setdefault("modules", str(path.parent.resolve()))
        name = path.stem if path.name != "config.toml" else path.resolve().parent.name
        return cls.resolve(tables, name)

    @classmethod
    def resolve(cls, tables: Mapping[str, Any], name: str = "run") -> Experiment:
        """Check all tables against the parts that they make, and fill in the defaults."""
        problem = tables.get("problem", {})
        if isinstance(problem, dict) and "python_only" in problem:
            raise UsageError(
                f"problem.name = {problem.get('name')!r}: this run was started in Python and "
                f"cannot be run from its configuration: {problem['python_only']}",
                code="python-only",
            )
        for table, keys in tables.items():
            if table not in TABLES:
                raise UsageError(
                    f"{table} = {shown(keys)}: unknown table{nearest(table, TABLES)}; "
                    f"a configuration has {', '.join(f'[{known}]' for known in TABLES)}",
                    code="unknown-table",
                )
            require(isinstance(keys, dict), table, keys, f"a table, [{table}]")
        options, run = make("run", RunOptions, tables.get("run", {}))
        if options.modules is not None:
            import_path(Path(options.modules))
        problem_name = problem.get("name")
        factory = maker("problem", problem_name)
        settings = {key: value for key, value in problem.items() if key != "name"}
        arguments = arguments_of("problem", factory, settings, hidden=("seed",))
        takes = parameters_of(factory)
        if options.max_queries is not None and "max_queries" in takes:  # it counts exactly
            arguments["max_queries"] = options.max_queries
        chosen = {**arguments, "seed": options.data_seed} if "seed" in takes else arguments
        algorithm, uplink, parts = make_parts(tables)
        made_flower, flower = make("flower", FlowerSettings, tables.get("flower", {}))
        resolved = {"problem": {"name": problem_name, **arguments}, **parts, "run": run}
        return cls(
            name=name,
            tables=resolved | ({"flower": flower} if "flower" in tables else {}),
            problem=lambda: _objective(problem_name, factory, chosen),
            algorithm=algorithm,
            uplink=uplink,
            options=options,
            flower=made_flower,
        )

    def with_seed(self, seed: int) -> Experiment:
        """Return the same experiment, on the same data, with another seed."""
        with naming("run"):
            options = replace(self.options, seed=seed)
        tables = {**self.tables, "run": {**self.tables["run"], "seed": seed}}
        return replace(self, tables=tables, options=options)

    def job(
        self,
        run_dir: Path | None = None,
        resume: bool = False,
        callback: Callbacks = None,
    ) -> Job:
        """Return the job of this experiment, with its files in ``run_dir`` if that is given."""
        return Job(
            algorithm=self.algorithm,
            uplink=self.uplink,
            options=self.options,
            tables=self.tables,
            run_dir=run_dir,
            resume=resume,
            watchers=as_watchers(callback),
        )

    def check(self, objective: Objective) -> None:
        """Raise unless all parts fit together and suit the problem; nothing is evaluated."""
        with naming("algorithm"):
            engine = LocalEngine(objective, self.options.seed, workers=1)
            check_parts(self.algorithm, RunSetting(engine, self.uplink), objective.initial())

    def run(
        self,
        run_dir: Path | None = None,
        resume: bool = False,
        callback: Callbacks = None,
        engine: Backend | None = None,
    ) -> Result:
        """Run the experiment on threads of this process, or on another engine."""
        objective, x0 = as_objective(self.problem(), None, None, {})
        with naming("algorithm"):  # a hyper-parameter that does not fit this problem
            return perform(self.job(run_dir, resume, callback), objective, x0, engine)


def shipped() -> list[str]:
    """Return the names of the shipped configurations.

    >>> shipped()
    ['attack', 'attack-cifar10', 'attack-eps', 'quadratic', 'softmax', 'text', 'tuning']
    """
    return sorted(Path(p.name).stem for p in _SHIPPED.iterdir() if p.name.endswith(".toml"))


def parse_overrides(overrides: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Parse the arguments of ``--set``; a later one replaces an earlier one of the same key.

    >>> parse_overrides(["run.rounds=300", "uplink.name=seeds"])
    {'run': {'rounds': 300}, 'uplink': {'name': 'seeds'}}
    """
    changes: dict[str, dict[str, Any]] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        table, dot, key = name.strip().partition(".")
        if not (equals and dot and table and key):
            raise UsageError(
                f"--set {override}: must be table.key=value, like run.rounds=300"
                f"{'' if dot else suggest('', table, ())}",
                code="bad-override",
            )
        line = typed(f"value = {text}", f"--set {name}")
        # A bare word is a string.
        changes.setdefault(table, {})[key] = text.strip() if line is None else line["value"]
    return changes


def merge_changes(*changes: Changes) -> dict[str, dict[str, Any]]:
    """Return the union of several changes; of two values for one key the later one.

    >>> merge_changes({"run": {"rounds": 5}}, {"run": {"seed": 1}}, {"run": {"rounds": 6}})
    {'run': {'rounds': 6, 'seed': 1}}
    """
    merged: dict[str, dict[str, Any]] = {}
    for each in changes:
        for table, keys in each.items():
            merged.setdefault(table, {}).update(keys)
    return merged


def _find(source: str) -> Path:
    path = Path(source)
    if os.path.isfile(path):  # Path.is_file raises for names that are too long
        return path
    if os.path.isfile(path / "config.toml"):  # a run's folder
        return path / "config.toml"
    names = shipped()
    if source in names:
        return Path(str(_SHIPPED / f"{source}.toml"))
    raise UsageError(
        f"no configuration {shown(source)}: it is neither a file nor a shipped configuration, "
        f"{one_of(names)}{nearest(source, names)}",
        code="no-configuration",
    )


def _apply(changes: Changes, tables: dict[str, Any]) -> None:
    """Change the tables of a file, and drop the keys that a part with a new name does not take."""
    for table, keys in changes.items():
        old = tables.setdefault(table, {})
        if not isinstance(old, dict):
            continue  # the file is wrong; resolve() reports it
        if "name" in keys and table in COMPONENTS:
            before = old.get("name", COMPONENTS[table].default)
            with suppress(FedzoError):  # an unknown name; resolve() reports it
                taken, takes = (parameters_of(maker(table, n)) for n in (before, keys["name"]))
                for gone in taken - takes:
                    old.pop(gone, None)
        for key, value in keys.items():
            *path, last = key.split(".")  # a table within the table, as uplink.radio.power_dbm
            place = old
            for name in path:
                below = place.get(name)
                place[name] = {"name": below} if isinstance(below, str) else dict(below or {})
                place = place[name]
            place[last] = value


def _objective(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Objective:
    try:
        with naming("problem"):
            made = factory(**arguments)
    except ModelError as error:  # such as a damaged file: nothing was run
        raise UsageError(f"problem.name = {name!r}: {error}", code=error.code) from error
    return check_objective(made, f"problem.name = {name!r}: made")
