"""Configurations: TOML in, a checked experiment out; nothing runs before all of it is right.

A table's keys are the parameters of what it makes: ``[algorithm]`` those of the algorithm
that ``name`` names, ``[uplink]`` those of its ``kind``, ``[problem]`` those of the problem's
factory, and ``[run]`` those of :class:`RunSettings`. There is no second list of keys.
"""

from __future__ import annotations

import inspect
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedzo.algorithms import ALGORITHMS, Algorithm
from fedzo.config.signature import arguments_of, made_by, parameters_of
from fedzo.core.federation import Federation
from fedzo.core.importing import named
from fedzo.core.objective import Objective, missing
from fedzo.errors import (
    InvalidValue,
    UsageError,
    nearest,
    one_of,
    require,
)
from fedzo.problems import PROBLEMS
from fedzo.runs.minimize import drive, minimize
from fedzo.runs.options import FlowerSettings, RunSettings
from fedzo.runs.result import Callback, Result
from fedzo.uplinks import UPLINKS, Uplink

Array = NDArray[Any]
Tables = dict[str, dict[str, Any]]

ENGINES = ("local", "flower")


@dataclass(frozen=True)
class Experiment:
    """A checked configuration.

    ``tables`` is the whole of it, defaults filled in: what ``config.toml`` of a run holds.

    Examples
    --------
    >>> experiment = Experiment.load("quadratic", ["run.rounds=20", "algorithm.local_steps=2"])
    >>> experiment.algorithm.local_steps, experiment.settings.rounds
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
    settings: RunSettings
    flower: FlowerSettings

    @classmethod
    def load(cls, source: str, overrides: Sequence[str] = ()) -> Experiment:
        """Read a file, or a configuration that ships, and apply ``table.key=value`` overrides.

        An override that names another problem, algorithm or uplink leaves behind what the
        file says for the old one alone: ``algorithm.name=fedavg`` needs no smoothing.
        """
        path = _find(source)
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not a TOML file: {error}") from error
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        changes: dict[str, Any] = {}
        for override in overrides:
            _override(changes, override)
        _apply(changes, tables)
        name = path.stem if path.name != "config.toml" else path.resolve().parent.name
        return cls.resolve(tables, name)

    @classmethod
    def resolve(cls, tables: Mapping[str, Any], name: str = "run") -> Experiment:
        """Check the tables against what they make, and fill in the defaults."""
        known = ("problem", "algorithm", "uplink", "run", "flower")
        for table, keys in tables.items():
            if table not in known:
                raise UsageError(
                    f"{table} = {keys!r}: unknown table{nearest(table, known)}; "
                    f"a configuration has {', '.join(f'[{k}]' for k in known)}"
                )
            require(isinstance(keys, dict), table, keys, f"a table, [{table}]")
        run = dict(tables.get("run", {}))
        settings, run = made_by("run", RunSettings, run)
        problem = dict(tables.get("problem", {}))
        problem_name = _choice("problem", problem, *_CHOICES["problem"], own=True)
        factory = _factory(problem_name)
        arguments = arguments_of("problem", factory, problem, hidden=("seed",))
        chosen = {**arguments, **_takes_seed(factory, settings.data_seed)}
        algorithm = dict(tables.get("algorithm", {}))
        algorithm_name = _choice("algorithm", algorithm, *_CHOICES["algorithm"])
        made, algorithm = made_by("algorithm", ALGORITHMS[algorithm_name], algorithm)
        uplink = dict(tables.get("uplink", {}))
        kind = _choice("uplink", uplink, *_CHOICES["uplink"])
        heard, uplink = made_by("uplink", UPLINKS[kind], uplink)
        made_flower, flower = made_by("flower", FlowerSettings, tables.get("flower", {}))
        resolved = {
            "problem": {"name": problem_name, **arguments},
            "algorithm": {"name": algorithm_name, **algorithm},
            "uplink": {"kind": kind, **uplink},
            "run": run,
        }
        return cls(
            name=name,
            tables=resolved | ({"flower": flower} if "flower" in tables else {}),
            problem=lambda: _objective(problem_name, factory, chosen),
            algorithm=made,
            uplink=heard,
            settings=settings,
            flower=made_flower,
        )

    def with_seed(self, seed: int) -> Experiment:
        """Return the same experiment with another seed; the data stay as they are."""
        try:
            settings = replace(self.settings, seed=seed)
        except InvalidValue as error:
            raise error.under("run") from error
        tables = {**self.tables, "run": {**self.tables["run"], "seed": seed}}
        return replace(self, tables=tables, settings=settings)

    def run(
        self,
        run_dir: Path | None = None,
        resume: bool = False,
        callback: Callback | Sequence[Callback] | None = None,
        engine: str = "local",
    ) -> Result:
        """Run it, in a folder if one is given, on threads or on Flower's simulation engine."""
        if engine not in ENGINES:
            raise InvalidValue("engine", engine, one_of(ENGINES) + nearest(engine, ENGINES))
        if engine == "flower":
            try:
                from fedzo.flower.simulation import simulate
            except ModuleNotFoundError as error:
                advice = "pip install 'fedzo[flower]'"
                raise UsageError(f"--engine flower: {error}: {advice}") from error
            return simulate(self, run_dir, resume, callback)
        objective, settings = self.problem(), self.settings
        loop = self._loop(run_dir, resume, callback)
        try:
            return minimize(objective, seed=settings.seed, workers=settings.workers, **loop)
        except InvalidValue as error:  # a hyper-parameter that does not fit this problem
            raise error.under("algorithm") from error

    def run_over(
        self,
        federation: Federation,
        x0: Array,
        run_dir: Path | None = None,
        resume: bool = False,
        callback: Callback | Sequence[Callback] | None = None,
        probed: int = 0,
    ) -> Result:
        """Run it over a federation that holds its problem; ``probed``: see :func:`drive`."""
        try:
            return drive(federation, x0, **self._loop(run_dir, resume, callback), probed=probed)
        except InvalidValue as error:  # a hyper-parameter that does not fit this problem
            raise error.under("algorithm") from error

    def _loop(
        self,
        run_dir: Path | None,
        resume: bool,
        callback: Callback | Sequence[Callback] | None,
    ) -> dict[str, Any]:
        """Return what the loop is told, whoever computes."""
        settings = self.settings
        return {
            "algorithm": self.algorithm,
            "uplink": self.uplink,
            "rounds": settings.rounds,
            "evaluate_every": settings.evaluate_every,
            "checkpoint_every": settings.checkpoint_every,
            "target": settings.target,
            "callback": callback,
            "run_dir": run_dir,
            "resume": resume,
            "config": self.tables,
        }


