"""Configurations: TOML in, a checked experiment out; nothing runs before all of it is right.

A table's keys are the parameters of what it makes: ``[algorithm]`` those of the algorithm
that ``name`` names, ``[uplink]`` those of its ``kind``, ``[problem]`` those of the problem's
factory, and ``[run]`` those of :class:`RunSettings`. There is no second list of keys.
"""

from __future__ import annotations

import inspect
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedzo.algorithms import ALGORITHMS, Algorithm
from fedzo.auto import settled
from fedzo.errors import (
    InvalidValue,
    UsageError,
    check_count,
    check_counts,
    check_positive,
    nearest,
    one_of,
    require,
)
from fedzo.federation import Federation
from fedzo.importing import named
from fedzo.objective import Objective, missing, posed
from fedzo.problems import PROBLEMS
from fedzo.random import check_seed
from fedzo.result import Callback, Result, closing
from fedzo.run import describe, drive, minimize
from fedzo.uplink import UPLINKS, Uplink

Array = NDArray[Any]
Tables = dict[str, dict[str, Any]]

ENGINES = ("local", "flower")


@dataclass(frozen=True)
class RunSettings:
    """The ``[run]`` table; ``data_seed`` names the problem's randomness, ``seed`` the rest."""

    rounds: int = 100
    seed: int = 0
    data_seed: int = 0
    evaluate_every: int = 10
    checkpoint_every: int = 10
    workers: int | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        check_counts(self, "evaluate_every", "checkpoint_every")
        check_count("rounds", self.rounds, least=0)
        if self.workers is not None:
            check_counts(self, "workers")
        for key in ("seed", "data_seed"):
            check_seed(key, getattr(self, key))
        wanted = self.target is None or not math.isnan(self.target)
        require(wanted, "target", self.target, "a number")


@dataclass(frozen=True)
class FlowerSettings:
    """The ``[flower]`` table: how long a federation of real nodes waits for whom.

    Parameters
    ----------
    quorum : float
        The share of a round's devices, in (0, 1], whose answers the round cannot do without.
    grace : float
        Seconds that the others are waited for once the quorum is there. Who has not answered
        by then is left out of the round, and asked again when it has shown that it is alive.
    patience : float
        Seconds that a quorum is waited for; then the run stops, with a checkpoint.
    max_norm : float, optional
        An update that is longer than this is left out; None: any finite one is taken.
    nodes : int, optional
        How many nodes a simulation has; as many as this machine has cores by default. A real
        federation has those that connect.

    Examples
    --------
    >>> FlowerSettings(quorum=1.5)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: quorum = 1.5: must be a number in (0, 1]
    >>> FlowerSettings().needed(20)
    10
    """

    quorum: float = 0.5
    grace: float = 30.0
    patience: float = 600.0
    max_norm: float | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "quorum", "grace", "patience")
        require(self.quorum <= 1, "quorum", self.quorum, "a number in (0, 1]")
        if self.max_norm is not None:
            check_positive(self, "max_norm")
        if self.nodes is not None:
            check_counts(self, "nodes")

    def needed(self, devices: int) -> int:
        """Return how many of so many devices are a quorum."""
        return math.ceil(self.quorum * devices)


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
    flower: FlowerSettings = FlowerSettings()

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
        settings, run = _make("run", RunSettings, run)
        problem = dict(tables.get("problem", {}))
        problem_name = _choice("problem", problem, *_CHOICES["problem"], own=True)
        factory = _factory(problem_name)
        arguments = _arguments("problem", factory, problem, hidden=("seed",))
        chosen = {**arguments, **_takes_seed(factory, settings.data_seed)}
        algorithm = dict(tables.get("algorithm", {}))
        algorithm_name = _choice("algorithm", algorithm, *_CHOICES["algorithm"])
        made, algorithm = _make("algorithm", ALGORITHMS[algorithm_name], algorithm)
        uplink = dict(tables.get("uplink", {}))
        kind = _choice("uplink", uplink, *_CHOICES["uplink"])
        heard, uplink = _make("uplink", UPLINKS[kind], uplink)
        made_flower, flower = _make("flower", FlowerSettings, tables.get("flower", {}))
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
            return self._simulate(run_dir, resume, callback)
        objective, settings = self.problem(), self.settings
        loop = self._loop(run_dir, resume, callback)
        try:
            return minimize(objective, seed=settings.seed, workers=settings.workers, **loop)
        except InvalidValue as error:  # a hyper-parameter that does not fit this problem
            raise error.under("algorithm") from error

    def _simulate(
        self,
        run_dir: Path | None,
        resume: bool,
        callback: Callback | Sequence[Callback] | None,
    ) -> Result:
        try:
            from fedzo.flower.simulation import simulate
        except ModuleNotFoundError as error:
            raise UsageError(f"--engine flower: {error}: pip install 'fedzo[flower]'") from error

        objective, start = posed(self.problem(), None, None, {})
        meter = getattr(objective, "meter", None)
        if meter is not None and meter.budget is not None:
            raise UsageError(
                f"a budget of {meter.budget:,} queries is kept within one process, and Flower's "
                "nodes are several: limit run.rounds instead"
            )
        with closing(objective):
            algorithm, probed = settled(
                self.algorithm,
                objective,
                start,
                rounds=self.settings.rounds,
                seed=self.settings.seed,
                workers=self.settings.workers,
                folder=run_dir,
            )
            chosen = {"algorithm": describe(algorithm, "name", ALGORITHMS)}
            experiment = replace(self, algorithm=algorithm, tables=self.tables | chosen)
            result = simulate(experiment, start, run_dir, resume, callback, probed)
        if run_dir is not None and hasattr(objective, "leave"):
            objective.leave(run_dir, result)
        return result

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
    return files("fedzo") / "configs"


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
                for gone in _parameters(makers[0]) - _parameters(makers[1]):
                    old.pop(gone, None)
        old.update(keys)


def _parameters(factory: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(factory).parameters)


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
            whose = f" for {factory.__name__}" if table in _CHOICES else ""
            raise UsageError(
                f"{table}.{key} = {value!r}: unknown key{nearest(key, known)}; "
                f"[{table}] takes {', '.join(known) or 'nothing else'}{whose}"
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
        is_float = float in _options(hints.get(name)) and type(value) is int
        arguments[name] = float(value) if is_float else value
    return {**arguments, **{k: v for k, v in keys.items() if k not in known}}


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    except (NameError, TypeError):  # hints for a type checker only, or on what takes none
        return {}


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
        elif _is_instance(value, typing.get_origin(option) or option):
            return True
    return False


def _is_instance(value: Any, kind: Any) -> bool:
    if kind is tuple:
        return isinstance(value, list | tuple)  # TOML has lists only
    return isinstance(value, kind) if inspect.isclass(kind) else True


def _choose_from(known: Sequence[str]) -> str:
    return one_of(known) if len(known) > 1 else repr(known[0])


def _worded(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    names |= {list: "a list", tuple: "a list", Any: "a value"}
    words = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            words.append(_choose_from([str(o) for o in typing.get_args(option)]))
        elif option is not type(None):
            words.append(names.get(typing.get_origin(option) or option, str(option)))
    return " or ".join(words)
