"""The files of a run: configuration, history, checkpoint, models, curves.

Every file is replaced in one step (written beside, synced, renamed). A kill at any moment leaves
the old file or the new one, never half of one.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo
from fedzo.core.budget import Meter
from fedzo.core.capabilities import Best
from fedzo.core.engine import pack_updates, recorded
from fedzo.core.files import Config, append, sync_file, toml_text, unfinished, write_atomic, writing
from fedzo.core.machine import deferred_signals
from fedzo.core.tasks import Update
from fedzo.core.types import Array
from fedzo.errors import UsageError
from fedzo.runs.history import (
    HISTORY,
    HistoryDigest,
    Record,
    as_line,
    numeric_metrics,
    read_history,
)
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.result import Noise

FORMAT = 7  # of checkpoints; changes with their content
SUMS = ("queries", "uplink_bytes", "downlink_bytes", "channel_uses")

# Settings that may change when a run is resumed.
FREE_KEYS = {
    ("problem", "max_queries"),
    *(("run", field.name) for field in fields(RunOptions) if not field.name.endswith("seed")),
    *(("flower", field.name) for field in fields(FlowerSettings)),
}


def differences(old: Config, new: Config) -> list[str]:
    """Return the settings that changed although they must not change on resume.

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


def flatten(state: Any) -> tuple[Array, ...]:
    """Return the arrays of a state, which is an array or a nested tuple of arrays.

    >>> flatten((np.array([1.0]), (np.array([2.0]), np.array([3.0]))))
    (array([1.]), array([2.]), array([3.]))
    """
    if not isinstance(state, tuple):
        return (state,)
    return tuple(array for part in state for array in flatten(part))


def unflatten(like: Any, arrays: Iterable[Array]) -> Any:
    """Return the arrays as a state with the structure of ``like``.

    >>> unflatten((0, (0, 0)), [1, 2, 3])
    (1, (2, 3))
    """
    rest = iter(arrays)
    if not isinstance(like, tuple):
        return next(rest)
    parts = [unflatten(part, rest) for part in like]
    return tuple(parts) if type(like) is tuple else type(like)(*parts)  # else a named tuple


class RunState(NamedTuple):
    """How far a run is: replaced as a whole, so that an interrupt never finds half a round.

    ``best``, ``digest``, ``silent`` and ``evaluated`` are of the evaluations on schedule, which a
    resumed run repeats.
    """

    round: int
    state: Any
    best: Best
    queries: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    channel_uses: int = 0
    costs: Mapping[str, float] = {}  # further sums, by the uplink's names
    idle: int = 0  # rounds without participants
    last: RoundInfo = RoundInfo(participants=0, queries=0)
    records: int = 0  # of the history, also off schedule
    digest: HistoryDigest = HistoryDigest()
    silent: frozenset[int] | None = None  # devices dropped at every evaluation
    dropped: tuple[Record, ...] = ()  # devices, since the last evaluation
    evaluated: int = 0  # queries of evaluations
    noise: Noise = Noise()  # of evaluations, as measured at the start

    def moved(self, state: Any, info: RoundInfo, dropped: Iterable[Record]) -> RunState:
        """Return the run state after one more round."""
        # A round may count in NumPy's integers. Of its metrics only numbers enter the history.
        counts: dict[str, Any] = {k: int(getattr(info, k)) for k in (*SUMS, "participants")}
        info = info._replace(**counts, metrics=numeric_metrics(info.metrics))
        sums: dict[str, Any] = {key: getattr(self, key) + counts[key] for key in SUMS}
        costs = numeric_metrics(info.costs)
        sums["costs"] = {**self.costs, **{k: self.costs.get(k, 0.0) + v for k, v in costs.items()}}
        sums["idle"] = self.idle + (info.participants == 0)
        sums["dropped"] = (*self.dropped, *dropped)
        return self._replace(round=self.round + 1, state=state, last=info, **sums)

    def with_record(self, record: Record) -> RunState:
        """Return the run state after one more evaluation on schedule."""
        dropped = [one for one in record.get("dropped", ()) if one["round"] == record["round"]]
        missing = frozenset(one["device"] for one in dropped)
        return self._replace(
            digest=self.digest.with_record(record),
            silent=missing if self.silent is None else self.silent & missing,
            evaluated=record.get("evaluation_queries", 0),
        )


