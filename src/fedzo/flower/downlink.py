"""The server's side of following a run: the log of coefficients, and who has come how far."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedzo.algorithms.fixed_directions import SumsState
from fedzo.core.tasks import LocalSteps, Update
from fedzo.core.updates import UpdateMean, as_sum
from fedzo.errors import CannotWrite
from fedzo.flower.course import Course
from fedzo.flower.errors import log as logger
from fedzo.flower.following import (
    MOST_DRAWN,
    MOST_ROUNDS,
    Following,
    Where,
    checksum,
    pack_round,
    pack_sums,
)
from fedzo.runs.store import flatten

Array = NDArray[Any]

LOG = "coefficients.log"  # in a run's folder: from the start and this, the whole run follows

_FRAME = struct.Struct("<III")  # round, how many bytes, their CRC-32


class Log:
    """What the server heard in each round, in memory and, if it has a file, on the disk.

    Parameters
    ----------
    file : Path, optional
        Where it is written, a round at a time.
    resume : bool
        Whether to begin with what is in the file. A last round that a kill has cut off is not.
    most : int, optional
        How many rounds are kept, the last ones; all of them by default.

    Examples
    --------
    >>> log = Log()
    >>> log.append(0, b"abc"), log.append(1, b"de")
    (None, None)
    >>> log.since(0, 2), log.since(1, 2), log.since(1, 1), log.since(1, 3)
    (b'abcde', b'de', b'', None)
    """

    def __init__(
        self, file: Path | None = None, resume: bool = False, most: int | None = None
    ) -> None:
        self._file, self._most, self._rounds = file, most, dict[int, bytes]()
        if file is not None and resume and file.exists():
            self._read(file.read_bytes())

    def append(self, t: int, heard: bytes | None) -> None:
        """Add round t, the last one so far; None: coefficients do not tell what was heard."""
        first = 0 if self._most is None else t + 1 - self._most
        kept = {s: own for s, own in self._rounds.items() if first <= s < t}
        if len(kept) < len(self._rounds):  # there are too many, or t is done again after a resume
            self._rounds = kept
            self._write(b"".join(_frame(s, own) for s, own in self._rounds.items()), "wb")
        if heard is not None:
            self._rounds[t] = heard
            self._write(_frame(t, heard), "ab")

    def since(self, first: int, last: int) -> bytes | None:
        """Return the rounds from ``first`` to before ``last``; None: one of them is not there."""
        if any(t not in self._rounds for t in range(first, last)):
            return None
        return b"".join(self._rounds[t] for t in range(first, last))

    def _read(self, content: bytes) -> None:
        at = 0
        while at + _FRAME.size <= len(content):
            t, size, right = _FRAME.unpack_from(content, at)
            own = content[at + _FRAME.size : at + _FRAME.size + size]
            if zlib.crc32(own) != right:
                break
            self._rounds[t] = own
            at += _FRAME.size + size

    def _write(self, content: bytes, mode: str) -> None:
        if self._file is None:
            return
        try:
            with self._file.open(mode) as file:
                file.write(content)
        except OSError as error:
            raise CannotWrite(self._file, error) from error


def _frame(t: int, heard: bytes) -> bytes:
    return _FRAME.pack(t, len(heard), zlib.crc32(heard)) + heard


class Downlink:
    """Tells each node as little as brings it to the model.

    That is the log since the round that it is known to have come to. A node of which nothing is
    known is asked first where it is (:func:`~fedzo.flower.following.behind`), and sent the log
    since then, or of the whole run, where its own start is that of the run. What remains is the
    state itself: for a node that came to another model, and where the log is longer than the model
    or would take too long to follow. Of a run along fixed directions the sums are sent in place of
    all but a short log, and no more than the last round is kept.

    Parameters
    ----------
    course : Course
        The run.
    x0 : array
        Its start.
    log : Log
        What was heard in it so far.
    first : int
        The round that it goes on with, after a resume.
    """

    def __init__(self, course: Course, x0: Array, log: Log, first: int = 0) -> None:
        self.course, self._log, self._start = course, log, checksum(x0)
        self.run = hashlib.sha256((course.text + self._start).encode()).hexdigest()[:12]
        self._bare = len(flatten(course.start(x0))) == 1  # the state is the model, no more
        self._reached: dict[int, int] = {}  # the round that each node has come to
        self._next: dict[int, Following | None] = {}  # what those who could not follow are sent
        self._has_model: set[int] = set()  # who was sent all there is
        self._round, self._check = first, ""  # where all are to come
        self._x: Array | None = None
        self._state: tuple[Array, ...] = ()
        self._sums: Array | None = None  # along fixed directions, that the model is made of
        self._sums_after: Array | None = None  # and the one after the round

    def aim(self, x: Array, task: LocalSteps | None = None) -> None:
        """Take the model before a round, or the one after the last, as where all are to come."""
        if task is not None:
            self._round, self._state = task.round, flatten(task.state)
            self._sums = task.state.sums if isinstance(task.state, SumsState) else None
        else:
            if self._x is not None and x is not self._x:
                self._round, self._sums = self._round + 1, self._sums_after
            self._state = (x,) if self._bare else ()
        if x is not self._x:
            self._x, self._check = x, checksum(x)
        self._next.clear()
        self._has_model.clear()

    def heard(self, task: LocalSteps, updates: Sequence[Update]) -> None:
        """Take down what was heard in a round."""
        known = all(update.coefficients is not None for update in updates)
        if not known:
            logger.warning("round %d has whole updates: the model is sent for it", task.round + 1)
        logged = self.course.uplink.compress(list(updates), task) if known else None
        self._log.append(task.round, None if logged is None else pack_round(logged))
        self._sums_after = None
        if self._sums is not None and logged is not None:
            mean = UpdateMean(task.x.size)
            for update in logged:
                mean.add(task.rebuilt(update), update.weight)
            added = as_sum(mean.value()).table(self._sums.shape)
            self._sums_after = (self._sums + added).astype(self._sums.dtype)

    def to(self, node: int) -> Following | None:
        """Return what brings a node to the model; None: nothing less than the model, and no state.

        That is when the state is not at hand: for an evaluation, where the server optimizer
        has a state.
        """
        if node not in self._next:
            at = self._reached.get(node)
            if at is None:
                return self._aim(self._round, b"", self.course.text)
            way = self._way(at)
            if way is not None:
                return way
            self._send_model(node)
        return self._next[node]

    def reached(self, node: int) -> None:
        """Take it that a node has come to the model."""
        if self._next.get(node, True):
            self._reached[node] = self._round

    def behind(self, node: int, where: Where) -> bool:
        """Take it that a node could not come there; tell whether to ask it again."""
        self._reached.pop(node, None)
        if node in self._has_model:
            logger.warning("node %d does not take the model that it was sent", node)
            return False
        if node not in self._next and not where.differs:
            way = self._way(where.round) if 0 <= where.round <= self._round else None
            if way is None and where.start == self._start:
                way = self._way(0, self.course.text)
            if way is not None:
                self._next[node] = way
                return True
        what = "comes to another model than the server's" if where.differs else "cannot follow"
        logger.warning("node %d %s: it is sent the model", node, what)
        self._send_model(node)
        return True

    def _aim(self, since: int, log: bytes, course: str = "") -> Following:
        return Following(self.run, self._round, self._check, since, log, course)

    def _send_model(self, node: int) -> None:
        whole = self._aim(self._round, b"", self.course.text)._replace(state=self._state)
        self._has_model.add(node)
        self._next[node] = whole if self._state else None

    def _way(self, since: int, course: str = "") -> Following | None:
        """Return what leads to the model from a round, if it is there and worth sending."""
        assert self._x is not None
        log = self._log.since(since, self._round)
        if log is not None and self._round - since <= MOST_ROUNDS:
            drawn = len(log) // self._x.itemsize * self._x.size
            most = self._x.nbytes if self._sums is None else self._sums.nbytes
            if len(log) <= most and drawn <= MOST_DRAWN:
                return self._aim(since, log, course)
        if self._sums is None:
            return None
        return self._aim(self._round, b"", course)._replace(sums=pack_sums(self._sums))


def follows(uplink: Any) -> bool:
    """Tell whether an uplink has nodes follow the run, rather than send them the model."""
    return bool(uplink.wants_coefficients) and getattr(uplink, "downlink", "log") == "log"
