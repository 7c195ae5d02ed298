"""What travels: messages of arrays and plain values, each read back by an explicit schema.

Nothing is pickled. A round's work is a frozen dataclass out of :data:`WORKS`; it travels as the
name of its class, its plain fields in a ``ConfigRecord`` (a nested dataclass's by dotted names)
and its arrays in an ``ArrayRecord``. Whoever reads it looks the name up in the same list,
and checks every field against the class's type hints.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from numpy.typing import NDArray

from fedzo.algorithms.dzopa import OwnSteps
from fedzo.algorithms.fedavg import LocalGradientSteps
from fedzo.algorithms.fedzo import LocalSteps
from fedzo.algorithms.zo_sgd import PooledSteps
from fedzo.core.federation import Update
from fedzo.errors import UsageError
from fedzo.flower.schema import Malformed, array_record, config, numpy_of, take

Array = NDArray[Any]

WORKS: dict[str, Any] = {
    work.__name__: work for work in (LocalSteps, LocalGradientSteps, PooledSteps, OwnSteps)
}

# A problem has a few metrics, each with a short name; the history keeps no more.
MOST_METRICS, LONGEST_NAME = 64, 64

# The types of messages, by Flower's scheme "category.action".
HELLO, INITIAL, TRAIN, EVALUATE = "query.hello", "query.initial", "train", "evaluate"


class Hello(NamedTuple):
    """What a node tells when it joins: the shape of the problem, and its part of it."""

    dim: int
    devices: int  # N, of the whole federation
    held: tuple[int, ...]  # which of them live here
    sizes: tuple[int, ...]  # how many samples each of those has
    offers: tuple[str, ...]  # the objective's optional methods
    cost: int  # of an evaluation, if the objective tells it, else 0

    @property
    def shape(self) -> tuple[int, int]:
        """In what all nodes must agree: the dimension and the number of devices."""
        return self.dim, self.devices


class Answer(NamedTuple):
    """One node's part of a round: what its devices found, and which of them failed, and why."""

    round: int
    updates: tuple[Update, ...]  # ``delta`` is empty where coefficients were asked for
    failures: Mapping[int, str]


def size(message: Any) -> int:
    """Return the bytes of a message as Flower serialises it: every object that is pushed.

    HTTP's own headers come on top.
    """
    with no_object_id_recompute():
        return sum(len(one.deflate()) for one in get_all_nested_objects(message).values())


# ---------------------------------------------------------------------------- down: the work


class Packed(NamedTuple):
    """Work as it travels, the same to every node: its plain fields, and its arrays."""

    plain: ConfigRecord
    arrays: ArrayRecord


def pack(work: Any) -> Packed:
    """Return work as it travels; raise if it is none of :data:`WORKS`."""
    name = type(work).__name__
    if WORKS.get(name) is not type(work):
        raise UsageError(f"{name} is no work that can travel: it must be one of {list(WORKS)}")
    plain: dict[str, Any] = {"work": name}
    arrays: dict[str, FlowerArray] = {}
    _flatten("work", work, plain, arrays)
    return Packed(ConfigRecord(plain), ArrayRecord(arrays))


def task(work: Packed, devices: Sequence[int], coefficients: bool) -> RecordDict:
    """Return the content of a message that has these devices do the work.

    Examples
    --------
    >>> from fedzo.core.estimator import Estimator
    >>> work = LocalSteps(Estimator(1e-3, 2), 0.1, 5, np.zeros(3), round=7, seed=1)
    >>> content = task(pack(work), [2, 4], coefficients=True)
    >>> content["work"]["work"], content["work"]["work.estimator.smoothing"]
    ('LocalSteps', 0.001)
    >>> same, devices, coefficients = read_task(content)
    >>> same.round, same.estimator == work.estimator, devices, coefficients
    (7, True, [2, 4], True)
    """
    asked = ConfigRecord({"devices": [int(i) for i in devices], "coefficients": coefficients})
    return RecordDict({"task": asked, "work": work.plain, "arrays": work.arrays})


def _flatten(prefix: str, part: Any, plain: dict[str, Any], arrays: dict[str, Any]) -> None:
    for field in dataclasses.fields(part):
        name, value = f"{prefix}.{field.name}", getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            _flatten(name, value, plain, arrays)
        elif isinstance(value, np.ndarray):
            arrays[name] = FlowerArray(np.ascontiguousarray(value))
        elif value is not None:  # a record has no word for None: what is not there is None
            plain[name] = value.item() if isinstance(value, np.generic) else value