class Checkpoint(NamedTuple):
    """Everything that an exact resume needs. There are no random generators to save."""

    at: RunState  # whose state is flattened
    metered: int  # queries that the problem's own meter has counted
    seconds: float
    config: Config
    start: str  # a digest of x0
    memory: Mapping[str, Array] = {}  # of the problem: see Remembers

    def packed(self) -> bytes:
        """Return the content of the file, with a checksum over all fields."""
        at, best = self.at._asdict(), self.at.best._asdict()
        arrays: dict[str, Any] = {f"state_{i}": a for i, a in enumerate(at.pop("state"))}
        arrays["best"] = best.pop("x")
        arrays |= {f"memory_{name}": array for name, array in sorted(self.memory.items())}
        at |= {"best": best, "last": self.at.last._asdict(), "silent": None}  # as in the history
        meta = self._asdict() | {"at": at, "config": toml_text(self.config)}
        del meta["memory"]
        text = json.dumps(meta)
        seal = np.array(_checksum(text, arrays))
        file = io.BytesIO()
        np.savez(file, format=np.array(FORMAT), meta=np.array(text), seal=seal, **arrays)
        return file.getvalue()

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Return the checkpoint in a file; raise UsageError if the file is damaged."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            text = str(arrays.pop("meta"))
            found = int(arrays.pop("format", 1))  # format 1 had no number
            if found != FORMAT:
                raise UsageError(
                    f"{path} has format {found}, and this fedzo reads format {FORMAT}: "
                    "resume with the fedzo that wrote it",
                    code="checkpoint-format",
                )
            if str(arrays.pop("seal")) != _checksum(text, arrays):
                raise ValueError("wrong checksum")
            meta = json.loads(text)
            at, meta["config"] = meta["at"], tomllib.loads(meta["config"])
            at["best"] = Best(arrays.pop("best"), **at["best"])
            at["last"], at["dropped"] = RoundInfo(**at["last"]), tuple(at["dropped"])
            at["digest"], at["noise"] = HistoryDigest(*at["digest"]), Noise(*at["noise"])
            memory = {n.removeprefix("memory_"): a for n, a in arrays.items() if n[0] == "m"}
            at["state"] = tuple(arrays[f"state_{i}"] for i in range(len(arrays) - len(memory)))
            return cls(**meta | {"at": RunState(**at), "memory": memory})
        except UsageError:
            raise
        except Exception as error:  # a zip file can be damaged in too many ways to list
            message = f"{path} is damaged and cannot be resumed"
            raise UsageError(message, code="damaged-checkpoint") from error

    def check_same(self, path: Path, config: Config, start: str, rounds: int) -> None:
        """Raise unless it has this configuration and start, and is not past the last round."""
        changed = differences(self.config, config)
        if changed or self.start != start:
            what = "; ".join(changed) or "another starting point"
            message = f"{path} is of another configuration: {what}"
            raise UsageError(message, code="other-configuration")
        if self.at.round > rounds:
            message = f"{path.parent} has already run {self.at.round} rounds, more than {rounds}"
            raise UsageError(message, code="already-run")


