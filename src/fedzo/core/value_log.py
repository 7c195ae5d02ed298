"""A log of the values that a black box has returned, so that a resume repeats no answered query.

A problem that counts its queries itself (:class:`~fedzo.core.budget.Meter`) asks its black box
through :meth:`ValueLog.answer`. Each value is on disk before it is used. A run that is resumed from
its checkpoint repeats the rounds since then, and finds their values here.

An entry has an address: the round, the phase (:class:`Phase`), the device, and the number of the
call by that device within the phase. Rounds are deterministic, so a repeated round makes the same
calls. A checksum of the points guards against others. Entries are lines of JSON behind their
checksum, appended by one system call each, so a kill loses the value of an unfinished call at most.
After a power cut, entries since the last checkpoint may be missing. A checkpoint removes the
entries of earlier rounds.
"""

from __future__ import annotations

import enum
import json
import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedzo.core.files import write_atomic
from fedzo.core.importing import ends_run
from fedzo.core.types import Array
from fedzo.errors import CannotWrite, UsageError, described

HEADER = b"fedzo values 2\n"  # the version of the format


class Phase(enum.IntEnum):
    """What the values of a round are for."""

    ROUND = 0
    EVALUATION = 1
    FRESH = 2  # the evaluation of the result
    REPORT = 3  # the files of the problem
    PROBE = 4  # numbers in place of "auto", before round 0


class RecordedFailure(Exception):  # noqa: N818 - reads as the sentence it prints
    """A call that failed before the resume; the message is that of its exception."""


class _Entry(NamedTuple):
    points: int  # CRC-32
    raw: bytes  # as in the file
    answer: Array | str


_Address = tuple[int, int, int, int]


