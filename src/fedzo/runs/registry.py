"""The registry: components by name, made from tables of a configuration and described as tables.

A table's ``name`` is one of fedzo's own, or ``module:Class`` for the user's. Its other keys are the
parameters of the named class or factory, checked against the signature. Configurations, saved runs
and Flower nodes all make their components here. A description makes the same component again.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo import algorithms, uplinks
from fedzo.algorithms import Algorithm, FedZO, schedules, server
from fedzo.algorithms.server import Mean, ServerOptimizer
from fedzo.core.importing import import_object, own_folder
from fedzo.core.objective import Objective, is_plain, name_of, signature_of
from fedzo.errors import (
    InvalidValue,
    UsageError,
    naming,
    nearest,
    normalised,
    one_of,
    shown,
    type_hints,
    type_name,
    type_options,
)
from fedzo.problems import PROBLEMS, FunctionObjective
from fedzo.runs.options import RunOptions
from fedzo.uplinks import Uplink
from fedzo.uplinks.channels import CHANNELS, POLICIES, RADIOS, Channel, PowerControl, Radio

Array = NDArray[Any]
Table = dict[str, Any]


class Component(NamedTuple):
    """A table that makes one of several things: the known names, the default, the base class.

    A known name stands for a class, or for ``module:name``, which is imported on first use.
    """

    known: Mapping[str, Any]
    default: str | None
    base: type


ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedzo": algorithms.FedZO,
    "zo_sgd": algorithms.ZOSGD,
    "dzopa": algorithms.DZOPA,
    "zone_s": algorithms.ZoneS,
    "fedbuff": algorithms.FedBuff,
    "fedavg": algorithms.FedAvg,
    "fedprox": algorithms.FedProx,
    "scaffold": algorithms.Scaffold,
    "adaptive": algorithms.Adaptive,
    "lbfgs": algorithms.LBFGS,
    "cma": algorithms.CMA,
    "tpe": algorithms.TPE,
}
SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "mean": server.Mean,
    "momentum": server.Momentum,
    "adam": server.Adam,
    "yogi": server.Yogi,
    "adagrad": server.Adagrad,
    "normalised": server.Normalised,
    "sign_momentum": server.SignMomentum,
    "fourier_sign": server.FourierSign,
}
UPLINKS: dict[str, type[Uplink]] = {
    "ideal": uplinks.Ideal,
    "aircomp": uplinks.AirComp,
    "aircomp_seeds": uplinks.AirCompSeeds,
    "digital": uplinks.Digital,
    "seeds": uplinks.Seeds,
    "robust": uplinks.Robust,
    "robust_seeds": uplinks.RobustSeeds,
}
SCHEDULES: dict[str, type[schedules.Schedule]] = {
    "constant": schedules.Constant,
    "cosine": schedules.Cosine,
    "linear": schedules.Linear,
    "step": schedules.Step,
}
COMPONENTS = {
    "problem": Component(PROBLEMS, None, Objective),
    "algorithm": Component(ALGORITHMS, "fedzo", Algorithm),
    "server": Component(SERVER_OPTIMIZERS, "mean", ServerOptimizer),
    "uplink": Component(UPLINKS, "ideal", Uplink),
    # Tables within [uplink]:
    "channel": Component(CHANNELS, "rayleigh", Channel),
    "power": Component(POLICIES, "truncated_inversion", PowerControl),
    "radio": Component(RADIOS, "radio", Radio),
    # A table within [algorithm]:
    "schedule": Component(SCHEDULES, None, schedules.Schedule),
}
PARTS = ("algorithm", "server", "uplink")  # the components beside the problem
# Words of other libraries and of the paper, by ours.
_OTHER_WORDS = {
    "learning_rate": "lr rate eta step_size stepsize learning-rate",
    "smoothing": "mu epsilon eps delta radius",
    "batch_size": "b1 batch minibatch batchsize",
    "directions": "b2 perturbations samples num_directions",
    "local_steps": "h steps epochs local_epochs iterations local_iterations",
    "participants": "m clients_per_round sampled fraction cohort",
    "devices": "n clients num_clients nodes workers agents users",
    "rounds": "t iterations epochs num_rounds steps maxiter",
    "max_queries": "budget queries maxfev",
    "seed": "random_state random_seed",
    "data": "dataset data_set",
    "partition": "split",
    "concentration": "alpha",
    "penalty": "rho",
    "snr_db": "snr",
}
NOT_IMPORTABLE = "is defined where no other program can import it"


# ------------------------------------------------------------------------------- from a name


def maker(table: str, name: object, known: Mapping[str, Any] | None = None) -> Any:
    """Return the class, or the factory of a problem, that a table's name stands for.

    With ``known``, only these names are allowed, and nothing is imported.

    >>> maker("algorithm", "fedzo").__name__
    'FedZO'
    >>> maker("uplink", "ideel")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: uplink.name = 'ideel': must be one of 'ideal', 'aircomp',
    'aircomp_seeds', 'digital', 'seeds', 'robust', 'robust_seeds', or 'module:Class' for your own
    (did you mean 'ideal'?)
    """
    component, key = COMPONENTS[table], f"{table}.name"
    names = component.known if known is None else known
    own = "factory" if table == "problem" else "Class"
    allowed = one_of(names) + (f", or 'module:{own}' for your own" if known is None else "")
    if name is None:
        raise UsageError(f"{key} is missing: it must be {allowed}", code="missing-key")
    imports = known is None and isinstance(name, str) and ":" in name
    if not (imports or (isinstance(name, str) and name in names)):
        raise InvalidValue(key, name, allowed + _other_table(table, name, names))
    found = names.get(str(name), name)
    if isinstance(found, str):
        found = import_object(key, found)
    if table == "problem":
        try:
            signature_of(found)
        except (TypeError, ValueError) as error:
            allowed = "a function or class that makes an Objective"
            raise InvalidValue(key, name, allowed) from error
    elif not (inspect.isclass(found) and issubclass(found, component.base) and is_dataclass(found)):
        needed = f"a dataclass that is a subclass of fedzo.{component.base.__name__}"
        raise InvalidValue(key, name, needed)
    return found


def make_parts(
    tables: Mapping[str, Any], algorithms: Mapping[str, Any] | None = None
) -> tuple[Algorithm, Uplink, dict[str, Table]]:
    """Return the algorithm and the uplink that tables describe, and the tables with defaults.

    With ``algorithms``, only these algorithms and fedzo's own server optimizers and uplinks are
    allowed, and nothing is imported: a node reads the tables of a run in this way.

    >>> algorithm, uplink, resolved = make_parts({"algorithm": {"local_steps": 2}})
    >>> algorithm.local_steps, uplink, resolved["server"]
    (2, Ideal(radio=None), {'name': 'mean'})
    """
    keys = {table: dict(tables.get(table, {})) for table in PARTS}
    names = {table: keys[table].pop("name", COMPONENTS[table].default) for table in PARTS}
    known: dict[str, Any] = {}
    if algorithms is not None:
        known = {"algorithm": algorithms, "server": SERVER_OPTIMIZERS, "uplink": UPLINKS}
    makers = {table: maker(table, names[table], known.get(table)) for table in PARTS}
    optimizer, server_keys = make("server", makers["server"], keys["server"])
    own = algorithms is None
    uplink, uplink_keys = make("uplink", makers["uplink"], keys["uplink"], own)
    kind, given = makers["algorithm"], {"server": optimizer}
    if all(field.name != "server" for field in fields(kind)):
        if not isinstance(optimizer, Mean):
            allowed = f"'mean': the algorithm {names['algorithm']} has no server optimizer"
            raise InvalidValue("server.name", names["server"], allowed)
        given = {}
    algorithm, arguments = make("algorithm", kind, keys["algorithm"], own, given)
    resolved = {"algorithm": {"name": names["algorithm"], **arguments}}
    if given:
        resolved["server"] = {"name": names["server"], **server_keys}
    resolved["uplink"] = {"name": names["uplink"], **uplink_keys}
    return algorithm, uplink, resolved


def check_part(table: str, part: object) -> None:
    """Raise unless ``part`` is an object that such a table could have made."""
    known, default, base = COMPONENTS[table]
    if isinstance(part, base) and is_dataclass(part):
        return
    example = known[str(default)].__name__
    if isinstance(part, type) and issubclass(part, base):
        raise InvalidValue(table, part, f"an object, such as {example}(), not a class")
    needed = f"a dataclass that is a subclass of fedzo.{base.__name__}, such as fedzo.{example}()"
    raise InvalidValue(table, part, needed)


# ---------------------------------------------------------------------- checked by a signature


def make(
    table: str,
    factory: Callable[..., Any],
    keys: Mapping[str, Any],
    custom: bool = True,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Return the object that a table makes, and the table's keys with the defaults.

    A key whose value is a component itself may be a table, or the ``module:Class`` of a custom one.
    Without ``custom``, nothing is imported for it. Arguments that are ``given`` cannot be keys.

    >>> make("point", complex, {"real": 1, "imag": 2})
    ((1+2j), {'real': 1, 'imag': 2})
    """
    arguments = arguments_of(table, factory, keys, hidden=tuple(given or ()))
    hints, made = type_hints(factory), dict(given or {})
    for key, value in arguments.items():
        name = value.get("name") if isinstance(value, Mapping) else value
        if _is_table(key, value, hints.get(key)):
            name = COMPONENTS[key].default if name is None else name
            with naming(table):
                kind = maker(key, name, None if custom else COMPONENTS[key].known)
            own = {k: v for k, v in value.items() if k != "name"} if name is not value else {}
            made[key], whole = make(f"{table}.{key}", kind, own, custom)
            arguments[key] = {"name": name, **whole}
    with naming(table):
        return factory(**arguments | made), arguments


