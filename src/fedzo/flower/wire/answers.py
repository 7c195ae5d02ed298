"""Up: what came of a task, of each device by itself: updates, coefficients, values, losses.

A reply is believed no further than it can be checked: each device once, none that was not asked,
lists of one length, finite numbers of a known type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedzo.core.tasks import Update
from fedzo.flower.schema import Malformed, array_record, config, numpy_of, take

Array = NDArray[Any]

# A problem has a few metrics, each with a short name; the history keeps no more.
MOST_METRICS, LONGEST_NAME = 64, 64


class Answer(NamedTuple):
    """One node's part of a round: what its devices found, and which of them failed, and why."""

    round: int
    updates: tuple[Update, ...]  # ``delta`` is empty where coefficients were asked for
    failures: Mapping[int, str]


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


def reply(content: RecordDict, message: Message) -> Message:
    """Return a reply to a message."""
    return Message(content, reply_to=message)


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


def _metrics(reported: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among a few metrics whose names can be shown."""
    few = itertools.islice(reported.items(), MOST_METRICS)
    return {
        name: float(value)
        for name, value in few
        if len(name) <= LONGEST_NAME and name.isprintable()
        if isinstance(value, int | float) and math.isfinite(value)
    }