def read_task(content: RecordDict) -> tuple[Any, list[int], bool]:
    """Return the work, the devices that shall do it, and whether to answer by coefficients."""
    asked, plain = dict(config(content, "task")), dict(config(content, "work"))
    arrays = dict(array_record(content))
    kind = WORKS.get(str(plain.pop("work", None)))
    if kind is None:
        raise Malformed("the message names no work that is known here")
    devices = take(asked, "devices", list[int])
    coefficients = take(asked, "coefficients", bool)
    work = _build(kind, "work", plain, arrays)
    if plain or arrays:
        raise Malformed(f"the message has fields that {kind.__name__} has not: {[*plain, *arrays]}")
    return work, devices, coefficients


def _build(kind: Any, prefix: str, plain: dict[str, Any], arrays: dict[str, Any]) -> Any:
    hints, values = _hints(kind), {}
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}.{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint):
            values[field.name] = _build(hint, name, plain, arrays)
        elif typing.get_origin(hint) is np.ndarray:
            values[field.name] = numpy_of(arrays, name)
        else:
            values[field.name] = take(plain, name, hint)
    return kind(**values)


_hints = functools.cache(typing.get_type_hints)


# ------------------------------------------------------------------------- up: what came of it


def answer(found: Answer, coefficients: bool) -> RecordDict:
    """Return the content of a reply.

    Coefficients are few, so they stand in the record itself: an array of Flower's is three
    objects with a hash of 64 characters each, more than they are.
    """
    updates = found.updates
    plain: dict[str, Any] = {
        "round": found.round,
        "devices": [u.device for u in updates],
        "weights": [float(u.weight) for u in updates],
        "queries": [u.queries for u in updates],
        "failed": list(found.failures),
        "reasons": list(found.failures.values()),
    }
    records = RecordDict()
    if updates and coefficients:
        numbers = np.stack([np.asarray(u.coefficients) for u in updates])
        plain["steps"], plain["dtype"] = numbers.shape[1], numbers.dtype.name
        plain["coefficients"] = numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()
    elif updates:
        deltas = FlowerArray(np.stack([u.delta for u in updates]))
        records["arrays"] = ArrayRecord({"deltas": deltas})
    records["answer"] = ConfigRecord(plain)
    return records


def read_answer(content: RecordDict, coefficients: bool, asked: int) -> Answer:
    """Return what a node's devices found; raise :class:`Malformed` if it is not an answer.

    ``asked`` is how many devices were asked: more cannot answer.
    """
    plain = dict(config(content, "answer"))
    devices, failures = _devices(plain, asked)
    weights, queries = take(plain, "weights", list[float]), take(plain, "queries", list[int])
    if not len(devices) == len(weights) == len(queries):
        raise Malformed("the answer's lists differ in length")
    empty = np.empty(0)
    if not devices:
        rows: Any = ()
    elif coefficients:
        rows = [(empty, own) for own in _coefficients(plain, len(devices))]
    else:
        deltas = numpy_of(dict(array_record(content)), "deltas")
        if deltas.ndim != 2 or len(deltas) != len(devices):
            raise Malformed(f"updates of {len(devices)} devices have the shape {deltas.shape}")
        rows = [(delta, None) for delta in deltas]
    updates = tuple(
        Update(device, delta, weight, asked, own)
        for device, (delta, own), weight, asked in zip(devices, rows, weights, queries, strict=True)
    )
    return Answer(take(plain, "round", int), updates, failures)


def _devices(plain: dict[str, Any], asked: int) -> tuple[list[int], dict[int, str]]:
    """Return whose answers these are, and who failed why: each device once, none of the others."""
    for name in ("devices", "failed", "reasons"):  # before anything looks at each of a million
        if isinstance(plain.get(name), list) and len(plain[name]) > asked:
            raise Malformed(f"the answer is about more devices than the {asked} that were asked")
    devices, failed = take(plain, "devices", list[int]), take(plain, "failed", list[int])
    reasons = take(plain, "reasons", list[str])
    if len({*devices, *failed}) != len(devices) + len(failed):
        raise Malformed("the answer names a device twice")
    if len(reasons) != len(failed):
        raise Malformed("the answer's lists differ in length")
    return devices, dict(zip(failed, reasons, strict=True))


