"""Configurations: TOML in, a checked experiment out; nothing runs before all of it is right.

A table's keys are the parameters of what it makes: ``[algorithm]`` those of the algorithm
that ``name`` names, ``[uplink]`` and ``[server]`` likewise, ``[problem]`` those of the problem's
factory, ``[server]`` those of its step, and ``[run]`` those of :class:`RunOptions`. There is no
second list of keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from fedzo.algorithms import Algorithm
from fedzo.core.files import read_toml, typed
from fedzo.core.importing import import_path
from fedzo.core.objective import Objective, check_objective
from fedzo.errors import FedzoError, UsageError, naming, nearest, one_of, require, shown
from fedzo.runs.loop import Job
from fedzo.runs.minimize import Backend, as_objective, perform
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import COMPONENTS, arguments_of, make, make_parts, maker, parameters_of
from fedzo.runs.result import Callbacks, Result, as_watchers
from fedzo.uplinks import Uplink

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Experiment:
    """A checked configuration.

    ``tables`` is the whole of it, defaults filled in: what ``config.toml`` of a run holds.

    Examples
    --------
    >>> experiment = Experiment.load("quadratic", ["run.rounds=20", "algorithm.local_steps=2"])
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
    def load(cls, source: str, overrides: Sequence[str] = ()) -> Experiment:
        """Read a file, or a configuration that ships, and apply ``table.key=value`` overrides.

        An override that names another problem, algorithm or uplink drops the settings that only
        the old one has: after ``algorithm.name=fedavg`` there is no smoothing.
        """
        path = _find(source)
        tables = read_toml(path)
        run = tables.setdefault("run", {})
        if isinstance(run, dict):  # the user's own parts may lie beside the configuration
            import_path(Path(str(run.get("modules") or path.parent)))
        changes: dict[str, Any] = {}
        for override in overrides:
            put_override(changes, override)
        _apply(changes, tables)
        if isinstance(run, dict) and _names_modules(tables):
            run.setdefault("modules", str(path.parent.resolve()))
        name = path.stem if path.name != "config.toml" else path.resolve().parent.name
        return cls.resolve(tables, name)

    @classmethod
    def resolve(cls, tables: Mapping[str, Any], name: str = "run") -> Experiment:
        """Check the tables against what they make, and fill in the defaults."""
        _refuse_python_only(tables)
        known = ("problem", "algorithm", "server", "uplink", "run", "flower")
        for table, keys in tables.items():
            if table not in known:
                raise UsageError(
                    f"{table} = {shown(keys)}: unknown table{nearest(table, known)}; "
                    f"a configuration has {', '.join(f'[{k}]' for k in known)}"
                )
            require(isinstance(keys, dict), table, keys, f"a table, [{table}]")
        options, run = make("run", RunOptions, tables.get("run", {}))
        if options.modules is not None:
            import_path(Path(options.modules))
        problem = dict(tables.get("problem", {}))
        problem_name = problem.pop("name", None)
        factory = maker("problem", problem_name)
        arguments = arguments_of("problem", factory, problem, hidden=("seed",))
        chosen = {**arguments, **_takes_seed(factory, options.data_seed)}
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
        """Return the same experiment with another seed; the data stay as they are."""
        with naming("run"):
            options = replace(self.options, seed=seed)
        tables = {**self.tables, "run": {**self.tables["run"], "seed": seed}}
        return replace(self, tables=tables, options=options)

    def job(
        self,
        run_dir: Path | None = None,
        resume: bool | Literal["repair"] = False,
        callback: Callbacks = None,
    ) -> Job:
        """Return what is to be run, in a folder if one is given."""
        return Job(
            algorithm=self.algorithm,
            uplink=self.uplink,
            options=self.options,
            tables=self.tables,
            run_dir=run_dir,
            resume=resume,
            watchers=as_watchers(callback),
        )

    def run(
        self,
        run_dir: Path | None = None,
        resume: bool | Literal["repair"] = False,
        callback: Callbacks = None,
        engine: Backend | None = None,
    ) -> Result:
        """Run it, on threads of this process or by another engine."""
        objective, x0 = as_objective(self.problem(), None, None, {})
        with naming("algorithm"):  # a hyper-parameter that does not fit this problem
            return perform(self.job(run_dir, resume, callback), objective, x0, engine)


def _names_modules(tables: Mapping[str, Any]) -> bool:
    """Return whether a configuration names parts of the user's own, as ``module:name``."""
    named = [keys for keys in tables.values() if isinstance(keys, dict)]
    return any(":" in str(keys.get("name", "")) for keys in named)


def shipped() -> list[str]:
    """Return the names of the configurations that ship.

    >>> shipped()
    ['attack', 'attack-cifar10', 'attack-eps', 'quadratic', 'softmax', 'text', 'tuning']
    """
    return sorted(Path(p.name).stem for p in _configs().iterdir() if p.name.endswith(".toml"))


def _configs() -> Any:
    return files("fedzo.config") / "shipped"


def _find(source: str) -> Path:
    path = Path(source)
    if os.path.isfile(path):  # Path.is_file raises for names that are too long
        return path
    if os.path.isfile(path / "config.toml"):  # a run's folder
        return path / "config.toml"
    if source in shipped():
        return Path(str(_configs() / f"{source}.toml"))
    names = shipped()
    raise UsageError(
        f"no configuration {shown(source)}: it is neither a file nor one that ships, "
        f"{one_of(names)}{nearest(source, names)}"
    )


def put_override(tables: dict[str, Any], override: str) -> None:
    """Put what ``--set`` is given, like ``run.rounds=300``, into tables.

    >>> tables = {}
    >>> put_override(tables, "uplink.name=seeds")
    >>> tables
    {'uplink': {'name': 'seeds'}}
    """
    name, equals, text = override.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (equals and dot and table and key):
        raise UsageError(f"--set {override}: must be table.key=value, like run.rounds=300")
    line = typed(f"value = {text}", f"--set {name}")
    # A bare word is a string.
    tables.setdefault(table, {})[key] = text.strip() if line is None else line["value"]


def _apply(changes: Mapping[str, Any], tables: dict[str, Any]) -> None:
    """Put changes into the tables of a file.

    Where a change names another problem or part, the keys that only the old one takes go.
    """
    for table, keys in changes.items():
        old = tables.setdefault(table, {})
        if not isinstance(old, dict):
            continue  # the file is wrong, which is reported later
        if "name" in keys and table in COMPONENTS:
            before = old.get("name", COMPONENTS[table].default)
            try:
                makers = [maker(table, name) for name in (before, keys["name"])]
            except FedzoError:  # an unknown name, which is reported later
                makers = []
            if makers:
                for gone in parameters_of(makers[0]) - parameters_of(makers[1]):
                    old.pop(gone, None)
        old.update(keys)


def _refuse_python_only(tables: Mapping[str, Any]) -> None:
    """Raise for the configuration of a run that only Python can start."""
    problem = tables.get("problem")
    if isinstance(problem, dict) and "python_only" in problem:
        raise UsageError(
            f"problem.name = {problem.get('name')!r}: this run was started in Python and cannot be "
            f"run from its configuration: {problem['python_only']}",
            code="python-only",
        )


def _objective(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Objective:
    with naming("problem"):
        made = factory(**arguments)
    return check_objective(made, f"problem.name = {name!r}: made")


def _takes_seed(factory: Callable[..., Any], seed: int) -> dict[str, int]:
    return {"seed": seed} if "seed" in parameters_of(factory) else {}
