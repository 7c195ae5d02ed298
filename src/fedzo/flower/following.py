"""Following a run by its coefficients: what a node is told in place of the model.

A node keeps the state that the server had before some round: x, and the server optimizer's. All
that happened since is in the coefficients that the server heard, a few numbers a round. From them
the node does the server's own rounds again, by the same code, and so comes to the same state, to
the bit; a checksum of x shows that it has. Where a node has no such state, or another one, it says
so (:func:`behind`), and is told more: the log from the start on, which its own copy of the start is
good for, and in the end the state itself. Where all directions are of a fixed set
(``fixed_directions``), the sums along them stand for the log of all rounds, however many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedzo.algorithms.fixed_directions import FixedDirections
from fedzo.core.tasks import Update
from fedzo.errors import FedzoError
from fedzo.flower.course import Course
from fedzo.flower.errors import Malformed
from fedzo.flower.schema import config, numpy_of, take
from fedzo.runs.store import flatten, unflatten

Array = NDArray[Any]

MOST_DRAWN = 10**11  # numbers that catching up may draw again: about two minutes of a core
MOST_ROUNDS = 10**6  # that it may do again: a minute, even if nobody took part in them


def checksum(x: Array) -> str:
    """Return sixteen letters that differ where models do.

    >>> checksum(np.zeros(2)) == checksum(np.zeros(2)), checksum(np.zeros(2, np.float32))
    (True, '852de56065bb9698')
    """
    total = hashlib.blake2b(str(x.dtype).encode(), digest_size=8)
    total.update(np.ascontiguousarray(x).data)
    return total.hexdigest()


# ------------------------------------------------------------------------------- rounds as bytes


def pack_round(updates: Sequence[Update]) -> bytes:
    """Return what the server heard in a round: devices, weights unless all are one, coefficients.

    >>> numbers = np.array([[0.5, -1.0]], np.float32)
    >>> packed = pack_round([Update(3, None, 1, 0, numbers), Update(7, None, 1, 0, 2 * numbers)])
    >>> len(packed)
    28
    >>> [again] = unpack_rounds(packed, 1, (1, 2), np.dtype(np.float32))
    >>> [(update.device, update.coefficients.tolist()) for update in again]
    [(3, [[0.5, -1.0]]), (7, [[1.0, -2.0]])]
    """
    weighted = any(update.weight != 1 for update in updates)
    head = np.array([len(updates) << 1 | weighted, *(u.device for u in updates)], "<u4")
    weights = np.array([u.weight for u in updates] if weighted else [], "<f8")
    numbers = [np.asarray(u.coefficients) for u in updates]
    little = [own.astype(own.dtype.newbyteorder("<")).tobytes() for own in numbers]
    return b"".join((head.tobytes(), weights.tobytes(), *little))


def unpack_rounds(
    content: bytes, count: int, shape: tuple[int, int], dtype: np.dtype[Any]
) -> list[list[Update]]:
    """Return what was heard in each of so many rounds, of coefficients of this shape and type."""
    pieces = _Pieces(content)
    rounds = []
    for _ in range(count):
        number, weighted = divmod(int(pieces.take("<u4", 1)[0]), 2)
        devices = pieces.take("<u4", number).tolist()
        weights = pieces.take("<f8", number).tolist() if weighted else [1.0] * number
        numbers = pieces.take(dtype.newbyteorder("<"), number * shape[0] * shape[1]).astype(dtype)
        if not (np.isfinite(numbers).all() and all(0 < w < 1e300 for w in weights)):
            raise Malformed("the log has numbers that are not finite")
        each = numbers.reshape(number, *shape)
        rounds.append(
            [
                Update(device, np.empty(0, dtype), weight, 0, own)
                for device, weight, own in zip(devices, weights, each, strict=True)
            ]
        )
    if pieces.left:
        raise Malformed(f"the log has {pieces.left} bytes too many")
    return rounds


class _Pieces:
    """Bytes that are read from the front."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, kind: Any, count: int) -> Array:
        size = np.dtype(kind).itemsize * count
        if size > self.left:
            raise Malformed("the log is cut off")
        found = np.frombuffer(self._content, kind, count, self._at)
        self._at += size
        return found


