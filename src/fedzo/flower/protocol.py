"""The messages between the server and its nodes: how each is written, read and checked.

The server sends a greeting, tasks and models to evaluate. A node replies with an introduction,
updates or losses, or an error code. Local steps are sent as the algorithm's name and
hyper-parameters in JSON, the numbers of the round as plain values, and x as an array. The node
looks the name up among the algorithms that it allows, and checks every field against its signature.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)

from fedzo.algorithms import Algorithm
from fedzo.core.estimator import Estimator
from fedzo.core.files import as_toml
from fedzo.core.objective import Objective, is_plain, name_of
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import WEIGHTINGS, Evaluate, LocalSteps, Losses, Slopes, Task, Update
from fedzo.core.types import Array
from fedzo.core.updates import UpdateMean
from fedzo.errors import FedzoError
from fedzo.flower import schema
from fedzo.flower.errors import ErrorCode, Malformed, Rejected
from fedzo.flower.schema import Layout
from fedzo.flower.sync import SyncMessage
from fedzo.runs.registry import describe_parts, make_parts
from fedzo.uplinks import Ideal

# The types of messages, by Flower's scheme "category.action".
MESSAGE_TYPES = (
    *("query.hello", "query.initial", "train", "evaluate"),
    *("query.shares", "query.unmask"),  # before and after a secure sum
)
HELLO, INITIAL, TRAIN, EVALUATE, SHARES, UNMASK = MESSAGE_TYPES

# A problem has a few metrics with short names. The server ignores the others.
MOST_METRICS, LONGEST_NAME = 64, 64

MOST_HELD = 10**6  # devices of one node


# ----------------------------------------------------------------------------- introductions


@dataclass(frozen=True)
class Hello:
    """The introduction of a node: the shape of its problem, and the devices that it holds."""

    version: str  # of fedzo
    fingerprint: str  # of the settings that must agree, see agreed_settings
    checksum: str  # see directions_checksum
    dim: int
    devices: int  # N, of the whole federation
    held: tuple[int, ...]  # the devices on this node
    sizes: tuple[int, ...]  # the number of samples of each
    offers: tuple[str, ...]  # the problem's capabilities, by name
    cost: int  # queries per evaluation, 0 if the objective does not define it
    key: str = ""  # the node's public key for secure sums, 64 hexadecimal digits

    @property
    def shape(self) -> tuple[str, int, int]:
        """The values in which all nodes must agree: fingerprint, dimension, number of devices."""
        return self.fingerprint, self.dim, self.devices


def agreed_settings(objective: Objective, own: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings in which all nodes of a federation must agree: no data and no paths.

    These are the problem's name, its dimension, the number of devices, and the numbers and strings
    that it was made with. Settings named in ``own`` may differ between nodes.

    >>> from fedzo.problems import Quadratic
    >>> settings = agreed_settings(Quadratic(dim=3, devices=2), own=["gradient_noise"])
    >>> settings["problem"], settings["dim"], "gradient_noise" in settings
    ('fedzo.problems.quadratic:Quadratic', 3, False)
    """
    made = {k: v for k, v in objective.factory_kwargs.items() if k not in own}
    return {
        **{k: v for k, v in made.items() if is_plain(v) and not _is_path(v)},
        **{k: name_of(v) for k, v in made.items() if callable(v)},
        "problem": objective.factory,
        "dim": objective.dim,
        "devices": objective.devices,
    }