def arguments_of(
    table: str, factory: Callable[..., Any], keys: Mapping[str, Any], hidden: Sequence[str] = ()
) -> Table:
    """Check keys against a factory's parameters, by name and type; fill in the defaults.

    Parameters that are ``hidden`` cannot be set by a key.

    >>> def line(slope: float, start: float = 0.0): ...
    >>> arguments_of("line", line, {"slope": 2})
    {'slope': 2.0, 'start': 0.0}
    >>> arguments_of("line", line, {"slop": 2})
    Traceback (most recent call last):
    fedzo.errors.UsageError: line.slop = 2: unknown key (did you mean 'slope'?); ...
    """
    parameters = signature_of(factory).parameters
    by_name = {
        name: p
        for name, p in parameters.items()
        if name not in hidden and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    }
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    hints, arguments = type_hints(factory), dict[str, Any]()
    for key, value in keys.items():
        if key not in by_name and not takes_any:
            whose = "" if table in ("run", "flower") else f" for {factory.__name__}"
            raise UsageError(
                f"{table}.{key} = {shown(value)}: unknown key{suggest(table, key, by_name)}; "
                f"[{table}] takes {', '.join(by_name) or 'nothing else'}{whose}",
                code="unknown-key",
            )
        hint = hints.get(key, Any)
        own = _is_table(key, value, hint)  # make() makes the component
        arguments[key] = value if own else normalised(f"{table}.{key}", value, hint)
    for name, parameter in by_name.items():
        if name not in keys and parameter.default is parameter.empty:
            needed = type_name(hints.get(name, Any))
            raise UsageError(f"{table}.{name} is missing: {needed} is needed", code="missing-key")
        elif name not in keys:
            arguments[name] = parameter.default
            with suppress(InvalidValue):  # a default that does not have the parameter's type
                arguments[name] = normalised(name, parameter.default, hints.get(name, Any))
    return {name: arguments[name] for name in dict.fromkeys((*by_name, *arguments))}