def shipped() -> list[str]:
    """Return the names of the configurations that ship.

    >>> shipped()
    ['attack', 'attack-cifar10', 'quadratic', 'softmax', 'tuning']
    """
    return sorted(Path(p.name).stem for p in _configs().iterdir() if p.name.endswith(".toml"))


def _configs() -> Any:
    return files("fedzo.config") / "shipped"


def _find(source: str) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    if (path / "config.toml").is_file():  # a run's folder
        return path / "config.toml"
    if source in shipped():
        return Path(str(_configs() / f"{source}.toml"))
    names = shipped()
    raise UsageError(
        f"no configuration {source!r}: it is neither a file nor one that ships, "
        f"{one_of(names)}{nearest(source, names)}"
    )


def _override(tables: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (equals and dot and table and key):
        raise UsageError(f"--set {override}: must be table.key=value, like run.rounds=300")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    tables.setdefault(table, {})[key] = value


# The tables whose keys depend on one of them: which it is, what it may be, what it is if unsaid.
_CHOICES: dict[str, tuple[str, Mapping[str, Any], str | None]] = {
    "problem": ("name", PROBLEMS, None),
    "algorithm": ("name", ALGORITHMS, "fedzo"),
    "uplink": ("kind", UPLINKS, "ideal"),
}


def _apply(changes: Mapping[str, Any], tables: dict[str, Any]) -> None:
    """Put changes into the tables of a file."""
    for table, keys in changes.items():
        old = tables.setdefault(table, {})
        if not isinstance(old, dict):
            continue  # the file is wrong, and will be told so
        if table in _CHOICES:
            key, known, default = _CHOICES[table]
            was, now = str(old.get(key, default)), str(keys.get(key))
            if was in known and now in known:
                makers = [_factory(c) if table == "problem" else known[c] for c in (was, now)]
                for gone in parameters_of(makers[0]) - parameters_of(makers[1]):
                    old.pop(gone, None)
        old.update(keys)


def _choice(
    table: str,
    keys: dict[str, Any],
    key: str,
    known: Mapping[str, Any],
    default: str | None = None,
    own: bool = False,
) -> str:
    """Take out the key that says what a table makes; ``own`` if it may be the user's."""
    choice = keys.pop(key, default)
    allowed = one_of(known) + (", or 'module:factory' for your own" if own else "")
    if choice is None:
        raise UsageError(f"{table}.{key} is missing: it must be {allowed}")
    if isinstance(choice, str) and (choice in known or (own and ":" in choice)):
        return choice
    raise InvalidValue(f"{table}.{key}", choice, allowed + nearest(str(choice), known))


def _factory(name: str) -> Callable[..., Any]:
    """Import a problem's factory."""
    factory = named("problem.name", PROBLEMS.get(name, name))
    try:
        inspect.signature(factory)
    except (TypeError, ValueError) as error:
        allowed = "a function or class that makes an Objective"
        raise InvalidValue("problem.name", name, allowed) from error
    return typing.cast(Callable[..., Any], factory)


def _objective(name: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Objective:
    try:
        made = factory(**arguments)
    except InvalidValue as error:
        raise error.under("problem") from error
    if not isinstance(made, Objective):
        raise UsageError(
            f"problem.name = {name!r}: made a {type(made).__name__}, which is no Objective"
            f"{missing(made)}"
        )
    return made


def _takes_seed(factory: Callable[..., Any], seed: int) -> dict[str, int]:
    return {"seed": seed} if "seed" in inspect.signature(factory).parameters else {}
