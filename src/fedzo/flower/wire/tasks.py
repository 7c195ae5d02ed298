"""Down: the work of a round, or the model to be evaluated, and which devices are asked.

A round's work is the algorithm's name and hyper-parameters in JSON, the round and the seed in a
``ConfigRecord``, and x in an ``ArrayRecord``. Whoever reads it looks the name up among the
algorithms that it knows, and checks every field against its signature.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedzo.algorithms import Algorithm
from fedzo.core.files import as_toml
from fedzo.core.tasks import WEIGHTINGS, Evaluate, LocalSteps, Slopes, Task
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


def pack(task: Task) -> Packed:
    """Return a task as it travels, with the model."""
    plain: dict[str, Any] = {
        "round": task.round,
        "seed": str(task.seed),  # up to 64 bits without a sign, which a record has no integer for
    }
    if task.index:
        plain["index"] = task.index
    if isinstance(task, LocalSteps):
        plain |= {
            "algorithm": describe_algorithm(task.algorithm),
            "learning_rate": task.learning_rate,
        }
        arrays = {"x": task.x, **{f"row {name}": rows for name, rows in task.rows.items()}}
        if task.direction_scale is not None:
            arrays["direction_scale"] = task.direction_scale
        return Packed(plain, _arrays(arrays))
    assert isinstance(task, Evaluate | Slopes)
    plain |= {"batch_size": task.batch_size, "weighting": task.weighting}
    if isinstance(task, Evaluate):
        return Packed(plain, _arrays({"points": task.points}))
    plain |= {"everyone": task.everyone, "central": task.central, "turn": task.turn}
    return Packed(plain, _arrays({"x": task.x, "steps": task.steps}))


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
    >>> steps = LocalSteps(FedZO(directions=2, local_steps=1), np.zeros(3), round=7, seed=1)
    >>> content = task(pack(steps), [2, 4], coefficients=True)
    >>> same, devices, coefficients = read_task(content, ALGORITHMS)
    >>> same.round, same.algorithm == steps.algorithm, devices, coefficients
    (7, True, [2, 4], True)
    """
    return _addressed(work, devices, coefficients=coefficients)


def read_task(
    content: RecordDict, known: Mapping[str, Any]
) -> tuple[Task | Following, list[int], bool]:
    """Return the task, the devices that shall do it, and whether to answer by coefficients.

    ``known`` are the algorithms that this node is willing to run, by name.
    """
    plain = dict(config(content, "task"))
    devices = take(plain, "devices", list[int])
    coefficients = take(plain, "coefficients", bool)
    following = Following.read(plain, content.array_records.get("arrays"))
    if following is not None:
        _require_empty(plain)
        return following, devices, coefficients
    arrays = dict(array_record(content))
    common: dict[str, Any] = {
        "round": _whole_number("round", take(plain, "round", int), bits=26),
        "seed": _seed(take(plain, "seed", str)),
        "index": _whole_number("index", take(plain, "index", int | None) or 0, bits=6),
        "devices": devices,
    }
    if "algorithm" in plain:
        read: Task = _local_steps(plain, arrays, known, common)
    else:
        common["batch_size"] = _count(take(plain, "batch_size", int))
        common["weighting"] = _weighting(take(plain, "weighting", str))
        if "points" in arrays:
            read = Evaluate(_matrix(numpy_of(arrays, "points")), **common)
        else:
            read = _slopes(plain, arrays, common)
    _require_empty({**plain, **arrays})
    return read, devices, coefficients


def _local_steps(
    plain: dict[str, Any], arrays: dict[str, Any], known: Mapping[str, Any], common: dict[str, Any]
) -> LocalSteps:
    devices, x = common["devices"], numpy_of(arrays, "x")
    if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != len(devices)):
        raise Malformed(f"the model's shape {x.shape} is not that of {len(devices)} devices")
    scale = numpy_of(arrays, "direction_scale") if "direction_scale" in arrays else None
    names = [name for name in arrays if name.startswith("row ")]
    rows = {name.removeprefix("row "): _matrix(numpy_of(arrays, name)) for name in names}
    if any(len(own) != len(devices) for own in rows.values()):
        raise Malformed(f"the rows are not those of {len(devices)} devices")
    rate = take(plain, "learning_rate", float)
    if not 0 < rate < math.inf:
        raise Malformed("the learning rate is not a number > 0")
    return LocalSteps(
        _algorithm(take(plain, "algorithm", str), known),
        _finite(x),
        rate,
        rows,
        None if scale is None else _scale(scale, x),
        **common,
    )


def _slopes(plain: dict[str, Any], arrays: dict[str, Any], common: dict[str, Any]) -> Slopes:
    x, steps = (_finite(numpy_of(arrays, name)) for name in ("x", "steps"))
    if x.ndim != 1 or x.shape != steps.shape or not steps.all():
        raise Malformed("the steps of a stencil are not one for each number of x")
    return Slopes(
        x,
        steps,
        take(plain, "everyone", bool),
        take(plain, "central", bool),
        _whole_number("turn", take(plain, "turn", int), bits=32),
        **common,
    )


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


def _finite(array: Array) -> Array:
    if array.size == 0 or not np.isfinite(array).all():
        raise Malformed("the model is not one of finite numbers")
    return array


def _matrix(array: Array) -> Array:
    if array.ndim != 2:
        raise Malformed(f"an array of shape {array.shape} is not one of rows")
    return _finite(array)


def _scale(factors: Array, x: Array) -> Array:
    """Return the factors of directions, a positive one for each number of x."""
    if factors.shape != x.shape or x.ndim != 1 or not np.all((factors > 0) & np.isfinite(factors)):
        raise Malformed("directions cannot be scaled by these factors")
    return factors


def _count(value: int) -> int:
    if not 1 <= value < 1 << 32:
        raise Malformed("a batch has at least one sample")
    return value


def _weighting(name: str) -> str:
    if name not in WEIGHTINGS:
        raise Malformed(f"there is no weighting {name[:40]!r}")
    return name


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
