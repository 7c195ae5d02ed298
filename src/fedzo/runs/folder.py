"""The folder that a run leaves: configuration, history, checkpoint, model, curves.

Whatever is replaced is replaced in one step (written beside, synced, renamed), so a kill at
any moment leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import date, time
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedzo.core.files import unfinished, write_atomic
from fedzo.core.objective import Best
from fedzo.errors import CannotWrite, UsageError
from fedzo.runs.options import FlowerSettings, RunOptions

Array = NDArray[Any]
Config = Mapping[str, Mapping[str, Any]]

_FORMAT = 2  # of checkpoints: another number if what is in them is no longer read as it was

# What may differ between the first part of a run and its continuation.
FREE_KEYS = {
    ("problem", "max_queries"),
    *(("run", field.name) for field in fields(RunOptions) if not field.name.endswith("seed")),
    *(("flower", field.name) for field in fields(FlowerSettings)),
}


class Checkpoint(NamedTuple):
    """Enough to resume exactly: no generator has a state that would have to be kept."""

    round: int
    state: tuple[Array, ...]
    totals: Mapping[str, int]  # queries and bytes so far
    spent: int  # queries that the problem's own meter had counted
    best: Best
    last: Mapping[str, Any]  # what the last round told of itself
    left_out: list[dict[str, Any]]  # who was left out since the last evaluation
    seconds: float
    config: Config
    start: str  # a fingerprint of x0
    records: int  # of the history, on schedule
    digest: str  # of these records


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


class RunFolder:
    """One run's files, by the names that `history.jsonl` readers and `--resume` rely on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.history = self.path / "history.jsonl"
        self.checkpoint = self.path / "checkpoint.npz"
        self.model = self.path / "model.npy"
        self.best = self.path / "best.npy"
        self.curves = self.path / "curves.png"
        self.mark = self.path / ".fedzo"  # says that a run may write here

    def has_run(self) -> bool:
        """Tell whether a run was started here."""
        # Not Path.exists, which raises where it may not look; held will say what is wrong.
        return os.path.exists(self.config) or os.path.exists(self.checkpoint)

    def check_free(self) -> None:
        """Raise unless the folder is empty or new, or marked as a run's own.

        What somebody else has put into a folder is never overwritten, added to or deleted.
        """
        if os.path.exists(self.mark):
            return
        try:
            foreign = next(self.path.iterdir(), None)
        except OSError:  # not there yet, or held will say what is wrong
            return
        if foreign is not None:
            raise UsageError(
                f"{self.path} holds files that are not of a run, such as {foreign.name}: "
                "choose an empty or new folder"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep every other run out of it meanwhile.

        It is the folder itself that is locked: no file is left, and a kill lets go of it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = _lock(self.path)
        except FileExistsError as error:
            raise UsageError(f"cannot write to {self.path}: it is not a folder") from error
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from error
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def prepare(self, config: Config) -> None:
        """Mark the folder and write the configuration, or raise with the reason."""
        own = (self.config, self.history, self.checkpoint, self.model, self.best, self.curves)
        try:
            self.mark.touch()
            for left in (left for path in own for left in unfinished(path)):
                left.unlink()  # by a kill in the midst of writing
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from error
        write_atomic(self.config, _dumps(config).encode())

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the history."""
        try:
            with self.history.open("a") as file:
                file.write(as_line(record))
        except OSError as error:
            raise CannotWrite(self.history, error) from error

    def keep_history(
        self, upto: int, scheduled: Callable[[int], bool], lenient: bool = False
    ) -> list[dict[str, Any]]:
        """Drop what lies after a round, half lines and lines off the schedule; return the rest.

        What is left is what an uninterrupted run would have written by that round.
        """
        kept = [
            record
            for record in read_history(self.history, lenient)
            if record["round"] <= upto and scheduled(record["round"])
        ]
        write_atomic(self.history, "".join(map(as_line, kept)).encode())
        return kept

    def check_history(self, checkpoint: Checkpoint) -> None:
        """Raise unless the history holds the records that were there at the checkpoint."""
        options, sealed = RunOptions(**checkpoint.config.get("run", {})), Seal()
        for record in read_history(self.history):
            if record["round"] <= checkpoint.round and options.evaluates(record["round"]):
                sealed.add(record)
        if (sealed.count, sealed.digest()) != (checkpoint.records, checkpoint.digest):
            found = "other" if sealed.count == checkpoint.records else str(sealed.count)
            raise UsageError(
                f"{self.history} does not fit its checkpoint: it has {found} records up to round "
                f"{checkpoint.round} where {checkpoint.records} were written; --repair resumes "
                "with what is left of it"
            )

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint."""
        best = checkpoint.best._asdict()
        arrays: dict[str, Any] = {f"state_{i}": a for i, a in enumerate(checkpoint.state)}
        arrays["best"] = best.pop("x")
        meta = checkpoint._asdict() | {"config": _dumps(checkpoint.config), "best": best}
        del meta["state"]
        text = json.dumps(meta)
        buffer = io.BytesIO()
        seal = np.array(_checksum(text, arrays))
        np.savez(buffer, format=np.array(_FORMAT), meta=np.array(text), seal=seal, **arrays)
        self._sync_history()  # what a checkpoint counts on must be on the disk before it
        write_atomic(self.checkpoint, buffer.getvalue())

    def _sync_history(self) -> None:
        try:
            with self.history.open("rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError:  # nothing was evaluated yet
            return
        except OSError as error:
            raise CannotWrite(self.history, error) from error

    def load(self) -> Checkpoint | None:
        """Read the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return None
        try:
            content = io.BytesIO(self.checkpoint.read_bytes())
            with np.load(content, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            self._check_format(int(arrays.pop("format", 1)))
            text, seal = str(arrays.pop("meta")), str(arrays.pop("seal"))
            if seal != _checksum(text, arrays):
                raise ValueError("the checksum is another one")
            meta = json.loads(text)
            meta["config"] = tomllib.loads(meta["config"])
            meta["best"] = Best(arrays.pop("best"), **meta["best"])
            state = tuple(arrays[f"state_{i}"] for i in range(len(arrays)))
            return Checkpoint(state=state, **meta)
        except UsageError:
            raise
        except Exception as error:  # a zip file can be wrong in more ways than one can list
            raise UsageError(f"{self.checkpoint} is damaged and cannot be resumed") from error

    def _check_format(self, found: object) -> None:
        if found != _FORMAT:
            raise UsageError(
                f"{self.checkpoint} has format {found}, and this fedzo reads format {_FORMAT}: "
                "resume with the fedzo that wrote it"
            )

    def save_models(self, last: Array, best: Array) -> None:
        """Write the model after the last round, and the best one where that is another."""
        _save_array(self.model, last)
        if not np.array_equal(last, best):
            _save_array(self.best, best)
        else:
            self.best.unlink(missing_ok=True)  # of the part before a resume


def _checksum(text: str, arrays: Mapping[str, Array]) -> str:
    """Return a checksum over all fields of a checkpoint, their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def as_line(record: Mapping[str, Any]) -> str:
    """Return a record as a line of valid JSON: what is not finite is null there.

    >>> as_line({"round": 0, "spread": float("inf")}).strip()
    '{"round": 0, "spread": null}'
    """
    finite = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in record.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def _save_array(path: Path, array: Array) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_atomic(path, buffer.getvalue())


def read_history(path: Path, lenient: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the records of a history; a half line at the end, from a kill, is passed over.

    A damaged line is an error, or is passed over too where ``lenient``.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
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
    histories = [list(read_history(RunFolder(folder).history)) for folder in folders]
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
    """Tell whether this has what every reader relies on: a round, and a loss that is a number."""
    if not isinstance(record, dict):
        return False
    at, loss = record.get("round"), record.get("train_loss")
    whole = isinstance(at, int) and not isinstance(at, bool) and at >= 0
    return whole and isinstance(loss, int | float) and isfinite(loss)


def differences(old: Config, new: Config) -> list[str]:
    """Name the settings in which two configurations of one run may not differ, but do.

    >>> differences({"run": {"seed": 0, "rounds": 5}}, {"run": {"seed": 1, "rounds": 9}})
    ['run.seed = 0, now 1']
    """
    keys = {(table, key) for config in (old, new) for table in config for key in config[table]}
    return [
        f"{table}.{key} = {was!r}, now {now!r}"
        for table, key in sorted(keys - FREE_KEYS)
        if (was := old.get(table, {}).get(key)) != (now := new.get(table, {}).get(key))
        and repr(was) != repr(now)  # nan is not equal to itself
    ]


def as_toml(config: Config) -> Config:
    """Return a configuration as it will be when written to TOML and read again.

    TOML has no null: a setting that is None, or a default that TOML has no word for, is left
    out, which means the same.

    >>> as_toml({"algorithm": {"directions": np.int64(3), "participants": None, "sizes": (1, 2)}})
    {'algorithm': {'directions': 3, 'sizes': [1, 2]}}
    """
    return {table: _as_toml(keys) for table, keys in config.items()}


def _as_toml(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        items = [_as_toml(v) for v in value]
        return None if None in items else items
    if isinstance(value, Mapping):
        return {str(k): p for k, v in value.items() if (p := _as_toml(v)) is not None}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, str | int | float | date | time) else None


def _dumps(config: Config) -> str:
    return tomli_w.dumps({table: dict(keys) for table, keys in config.items()})


def _lock(folder: Path) -> int | None:
    """Return a lock on a folder, to be closed; None where the system has none."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UsageError(f"{folder} is in use by another run: choose another folder") from error
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle
