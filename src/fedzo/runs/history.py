"""The history of a run: one JSON object a line, written, read and sealed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from fedzo.errors import LARGEST_COUNT, UsageError, is_number

HISTORY = "history.jsonl"


class Seal:
    """Counts records and digests them, one after the other: what a checkpoint knows of them."""

    def __init__(self) -> None:
        self.count, self._digest = 0, hashlib.sha256()

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a record in."""
        self.count += 1
        self._digest.update(as_line(record).encode())

    def digest(self) -> str:
        """Return the digest of all records so far."""
        return self._digest.hexdigest()


def as_line(record: Mapping[str, Any]) -> str:
    """Return a record as a line of valid JSON: what is not finite is null there.

    >>> as_line({"round": 0, "spread": float("inf")}).strip()
    '{"round": 0, "spread": null}'
    """
    finite = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in record.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def read_history(path: Path, lenient: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the records of a history; a half line at the end, from a kill, is passed over.

    A damaged line is an error, or is passed over too where ``lenient``.
    """
    if not os.path.exists(path):  # not Path.exists, which raises where it may not look
        return
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if _is_record(record):
                yield record
            elif not lenient:
                raise UsageError(f"{path} is damaged in line {number}")


def read_seeds(path: Path) -> list[list[dict[str, Any]]]:
    """Return the histories of a run folder, or of the ``seed-*`` run folders in it."""
    folders = sorted(path.glob("seed-*")) or [path]
    histories = [list(read_history(folder / HISTORY)) for folder in folders]
    histories = [history for history in histories if history]
    if not histories:
        raise UsageError(f"{path} holds no history of a run")
    return histories


def read_runs(paths: Sequence[Path]) -> dict[str, list[list[dict[str, Any]]]]:
    """Return the histories of several runs, by the names of their folders."""
    return {_label(path, paths): read_seeds(path) for path in paths}


def _label(path: Path, among: Sequence[Path]) -> str:
    """Name a folder by its last part, or by all of it where another's last part is the same."""
    same = sum(other.name == path.name for other in among)
    return path.name if path.name and same == 1 else str(path)


def _is_record(record: Any) -> bool:
    """Return whether this is what a run writes: numbers, a round and a loss among them."""
    if not isinstance(record, dict):
        return False
    numbers = {key: value for key, value in record.items() if key != "left_out"}
    return (
        _is_count(record.get("round"))
        and is_number(record.get("train_loss"))
        and all(_is_value(value) for value in numbers.values())
        and _is_list_of_devices(record.get("left_out", []))
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT


def _is_value(value: Any) -> bool:
    """Return whether this is a number, or null where it was not finite."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return True
    return is_number(value) and not isinstance(value, bool)


def _is_list_of_devices(devices: Any) -> bool:
    return isinstance(devices, list) and all(
        isinstance(one, dict) and _is_count(one.get("round")) and _is_count(one.get("device"))
        for one in devices
    )
