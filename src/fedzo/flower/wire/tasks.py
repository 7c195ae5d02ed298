"""Down: the work of a round, or the model to be evaluated, and which devices are asked.

A round's work is the algorithm's name and hyper-parameters in JSON, the round and the seed in a
``ConfigRecord``, and x in an ``ArrayRecord``. Whoever reads it looks the name up among the
algorithms that it knows, and checks every field against its signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedzo.algorithms import Algorithm
from fedzo.core.files import as_toml
from fedzo.core.work import Work
from fedzo.errors import FedzoError
from fedzo.flower.following import Following
from fedzo.flower.reasons import Reason, Refused
from fedzo.flower.schema import LONGEST_TEXT, Malformed, array_record, config, numpy_of, take
from fedzo.runs.registry import describe_parts, make_parts
from fedzo.uplinks import Ideal

Array = NDArray[Any]


class Packed(NamedTuple):
    """Work as it travels, the same to every node: its plain fields, and its arrays."""

    plain: Mapping[str, Any]
    arrays: ArrayRecord


def pack(work: Work) -> Packed:
    """Return work as it travels, with the model."""
    plain: dict[str, Any] = {
        "algorithm": describe_algorithm(work.algorithm),
        "round": work.round,
        "seed": str(work.seed),  # up to 64 bits without a sign, which a record has no integer for
    }
    if work.rows is not None:
        plain["rows"] = list(work.rows)
    arrays = {"x": work.x}
    if work.stretch is not None:
        arrays["stretch"] = work.stretch
    return Packed(plain, _arrays(arrays))


def describe_algorithm(algorithm: Algorithm) -> str:
    """Return an algorithm as text: its name and its hyper-parameters, without the server's step."""
    fields = describe_parts(algorithm, Ideal())["algorithm"]
    return json.dumps(as_toml({"algorithm": fields})["algorithm"])


def task(work: Packed | Following, devices: Sequence[int], coefficients: bool) -> RecordDict:
    """Return the content of a message that has these devices do the work.

    Everything plain stands in one record: each object of a message is a request of its own.

    Examples
    --------
    >>> from fedzo import FedZO
    >>> from fedzo.algorithms import ALGORITHMS
    >>> work = Work(FedZO(directions=2, local_steps=1), np.zeros(3), round=7, seed=1)
    >>> content = task(pack(work), [2, 4], coefficients=True)
    >>> same, devices, coefficients = read_task(content, ALGORITHMS)
    >>> same.round, same.algorithm == work.algorithm, devices, coefficients
    (7, True, [2, 4], True)
    """
    return _addressed(work, devices, coefficients=coefficients)


def read_task(
    content: RecordDict, known: Mapping[str, Any]
) -> tuple[Work | Following, list[int], bool]:
    """Return the work, the devices that shall do it, and whether to answer by coefficients.

    ``known`` are the algorithms that this node is willing to run, by name.
    """
    plain = dict(config(content, "task"))
    devices = take(plain, "devices", list[int])
    coefficients = take(plain, "coefficients", bool)
    following = Following.read(plain, content.array_records.get("arrays"))
    if following is not None:
        _require_empty(plain)
        return following, devices, coefficients
    rows = take(plain, "rows", list[int] | None)
    arrays = dict(array_record(content))
    x = _points(numpy_of(arrays, "x"), rows, devices)
    work = Work(
        algorithm=_algorithm(take(plain, "algorithm", str), known),
        x=x,
        round=_whole_number("round", take(plain, "round", int), bits=32),
        seed=_seed(take(plain, "seed", str)),
        rows=None if rows is None else tuple(rows),
        stretch=_stretch(numpy_of(arrays, "stretch"), x) if "stretch" in arrays else None,
    )
    _require_empty({**plain, **arrays})
    return work, devices, coefficients


def model(x: Array | Following, devices: Sequence[int], metrics: bool = False) -> RecordDict:
    """Return the content of a message that asks for f_i(x), and the problem's metrics at x."""
    told = x if isinstance(x, Following) else Packed({}, vector(x))
    return _addressed(told, devices, metrics=metrics)


def read_model(content: RecordDict) -> tuple[Array | Following, list[int], bool]:
    """Return x or how to come to it, the devices whose losses are asked for, if metrics are."""
    plain = dict(config(content, "task"))
    devices, metrics = take(plain, "devices", list[int]), take(plain, "metrics", bool)
    following = Following.read(plain, content.array_records.get("arrays"))
    return read_vector(content) if following is None else following, devices, metrics


def vector(x: Array) -> ArrayRecord:
    """Return one vector as a record."""
    return _arrays({"x": x})


def read_vector(content: RecordDict, dim: int | None = None) -> Array:
    """Return the vector of a message: finite, float32 or float64, of ``dim`` numbers if given."""
    x = numpy_of(dict(array_record(content)), "x")
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise Malformed("the vector is not one of finite numbers")
    if dim is not None and x.size != dim:
        raise Malformed(f"the vector has {x.size} numbers, not {dim}")
    return x


def _addressed(told: Packed | Following, devices: Sequence[int], **wanted: bool) -> RecordDict:
    """Return a message about a model, whole or to be followed, to devices."""
    plain: dict[str, Any] = {"devices": [int(i) for i in devices], **wanted}
    if isinstance(told, Following):
        plain, arrays = plain | told.plain(), told.arrays()
    else:
        plain, arrays = plain | dict(told.plain), told.arrays
    records = RecordDict({"task": ConfigRecord(plain)})
    if arrays is not None:
        records["arrays"] = arrays
    return records


def _arrays(arrays: Mapping[str, Array]) -> ArrayRecord:
    return ArrayRecord({k: FlowerArray(np.ascontiguousarray(a)) for k, a in arrays.items()})


def _points(x: Array, rows: list[int] | None, devices: list[int]) -> Array:
    """Return where devices start, all at one point, at one each, or at all of several."""
    if rows is not None and (x.ndim != 2 or rows != devices or len(rows) != len(x)):
        raise Malformed(f"{len(rows)} rows are not those of the {len(devices)} devices asked")
    if x.ndim not in (1, 2) or x.size == 0 or not np.isfinite(x).all():
        raise Malformed("the model is not one of finite numbers")
    return x


def _stretch(factors: Array, x: Array) -> Array:
    """Return what directions are multiplied by, a positive factor for each number of x."""
    if factors.shape != x.shape or x.ndim != 1 or not np.all((factors > 0) & np.isfinite(factors)):
        raise Malformed("directions cannot be stretched by these factors")
    return factors


def _algorithm(text: str, known: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm that a text describes, if it is among the known ones."""
    try:
        keys: dict[str, Any] = json.loads(text) if len(text) <= LONGEST_TEXT else {}
        made, _, _ = make_parts({"algorithm": {"name": None, **keys}}, known)
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, FedzoError) as error:
        text = f"the message names no algorithm that is known here: {error}"
        raise Refused(Reason.UNKNOWN_ALGORITHM, text) from error
    return made


def _seed(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    return _whole_number("seed", number, bits=64)


def _whole_number(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise Malformed(f"the {name} is not a whole number of {bits} bits")
    return value


def _require_empty(left: Mapping[str, Any]) -> None:
    if left:
        raise Malformed(f"the message has unknown fields: {list(left)}")