def _is_path(value: object) -> bool:
    return isinstance(value, str) and (os.sep in value or "\\" in value)


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return sixteen hexadecimal digits that identify settings.

    >>> settings_digest({"a": 1, "b": 2.0}) == settings_digest({"b": 2.0, "a": 1})
    True
    """
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def directions_checksum() -> str:
    """Return a checksum of the directions that this machine draws at a fixed address.

    If two machines differ in it (another version, no fused multiply-add), an update that one
    rebuilds from the other's coefficients differs in its last bits.

    >>> len(directions_checksum())
    16
    """
    total = hashlib.sha256()
    at = Draws(seed=2022, stream=Stream.DIRECTIONS, round=7, device=3)
    for dtype in (np.float32, np.float64):
        coefficients = np.linspace(-1, 1, 14, dtype=dtype).reshape(2, 7)
        for kind in ("sphere", "rademacher"):
            made = np.asarray(Estimator(1e-3, 7, kind).update(2500, at, coefficients), dtype)
            total.update(made.astype(made.dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()[:16]


def greeting(settings: Mapping[str, Any]) -> RecordDict:
    """Return a greeting, with the settings that the run has for the problem.

    >>> read_greeting(greeting({"devices": 3}))
    {'devices': 3}
    """
    return RecordDict({"greeting": ConfigRecord({"settings": json.dumps(dict(settings))})})


def read_greeting(content: RecordDict) -> dict[str, Any]:
    """Return the run's settings of the problem. A node compares them and makes nothing by them."""
    try:
        return schema.read_json(
            schema.take(dict(schema.config(content, "greeting")), "settings", str)
        )
    except ValueError as error:
        raise Malformed(f"the greeting's settings are {error}", "settings") from error


def hello(introduction: Hello) -> RecordDict:
    """Return a node's introduction as a message."""
    return RecordDict({"hello": schema.write_fields(introduction)})


def read_hello(content: RecordDict) -> Hello:
    """Return a node's introduction, checked for contradictions."""
    told = schema.read_fields(Hello, schema.config(content, "hello"), MOST_HELD)
    for key, valid in (
        ("held", min(told.held, default=0) >= 0 and max(told.held, default=-1) < told.devices),
        ("held", len(set(told.held)) == len(told.held)),
        ("sizes", len(told.sizes) == len(told.held) and min(told.sizes, default=0) >= 0),
        ("dim", told.dim > 0),
        ("cost", told.cost >= 0),
        ("fingerprint", max(map(len, (told.version, told.fingerprint, told.checksum))) <= 40),
        ("key", re.fullmatch("([0-9a-f]{64})?", told.key)),
    ):
        if not valid:
            raise Malformed(f"the node's introduction contradicts itself in {key!r}", key)
    return told


# ----------------------------------------------------------------------------- tasks and models


class Packed(NamedTuple):
    """A task in the form in which every node receives it: plain fields and arrays."""

    plain: Mapping[str, Any]
    arrays: ArrayRecord


@dataclass(frozen=True, kw_only=True)
class _TaskFields:
    round: int
    seed: str  # a record has no unsigned integer of 64 bits
    index: int = 0


@dataclass(frozen=True, kw_only=True)
class _StepsFields(_TaskFields):
    algorithm: str
    learning_rate: float
    named: bool = False  # x is named arrays, and the reply is a whole model in this form


@dataclass(frozen=True, kw_only=True)
class _EvaluateFields(_TaskFields):
    batch_size: int
    weighting: str


@dataclass(frozen=True, kw_only=True)
class _SlopesFields(_EvaluateFields):
    everyone: bool
    central: bool
    turn: int


def pack(task: Task, layout: Layout | None = None) -> Packed:
    """Return a task with its model, ready to be sent; with a layout, as named arrays."""
    plain: dict[str, Any] = {"seed": str(task.seed)}
    if isinstance(task, LocalSteps):
        kind: type[_TaskFields] = _StepsFields
        plain["algorithm"] = describe_algorithm(task.algorithm)
        arrays = {"x": task.x, **{f"row {name}": rows for name, rows in task.rows.items()}}
        plain["named"] = layout is not None
        if layout is not None:
            arrays = layout.named(task.x)
    elif isinstance(task, Evaluate):
        kind, arrays = _EvaluateFields, {"points": np.asarray(task.points)}
    else:
        assert isinstance(task, Slopes)
        kind, arrays = _SlopesFields, {"x": task.x, "steps": task.steps}
    own = {f.name: getattr(task, f.name) for f in dataclasses.fields(kind) if f.name not in plain}
    return Packed(schema.write_fields(kind(**plain, **own)), schema.write_arrays(arrays))


