"""Configurations: TOML in, a checked experiment out; nothing runs before all of it is right.

A table's keys are the parameters of what it makes: ``[algorithm]`` those of the algorithm
that ``name`` names, ``[uplink]`` those of its ``kind``, ``[problem]`` those of the problem's
factory, and ``[run]`` those of :class:`RunSettings`. There is no second list of keys.
"""

from __future__ import annotations

import inspect
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedzo.algorithms import ALGORITHMS, Algorithm
from fedzo.errors import InvalidValue, UsageError, nearest, one_of, require
from fedzo.objective import Objective
from fedzo.problems import PROBLEMS
from fedzo.random import check_seed
from fedzo.run import Callback, Result, minimize
from fedzo.uplink import UPLINKS, Uplink

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RunSettings:
    """The ``[run]`` table; ``data_seed`` names the problem's randomness, ``seed`` the rest."""

    rounds: int = 100
    seed: int = 0
    data_seed: int = 0
    evaluate_every: int = 10
    checkpoint_every: int = 10
    workers: int | None = None

    def __post_init__(self) -> None:
        for key in ("evaluate_every", "checkpoint_every"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "a whole number >= 1")
        require(self.rounds >= 0, "rounds", self.rounds, "a whole number >= 0")
        if self.workers is not None:
            require(self.workers >= 1, "workers", self.workers, "a whole number >= 1")
        for key in ("seed", "data_seed"):
            check_seed(key, getattr(self, key))


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

    @classmethod
    def load(cls, source: str, overrides: Sequence[str] = ()) -> Experiment:
        """Read a file, or a configuration that ships, and apply ``table.key=value`` overrides."""
        path = _find(source)
        try:
            tables = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{source} is not a TOML file: {error}") from error
        except OSError as error:
            raise UsageError(f"cannot read {source}: {error.strerror}") from error
        for override in overrides:
            _override(tables, override)
        name = path.stem if path.name != "config.toml" else path.resolve().parent.name
        return cls.resolve(tables, name)

    @classmethod
    def resolve(cls, tables: Mapping[str, Any], name: str = "run") -> Experiment:
        """Check the tables against what they make, and fill in the defaults."""
        known = ("problem", "algorithm", "uplink", "run")
        for table, keys in tables.items():
            if table not in known or not isinstance(keys, dict):
                raise UsageError(
                    f"{table} = {keys!r}: unknown table{nearest(table, known)}; "
                    f"a configuration has {', '.join(f'[{k}]' for k in known)}"
                )
        run = dict(tables.get("run", {}))
        settings, run = _make("run", RunSettings, run)
        problem = dict(tables.get("problem", {}))
        factory = _factory(_choice("problem", problem, "name", None))
        arguments = _arguments("problem", factory, problem, hidden=("seed",))
        chosen = {**arguments, **_takes_seed(factory, settings.data_seed)}
        algorithm = dict(tables.get("algorithm", {}))
        algorithm_name = _choice("algorithm", algorithm, "name", ALGORITHMS, "fedzo")
        made, algorithm = _make("algorithm", ALGORITHMS[algorithm_name], algorithm)
        uplink = dict(tables.get("uplink", {}))
        kind = _choice("uplink", uplink, "kind", UPLINKS, "ideal")
        heard, uplink = _make("uplink", UPLINKS[kind], uplink)
        return cls(
            name=name,
            tables={
                "problem": {"name": tables["problem"]["name"], **arguments},
                "algorithm": {"name": algorithm_name, **algorithm},
                "uplink": {"kind": kind, **uplink},
                "run": run,
            },
            problem=lambda: _objective(factory, chosen),
            algorithm=made,
            uplink=heard,
            settings=settings,
        )

    def with_seed(self, seed: int) -> Experiment:
        """Return the same experiment with another seed; the data stay as they are."""
        tables = {**self.tables, "run": {**self.tables["run"], "seed": seed}}
        return Experiment.resolve(tables, self.name)

    def run(
        self,
        run_dir: Path | None = None,
        resume: bool = False,
        callback: Callback | None = None,
    ) -> Result:
        """Run it, in a folder if one is given."""
        settings = self.settings
        objective = self.problem()
        try:
            return minimize(
                objective,
                algorithm=self.algorithm,
                uplink=self.uplink,
                rounds=settings.rounds,
                seed=settings.seed,
                workers=settings.workers,
                evaluate_every=settings.evaluate_every,
                checkpoint_every=settings.checkpoint_every,
                callback=callback,
                run_dir=run_dir,
                resume=resume,
                config=self.tables,
            )
        except InvalidValue as error:  # a hyper-parameter that does not fit this problem
            raise error.under("algorithm") from error