def _coefficients(plain: dict[str, Any], devices: int) -> Array:
    name, steps = take(plain, "dtype", str), take(plain, "steps", int)
    if name not in ("float32", "float64"):
        raise Malformed(f"coefficients are of type {name!r}, not float32 or float64")
    kind = np.dtype(name)
    numbers = np.frombuffer(take(plain, "coefficients", bytes), kind.newbyteorder("<")).astype(kind)
    if steps < 1 or numbers.size == 0 or numbers.size % (devices * steps):
        raise Malformed(f"{numbers.size} coefficients are not those of {devices} devices")
    return numbers.reshape(devices, steps, -1)


# ----------------------------------------------------------------------- the other messages


def hello(told: Hello) -> RecordDict:
    """Return the content of a node's introduction."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in told._asdict().items()}
    return RecordDict({"hello": ConfigRecord(plain)})


def read_hello(content: RecordDict) -> Hello:
    """Return a node's introduction, checked to make sense by itself."""
    plain = dict(config(content, "hello"))
    told = Hello(
        take(plain, "dim", int),
        take(plain, "devices", int),
        tuple(take(plain, "held", list[int])),
        tuple(take(plain, "sizes", list[int])),
        tuple(take(plain, "offers", list[str])),
        take(plain, "cost", int),
    )
    whose = all(0 <= i < told.devices for i in told.held) and len(told.held) == len(told.sizes)
    once = len(set(told.held)) == len(told.held)
    if not (whose and once and told.dim > 0 and min(told.cost, *told.sizes, 0) == 0):
        raise Malformed("the node's introduction contradicts itself")
    return told


def model(x: Array, devices: Sequence[int], metrics: bool = False) -> RecordDict:
    """Return the content of a message that asks for f_i(x), and the problem's metrics at x."""
    plain = ConfigRecord({"devices": [int(i) for i in devices], "metrics": metrics})
    return RecordDict({"task": plain, "arrays": vector(x)})


def read_model(content: RecordDict) -> tuple[Array, list[int], bool]:
    """Return x, the devices whose losses are asked for, and whether metrics are."""
    plain = dict(config(content, "task"))
    x = read_vector(content)
    return x, take(plain, "devices", list[int]), take(plain, "metrics", bool)


def losses(
    found: Mapping[int, float], failures: Mapping[int, str], metrics: Mapping[str, float]
) -> RecordDict:
    """Return the content of a reply to :func:`model`."""
    plain: dict[str, Any] = {
        "devices": list(found),
        "losses": [float(v) for v in found.values()],
        "failed": list(failures),
        "reasons": list(failures.values()),
    }
    records = RecordDict({"answer": ConfigRecord(plain)})
    if metrics:
        records["metrics"] = MetricRecord({k: float(v) for k, v in metrics.items()})
    return records


def read_losses(
    content: RecordDict, asked: int
) -> tuple[dict[int, float], dict[int, str], dict[str, float]]:
    """Return losses and failures by device, and metrics by name; ``asked``: how many devices."""
    plain = dict(config(content, "answer"))
    devices, failures = _devices(plain, asked)
    values = take(plain, "losses", list[float])
    if len(devices) != len(values):
        raise Malformed("the answer's lists differ in length")
    found = dict(zip(devices, values, strict=True))
    return found, failures, _metrics(content.metric_records.get("metrics") or {})


def _metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among a few metrics whose names can be shown."""
    few = itertools.islice(told.items(), MOST_METRICS)
    return {
        name: float(value)
        for name, value in few
        if len(name) <= LONGEST_NAME and name.isprintable()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def vector(x: Array) -> ArrayRecord:
    """Return one vector as a record."""
    return ArrayRecord({"x": FlowerArray(np.ascontiguousarray(x))})


def read_vector(content: RecordDict, dim: int | None = None) -> Array:
    """Return the vector of a message: finite, float32 or float64, of ``dim`` numbers if given."""
    x = numpy_of(dict(array_record(content)), "x")
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise Malformed("the vector is not one of finite numbers")
    if dim is not None and x.size != dim:
        raise Malformed(f"the vector has {x.size} numbers, not {dim}")
    return x


def reply(content: RecordDict, message: Message) -> Message:
    """Return a reply to a message."""
    return Message(content, reply_to=message)