def describe_algorithm(algorithm: Algorithm) -> str:
    """Return an algorithm as JSON: name and hyper-parameters, without the server optimizer."""
    fields = describe_parts(algorithm, Ideal())["algorithm"]
    return json.dumps(as_toml({"algorithm": fields})["algorithm"])


def task(work: Packed | SyncMessage, devices: Sequence[int], coefficients: bool) -> RecordDict:
    """Return a message that gives these devices a task, and asks for coefficients or updates.

    All plain values are in one record, because Flower sends every object in its own request.

    Examples
    --------
    >>> from fedzo import FedZO
    >>> from fedzo.runs.registry import ALGORITHMS
    >>> steps = LocalSteps(FedZO(directions=2, local_steps=1), np.zeros(3), round=7, seed=1)
    >>> content = task(pack(steps), [2, 4], coefficients=True)
    >>> same, devices, coefficients = read_task(content, ALGORITHMS)
    >>> same.round, same.algorithm == steps.algorithm, devices, coefficients
    (7, True, [2, 4], True)
    """
    return _addressed(work, devices, coefficients=coefficients)


def read_task(
    content: RecordDict, known: Mapping[str, Any], kind: str = TRAIN
) -> tuple[Task | Losses | SyncMessage, list[int], bool | Layout]:
    """Return the task of a message, the devices that are to do it, and the form of the reply.

    The form is True for coefficients, False for updates, or the layout of a whole model. Of an
    evaluation it is whether metrics are requested. ``known`` maps names to the algorithms that this
    node allows.
    """
    plain = dict(schema.config(content, "task"))
    devices: list[int] = schema.take(plain, "devices", list[int])
    form: bool = schema.take(plain, "metrics" if kind == EVALUATE else "coefficients", bool)
    message, read = SyncMessage.read(plain, content.array_records.get("arrays")), cast(Any, None)
    if message is not None:
        return message, devices, form
    if kind == EVALUATE:
        schema.require_empty(plain)
        return Losses(read_vector(content)), devices, form
    arrays = dict(schema.array_record(content))
    if plain.get("named") is True:
        layout = Layout.read(arrays)
        read = _local_steps(plain, {"x": FlowerArray(layout.vector())}, devices, known)
        return read, devices, layout
    if "algorithm" in plain:
        read = _local_steps(plain, arrays, devices, known)
    elif "points" in arrays:
        asked = schema.read_fields(_EvaluateFields, plain)
        read = Evaluate(_matrix("points", arrays), **_sampling(asked), **_address(asked, devices))
    else:
        read = _slopes(plain, arrays, devices)
    schema.require_empty(arrays)
    return read, devices, form


def _local_steps(
    plain: dict[str, Any], arrays: dict[str, Any], devices: list[int], known: Mapping[str, Any]
) -> LocalSteps:
    fields = schema.read_fields(_StepsFields, plain)
    x = _finite("x", schema.numpy_of(arrays, "x"))
    if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != len(devices)):
        raise Malformed(f"x has the shape {x.shape}, for {len(devices)} devices", "x")
    names = [name for name in arrays if name.startswith("row ")]
    rows = {name.removeprefix("row "): _matrix(name, arrays) for name in names}
    for name, own in rows.items():
        if len(own) != len(devices):
            raise Malformed(f"{len(own)} rows, for {len(devices)} devices", f"row {name}")
    rate = fields.learning_rate
    if not 0 < rate < math.inf:
        raise Malformed("the learning rate is not a number > 0", "learning_rate")
    made = _algorithm(fields.algorithm, known)
    return LocalSteps(made, x, rate, rows, **_address(fields, devices))


