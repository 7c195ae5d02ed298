"""A table's keys are the parameters of what it makes: checked against its signature."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from fedzo.errors import InvalidValue, UsageError, is_number, naming, nearest, one_of, shown

_FIXED = ("run", "flower")  # the tables that always make the same


def made_by(table: str, factory: Callable[..., Any], keys: Mapping[str, Any]) -> Any:
    """Return what a table makes, and its keys with the defaults filled in.

    >>> made_by("point", complex, {"real": 1, "imag": 2})
    ((1+2j), {'real': 1, 'imag': 2})
    """
    arguments = arguments_of(table, factory, keys)
    with naming(table):
        return factory(**arguments), arguments


def arguments_of(
    table: str, factory: Callable[..., Any], keys: Mapping[str, Any], hidden: Sequence[str] = ()
) -> dict[str, Any]:
    """Check keys against a factory's parameters, by name and type; fill in the defaults.

    >>> def line(slope: float, start: float = 0.0): ...
    >>> arguments_of("line", line, {"slope": 2})
    {'slope': 2.0, 'start': 0.0}
    >>> arguments_of("line", line, {"slop": 2})
    Traceback (most recent call last):
    fedzo.errors.UsageError: line.slop = 2: unknown key (did you mean 'slope'?); ...
    """
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
            whose = "" if table in _FIXED else f" for {factory.__name__}"
            raise UsageError(
                f"{table}.{key} = {shown(value)}: unknown key{nearest(key, known)}; "
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


def parameters_of(factory: Callable[..., Any]) -> set[str]:
    """Return the names of what a factory takes.

    >>> sorted(parameters_of(lambda dim, seed=0: None))
    ['dim', 'seed']
    """
    return set(inspect.signature(factory).parameters)


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    # The fields of a dataclass are looked up each in the module of its own class.
    whole = is_dataclass(factory) or not inspect.isclass(factory)
    try:
        return typing.get_type_hints(factory if whole else factory.__init__)
    except (NameError, TypeError):  # hints for a type checker only, or on what takes none
        return {}


def _options(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a TOML value may stand for a parameter of this type."""
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
            if isinstance(value, float) or is_number(value):
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
    names |= {list: "a list", tuple: "a list", dict: "a table", Any: "a value"}
    words = []
    for option in _options(hint):
        if typing.get_origin(option) is typing.Literal:
            words.append(_choose_from([str(o) for o in typing.get_args(option)]))
        elif option is not type(None):
            words.append(names.get(typing.get_origin(option) or option, str(option)))
    return " or ".join(words)