def suggest(table: str, key: str, known: Collection[str]) -> str:
    """Return what an unknown key may have meant: another word, another table, another part.

    >>> suggest("algorithm", "lr", ["learning_rate"])
    " (did you mean 'learning_rate'?)"
    >>> suggest("uplink", "snr_db", ["radio"])
    ": it is a key of uplink.name = 'aircomp', 'aircomp_seeds', 'digital'"
    >>> suggest("run", "learning_rate", ["rounds"])
    ' (did you mean algorithm.learning_rate?)'
    """
    if key in ("kind", "type") and table in COMPONENTS:
        return " (did you mean 'name'?)"
    meant = [ours for ours, words in _OTHER_WORDS.items() if key.lower() in words.split()]
    if here := [word for word in meant if word in known]:
        return f" (did you mean {here[0]!r}?)"
    if close := nearest(key, known):
        return close
    words, parts = meant or [key], {t: COMPONENTS[t].known for t in PARTS}
    for word in words:
        owners = [n for n, kind in parts.get(table, {}).items() if word in parameters_of(kind)]
        if owners:
            mine = "it" if word == key else repr(word)
            return f": {mine} is a key of {table}.name = {', '.join(map(repr, owners))}"
    makers = {"problem": maker("problem", "softmax"), "algorithm": FedZO, "run": RunOptions}
    elsewhere = [(t, w) for w in words for t, one in makers.items() if w in parameters_of(one)]
    return f" (did you mean {'.'.join(elsewhere[0])}?)" if elsewhere else ""