def _slopes(plain: dict[str, Any], arrays: dict[str, Any], devices: list[int]) -> Slopes:
    asked = schema.read_fields(_SlopesFields, plain)
    x, steps = (_finite(name, schema.numpy_of(arrays, name)) for name in ("x", "steps"))
    if x.ndim != 1 or x.shape != steps.shape or not steps.any():
        raise Malformed("slopes need one step for each number of x", "steps")
    turn = _unsigned("turn", asked.turn, bits=32)
    where = _address(asked, devices)
    return Slopes(x, steps, asked.everyone, asked.central, turn, **_sampling(asked), **where)


def _address(fields: _TaskFields, devices: list[int]) -> dict[str, Any]:
    seed = fields.seed
    digits = seed.isascii() and seed.isdigit() and len(seed) <= 20
    return {
        "round": _unsigned("round", fields.round, bits=26),
        "seed": _unsigned("seed", int(seed) if digits else -1, bits=64),
        "index": _unsigned("index", fields.index, bits=6),
        "devices": devices,
    }


def _sampling(fields: _EvaluateFields) -> dict[str, Any]:
    if fields.batch_size < 1:
        raise Malformed("a batch has at least one sample", "batch_size")
    if fields.weighting not in WEIGHTINGS:
        raise Malformed(f"unknown weighting {fields.weighting[:40]!r}", "weighting")
    size = _unsigned("batch_size", fields.batch_size, bits=32)
    return {"batch_size": size, "weighting": fields.weighting}


def model(x: Array | SyncMessage, devices: Sequence[int], metrics: bool = False) -> RecordDict:
    """Return a message that asks for f_i(x), and for the problem's metrics at x."""
    sent = x if isinstance(x, SyncMessage) else Packed({}, vector(x))
    return _addressed(sent, devices, metrics=metrics)


def vector(x: Array) -> ArrayRecord:
    """Return a vector as a record."""
    return schema.write_arrays({"x": x})


def read_vector(content: RecordDict, dim: int | None = None) -> Array:
    """Return the vector of a message: finite, float32 or float64, of ``dim`` numbers if given."""
    x = schema.numpy_of(dict(schema.array_record(content)), "x")
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise Malformed("x is not a vector of finite numbers", "x")
    if dim is not None and x.size != dim:
        raise Malformed(f"x has {x.size} numbers, expected {dim}", "x")
    return x


def _addressed(sent: Packed | SyncMessage, devices: Sequence[int], **wanted: bool) -> RecordDict:
    """Return a message about a model to devices; ``wanted`` is one more field."""
    plain: dict[str, Any] = {"devices": [int(i) for i in devices], **wanted, **sent.plain}
    records = RecordDict({"task": ConfigRecord(plain)})
    arrays = sent.arrays
    if arrays is not None:
        records["arrays"] = arrays
    return records


def _finite(name: str, array: Array) -> Array:
    if array.size == 0 or not np.isfinite(array).all():
        raise Malformed(f"{name!r} has numbers that are not finite, or none", name)
    return array


def _matrix(name: str, arrays: dict[str, Any]) -> Array:
    array = schema.numpy_of(arrays, name)
    if array.ndim != 2:
        raise Malformed(f"{name!r} has the shape {array.shape}, expected rows", name)
    return _finite(name, array)