# ------------------------------------------------------------------------------- what is sent


class Following(NamedTuple):
    """How a node comes to the model of a round, without being sent it.

    Attributes
    ----------
    run : str
        Names the run, for a node that has kept a state of it.
    round : int
        Before which round the model is wanted.
    check : str
        The checksum of that model.
    since : int
        The round that the log begins with.
    log : bytes
        What the server heard in the rounds from there on: see :func:`pack_round`.
    course : str
        The run's parts, where the node may not have them; empty: it has.
    state : tuple of arrays
        The state itself, where nothing less helps; then there is no log.
    sums : bytes
        In place of a log: what all rounds have added up to along each of a run's fixed directions.
    """

    run: str
    round: int
    check: str
    since: int
    log: bytes = b""
    course: str = ""
    state: tuple[Array, ...] = ()
    sums: bytes = b""

    def plain(self) -> dict[str, Any]:
        """Return all but the arrays, and nothing that is empty."""
        fields = self._replace(state=())._asdict()
        return {key: value for key, value in fields.items() if value or key in ("round", "since")}

    def arrays(self) -> ArrayRecord | None:
        """Return the arrays as a record, if there are any."""
        if not self.state:
            return None
        flower = (FlowerArray(np.ascontiguousarray(array)) for array in self.state)
        return ArrayRecord({str(i): array for i, array in enumerate(flower)})

    @classmethod
    def read(cls, plain: dict[str, Any], arrays: ArrayRecord | None) -> Following | None:
        """Take it out of a message's fields; None, if the message has none."""
        if "run" not in plain:
            return None
        found = dict(arrays or {})
        following = cls(
            run=take(plain, "run", str),
            round=take(plain, "round", int),
            check=take(plain, "check", str),
            since=take(plain, "since", int),
            log=take(plain, "log", bytes | None) or b"",
            sums=take(plain, "sums", bytes | None) or b"",
            course=take(plain, "course", str | None) or "",
            state=tuple(numpy_of(found, str(i)) for i in range(len(found))),
        )
        if not 0 <= following.since <= following.round < 1 << 26:
            raise Malformed("the log is of no rounds")
        if not (following.run.isalnum() and len(following.run) <= 40):
            raise Malformed("the run has no name")
        return following


class Where(NamedTuple):
    """Where a node is that cannot follow the log to the model."""

    round: int  # of the state that it keeps, -1 for none
    start: str  # the checksum of its own start
    differs: bool  # it could, and came to another model


def behind(where: Where) -> RecordDict:
    """Return a reply that the log does not lead to the model from what is kept here.

    >>> read_behind(behind(Where(7, "0f", True))), read_behind(RecordDict())
    (Where(round=7, start='0f', differs=True), None)
    """
    return RecordDict({"behind": ConfigRecord(where._asdict())})


def read_behind(content: RecordDict) -> Where | None:
    """Return what :func:`behind` says; None: the reply is another one."""
    if "behind" not in content.config_records:
        return None
    plain = dict(config(content, "behind"))
    return Where(take(plain, "round", int), take(plain, "start", str), take(plain, "differs", bool))


# ----------------------------------------------------------------------------- what comes of it


