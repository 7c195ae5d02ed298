"""What travels: messages of arrays and plain values, each read back by an explicit schema.

Nothing is pickled. A round's work travels as the algorithm's name and hyper-parameters in JSON,
the round and the seed in a ``ConfigRecord``, and x in an ``ArrayRecord``. Whoever reads it looks
the name up among the algorithms that it knows, and checks every field against its signature.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedzo.algorithms import Algorithm
from fedzo.core.federation import Update, Work
from fedzo.core.signature import arguments_of
from fedzo.errors import FedzoError
from fedzo.flower.following import Following
from fedzo.flower.reasons import Reason, Refused, one_line
from fedzo.flower.schema import Malformed, array_record, config, numpy_of, take
from fedzo.runs.parts import describe_parts
from fedzo.runs.tables import as_toml
from fedzo.uplinks import Ideal

Array = NDArray[Any]

# An algorithm's hyper-parameters are a few numbers; a longer text is not one of ours.
LONGEST_TEXT = 10_000

# A problem has a few metrics, each with a short name; the history keeps no more.
MOST_METRICS, LONGEST_NAME = 64, 64

# The types of messages, by Flower's scheme "category.action".
HELLO, INITIAL, TRAIN, EVALUATE = "query.hello", "query.initial", "train", "evaluate"


class Hello(NamedTuple):
    """What a node tells when it joins: the shape of the problem, and its part of it."""

    version: str  # of fedzo
    fingerprint: str  # of the problem: its name and the settings that must agree
    checksum: str  # of the directions that this node's generator draws at a fixed address
    dim: int
    devices: int  # N, of the whole federation
    held: tuple[int, ...]  # which of them live here
    sizes: tuple[int, ...]  # how many samples each of those has
    offers: tuple[str, ...]  # the objective's optional methods
    cost: int  # of an evaluation, if the objective tells it, else 0

    @property
    def shape(self) -> tuple[str, int, int]:
        """In what all nodes must agree: the problem, its dimension, the number of devices."""
        return self.fingerprint, self.dim, self.devices


class Answer(NamedTuple):
    """One node's part of a round: what its devices found, and which of them failed, and why."""

    round: int
    updates: tuple[Update, ...]  # ``delta`` is empty where coefficients were asked for
    failures: Mapping[int, str]


# ---------------------------------------------------------------------------- down: the work


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


def _require_empty(left: Mapping[str, Any]) -> None:
    if left:
        raise Malformed(f"the message has unknown fields: {list(left)}")


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
        name = keys.pop("name")
        kind = known[name]
        made: Algorithm = kind(**arguments_of("algorithm", kind, keys, hidden=("server",)))
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
        "queries": [u.queries for u in updates],
        **_failed(found.failures),
    }
    if any(u.weight != 1 for u in updates):
        plain["weights"] = [float(u.weight) for u in updates]
    records = RecordDict()
    if updates and updates[0].values is not None:
        values = np.stack([np.asarray(u.values, "<f8") for u in updates])
        plain["values"] = values.tobytes()
    elif updates and coefficients and updates[0].coefficients is not None:
        numbers = np.stack([np.asarray(u.coefficients) for u in updates])
        plain["steps"], plain["dtype"] = numbers.shape[1], numbers.dtype.name
        plain["coefficients"] = numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()
    elif updates:
        deltas = FlowerArray(np.stack([u.delta for u in updates]))
        records["arrays"] = ArrayRecord({"deltas": deltas})
    records["answer"] = ConfigRecord(plain)
    return records


def read_answer(content: RecordDict, asked: int) -> Answer:
    """Return what a node's devices found; raise :class:`Malformed` if it is not an answer.

    ``asked`` is how many devices were asked: more cannot answer. Whether these are the updates,
    coefficients or values that were asked for, is for the reader to see.
    """
    plain = dict(config(content, "answer"))
    devices, failures = _devices(plain, asked)
    weights = take(plain, "weights", list[float] | None) or [1.0] * len(devices)
    queries = take(plain, "queries", list[int])
    if not len(devices) == len(weights) == len(queries):
        raise Malformed("the answer's lists differ in length")
    empty = np.empty(0)
    if not devices:
        rows: Any = ()
    elif "values" in plain:
        rows = [(empty, None, own) for own in _values(plain, len(devices))]
    elif "coefficients" in plain:
        rows = [(empty, own, None) for own in _coefficients(plain, len(devices))]
    else:
        deltas = numpy_of(dict(array_record(content)), "deltas")
        if deltas.ndim != 2 or len(deltas) != len(devices):
            raise Malformed(f"updates of {len(devices)} devices have the shape {deltas.shape}")
        rows = [(delta, None, None) for delta in deltas]
    updates = tuple(
        Update(device, delta, weight, asked, own, values)
        for device, (delta, own, values), weight, asked in zip(
            devices, rows, weights, queries, strict=True
        )
    )
    return Answer(take(plain, "round", int), updates, failures)