def _algorithm(text: str, known: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm that a text describes, if this node allows it."""
    try:
        made = _algorithm_of(text, tuple(known.items()))
    except (ValueError, AttributeError, KeyError, TypeError, FedzoError) as error:
        text = f"this node allows no such algorithm: {error}"
        raise Rejected(ErrorCode.UNKNOWN_ALGORITHM, text) from error
    return made


@lru_cache(maxsize=64)  # it is the same in each round, and in each node of a simulation
def _algorithm_of(text: str, known: tuple[tuple[str, Any], ...]) -> Algorithm:
    return make_parts({"algorithm": {"name": None, **schema.read_json(text)}}, dict(known))[0]


def _unsigned(name: str, value: int, bits: int) -> int:
    if not 0 <= value < 1 << bits:
        raise Malformed(f"the {name} is not an unsigned integer of {bits} bits", name)
    return value


# ----------------------------------------------------------------------------------- replies


class Answer(NamedTuple):
    """A node's reply to a task: the updates of its devices, and the errors of the others."""

    round: int
    updates: tuple[Update, ...]  # ``delta`` is empty if coefficients were requested
    failures: Mapping[int, str]


@dataclass(frozen=True)
class _AnswerFields:
    round: int
    devices: tuple[int, ...]
    queries: tuple[int, ...] = ()  # empty: all are zero
    weights: tuple[float, ...] = ()  # empty: all are one
    values: bytes = b""
    coefficients: bytes = b""
    steps: int = 0
    dtype: str = "float64"
    failed: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()


def answer(
    found: Answer,
    form: bool | Layout,
    x: Array | None = None,
    metrics: Mapping[str, float] = {},
) -> RecordDict:
    """Return the reply to a task: values, coefficients, updates, or the mean model from x.

    A loss is one value. Coefficients are few, so they are bytes of the record: an array of Flower's
    is three objects, each with a hash of 64 characters.
    """
    updates, records, numbers = found.updates, RecordDict(), dict[str, Any]()
    if updates and updates[0].values is not None:
        numbers["values"] = np.stack([np.asarray(u.values, "<f8") for u in updates]).tobytes()
    elif updates and isinstance(form, Layout):
        mean = UpdateMean(len(updates[0].delta))
        for update in updates:
            mean.add(update.delta, update.weight)
        records["arrays"] = form.record(np.asarray(x + mean.value()))
    elif updates and form and updates[0].coefficients is not None:
        stacked = np.stack([np.asarray(u.coefficients) for u in updates])
        numbers["steps"], numbers["dtype"] = stacked.shape[1], stacked.dtype.name
        numbers["coefficients"] = stacked.astype(stacked.dtype.newbyteorder("<")).tobytes()
    elif updates:
        records["arrays"] = schema.write_arrays({"deltas": np.stack([u.delta for u in updates])})
    if metrics:
        records["metrics"] = MetricRecord({k: float(v) for k, v in metrics.items()})
    weights, queries = tuple(float(u.weight) for u in updates), tuple(u.queries for u in updates)
    records["answer"] = schema.write_fields(
        _AnswerFields(
            round=found.round,
            devices=tuple(u.device for u in updates),
            queries=queries if any(queries) else (),
            weights=() if set(weights) <= {1.0} else weights,
            failed=tuple(found.failures),
            reasons=tuple(found.failures.values()),
            **numbers,
        )
    )
    return records


def read_answer(content: RecordDict, asked: int) -> Answer:
    """Return the updates of a node's devices, or raise :class:`Malformed`.

    ``asked`` is the number of devices that were asked. Whether a reply has the requested kind and
    shape of numbers is checked by :class:`~fedzo.flower.validation.UpdateValidator`.
    """
    told, updates, failures = _read_answer(content, asked)
    count = len(told.devices)
    deltas: Any = [np.empty(0)] * count
    coefficients: Any = [None] * count
    values: Any = [None] * count
    if told.values and count:
        values = _numbers("values", told.values, "float64", count)
    elif told.coefficients and count:
        rows = _numbers("coefficients", told.coefficients, told.dtype, count * max(told.steps, 0))
        coefficients = rows.reshape(count, told.steps, -1)
    elif count:
        deltas = schema.numpy_of(dict(schema.array_record(content)), "deltas")
        if deltas.ndim != 2 or len(deltas) != count:
            text = f"the updates of {count} devices have the shape {deltas.shape}"
            raise Malformed(text, "deltas")
    each = zip(updates, deltas, coefficients, values, strict=True)
    made = (u._replace(delta=d, coefficients=c, values=v) for u, d, c, v in each)
    return Answer(told.round, tuple(made), failures)


def _read_answer(
    content: RecordDict, asked: int
) -> tuple[_AnswerFields, list[Update], dict[int, str]]:
    """Return the fields of a reply, the updates without their numbers, and the errors."""
    told = schema.read_fields(_AnswerFields, schema.config(content, "answer"), asked)
    failures, count = _failures(told), len(told.devices)
    weights, queries = told.weights or (1.0,) * count, told.queries or (0,) * count
    _require_lengths(count, weights=weights, queries=queries)
    each = zip(told.devices, weights, queries, strict=True)
    return told, [Update(i, np.empty(0), w, q) for i, w, q in each], failures


def read_models(
    content: RecordDict, asked: Sequence[int], task: LocalSteps, layout: Layout
) -> dict[int, Any]:
    """Return the updates of a node's devices from their mean model: the same update for each."""
    told, updates, failures = _read_answer(content, len(asked))
    if told.round != task.round:
        raise Malformed(f"its reply is of round {told.round + 1}")
    if not updates:
        return dict(failures)
    own = Layout.read(dict(schema.array_record(content)))
    if own.shapes != layout.shapes:
        raise Malformed("the reply has other arrays than the model", "arrays")
    delta = own.vector() - task.x
    return {**failures, **{update.device: update._replace(delta=delta) for update in updates}}


def read_losses(content: RecordDict, asked: int) -> tuple[dict[int, Any], dict[str, float]]:
    """Return the loss of each device, or its error, and finite metrics by printable name.

    ``asked`` is the number of devices that were asked.
    """
    told = read_answer(content, asked)
    found: dict[int, Any] = dict(told.failures)
    for update in told.updates:
        if update.values is None or update.values.shape != (1,):
            raise Malformed("a loss is one number per device", "values")
        found[update.device] = float(update.values[0])
    reported: Mapping[str, Any] = content.metric_records.get("metrics") or {}
    metrics = {
        name: float(value)
        for name, value in itertools.islice(reported.items(), MOST_METRICS)
        if len(name) <= LONGEST_NAME and name.isprintable()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return found, metrics


# -------------------------------------------------------------------------------- secure sums


@dataclass(frozen=True)
class SumRequest:
    """One exchange of a secure sum: see :mod:`fedzo.flower.secure`.

    The first has ``members``, the second ``present``, ``inbox`` and ``bound``, the third
    ``survivors``.
    """

    attempt: int
    members: bytes = b""
    present: bytes = b""
    inbox: bytes = b""
    bound: float = 0.0  # of the numbers of a device: coefficients together, or a loss
    survivors: bytes = b""


@dataclass(frozen=True)
class SumReply:
    """A node's reply: its shares, or the masked sum of its devices."""

    shares: bytes = b""
    masked: bytes = b""
    step: float = 0.0  # of the grid of private differences; 0: coefficients or losses
    devices: tuple[int, ...] = ()
    queries: int = 0
    failed: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()


def with_sum(content: RecordDict, request: SumRequest) -> RecordDict:
    """Return a message with an exchange of a secure sum, in the record of its plain values."""
    record = content.config_records.get("task")
    plain = {f"sum.{name}": value for name, value in schema.write_fields(request).items()}
    content["task"] = ConfigRecord({**(record or {}), **plain})
    return content


def take_sum(content: RecordDict) -> SumRequest | None:
    """Take the exchange of a secure sum out of a message; None if there is none.

    >>> message = with_sum(RecordDict(), SumRequest(7, bound=2.0))
    >>> take_sum(message), take_sum(message)
    (SumRequest(attempt=7, members=b'', present=b'', inbox=b'', bound=2.0, survivors=b''), None)
    """
    record = schema.config(content, "task")
    own = {name: record.pop(name) for name in list(record) if name.startswith("sum.")}
    named = {name.removeprefix("sum."): value for name, value in own.items()}
    return schema.read_fields(SumRequest, named) if named else None


def sum_reply(reply: SumReply) -> RecordDict:
    """Return a node's reply as a message."""
    return RecordDict({"answer": schema.write_fields(reply)})


def read_sum_reply(
    content: RecordDict, asked: Sequence[int], most: int
) -> tuple[SumReply, dict[int, str]]:
    """Return a node's reply, and the error of each of its devices that failed.

    ``most`` is the largest number of queries of a device.
    """
    told = schema.read_fields(SumReply, schema.config(content, "answer"), len(asked))
    failures = _failures(told)
    if not {*told.devices, *told.failed} <= set(asked):
        raise Malformed("the reply has devices that were not asked", "devices")
    if not 0 <= told.queries <= most * len(told.devices):
        raise Malformed(f"it reports {told.queries} queries", "queries")
    return told, failures


def refusal(reason: str) -> RecordDict:
    """Return a reply that rejects a request, with an error code and a reference."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


def read_refusal(content: RecordDict) -> str | None:
    """Return the error of a reply that rejects a request; None for other replies.

    >>> read_refusal(refusal("queries 01234567")), read_refusal(RecordDict())
    ('queries 01234567', None)
    """
    record = content.config_records.get("refusal")
    return None if record is None else str(schema.take(dict(record), "reason", str))


def _failures(told: _AnswerFields | SumReply) -> dict[int, str]:
    """Return the error of each device that failed, after a check that no device is there twice."""
    if len({*told.devices, *told.failed}) != len(told.devices) + len(told.failed):
        raise Malformed("the reply lists a device twice", "devices")
    _require_lengths(len(told.failed), reasons=told.reasons)
    return dict(zip(told.failed, told.reasons, strict=True))


def _require_lengths(count: int, **lists: Sequence[Any]) -> None:
    for name, found in lists.items():
        if len(found) != count:
            raise Malformed(f"{name!r} has {len(found)} items, expected {count}", name)


def _numbers(name: str, content: bytes, dtype: str, rows: int) -> Array:
    """Return little-endian floats as an array with this number of rows."""
    if dtype not in ("float32", "float64"):
        raise Malformed(f"{name!r} has type {dtype!r}, not float32 or float64", "dtype")
    kind = np.dtype(dtype)
    if rows < 1 or len(content) % (rows * kind.itemsize):
        raise Malformed(f"{name!r} has {len(content)} bytes, which are not {rows} rows", name)
    return np.frombuffer(content, kind.newbyteorder("<")).astype(kind).reshape(rows, -1)


# ----------------------------------------------------------------------------------- traffic

# Bytes that an nginx in front of Flower 1.41 counted, for nodes with keys: a request and a response
# without their content, an object's name in a list, and a message's own fields.
_REQUEST, _RESPONSE, _NAME, _FIELDS = 830, 157, 97, 230


def object_sizes(message: Any) -> list[int]:
    """Return the bytes of each object that Flower sends for a message."""
    with no_object_id_recompute():
        return [len(one.deflate()) for one in get_all_nested_objects(message).values()]


def traffic(sent: Iterable[Message], received: Iterable[Message]) -> dict[str, int]:
    """Return the bytes of messages to nodes (down) and of their replies (up).

    ``message_*`` are the bytes as Flower serialises them. ``transport_*`` estimate the requests
    that carry them, with HTTP headers. A node fetches a message by a request for the message, one
    for each of its objects and a receipt. It sends its reply by a request for the message and one
    for each object. TLS and the polling of an idle node are not included.
    """
    down, up = ([object_sizes(m) for m in messages] for messages in (sent, received))
    found = {"message_up_bytes": sum(map(sum, up)), "message_down_bytes": sum(map(sum, down))}
    carried_up, carried_down = found.values()
    for count in map(len, down):
        carried_up += (count + 2) * _REQUEST + (count + 1) * _NAME
        carried_down += (count + 2) * _RESPONSE + _FIELDS + count * _NAME
    for count in map(len, up):
        carried_up += (count + 1) * _REQUEST + _FIELDS + 2 * count * _NAME
        carried_down += (count + 1) * _RESPONSE + count * _NAME
    return {**found, "transport_up_bytes": carried_up, "transport_down_bytes": carried_down}
