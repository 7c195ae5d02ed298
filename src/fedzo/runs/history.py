"""The history of a run: records of evaluated rounds, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import LARGEST_COUNT, UsageError, is_number, shown

HISTORY = "history.jsonl"
Record = dict[str, Any]

# Names that a problem's metrics cannot have.
RESERVED = {
    "round", "train_loss", "participants", "queries", "evaluation_queries", "uplink_bytes",
    "downlink_bytes", "channel_uses", "seconds", "dropped",
}  # fmt: skip


def numeric_metrics(metrics: Mapping[str, Any], taken: Iterable[str] = ()) -> dict[str, float]:
    """Return the metrics of a problem or a round that are numbers, as floats.

    ``taken`` are names that the history of this run uses for something else.

    >>> numeric_metrics({"accuracy": np.float32(0.5), "note": "good"})
    {'accuracy': 0.5}
    """
    if metrics == {}:  # as of most rounds
        return {}
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        words = f"metrics returned {shown(metrics)}, not numbers by their names"
        raise UsageError(words, code="not-metrics")
    numbers = {k: _as_float(v) for k, v in metrics.items() if isinstance(v, Real | np.number)}
    if clash := sorted(RESERVED.union(taken) & numbers.keys()):
        names = ", ".join(clash)
        raise UsageError(
            f"the names {names} are reserved for the history: rename these metrics",
            code="reserved-metric",
        )
    return numbers


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf


def mean_loss(losses: NDArray[Any]) -> float:
    """Return the mean of finite losses, also if their sum overflows.

    >>> mean_loss(np.array([1e308, 1.2e308]))
    1.1e+308
    """
    with np.errstate(over="ignore"):
        mean = float(losses.mean())
    return mean if np.isfinite(mean) else float((losses / len(losses)).sum())


class HistoryDigest(NamedTuple):
    """The number and the CRC-32 of records, by which a checkpoint recognises them."""

    records: int = 0
    crc: int = 0

    def with_record(self, record: Mapping[str, Any]) -> HistoryDigest:
        """Return the digest of one more record."""
        return HistoryDigest(self.records + 1, zlib.crc32(as_line(record).encode(), self.crc))


def as_line(record: Mapping[str, Any]) -> str:
    """Return a record as a line of valid JSON; numbers that are not finite become null.

    >>> as_line({"round": 0, "spread": float("inf")}).strip()
    '{"round": 0, "spread": null}'
    """
    numbers = {k: v for k, v in record.items() if isinstance(v, float)}
    gone = {k: None for k, v in numbers.items() if not math.isfinite(v)}
    return json.dumps({**record, **gone}, allow_nan=False) + "\n"


def read_history(path: Path) -> Iterator[Record]:
    """Yield the records of a history. A half line at the end, left by a kill, is skipped."""
    if not os.path.exists(path):  # Path.exists raises in folders without permission
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", code="cannot-read") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and record.get("train_loss", 0.0) is None:
                record["train_loss"] = math.inf  # a search may begin where f has no value
            if not _is_record(record):
                raise UsageError(f"{path} is damaged in line {number}", code="damaged-history")
            yield record


def read_seeds(path: Path) -> list[list[Record]]:
    """Return the histories of a run folder, or of the ``seed-*`` run folders in it."""
    folders = sorted(path.glob("seed-*")) or [path]
    histories = [list(read_history(folder / HISTORY)) for folder in folders]
    histories = [history for history in histories if history]
    if not histories:
        raise UsageError(f"{path} holds no history of a run", code="no-history")
    return histories


def read_runs(paths: Sequence[Path]) -> dict[str, list[list[Record]]]:
    """Return the histories of several runs, by the names of their folders.

    Folders with the same name have their whole paths as keys.
    """
    names = [path.name for path in paths]
    unique = (bool(path.name) and names.count(path.name) == 1 for path in paths)
    labels = (p.name if only else str(p) for p, only in zip(paths, unique, strict=True))
    return dict(zip(labels, map(read_seeds, paths), strict=True))


def _is_record(record: Any) -> bool:
    """Return whether an object is a record: numbers, with a round and a loss among them."""
    if not isinstance(record, dict):
        return False
    dropped = record.get("dropped", [])
    return (
        _is_count(record.get("round"))
        and (is_number(record.get("train_loss")) or record.get("train_loss") == math.inf)
        and all(_is_value(value) for key, value in record.items() if key != "dropped")
        and isinstance(dropped, list)
        and all(
            isinstance(one, dict) and _is_count(one.get("round")) and _is_count(one.get("device"))
            for one in dropped
        )
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT


def _is_value(value: Any) -> bool:
    """Return whether this is a number, or null for a number that was not finite."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return True
    return is_number(value) and not isinstance(value, bool)