def _devices(plain: dict[str, Any], asked: int) -> tuple[list[int], dict[int, str]]:
    """Return whose answers these are, and who failed why: each device once, none of the others."""
    for name in ("devices", "failed", "reasons"):  # before anything looks at each of a million
        if isinstance(plain.get(name), list) and len(plain[name]) > asked:
            raise Malformed(f"the answer is about more devices than the {asked} that were asked")
    devices, failed = take(plain, "devices", list[int]), take(plain, "failed", list[int] | None)
    failed, reasons = failed or [], take(plain, "reasons", list[str] | None) or []
    if len({*devices, *failed}) != len(devices) + len(failed):
        raise Malformed("the answer names a device twice")
    if len(reasons) != len(failed):
        raise Malformed("the answer's lists differ in length")
    return devices, dict(zip(failed, reasons, strict=True))


def _failed(failures: Mapping[int, str]) -> dict[str, Any]:
    """Return who failed, and why; nothing, if nobody did."""
    if not failures:
        return {}
    return {"failed": list(failures), "reasons": list(failures.values())}


def _coefficients(plain: dict[str, Any], devices: int) -> Array:
    name, steps = take(plain, "dtype", str), take(plain, "steps", int)
    if name not in ("float32", "float64"):
        raise Malformed(f"coefficients are of type {name!r}, not float32 or float64")
    kind = np.dtype(name)
    numbers = np.frombuffer(take(plain, "coefficients", bytes), kind.newbyteorder("<")).astype(kind)
    if steps < 1 or numbers.size == 0 or numbers.size % (devices * steps):
        raise Malformed(f"{numbers.size} coefficients are not those of {devices} devices")
    return numbers.reshape(devices, steps, -1)


def _values(plain: dict[str, Any], devices: int) -> Array:
    numbers = np.frombuffer(_whole(take(plain, "values", bytes), 8 * devices), "<f8")
    return numbers.astype(np.float64).reshape(devices, -1)


def _whole(content: bytes, unit: int) -> bytes:
    """Return bytes that are a whole number of units, at least one."""
    if not content or len(content) % unit:
        raise Malformed(f"{len(content)} bytes are not a multiple of {unit}")
    return content


# ----------------------------------------------------------------------- the other messages


def greeting(settings: Mapping[str, Any]) -> RecordDict:
    """Return the content of a greeting: the settings that the run knows of the problem.

    >>> read_greeting(greeting({"devices": 3}))
    {'devices': 3}
    """
    return RecordDict({"greeting": ConfigRecord({"settings": json.dumps(dict(settings))})})


def read_greeting(content: RecordDict) -> dict[str, Any]:
    """Return the settings that a run knows of the problem: to compare, never to make one by."""
    text = take(dict(config(content, "greeting")), "settings", str)
    try:
        settings = json.loads(text) if len(text) <= LONGEST_TEXT else None
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise Malformed("the greeting's settings are not a table")
    return settings


def hello(introduction: Hello) -> RecordDict:
    """Return the content of a node's introduction."""
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in introduction._asdict().items()}
    return RecordDict({"hello": ConfigRecord(plain)})


def read_hello(content: RecordDict) -> Hello:
    """Return a node's introduction, checked to make sense by itself."""
    plain = dict(config(content, "hello"))
    introduction = Hello(
        version=_short(take(plain, "version", str)),
        fingerprint=_short(take(plain, "fingerprint", str)),
        checksum=_short(take(plain, "checksum", str)),
        dim=take(plain, "dim", int),
        devices=take(plain, "devices", int),
        held=tuple(take(plain, "held", list[int])),
        sizes=tuple(take(plain, "sizes", list[int])),
        offers=tuple(take(plain, "offers", list[str])),
        cost=take(plain, "cost", int),
    )
    whose = all(0 <= i < introduction.devices for i in introduction.held) and len(
        introduction.held
    ) == len(introduction.sizes)
    once = len(set(introduction.held)) == len(introduction.held)
    if not (
        whose
        and once
        and introduction.dim > 0
        and min(introduction.cost, *introduction.sizes, 0) == 0
    ):
        raise Malformed("the node's introduction contradicts itself")
    return introduction


def _short(text: str) -> str:
    return one_line(text)[:40]


def refusal(reason: str) -> RecordDict:
    """Return the content of a reply that does not do what was asked, and says why."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


def read_refusal(content: RecordDict) -> str | None:
    """Return why a node does not do what was asked; None: it does.

    >>> read_refusal(refusal("queries 01234567")), read_refusal(RecordDict())
    ('queries 01234567', None)
    """
    record = content.config_records.get("refusal")
    return None if record is None else str(take(dict(record), "reason", str))


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


def losses(
    found: Mapping[int, float], failures: Mapping[int, str], metrics: Mapping[str, float]
) -> RecordDict:
    """Return the content of a reply to :func:`model`."""
    plain: dict[str, Any] = {
        "devices": list(found),
        "losses": [float(v) for v in found.values()],
        **_failed(failures),
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


def _metrics(reported: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among a few metrics whose names can be shown."""
    few = itertools.islice(reported.items(), MOST_METRICS)
    return {
        name: float(value)
        for name, value in few
        if len(name) <= LONGEST_NAME and name.isprintable()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def vector(x: Array) -> ArrayRecord:
    """Return one vector as a record."""
    return _arrays({"x": x})


def _arrays(arrays: Mapping[str, Array]) -> ArrayRecord:
    return ArrayRecord({k: FlowerArray(np.ascontiguousarray(a)) for k, a in arrays.items()})


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
