"""Algorithms, server steps and uplinks by name: made from tables, and described as tables.

A name is one of ours, or ``module:Class`` for the user's own. What is described can be made
again, so ``config.toml`` and a saved ask-and-tell run hold parts in this form.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, NamedTuple

from fedzo.algorithms import ALGORITHMS, SERVER_STEPS, Algorithm
from fedzo.algorithms.server import Mean, ServerStep
from fedzo.core.importing import named
from fedzo.core.objective import name_of
from fedzo.core.signature import arguments_of, made_by
from fedzo.errors import InvalidValue, UsageError, naming, nearest, one_of
from fedzo.uplinks import UPLINKS, Uplink

Table = dict[str, Any]


class Part(NamedTuple):
    """A table that makes one of several things: its key for the name, and the known names."""

    key: str
    known: Mapping[str, type]
    default: str
    base: type


PARTS = {
    "algorithm": Part("name", ALGORITHMS, "fedzo", Algorithm),
    "server": Part("name", SERVER_STEPS, "mean", ServerStep),
    "uplink": Part("name", UPLINKS, "ideal", Uplink),
}


def class_of(table: str, name: object) -> type:
    """Return the class that a table's name stands for.

    >>> class_of("algorithm", "fedzo").__name__
    'FedZO'
    >>> class_of("uplink", "ideel")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: uplink.name = 'ideel': must be one of 'ideal', 'aircomp', 'seeds',
    'robust', 'robust_seeds', or 'module:Class' for your own (did you mean 'ideal'?)
    """
    key, known, _, base = PARTS[table]
    setting = f"{table}.{key}"
    if isinstance(name, str) and name in known:
        return known[name]
    if not (isinstance(name, str) and ":" in name):
        allowed = f"{one_of(known)}, or 'module:Class' for your own{nearest(str(name), known)}"
        raise InvalidValue(setting, name, allowed)
    found = named(setting, name)
    if not (inspect.isclass(found) and issubclass(found, base) and is_dataclass(found)):
        needed = f"a dataclass that is a subclass of fedzo.{base.__name__}"
        raise InvalidValue(setting, name, needed)
    return found


def choice_of(table: str, keys: Table) -> type:
    """Take out of a table's keys the one that says what it makes; return the class."""
    part = PARTS[table]
    return class_of(table, keys.pop(part.key, part.default))


def make_parts(tables: Mapping[str, Any]) -> tuple[Algorithm, Uplink, dict[str, Table]]:
    """Return the algorithm and the uplink that tables describe, and the tables with defaults.

    >>> algorithm, uplink, resolved = make_parts({"algorithm": {"local_steps": 2}})
    >>> algorithm.local_steps, uplink, resolved["server"]
    (2, Ideal(), {'name': 'mean'})
    """
    keys = {table: dict(tables.get(table, {})) for table in PARTS}
    names = {t: keys[t].get(part.key, part.default) for t, part in PARTS.items()}
    kinds = {table: choice_of(table, keys[table]) for table in PARTS}
    server, server_keys = made_by("server", kinds["server"], keys["server"])
    uplink, uplink_keys = made_by("uplink", kinds["uplink"], keys["uplink"])
    resolved = {"uplink": {"name": names["uplink"], **uplink_keys}}
    kind, own = kinds["algorithm"], keys["algorithm"]
    if has_server(kind):
        arguments = arguments_of("algorithm", kind, own, hidden=("server",))
        resolved["server"] = {"name": names["server"], **server_keys}
        made = {**arguments, "server": server}
    else:
        if not isinstance(server, Mean):
            allowed = f"'mean': the algorithm {names['algorithm']} has no server step"
            raise InvalidValue("server.name", names["server"], allowed)
        made = arguments = arguments_of("algorithm", kind, own)
    resolved["algorithm"] = {"name": names["algorithm"], **arguments}
    tables = {table: resolved[table] for table in PARTS if table in resolved}
    with naming("algorithm"):
        return kind(**made), uplink, tables


def has_server(kind: Any) -> bool:
    """Return whether an algorithm leaves the server's part to a server step."""
    return any(field.name == "server" for field in fields(kind))


def describe_parts(algorithm: Algorithm, uplink: Uplink) -> dict[str, Table]:
    """Return the tables that make this algorithm, with its server step, and this uplink.

    >>> from fedzo import FedZO, Ideal
    >>> tables = describe_parts(FedZO(local_steps=2), Ideal())
    >>> tables["algorithm"]["local_steps"], tables["server"], tables["uplink"]
    (2, {'name': 'mean'}, {'name': 'ideal'})
    """
    described = {"algorithm": _describe("algorithm", algorithm)}
    if described["algorithm"].pop("server", None) is not None:
        described["server"] = _describe("server", algorithm.server)  # type: ignore[attr-defined]
    return described | {"uplink": _describe("uplink", uplink)}


def _describe(table: str, part: Any) -> Table:
    key, known, _, _ = PARTS[table]
    names = {kind: name for name, kind in known.items()}
    return {key: names.get(type(part), name_of(type(part))), **asdict(part)}


def check_part(table: str, part: object) -> None:
    """Raise unless this is an object that such a table could have made."""
    base = PARTS[table].base
    if isinstance(part, base) and is_dataclass(part):
        return
    example = PARTS[table].known[PARTS[table].default].__name__
    if isinstance(part, type) and issubclass(part, base):
        raise InvalidValue(table, part, f"an object, such as {example}(), not a class")
    raise UsageError(
        f"{table} = {part!r}: must be a dataclass that is a subclass of fedzo.{base.__name__}, "
        f"such as fedzo.{example}()"
    )
