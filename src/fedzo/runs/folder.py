"""The folder that a run leaves: configuration, history, checkpoint, model, curves.

Whatever is replaced is replaced in one step (written beside, synced, renamed), so a kill at
any moment leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

import io
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedzo.core.files import UNFINISHED, write_atomic
from fedzo.core.objective import Best
from fedzo.errors import FedzoError, UsageError

Array = NDArray[Any]
Config = Mapping[str, Mapping[str, Any]]

_FORMAT = 2  # of checkpoints: another number if what is in them is no longer read as it was

# What may differ between the first part of a run and its continuation.
FREE_KEYS = {
    ("problem", "budget"),
    ("problem", "max_queries"),
    *(("run", k) for k in ("rounds", "workers", "evaluate_every", "checkpoint_every", "target")),
    *(("flower", k) for k in ("quorum", "grace", "patience", "max_norm", "nodes")),
}


class Checkpoint(NamedTuple):
    """Enough to go on exactly: no generator has a state that would have to be kept."""

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

    def has_run(self) -> bool:
        """Tell whether a run was started here."""
        # Not Path.exists, which raises where it may not look; held will say what is wrong.
        return os.path.exists(self.config) or os.path.exists(self.checkpoint)

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
        """Write the configuration, or raise with the reason."""
        try:
            for left in self.path.glob(f".*{UNFINISHED}"):  # by a kill in the midst of writing
                left.unlink()
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from error
        write_atomic(self.config, _dumps(config).encode())

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the history."""
        try:
            with self.history.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise FedzoError(f"cannot write {self.history}: {error.strerror}") from error

    def keep_history(self, upto: int, scheduled: Callable[[int], bool]) -> list[dict[str, Any]]:
        """Drop what lies after a round, half lines and lines off the schedule; return the rest.

        What is left is what an uninterrupted run would have written by that round.
        """
        kept = [
            r for r in read_history(self.history) if r["round"] <= upto and scheduled(r["round"])
        ]
        write_atomic(self.history, "".join(json.dumps(r) + "\n" for r in kept).encode())
        return kept

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint."""
        best = checkpoint.best._asdict()
        arrays: dict[str, Any] = {f"state_{i}": a for i, a in enumerate(checkpoint.state)}
        arrays["best"] = best.pop("x")
        meta = checkpoint._asdict() | {"config": _dumps(checkpoint.config), "best": best}
        del meta["state"]
        meta["format"] = _FORMAT
        buffer = io.BytesIO()
        np.savez(buffer, meta=np.array(json.dumps(meta)), **arrays)
        write_atomic(self.checkpoint, buffer.getvalue())

    def load(self) -> Checkpoint | None:
        """Read the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return None
        try:
            content = io.BytesIO(self.checkpoint.read_bytes())
            with np.load(content, allow_pickle=False) as file:
                meta = json.loads(str(file["meta"]))
                self._check_format(meta.pop("format", 0))
                meta["config"] = tomllib.loads(meta["config"])
                meta["best"] = Best(file["best"], **meta["best"])
                state = tuple(file[f"state_{i}"] for i in range(len(file.files) - 2))
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


def _save_array(path: Path, array: Array) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array)
    write_atomic(path, buffer.getvalue())


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a history; a half line at the end, from a kill, is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not _is_record(record):
                raise UsageError(f"{path} is damaged in line {number}")
            yield record


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
    numbers = ("round", "train_loss")  # what every reader relies on
    return isinstance(record, dict) and all(isinstance(record.get(n), Real) for n in numbers)


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