def _checksum(text: str, arrays: Mapping[str, Array]) -> str:
    """Return a checksum over all fields of a checkpoint, their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class RunFolder:
    """The files of one run, by the names that readers of a run folder rely on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.history = self.path / HISTORY
        self.checkpoint = self.path / "checkpoint.npz"
        self.model = self.path / "model.npy"
        self.best = self.path / "best.npy"
        self.start = self.path / "start.npy"  # of a problem whose module ends trained
        self.updates = self.path / "updates.jsonl"  # its replies, which a receipt is made of
        self.curves = self.path / "curves.png"
        self.values = self.path / "values.log"
        self.mark = self.path / ".fedzo"  # a run may write here; holds how the last one ended

    def has_run(self) -> bool:
        """Return whether a run was started here."""
        # Path.exists raises in folders without permission; held() then reports the cause.
        return os.path.exists(self.config) or os.path.exists(self.checkpoint)

    @property
    def status(self) -> str:
        """How the last run ended, ``running``, or ``killed`` if it ended without a word."""
        try:
            with self.held():
                return self.mark.read_text(encoding="utf-8")[:20].strip() or "killed"
        except UsageError as error:
            return "running" if error.code == "folder-in-use" else "unreadable"
        except (OSError, ValueError):
            return "unreadable"

    @property
    def changed(self) -> float:
        """When the run last wrote a record, in seconds since 1970."""
        files = (self.history, self.config, self.checkpoint)
        return next(path.stat().st_mtime for path in files if path.exists())

    @property
    def own(self) -> tuple[Path, ...]:
        """The files that every run may write."""
        return (self.config, self.history, self.checkpoint, self.model, self.best, self.start,
                self.updates, self.curves, self.values)  # fmt: skip

    def check_new(self) -> None:
        """Raise if the folder holds a run, or a part of one."""
        if there := [path.name for path in self.own if os.path.lexists(path)]:
            raise UsageError(
                f"{self.path} already holds a run ({there[0]}): resume it or choose another folder",
                code="holds-run",
            )

    def check_free(self, several: bool = False) -> None:
        """Raise unless the folder is empty or new, or marked as the folder of a run.

        Files that a run did not write are never changed or deleted. A folder of ``several`` runs
        cannot be that of a single one.
        """
        if several and self.has_run():
            raise UsageError(f"{self.path} holds a run: choose another folder", code="holds-run")
        if os.path.exists(self.mark):
            return
        try:
            foreign = next(self.path.iterdir(), None)
        except (OSError, ValueError):  # not there yet, or held() reports the cause
            return
        if foreign is not None:
            raise UsageError(
                f"{self.path} holds files that are not of a run, such as {foreign.name}: "
                "choose an empty or new folder",
                code="foreign-files",
            )

    def claim(self) -> None:
        """Mark the folder as one that holds several runs, unless it holds other files.

        It may already hold the runs of a sweep or a reproduction that was stopped.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            below = (self.path.glob("*/" * depth + self.mark.name) for depth in (1, 2, 3))
            if self.has_run() or next(itertools.chain.from_iterable(below), None) is None:
                self.check_free(several=True)
            self.mark.touch()
        except OSError as error:
            raise _not_writable(self.path, error) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and lock it against other runs.

        The lock is on the folder itself: it needs no file, and a kill releases it.
        """
        lock = None
        try:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                with deferred_signals():  # an interrupt leaves no lock
                    lock = _lock(self.path)
            except (OSError, ValueError) as error:  # ValueError: a null byte
                raise _not_writable(self.path, error) from error
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def begin(self, config: Config, meter: Meter | None, new: bool) -> None:
        """Mark the folder, which is held, write the configuration, and open the log of values."""
        if new:
            self.check_new()
        try:
            self.mark.write_text("")
            for left in (left for path in self.own for left in unfinished(path)):
                left.unlink()  # of a run that was killed while it wrote
        except OSError as error:
            raise _not_writable(self.path, error) from error
        write_atomic(self.config, toml_text(config).encode())
        if meter is not None:
            meter.log.open(self.values)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to the history."""
        append(self.history, as_line(record))

    def resume_history(self, at: RunState, scheduled: Callable[[int], bool]) -> list[Record]:
        """Reduce the history to the records that a checkpoint counts, and return them.

        Those off the schedule, of a run whose schedule has changed, are removed, too. The result
        equals the history of an uninterrupted run. A kill may come between a record and the
        checkpoint after it: the resumed run writes that record again.
        """
        digest, records = HistoryDigest(), list[Record]()
        for record in itertools.islice(read_history(self.history), at.digest.records):
            digest = digest.with_record(record)
            records += [record] if scheduled(record["round"]) else []
        if digest != at.digest:
            found = "other" if digest.records == at.digest.records else str(digest.records)
            raise UsageError(
                f"{self.history} does not fit its checkpoint: it has {found} records up to round "
                f"{at.round}, and {at.digest.records} were written; {self._way_out()}",
                code="history-mismatch",
            )
        if self.history.exists():
            write_atomic(self.history, "".join(map(as_line, records)).encode())
        return records

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint, after the records of the history that it counts."""
        sync_file(self.history)
        # An interrupt is raised in the main thread; inside zipfile it would print a traceback.
        with ThreadPoolExecutor(1) as thread:
            write_atomic(self.checkpoint, thread.submit(checkpoint.packed).result())

    def load(self) -> Checkpoint | None:
        """Read the checkpoint, if there is one; raise if only a history is left."""
        if self.checkpoint.exists():
            return Checkpoint.read(self.checkpoint)
        if self.history.exists() and self.history.stat().st_size:
            message = f"{self.path} has a history, but no checkpoint to resume from"
            message += f"; {self._way_out()}"
            raise UsageError(message, code="no-checkpoint")
        return None  # killed before its first checkpoint, and before its first record

    def _way_out(self) -> str:
        """Return what the user can do if the run cannot be resumed."""
        models = [path.name for path in (self.model, self.best) if path.exists()]
        load = f"; numpy.load reads {' and '.join(models)}" if models else ""
        return f"run it again in another folder{load}"

    def save_models(self, last: Array, best: Array) -> None:
        """Write the model after the last round, and the best model if it differs."""
        save_array(self.model, last)
        if not np.array_equal(last, best):
            save_array(self.best, best)
        else:
            self.best.unlink(missing_ok=True)  # written before a resume

    def draw_curves(self) -> None:
        """Draw ``curves.png`` from the history, if it has a finite loss."""
        from fedzo.plots.figures import draw_curves

        history = list(read_history(self.history))
        if any(np.isfinite(record["train_loss"]) for record in history):
            with deferred_signals():  # not in the middle of Matplotlib's import
                draw_curves({self.path.name: [history]}, self.curves)


