"""Reading records that somebody else wrote: every value by its name and type, or not at all."""

from __future__ import annotations

import types
import typing
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedzo.errors import FedzoError

Array = NDArray[Any]

# Characters: a run's parts are a few numbers, so a longer text is not one of ours.
LONGEST_TEXT = 10_000


class Malformed(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A message that is not what its type says it is."""


def config(content: RecordDict, name: str) -> ConfigRecord:
    """Return a record of plain values by its name."""
    record = content.config_records.get(name)
    if record is None:
        raise Malformed(f"the message has no record {name!r}")
    return record


def array_record(content: RecordDict) -> ArrayRecord:
    """Return the arrays of a message."""
    record = content.array_records.get("arrays")
    if record is None:
        raise Malformed("the message has no arrays")
    return record


def numpy_of(arrays: dict[str, Any], name: str) -> Array:
    """Take an array of floats out of those of a message."""
    if name not in arrays:
        raise Malformed(f"the message has no array {name!r}")
    try:
        found = np.asarray(arrays.pop(name).numpy())
    except Exception as error:  # NumPy refuses what is pickled, cut off or no array
        raise Malformed(f"the array {name!r} cannot be read: {error}") from error
    if found.dtype not in (np.float32, np.float64):
        raise Malformed(f"the array {name!r} is of type {found.dtype}, not float32 or float64")
    return found


def take(plain: dict[str, Any], name: str, hint: Any) -> Any:
    """Take a value out of a record, checked against its type."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    if name not in plain and type(None) in options:
        return None
    if name not in plain:
        raise Malformed(f"the message has no {name!r}")
    value = plain.pop(name)
    if not any(_fits(value, option) for option in options):
        raise Malformed(f"{name!r} is {str(value)[:40]!r}, not of the type {hint}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is list:
        (inner,) = typing.get_args(hint)
        return isinstance(value, list) and all(_fits(v, inner) for v in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)
