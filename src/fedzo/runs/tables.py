"""The tables of a configuration as they are written to TOML, and how two of one run may differ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from datetime import date, time
from typing import Any

import numpy as np
import tomli_w

from fedzo.runs.options import FlowerSettings, RunOptions

Config = Mapping[str, Mapping[str, Any]]

# What may differ between the first part of a run and its continuation.
FREE_KEYS = {
    ("problem", "max_queries"),
    *(("run", field.name) for field in fields(RunOptions) if not field.name.endswith("seed")),
    *(("flower", field.name) for field in fields(FlowerSettings)),
}


def differences(old: Config, new: Config) -> list[str]:
    """Name the settings in which two configurations of one run may not differ, but do.

    >>> differences({"run": {"seed": 0, "rounds": 5}}, {"run": {"seed": 1, "rounds": 9}})
    ['run.seed = 0, now 1']
    """
    keys = {(table, key) for config in (old, new) for table in config for key in config[table]}
    return [
        f"{table}.{key} = {was!r}, now {now!r}"
        for table, key in sorted(keys - FREE_KEYS)
        if (was := old.get(table, {}).get(key)) != (now := new.get(table, {}).get(key))
        and repr(was) != repr(now)  # nan is not equal to itself
    ]


def as_toml(config: Config) -> Config:
    """Return a configuration as it will be when written to TOML and read again.

    TOML has no null: a setting that is None, or a default that TOML cannot express, is left
    out, which has the same meaning.

    >>> as_toml({"algorithm": {"directions": np.int64(3), "participants": None, "sizes": (1, 2)}})
    {'algorithm': {'directions': 3, 'sizes': [1, 2]}}
    """
    return {table: _as_toml(keys) for table, keys in config.items()}


def _as_toml(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        items = [_as_toml(v) for v in value]
        return None if None in items else items
    if isinstance(value, Mapping):
        return {str(k): p for k, v in value.items() if (p := _as_toml(v)) is not None}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, str | int | float | date | time) else None


def as_text(config: Config) -> str:
    """Return a configuration as the text of a TOML file."""
    return tomli_w.dumps({table: dict(keys) for table, keys in config.items()})