class Behind(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """The log does not lead to the model from here."""

    def __init__(self, where: Where) -> None:
        super().__init__(f"the log does not lead to the model from round {where.round}")
        self.where = where


class Reached(NamedTuple):
    """A state that a node has come to."""

    course: Course
    text: str  # the course's
    round: int
    state: Any
    moved: bool  # whether it is another one than was kept

    @property
    def x(self) -> Array:
        """The model."""
        return self.course.algorithm.model(self.state)


class Kept(NamedTuple):
    """A state as it lies on a node's disk."""

    round: int
    text: str  # of the course
    arrays: tuple[Array, ...]


def reach(
    following: Following,
    kept: Kept | None,
    start: Callable[[], Array],
    known: Mapping[str, Any],
    check: Callable[[Course, Array], None],
) -> Reached:
    """Return the state before the round that is wanted, or raise :class:`Behind`.

    ``start()`` is this node's own start, ``known`` are the algorithms that it has, and ``check``
    is given the course before anything is done, to refuse it.
    """
    x, text = start(), following.course or ("" if kept is None else kept.text)
    where = Where(-1 if kept is None else kept.round, checksum(x), differs=False)
    if not text:
        raise Behind(where)
    course = Course.read(text, known)
    x = x.astype(course.dtype, copy=False)
    where = where._replace(start=checksum(x))
    check(course, x)
    _require_patience(course, x)
    like = course.start(x)
    here = kept if kept is not None and kept.text == text else None
    if following.state:
        state, moved = _filled(like, following.state), True
    elif following.sums:
        start = like if here is None else _filled(like, here.arrays)
        state, moved = _from_sums(following, course, start), True
    elif here is not None and following.since <= here.round <= following.round:
        rounds = _rounds(following, course, x)[here.round - following.since :]
        state, moved = course.follow(_filled(like, here.arrays), here.round, rounds), bool(rounds)
    elif following.since == 0:
        state, moved = course.follow(like, 0, _rounds(following, course, x)), True
    else:
        raise Behind(where)
    if checksum(course.algorithm.model(state)) != following.check:
        raise Behind(where._replace(differs=True))
    return Reached(course, text, following.round, state, moved)


def _rounds(following: Following, course: Course, x: Array) -> list[list[Update]]:
    algorithm: Any = course.algorithm
    count = following.round - following.since
    if count > MOST_ROUNDS:
        raise Malformed("the log has too many rounds to follow")
    if len(following.log) > x.nbytes + 8 * count:
        raise Malformed("the log is longer than the model")
    rounds = unpack_rounds(following.log, count, algorithm.coefficients_shape, x.dtype)
    drawn = len(following.log) // x.itemsize
    if drawn * x.size > 2 * MOST_DRAWN:
        raise Malformed("the log would take too long to follow")
    return rounds


def _from_sums(following: Following, course: Course, start: Any) -> Any:
    """Return the state that the sums of a message make, which must be of the run's fixed set."""
    algorithm = course.composed(start.x)
    if not isinstance(algorithm, FixedDirections) or len(following.sums) != start.sums.nbytes:
        raise Malformed("the sums are not those of the run's directions")
    dtype = start.sums.dtype
    found = np.frombuffer(following.sums, dtype.newbyteorder("<")).astype(dtype)
    if not np.isfinite(found).all():
        raise Malformed("the sums are not finite")
    return algorithm.from_sums(start, found.reshape(start.sums.shape), course.seed)


def pack_sums(sums: Array) -> bytes:
    """Return sums as they are told."""
    return sums.astype(sums.dtype.newbyteorder("<")).tobytes()


def drawn_by_sums(course: Course, x: Array) -> int:
    """Return how many numbers are drawn to build a model from the sums of a fixed set, at most."""
    return (course.algorithm.fixed_directions or 0) * x.size


def _require_patience(course: Course, x: Array) -> None:
    if drawn_by_sums(course, x) > 2 * MOST_DRAWN:
        raise Malformed("the run's fixed directions would take too long to draw")


def _filled(like: Any, arrays: Sequence[Array]) -> Any:
    """Return a state of these arrays, which must have the shapes that such a state has."""
    for own, given in zip(flatten(like), arrays, strict=True):
        if own.shape != given.shape or own.dtype != given.dtype or not np.isfinite(given).all():
            raise Malformed("the state is not one of this run")
    return unflatten(like, arrays)
