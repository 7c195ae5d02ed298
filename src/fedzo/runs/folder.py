"""The folder that a run leaves: configuration, history, checkpoint, model, curves.

Whatever is replaced is replaced in one step (written beside, synced, renamed), so a kill at
any moment leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.files import sync_file, unfinished, write_atomic
from fedzo.errors import CannotWrite, UsageError
from fedzo.runs.checkpoint import Checkpoint
from fedzo.runs.history import HISTORY, Seal, as_line, read_history
from fedzo.runs.options import RunOptions
from fedzo.runs.tables import Config, as_text

Array = NDArray[Any]


class RunFolder:
    """One run's files, by the names that `history.jsonl` readers and `--resume` rely on."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.history = self.path / HISTORY
        self.checkpoint = self.path / "checkpoint.npz"
        self.model = self.path / "model.npy"
        self.best = self.path / "best.npy"
        self.curves = self.path / "curves.png"
        self.mark = self.path / ".fedzo"  # says that a run may write here

    def has_run(self) -> bool:
        """Return whether a run was started here."""
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

    def claim(self) -> None:
        """Mark the folder as one for what several runs come to, unless it is somebody else's.

        It may hold runs already, of a sweep or a reproduction that was stopped.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            below = (self.path.glob("*/" * depth + self.mark.name) for depth in (1, 2, 3))
            if next(itertools.chain.from_iterable(below), None) is None:
                self.check_free()
            self.mark.touch()
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from error

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
        except ValueError as error:  # a null byte
            raise UsageError(f"cannot write to {self.path}: {error}") from error
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
        write_atomic(self.config, as_text(config).encode())

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

        What is left is what an uninterrupted run would have written by that round; of a damaged
        history, where ``lenient``, all of that which can be read, a record for a round, in order.
        """
        kept = [
            record
            for record in read_history(self.history, lenient)
            if record["round"] <= upto and scheduled(record["round"])
        ]
        if lenient:
            kept = [record for _, record in sorted({r["round"]: r for r in kept}.items())]
        write_atomic(self.history, "".join(map(as_line, kept)).encode())
        return kept

    def check_history(self, checkpoint: Checkpoint) -> int:
        """Return the round up to which the checkpoint counts on the history's records.

        Raise unless they are there. A kill may have come between the record of a round and the
        checkpoint after it: then the checkpoint of that round is one from before the record, which
        will be made again.
        """
        options, sealed = RunOptions(**checkpoint.config.get("run", {})), Seal()
        expected, before = (checkpoint.records, checkpoint.digest), None
        for record in read_history(self.history):
            if record["round"] <= checkpoint.round and options.evaluates(record["round"]):
                if record["round"] == checkpoint.round and before is None:
                    before = (sealed.count, sealed.digest())
                sealed.add(record)
        if (sealed.count, sealed.digest()) == expected:
            return checkpoint.round
        if before == expected:
            return checkpoint.round - 1
        found = "other" if sealed.count == checkpoint.records else str(sealed.count)
        raise UsageError(
            f"{self.history} does not fit its checkpoint: it has {found} records up to round "
            f"{checkpoint.round} where {checkpoint.records} were written; --repair resumes "
            "with what is left of it"
        )

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint, after the records of the history that it counts on."""
        sync_file(self.history)
        write_atomic(self.checkpoint, checkpoint.packed())

    def load(self) -> Checkpoint | None:
        """Read the checkpoint, if there is one."""
        return Checkpoint.read(self.checkpoint) if self.checkpoint.exists() else None

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