def shipped() -> list[str]:
    """Return the names of the configurations that ship.

    >>> shipped()
    ['quadratic', 'softmax']
    """
    return sorted(Path(p.name).stem for p in _configs().iterdir() if p.name.endswith(".toml"))


def _configs() -> Any:
    return files("fedzo") / "configs"


def _find(source: str) -> Path:
    path = Path(source)
    if path.is_file():
        return path
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
    if not isinstance(tables.setdefault(table, {}), dict):
        raise UsageError(f"--set {override}: {table} is not a table")
    tables[table][key] = value


def _choice(
    table: str,
    keys: dict[str, Any],
    key: str,
    known: Mapping[str, Any] | None,
    default: str | None = None,
) -> str:
    """Take out the key that says what a table makes."""
    choice = keys.pop(key, default)
    if known is None:  # a problem: one that ships, or module:factory
        if choice in PROBLEMS or (isinstance(choice, str) and ":" in choice):
            return str(choice)
        allowed = f"{one_of(PROBLEMS)}, or 'module:factory' for your own"
        raise InvalidValue(f"{table}.{key}", choice, allowed + nearest(str(choice), PROBLEMS))
    if choice not in known:
        allowed = one_of(known) + nearest(str(choice), known)
        raise InvalidValue(f"{table}.{key}", choice, allowed)
    return str(choice)


def _factory(name: str) -> Callable[..., Any]:
    """Import a problem's factory; a user's own may lie beside where the command was given."""
    module, _, attribute = PROBLEMS.get(name, name).partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidValue("problem.name", name, f"importable: {error}") from error
    finally:
        sys.path.remove(here)
    if not callable(factory):
        raise InvalidValue("problem.name", name, "a function or class that makes an Objective")
    return typing.cast(Callable[..., Any], factory)


def _objective(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Objective:
    try:
        made = factory(**arguments)
    except InvalidValue as error:
        raise error.under("problem") from error
    if not isinstance(made, Objective):
        raise UsageError(
            f"problem.name: {factory.__qualname__} made a {type(made).__name__}, which is no "
            "Objective: it needs dim, devices, batch, values and losses"
        )
    return made


def _takes_seed(factory: Callable[..., Any], seed: int) -> dict[str, int]:
    return {"seed": seed} if "seed" in inspect.signature(factory).parameters else {}


def _make(table: str, factory: Callable[..., Any], keys: Mapping[str, Any]) -> Any:
    """Return what a table makes, and its keys with the defaults filled in."""
    arguments = _arguments(table, factory, keys)
    try:
        return factory(**arguments), arguments
    except InvalidValue as error:
        raise error.under(table) from error


def _arguments(
    table: str, factory: Callable[..., Any], keys: Mapping[str, Any], hidden: Sequence[str] = ()
) -> dict[str, Any]:
    """Check keys against a factory's parameters, by name and type; fill in the defaults."""
    parameters = inspect.signature(factory).parameters
    known = [
        p.name
        for p in parameters.values()
        if p.name not in hidden and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    hints = _hints(factory)
    for key, value in keys.items():
        if key not in known and not takes_any:
            close = get_close_matches(key, known, n=1)
            near = f" (did you mean {close[0]!r}?)" if close else ""
            raise UsageError(
                f"{table}.{key} = {value!r}: unknown key{near}; "
                f"[{table}] takes {', '.join(known) or 'no keys'} here"
            )
        hint = hints.get(key, Any)
        if not _fits(value, hint):
            raise InvalidValue(f"{table}.{key}", value, _worded(hint))
    arguments = {}
    for name in known:
        default = parameters[name].default
        if name not in keys and default is inspect.Parameter.empty:
            raise UsageError(
                f"{table}.{name} is missing: {_worded(hints.get(name, Any))} is needed"
            )
        value = keys.get(name, default)
        # 1 is a fine learning rate, and 1 and 1.0 are the same one.
        is_float = hints.get(name) is float and isinstance(value, int)
        arguments[name] = float(value) if is_float else value
    return {**arguments, **{k: v for k, v in keys.items() if k not in known}}


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)


def _options(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a TOML value may stand for a parameter of this type."""
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            if value in typing.get_args(option):
                return True
        elif option is Any or (option is type(None) and value is None):
            return True
        elif isinstance(value, bool) or option is bool:
            if isinstance(value, bool) and option is bool:
                return True
        elif option is float:
            if isinstance(value, int | float):
                return True
        elif isinstance(value, typing.get_origin(option) or option):
            return True
    return False


def _worded(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    names |= {list: "a list"}
    words = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            words.append(one_of(str(o) for o in typing.get_args(option)))
        elif option is not type(None):
            words.append(names.get(typing.get_origin(option) or option, str(option)))
    return " or ".join(words)