class UpdateLog:
    """The replies of a run, from which a receipt is made; each checkpoint writes them.

    Parameters
    ----------
    path : path
        The file: one line that describes the run, and one per round.
    run : mapping
        What a replay needs besides the replies and the configuration.
    """

    def __init__(self, path: Path, run: Record) -> None:
        self.path, self.run = path, run
        self._rounds: dict[int, Any] = {}  # since the last checkpoint

    def noting(self, t: int, tasks: Round[Any]) -> Round[Any]:
        """Pass the tasks of round t on, and hold the replies to them."""
        replies: list[list[Update]] = []
        outcome = yield from recorded(tasks, replies)
        self._rounds[t] = pack_updates(replies)
        return outcome

    def write(self, upto: int) -> None:
        """Write the rounds before ``upto``, in place of those that an interrupted run wrote."""
        if not (done := sorted(t for t in self._rounds if t < upto)):
            return
        head, first = as_line(self.run), done[0]
        old = self.path.read_text().splitlines(True)[: 1 + first] if first else [head]
        new = [json.dumps(self._rounds.pop(t), separators=(",", ":")) + "\n" for t in done]
        write_atomic(self.path, "".join((*old, *new)).encode())


def _not_writable(path: Path, error: Exception) -> UsageError:
    reason: object = error.strerror if isinstance(error, OSError) else error
    if isinstance(error, FileExistsError):
        reason = "it is not a folder"
    return UsageError(f"cannot write to {path}: {reason}", code="cannot-write")


def save_array(path: Path, array: Array) -> None:
    """Write an array to a file of NumPy's format in one step."""
    with writing(path) as file:
        np.save(file, array)


def _lock(folder: Path) -> int | None:
    """Return a lock on a folder, to be closed; None if the system has no such locks."""
    try:
        import fcntl
    except ImportError:  # not a Unix
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        message = f"{folder} is in use by another run: choose another folder"
        raise UsageError(message, code="folder-in-use") from error
    except OSError:  # a file system without locks
        os.close(handle)
        return None
    return handle