def _other_table(table: str, name: object, names: Collection[str]) -> str:
    """Return which name may have been meant, or which table it belongs to."""
    owners = [t for t in PARTS if t != table and str(name) in COMPONENTS[t].known]
    return f" (it is one for {owners[0]}.name)" if owners else nearest(str(name), names)


def _is_table(key: str, value: object, hint: Any) -> bool:
    """Return whether a value makes a component: a table, a custom class, or a name of fedzo's."""
    options = type_options(hint)
    if key not in COMPONENTS or COMPONENTS[key].base not in options:
        return False
    return isinstance(value, Mapping) or (
        isinstance(value, str) and (":" in value or str not in options)
    )


def parameters_of(factory: Callable[..., Any]) -> set[str]:
    """Return the names of a factory's parameters.

    >>> sorted(parameters_of(lambda dim, seed=0: None))
    ['dim', 'seed']
    """
    return set(signature_of(factory).parameters)


# ----------------------------------------------------------------------------------- to a table


def describe_parts(algorithm: Algorithm, uplink: Uplink) -> dict[str, Table]:
    """Return the tables that make this algorithm, with its server optimizer, and this uplink.

    >>> from fedzo import FedZO, Ideal
    >>> tables = describe_parts(FedZO(local_steps=2), Ideal())
    >>> tables["algorithm"]["local_steps"], tables["server"], tables["uplink"]["name"]
    (2, {'name': 'mean'}, 'ideal')
    """
    described = {"algorithm": _describe("algorithm", algorithm)}
    if described["algorithm"].pop("server", None) is not None:
        described["server"] = _describe("server", algorithm.server)  # type: ignore[attr-defined]
    return described | {"uplink": _describe("uplink", uplink)}


def names_of(keys: Mapping[str, Any]) -> list[str]:
    """Return the names in a table: its own, and those of the components within it.

    >>> names_of({"name": "aircomp", "channel": {"name": "mine:Wall"}, "power": "mine:Loud"})
    ['aircomp', 'mine:Wall', 'mine:Loud']
    """
    values = [value for key, value in keys.items() if key == "name" or key in COMPONENTS]
    return [str(v.get("name", "")) if isinstance(v, Mapping) else str(v) for v in values]


def _describe(table: str, part: Any) -> Table:
    names = {kind: name for name, kind in COMPONENTS[table].known.items()}
    described: Table = {"name": names.get(type(part), name_of(type(part)))}
    for key, value in asdict(part).items():
        own = vars(part)[key]
        described[key] = _describe(key, own) if key in COMPONENTS and is_dataclass(own) else value
    return described