class ValueLog:
    """The log of one run. Without a file it has no effect.

    Attributes
    ----------
    used : bool
        Whether the black box asks through this log, or through a custom one.

    Examples
    --------
    >>> import tempfile
    >>> points, path = np.ones((1, 2)), Path(tempfile.mkdtemp()) / "values.log"
    >>> for session in range(2):
    ...     log = ValueLog()
    ...     log.open(path)
    ...     log.begin(0, Phase.ROUND)
    ...     value = log.answer(3, points, lambda: print("asked") or np.array([0.25]))
    ...     log.close()
    asked
    >>> value
    array([0.25])
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self.used = False
        self._path = Path()
        self._phase: tuple[int, Phase] = (0, Phase.ROUND)
        self._calls: Counter[int] = Counter()  # in this phase, by device
        self._entries: dict[_Address, _Entry] = {}  # of the present and later rounds
        self._lock, self._trimmed = threading.Lock(), -1  # the round of the last checkpoint

    def open(self, path: Path) -> None:
        """Read the entries of a file, up to the first damaged one, and append to it from now on."""
        if self._file is not None:
            return
        try:
            content = path.read_bytes() if path.exists() else b""
            if not (content.startswith(HEADER) or HEADER.startswith(content)):
                raise UsageError(f"{path} is not a value log of this fedzo", code="value-log")
            self._entries, whole = _parsed(content)
            self._path = path
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._file, whole)
            if not whole:
                os.write(self._file, HEADER)
        except OSError as error:
            raise CannotWrite(path, error) from error

    @property
    def active(self) -> bool:
        """Whether values are written to a file."""
        return self._file is not None

    def begin(self, round: int, phase: Phase) -> None:
        """Begin a phase of a round. Entries of earlier rounds are no longer needed in memory."""
        self._phase, self._calls = (round, phase), Counter()
        if self._file is not None:
            self._entries = {at: e for at, e in list(self._entries.items()) if at[0] >= round}

    def answer(
        self, device: int, points: Array, ask: Callable[[], Array], keep_failure: bool = False
    ) -> Array:
        """Return the values of the log at this address, or else those of ``ask()``, logged.

        A failure is logged if ``keep_failure``, which says that the run continues after it: an
        exception, or values that are not finite. It is repeated as :class:`RecordedFailure`.
        """
        if self._file is None:
            return ask()
        self.used = True
        call = self._calls[device]
        self._calls[device] = call + 1
        address, check = (*self._phase, device, call), zlib.crc32(points.tobytes())
        known = self._entries.get(address)
        if known is not None and known.points == check:
            if isinstance(known.answer, str):
                raise RecordedFailure(known.answer)
            return known.answer.copy()
        try:
            values = ask()
        except Exception as error:
            if keep_failure and not ends_run(error):
                self._write(address, check, described(error))
            raise
        if keep_failure or np.isfinite(values).all():
            self._write(address, check, values)
        return values

    def knows(self, device: int, ahead: int) -> bool:
        """Return whether the log has the call after ``ahead`` more calls of a device."""
        return (*self._phase, device, self._calls[device] + ahead) in self._entries

    def unread(self, round: int, *phases: Phase) -> int:
        """Return the number of values at some phases of a round."""
        found = (e.answer for a, e in self._entries.items() if a[0] == round and a[1] in phases)
        return sum(len(answer) for answer in found if not isinstance(answer, str))

    def trim(self, round: int, evaluated: bool) -> None:
        """Remove what a checkpoint has made useless: earlier rounds, and a recorded evaluation.

        So are the probes, whose outcome every checkpoint has.
        """
        if self._file is None:
            return
        with self._lock:
            self._trimmed = round
            done = {(round, Phase.EVALUATION)} if evaluated else set()
            self._entries = {
                at: entry
                for at, entry in self._entries.items()
                if at[0] >= round and at[:2] not in done and at[1] != Phase.PROBE
            }
            if self._entries:
                self._rewrite()
            else:
                os.ftruncate(self._file, len(HEADER))

    def close(self) -> None:
        """Close the file, sorted by address; delete it if it is empty."""
        with self._lock:
            if self._file is None:
                return
            if self._entries and self._phase[0] == self._trimmed:  # all of them are in memory
                self._rewrite()
            elif os.fstat(self._file).st_size <= len(HEADER):
                self._path.unlink(missing_ok=True)
            old, self._file = self._file, None
            os.close(old)

    def _rewrite(self) -> None:
        """Replace the file by the entries in memory."""
        assert self._file is not None
        raw = b"".join(entry.raw for _, entry in sorted(self._entries.items()))
        write_atomic(self._path, HEADER + raw)
        new = os.open(self._path, os.O_RDWR | os.O_APPEND)
        old, self._file = self._file, new  # in one step, for an interrupt may come
        os.close(old)

    def _write(self, address: _Address, check: int, answer: Array | str) -> None:
        plain = answer if isinstance(answer, str) else [answer.dtype.name, answer.tolist()]
        body = json.dumps([*address, f"{check:08x}", plain]).encode()
        raw = b"%08x %s\n" % (zlib.crc32(body), body)
        with self._lock:
            if self._file is None:  # a thread that outlives its run
                return
            try:
                os.write(self._file, raw)
            except OSError as error:
                raise CannotWrite(self._path, error) from error
            self._entries[address] = _Entry(check, raw, answer)


def _parsed(content: bytes) -> tuple[dict[_Address, _Entry], int]:
    """Return the entries of a file, and the number of bytes up to the first that is damaged."""
    entries: dict[_Address, _Entry] = {}
    if not content.startswith(HEADER):
        return entries, 0
    whole = len(HEADER)
    for raw in content[whole:].splitlines(keepends=True):
        body = raw[9:-1]
        if raw != b"%08x %s\n" % (zlib.crc32(body), body):
            break
        *address, points, answer = json.loads(body)
        if not isinstance(answer, str):
            answer = np.array(answer[1], answer[0])
        entries[tuple(address)] = _Entry(int(points, 16), raw, answer)
        whole += len(raw)
    return entries, whole
