"""Read and write records by a schema: the fields of a dataclass, with their types and defaults.

Every field of a record that another machine wrote is checked by name and type before its use, and
a record with unknown fields is rejected. Nothing is unpickled.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedzo.core.types import Array
from fedzo.errors import InvalidValue, nearest, require
from fedzo.flower.errors import Malformed

T = TypeVar("T")

# Characters. The settings of a run are a few numbers, so fedzo sends no longer text.
LONGEST_TEXT = 10_000


def write_fields(record: Any) -> ConfigRecord:
    """Return a dataclass as a record, without the fields that have their default values."""
    defaults = {field.name: field.default for field in fields(record)}
    sent = {name: value for name, value in vars(record).items() if value != defaults[name]}
    return ConfigRecord({k: list(v) if isinstance(v, tuple) else v for k, v in sent.items()})


def read_fields(kind: type[T], record: Mapping[str, Any], longest: int | None = None) -> T:
    """Return a record as a dataclass, or raise :class:`Malformed`.

    ``longest`` is the largest number of items that a list may have. It is checked first, so that a
    list of millions costs nothing.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pair:
    ...     name: str
    ...     values: tuple[float, ...] = ()
    >>> read_fields(Pair, {"name": "a", "values": [1.0, 2]})
    Pair(name='a', values=(1.0, 2))
    >>> read_fields(Pair, {"name": 3})
    Traceback (most recent call last):
    fedzo.flower.errors.Malformed: 'name' is '3', not of the type <class 'str'>
    """
    plain, hints = dict(record), typing.get_type_hints(kind)
    for name, value in plain.items():
        if longest is not None and isinstance(value, list) and len(value) > longest:
            raise Malformed(f"{name!r} has {len(value)} items, more than {longest}", name)
    found = {
        field.name: take(plain, field.name, hints[field.name])
        for field in fields(typing.cast(Any, kind))
        if field.name in plain or field.default is MISSING
    }
    require_empty(plain)
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})


def take(plain: dict[str, Any], name: str, hint: Any) -> Any:
    """Take a value out of a record, checked against its type."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    if name not in plain and type(None) in options:
        return None
    if name not in plain:
        raise Malformed(f"the message has no {name!r}", name)
    value = plain.pop(name)
    if not any(_fits(value, option) for option in options):
        raise Malformed(f"{name!r} is {str(value)[:40]!r}, not of the type {hint}", name)
    return value


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) in (list, tuple):
        inner = typing.get_args(hint)[0]
        allowed = {int, float} if inner is float else {inner}
        return isinstance(value, list) and set(map(type, value)) <= allowed
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)


def require_empty(left: Iterable[str]) -> None:
    """Raise if fields are left that nothing has read."""
    unknown = sorted(left)
    if unknown:
        raise Malformed(f"the message has unknown fields: {unknown}", unknown[0])


def config(content: RecordDict, name: str) -> ConfigRecord:
    """Return a record of plain values by its name."""
    record = content.config_records.get(name)
    if record is None:
        raise Malformed(f"the message has no record {name!r}", name)
    return record


def read_json(text: str) -> dict[str, Any]:
    """Return a JSON object, or raise ValueError."""
    try:
        found = json.loads(text) if len(text) <= LONGEST_TEXT else None
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object of at most {LONGEST_TEXT} characters")
    return found


def write_arrays(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return arrays as a record."""
    return ArrayRecord({k: FlowerArray(np.asarray(a, order="C")) for k, a in arrays.items()})


def array_record(content: RecordDict) -> ArrayRecord:
    """Return the arrays of a message."""
    record = content.array_records.get("arrays")
    if record is None:
        raise Malformed("the message has no arrays", "arrays")
    return record


def numpy_of(arrays: dict[str, Any], name: str) -> Array:
    """Take an array of floats out of those of a message."""
    if name not in arrays:
        raise Malformed(f"the message has no array {name!r}", name)
    try:
        found = np.asarray(arrays.pop(name).numpy())
    except Exception as error:  # NumPy rejects pickles, truncated files and other bytes
        raise Malformed(f"the array {name!r} cannot be read: {error}", name) from error
    if found.dtype not in (np.float32, np.float64):
        raise Malformed(f"the array {name!r} has type {found.dtype}, not float32 or float64", name)
    return found


@dataclass(frozen=True)
class Layout:
    """Named arrays as one vector, and back.

    The trained arrays are part of the vector, in their order. The others, such as a count of
    batches, are unchanged.

    Examples
    --------
    >>> arrays = {"weight": np.ones((2, 3), np.float32), "count": np.array(7)}
    >>> layout = Layout.of(write_arrays(arrays))
    >>> layout.vector().shape, layout.record(np.zeros(6))["weight"].numpy().shape
    ((6,), (2, 3))
    """

    arrays: Mapping[str, Array]
    trained: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Sequence[str] | None = None) -> Layout:
        """Return the layout of a record.

        ``trainable`` are names or patterns of arrays; by default all arrays of floats.
        """
        arrays = {name: np.asarray(array.numpy()) for name, array in record.items()}
        floats = [name for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating)]
        if not floats:
            raise InvalidValue("initial_arrays", f"{len(arrays)} arrays", "arrays of floats")
        for pattern in trainable or ():
            allowed = f"the name or a pattern of an array of floats{nearest(pattern, floats)}"
            fits = any(fnmatchcase(name, pattern) for name in floats)
            require(fits, "trainable", pattern, allowed)
        wanted = ["*"] if trainable is None else trainable
        trained = (name for name in floats if any(fnmatchcase(name, one) for one in wanted))
        return cls(arrays, tuple(trained))

    @classmethod
    def read(cls, arrays: dict[str, Any]) -> Layout:
        """Return the layout of the arrays of a message, which are all trained and of one type."""
        found = {name: numpy_of(arrays, name) for name in list(arrays)}
        if len({array.dtype for array in found.values()}) != 1:
            raise Malformed("the arrays of a model need one type", "arrays")
        return cls(found, tuple(found))

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """The name and the shape of each array, in their order."""
        return [(name, array.shape) for name, array in self.arrays.items()]

    def vector(self) -> Array:
        """Return the trained arrays as one vector."""
        return np.concatenate([self.arrays[name].reshape(-1) for name in self.trained])

    def record(self, x: Array) -> ArrayRecord:
        """Return a vector as a record with the same names, shapes and types."""
        return write_arrays(self.named(x))

    def named(self, x: Array) -> dict[str, Array]:
        """Return a vector as arrays by name."""
        made, at = dict(self.arrays), 0
        for name in self.trained:
            array = made[name]
            made[name] = x[at : at + array.size].reshape(array.shape).astype(array.dtype)
            at += array.size
        return made