def describe_job(
    algorithm: Algorithm, uplink: Uplink, run: RunOptions, problem: Mapping[str, Any]
) -> dict[str, Table]:
    """Return the configuration of a run that was started in Python.

    If no configuration can start the same run, ``python_only`` in its [problem] has the reason.

    Examples
    --------
    >>> from fedzo import FedZO, Ideal
    >>> tables = describe_job(FedZO(), Ideal(), RunOptions(rounds=3), {"name": "quadratic"})
    >>> tables["problem"], tables["run"]["rounds"]
    ({'name': 'quadratic'}, 3)
    """
    described = {key: value for key, value in problem.items() if key != "seed"}
    parts, table = describe_parts(algorithm, uplink), dict(vars(run))
    if "seed" in problem:  # a configuration has it under another name
        table["data_seed"] = problem["seed"]
    reason = _why_python_only("algorithm", algorithm) or _why_python_only("uplink", uplink)
    if reason:
        described.setdefault("python_only", reason)
    names = [name for keys in (described, *parts.values()) for name in names_of(keys)]
    folders = {own_folder(name.partition(":")[0]) for name in names if ":" in name} - {None}
    if len(folders) == 1:
        table["modules"] = str(folders.pop())
    return {"problem": described, **parts, "run": table}


def describe_problem(fun: object, objective: Objective, start: Array) -> Table:
    """Return the [problem] table of a problem that was made in Python.

    ``start`` is the x0 of the run, shape (dim,): a configuration can only use ``initial()``.

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
        table: Table = {"name": name_of(fun), "dim": objective.dim}
        table |= {"devices": objective.devices, "max_queries": objective.meter.max_queries}
        if objective.box is not None:
            table["bounds"] = objective.box.pairs()
        if objective.logarithm is not None:
            table["scale"] = objective.logarithm.names
        if objective.scale is not None:
            table["x_scale"] = objective.scale.tolist()
        return table | {"python_only": "its problem is a function that was given in Python"}
    names = {factory: name for name, factory in PROBLEMS.items()}
    own, factory, initial = objective.factory_kwargs, _found(objective.factory), objective.initial()
    plain = {key: value for key, value in own.items() if is_plain(value)}
    table = {"name": names.get(objective.factory, objective.factory), **plain}
    if factory is None:
        reason = f"its problem {NOT_IMPORTABLE}"
    elif lost := [key for key, value in own.items() if not _survives(key, value, factory)]:
        reason = f"its problem was made with {', '.join(lost)} in Python"
    elif not _same_start(start, np.asarray(initial)):
        reason = "its x0 was given in Python"
    else:
        return table
    return {**table, "dim": objective.dim, "devices": objective.devices, "python_only": reason}


def _same_start(start: Array, initial: Array) -> bool:
    """Return whether a run from ``initial()`` has this start, in the same precision."""
    precision = initial.dtype if initial.dtype == np.float32 else np.dtype(np.float64)
    return start.dtype == precision and np.array_equal(start, initial)


def _why_python_only(table: str, part: Any) -> str:
    """Return why a part cannot be made from its table; an empty string if it can."""
    what = {"server": "server optimizer"}.get(table, table)
    kind = _found(name_of(type(part)))
    if kind is None:
        return f"its {what} {NOT_IMPORTABLE}"
    own = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
    within = [key for key, value in own.items() if key in COMPONENTS and is_dataclass(value)]
    reasons = [_why_python_only(key, own.pop(key)) for key in within]
    if lost := [key for key, value in own.items() if not _survives(key, value, kind)]:
        return f"its {what} was made with {', '.join(lost)} in Python"
    return next(filter(None, reasons), "")


def _found(name: str) -> Any:
    """Return the object that any program can import by this name; None if there is none."""
    module, _, attribute = name.partition(":")
    return None if module == "__main__" else getattr(sys.modules.get(module), attribute, None)


def _survives(key: str, value: object, factory: Any) -> bool:
    """Return whether an argument is unchanged after it was written to TOML, which has no null."""
    if is_plain(value) and not _holds_none(value):
        return True
    parameter = signature_of(factory).parameters.get(key)
    return parameter is not None and parameter.default is value


def _holds_none(value: object) -> bool:
    return any(map(_holds_none, value)) if isinstance(value, list | tuple) else value is None
