"""Keep nodes in sync by coefficients, in place of sending them the model.

A node caches the state that the server had before some round: x and the server optimizer's state.
The server logs the coefficients of each round, a few numbers per device. From them the node replays
the rounds by the server's own code, and reaches the same state, to the bit. A checksum of x
verifies it.

A node without such a state, or with another one, replies with its position
(:func:`out_of_sync`). The server then sends more: the log since the start, if the node has the same
start, and finally the state itself. With a fixed set of directions (``fixed_directions``), the sums
along them replace the log of any number of rounds.

:class:`Downlink` is the server's side, :func:`catch_up` the node's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedzo.algorithms.compose import Replay, Scheduled
from fedzo.algorithms.fixed_directions import FixedDirections, SumsState
from fedzo.core.files import as_toml, unfinished, writing
from fedzo.core.random import check_seed
from fedzo.core.tasks import LocalSteps, Task, Update
from fedzo.core.types import Array
from fedzo.core.updates import UpdateMean, as_sum
from fedzo.errors import CannotWrite, FedzoError
from fedzo.flower.errors import ErrorCode, Malformed, Rejected, log
from fedzo.flower.schema import (
    LONGEST_TEXT,
    config,
    numpy_of,
    read_fields,
    read_json,
    take,
    write_arrays,
    write_fields,
)
from fedzo.runs.registry import describe_parts, make_parts, names_of
from fedzo.runs.store import flatten, unflatten

MOST_DRAWN = 10**11  # numbers that a node may draw to catch up: about two minutes of a core
MOST_ROUNDS = 10**6  # that a node may replay: a minute, even if no device took part in them
LOG = "coefficients.log"  # in a run's folder: with the start, it defines the whole run

_MOST_RUNS = 2  # per node, so that a server cannot fill the disk
_SUFFIX = ".state"
_FRAME = struct.Struct("<III")  # round, number of bytes, their CRC-32


def checksum(x: Array) -> str:
    """Return sixteen hexadecimal digits that identify a model.

    >>> checksum(np.zeros(2)) == checksum(np.zeros(2)), checksum(np.zeros(2, np.float32))
    (True, '852de56065bb9698')
    """
    total = hashlib.blake2b(str(x.dtype).encode(), digest_size=8)
    total.update(np.ascontiguousarray(x).data)
    return total.hexdigest()


# -------------------------------------------------------------------------- runs and their states


@dataclass(frozen=True)
class RunSpec(Replay):
    """A replay that can be described to a node; ``dtype`` is the model's precision."""

    dtype: str

    @cached_property
    def text(self) -> str:
        """The spec as JSON, which a node receives once."""
        parts = as_toml(describe_parts(self.algorithm, self.uplink))
        plain = {"seed": self.seed, "devices": self.devices, "dtype": self.dtype}
        return json.dumps({**parts, **plain}, separators=(",", ":"))

    @cached_property
    def can_be_sent(self) -> bool:
        """Whether all parts are fedzo's, so that every node knows them by name."""
        parts = describe_parts(self.algorithm, self.uplink)
        names = (*names_of(parts["uplink"]), parts.get("server", {}).get("name", "mean"))
        return ":" not in "".join(names) and len(self.text) <= LONGEST_TEXT

    @classmethod
    def read(cls, text: str, known: Mapping[str, Any]) -> RunSpec:
        """Return the spec of a text. It can name known parts only: nothing is imported for it."""
        try:
            plain = read_json(text)
            tables = {table: plain.pop(table) for table in ("algorithm", "uplink")}
            tables["server"] = plain.pop("server", {})
            algorithm, uplink, _ = make_parts(tables, known)
            check_seed("seed", plain["seed"])
            return cls(
                algorithm,
                uplink,
                seed=take(plain, "seed", int),
                devices=take(plain, "devices", int),
                dtype={"float32": "float32", "float64": "float64"}[take(plain, "dtype", str)],
            )
        except (ValueError, AttributeError, KeyError, TypeError, FedzoError) as error:
            text = f"this node does not know a part of the run: {error}"
            raise Rejected(ErrorCode.UNKNOWN_ALGORITHM, text) from error

    def task(self, t: int, state: Any) -> Task:
        """Return the task of the devices in round t."""
        x = state.x
        tasks = self.composed.round(t, state, self.setting(x))
        task = next(tasks)
        tasks.close()
        return task


def flower_home() -> Path:
    """Return the folder of Flower's own files: ``FLWR_HOME``, or ``.flwr`` in the user's home."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


class CachedState(NamedTuple):
    """A state on a node's disk."""

    round: int
    spec: str  # the text of the run's spec
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class StateCache:
    """The latest state of each of a node's last two runs, in files on the node's disk.

    Parameters
    ----------
    folder : Path
        The folder of the files. It is created if it does not exist.
    owner : str
        The node's name, because nodes may share a folder.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> cache = StateCache(Path(mkdtemp()), "node-1")
    >>> cache.put("run7", 3, "{}", (np.arange(2.0), (np.ones(1),)))
    >>> cache.get("run7")
    CachedState(round=3, spec='{}', arrays=(array([0., 1.]), array([1.])))
    """

    folder: Path
    owner: str

    def put(self, run: str, round: int, spec: str, state: object) -> None:
        """Replace the state of a run, atomically."""
        path, arrays = self._path(run), flatten(state)
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in unfinished(path):  # after a kill while writing
            left.unlink(missing_ok=True)
        head = {"round": round, "spec": spec, "arrays": len(arrays)}
        with writing(path) as file:
            file.write(json.dumps(head).encode() + b"\n")
            for array in arrays:
                np.save(file, array, allow_pickle=False)
        own = self.folder.glob(f"*-{self.owner}{_SUFFIX}")
        for old in sorted(own, key=lambda path: os.stat(path).st_mtime_ns)[:-_MOST_RUNS]:
            old.unlink(missing_ok=True)

    def get(self, run: str) -> CachedState | None:
        """Return the state of a run, or None if there is no readable file."""
        try:
            with self._path(run).open("rb") as file:
                head = json.loads(file.readline())
                arrays = tuple(np.load(file, allow_pickle=False) for _ in range(head["arrays"]))
            return CachedState(head["round"], head["spec"], arrays)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, run: str) -> Path:
        return self.folder / f"{run}-{self.owner}{_SUFFIX}"


# ------------------------------------------------------------------------------- rounds as bytes


def pack_round(updates: Sequence[Update]) -> bytes:
    """Return the updates of a round: devices, weights unless all are one, and coefficients.

    An update may stand for several devices, or start from an older round.

    >>> numbers = np.array([[0.5, -1.0]], np.float32)
    >>> packed = pack_round([Update(3, None, 1, 0, numbers), Update(7, None, 1, 0, 2 * numbers)])
    >>> len(packed)
    28
    >>> [again] = unpack_rounds(packed, 1, (1, 2), np.dtype(np.float32))
    >>> [(update.device, update.coefficients.tolist()) for update in again]
    [(3, [[0.5, -1.0]]), (7, [[1.0, -2.0]])]
    """
    weighted = any(update.weight != 1 for update in updates)
    merged = any((u.contributors, u.started) != (1, None) for u in updates)
    flags = len(updates) << 2 | merged << 1 | weighted
    head = np.array([flags, *(u.device for u in updates)], "<u4")
    weights = np.array([u.weight for u in updates] if weighted else [], "<f8")
    origins = [(u.contributors, -1 if u.started is None else u.started) for u in updates]
    others = np.array(origins if merged else [], "<i8")
    numbers = (little_endian(np.asarray(u.coefficients)) for u in updates)
    return b"".join((head.tobytes(), weights.tobytes(), others.tobytes(), *numbers))


def unpack_rounds(
    content: bytes, count: int, shape: tuple[int, int], dtype: np.dtype[Any]
) -> list[list[Update]]:
    """Return the updates of ``count`` rounds, with coefficients of this shape and type."""
    stream = io.BytesIO(content)

    def read(kind: Any, count: int) -> Array:
        size = np.dtype(kind).itemsize * count
        if size > len(content) - stream.tell():
            raise Malformed("the log is cut off")
        return np.frombuffer(stream.read(size), kind)

    rounds = []
    for _ in range(count):
        number, flags = divmod(int(read("<u4", 1)[0]), 4)
        devices = read("<u4", number).tolist()
        weights = read("<f8", number).tolist() if flags & 1 else [1.0] * number
        origins = read("<i8", 2 * number).tolist() if flags & 2 else [1, -1] * number
        numbers = read(dtype.newbyteorder("<"), number * shape[0] * shape[1]).astype(dtype)
        if not (np.isfinite(numbers).all() and all(0 < w < 1e300 for w in weights)):
            raise Malformed("the log has numbers that are not finite")
        starts = [None if start < 0 else start for start in origins[1::2]]
        own = numbers.reshape(number, *shape)
        each = zip(devices, weights, own, origins[::2], starts, strict=True)
        empty = np.empty(0, dtype)
        rounds.append([Update(i, empty, w, 0, c, None, 0.0, n, s) for i, w, c, n, s in each])
    if left := len(content) - stream.tell():
        raise Malformed(f"the log has {left} bytes too many")
    return rounds


def little_endian(array: Array) -> bytes:
    """Return the bytes of an array, in the order in which they are sent."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


# -------------------------------------------------------------------------------------- messages


@dataclass(frozen=True)
class SyncMessage:
    """What a node needs to reach the model of a round.

    Attributes
    ----------
    run : str
        The run's name, by which a node finds its cached state.
    round : int
        The round before which the model is wanted.
    check : str
        The checksum of that model.
    since : int
        The first round of the log.
    log : bytes
        The updates of the rounds since then: see :func:`pack_round`.
    spec : str
        The text of the run's spec; empty if the node has it.
    sums : bytes
        In place of a log: the sums of all rounds along each of a run's fixed directions.
    state : tuple of arrays
        In place of a log: the state itself.
    """

    run: str
    round: int
    check: str
    since: int
    log: bytes = b""
    spec: str = ""
    sums: bytes = b""
    state: tuple[Array, ...] = ()  # in a record of its own

    @property
    def plain(self) -> ConfigRecord:
        """All fields but the arrays and those that are empty."""
        return write_fields(replace(self, state=()))

    @property
    def arrays(self) -> ArrayRecord | None:
        """The arrays as a record, if there are any."""
        named = {str(i): array for i, array in enumerate(self.state)}
        return write_arrays(named) if named else None

    @classmethod
    def read(cls, plain: dict[str, Any], arrays: ArrayRecord | None) -> SyncMessage | None:
        """Return the message of these fields; None if they are those of another message."""
        if "run" not in plain:
            return None
        message, found = read_fields(cls, plain), dict(arrays or {})
        if not 0 <= message.since <= message.round < 1 << 26:
            raise Malformed("the log has no valid range of rounds", "since")
        if not (message.run.isalnum() and len(message.run) <= 40):
            raise Malformed("the run has no valid name", "run")
        state = tuple(numpy_of(found, str(i)) for i in range(len(found)))
        return replace(message, state=state)


@dataclass(frozen=True)
class NodePosition:
    """The position of a node that cannot reach the model by the message that it received."""

    round: int  # of its cached state, -1 if there is none
    start: str  # the checksum of its start
    differs: bool  # it replayed the rounds and reached another model


def out_of_sync(position: NodePosition) -> RecordDict:
    """Return the reply of a node that cannot reach the model.

    >>> read_out_of_sync(out_of_sync(NodePosition(7, "0f", True)))
    NodePosition(round=7, start='0f', differs=True)
    >>> read_out_of_sync(RecordDict())
    """
    return RecordDict({"position": write_fields(position)})


def read_out_of_sync(content: RecordDict) -> NodePosition | None:
    """Return the position of a node that is out of sync; None for other replies."""
    if "position" not in content.config_records:
        return None
    return read_fields(NodePosition, config(content, "position"))


def synced_round(content: RecordDict) -> int | None:
    """Return the round that a node reaches by a message; None if it replays nothing for it."""
    plain: dict[str, Any] = dict(content.config_records.get("task") or {})
    return int(plain["round"]) if "run" in plain else None


# ------------------------------------------------------------------------------- the node's side


class OutOfSync(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """A message does not lead to the model from a node's position."""

    def __init__(self, position: NodePosition) -> None:
        super().__init__(f"the message does not lead to the model from round {position.round}")
        self.position = position


class SyncedState(NamedTuple):
    """A state that a node has reached."""

    spec: RunSpec
    text: str  # of the spec, as it was received
    round: int
    state: Any
    moved: bool  # whether it differs from the cached one

    @property
    def x(self) -> Array:
        """The model."""
        return self.spec.algorithm.model(self.state)


def catch_up(
    message: SyncMessage,
    cached: CachedState | None,
    start: Callable[[], Array],
    known: Mapping[str, Any],
    check: Callable[[RunSpec, Array], None],
    charge: Callable[[int], None],
) -> SyncedState:
    """Return the state before the round of a message, or raise :class:`OutOfSync`.

    ``start()`` returns the node's start, and ``known`` are the algorithms that the node allows.
    ``check`` is called first, with the spec and the start, and raises to reject them. ``charge`` is
    called with the number of directions to draw, once the message is known to be valid.
    """
    x, text = start(), message.spec or ("" if cached is None else cached.spec)
    position = NodePosition(-1 if cached is None else cached.round, checksum(x), differs=False)
    if not text:
        raise OutOfSync(position)
    spec = RunSpec.read(text, known)
    x = x.astype(spec.dtype, copy=False)
    position = replace(position, start=checksum(x))
    if drawn_by_sums(spec, x) > 2 * MOST_DRAWN:
        raise Malformed("the run's fixed directions would take too long to draw")
    check(spec, x)
    like, moved = spec.start(x), True
    here = cached if cached is not None and cached.spec == text else None
    if message.state:
        state = _filled(like, message.state)
    elif message.sums:
        before = like if here is None else _filled(like, here.arrays)
        state = _from_sums(message, spec, before, charge)
    else:
        rounds, first = _rounds(message, spec, x), 0
        if here is not None and message.since <= here.round <= message.round:
            like, first, moved = _filled(like, here.arrays), here.round, here.round < message.round
        elif message.since:
            raise OutOfSync(position)
        charge(len(message.log) // x.itemsize)
        left = range(first, message.round)
        state = spec.replay(like, left, rounds[first - message.since :])
    if checksum(spec.algorithm.model(state)) != message.check:
        raise OutOfSync(replace(position, differs=True))
    return SyncedState(spec, text, message.round, state, moved)


def _rounds(message: SyncMessage, spec: RunSpec, x: Array) -> list[list[Update]]:
    algorithm: Any = spec.algorithm
    count = message.round - message.since
    if count > MOST_ROUNDS:
        raise Malformed("the log has too many rounds to replay")
    if len(message.log) > x.nbytes + 8 * count:
        raise Malformed("the log is longer than the model")
    rounds = unpack_rounds(message.log, count, algorithm.coefficients_shape, x.dtype)
    if len(message.log) // x.itemsize * x.size > 2 * MOST_DRAWN:
        raise Malformed("the log would take too long to replay")
    return rounds


def _from_sums(
    message: SyncMessage, spec: RunSpec, start: Any, charge: Callable[[int], None]
) -> Any:
    """Return the state of a message's sums, which must be along the run's fixed directions."""
    algorithm = spec.composed
    algorithm = algorithm.at(0) if isinstance(algorithm, Scheduled) else algorithm
    if not isinstance(algorithm, FixedDirections) or len(message.sums) != start.sums.nbytes:
        raise Malformed("the sums are not those of the run's directions")
    dtype = start.sums.dtype
    found = np.frombuffer(message.sums, dtype.newbyteorder("<")).astype(dtype)
    if not np.isfinite(found).all():
        raise Malformed("the sums are not finite")
    charge(spec.algorithm.fixed_directions or 0)
    return algorithm.from_sums(start, found.reshape(start.sums.shape), spec.seed)


def drawn_by_sums(spec: RunSpec, x: Array) -> int:
    """Return the largest number of draws to make a model from sums along fixed directions."""
    return (spec.algorithm.fixed_directions or 0) * x.size


def _filled(like: Any, arrays: Sequence[Array]) -> Any:
    """Return a state of these arrays, which must have the shapes and types of ``like``."""
    for own, given in zip(flatten(like), arrays, strict=True):
        if own.shape != given.shape or own.dtype != given.dtype or not np.isfinite(given).all():
            raise Malformed("the state is not of this run")
    return unflatten(like, arrays)


# ----------------------------------------------------------------------------- the server's side


class Log:
    """The coefficients of each round, in memory and optionally in a file.

    Parameters
    ----------
    file : Path, optional
        The file, to which each round is appended.
    resume : bool
        Begin with the rounds of the file, except a last one that a kill has cut off.
    most : int, optional
        The number of rounds to keep, the latest ones; all by default.

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

    def append(self, t: int, packed: bytes) -> None:
        """Add round t, the last one so far."""
        first = 0 if self._most is None else t + 1 - self._most
        kept = {s: own for s, own in self._rounds.items() if first <= s < t}
        if len(kept) < len(self._rounds):  # too many, or t is repeated after a resume
            self._rounds = kept
            self._write(b"".join(_frame(s, own) for s, own in self._rounds.items()), "wb")
        self._rounds[t] = packed
        self._write(_frame(t, packed), "ab")

    def since(self, first: int, last: int) -> bytes | None:
        """Return the rounds from ``first`` to before ``last``; None if one is missing."""
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


def _frame(t: int, packed: bytes) -> bytes:
    return _FRAME.pack(t, len(packed), zlib.crc32(packed)) + packed


class Downlink:
    """Sends each node the shortest message by which it reaches the model.

    That is the log since the node's last known round. A node without a known round first replies
    with its position (:func:`out_of_sync`). Then it receives the log since that round, or that of
    the whole run if it has the run's start.

    The state itself is sent to a node that reached another model, and if the log is longer than the
    model or would take too long to replay. In a run along fixed directions the sums replace all but
    a short log, and only the last round is kept.

    Parameters
    ----------
    spec : RunSpec
        The run.
    x0 : array
        The start.
    log : Log
        The rounds so far.
    first : int
        The next round, after a resume.
    """

    def __init__(self, spec: RunSpec, x0: Array, log: Log, first: int = 0) -> None:
        self.spec, self._log, self._start = spec, log, checksum(x0)
        self.run = hashlib.sha256((spec.text + self._start).encode()).hexdigest()[:12]
        self._bare = len(flatten(spec.start(x0))) == 1  # the state is the model alone
        self._synced: dict[int, int] = {}  # the round that each node has reached
        self._next: dict[int, SyncMessage | None] = {}  # messages to nodes that are out of sync
        self._has_model: set[int] = set()  # nodes that were sent the state
        self._round, self._check = first, ""  # the target of all nodes
        self._x: Array | None = None
        self._state: tuple[Array, ...] = ()
        self._sums: Array | None = None  # along fixed directions, before the round
        self._sums_after: Array | None = None

    def set_target(self, x: Array, task: LocalSteps | None = None) -> None:
        """Set the model that nodes must reach: that of a task, or the one after the last round."""
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

    def record(self, task: LocalSteps, updates: Sequence[Update]) -> None:
        """Log the updates of a round."""
        logged = self.spec.uplink.compress(list(updates), task, self.spec.setting(task.x))
        self._log.append(task.round, pack_round(logged))
        if self._sums is not None:
            mean = UpdateMean(task.x.size)
            for update in logged:
                mean.add(task.rebuilt(update), update.weight)
            added = as_sum(mean.value()).table(self._sums.shape)
            self._sums_after = (self._sums + added).astype(self._sums.dtype)

    def message_to(self, node: int) -> SyncMessage | None:
        """Return the message by which a node reaches the model; None if it needs the model itself.

        That is so if the server does not have the state: in an evaluation with a server optimizer
        that has a state.
        """
        if node not in self._next:
            since = self._synced.get(node)
            if since is None:
                return self._message(spec=self.spec.text)
            message = self._shortest(since)
            if message is not None:
                return message
            self._send_state(node)
        return self._next[node]

    def mark_synced(self, node: int, round: int) -> None:
        """Note that a node has reached the model of a round."""
        self._synced[node] = round

    def mark_out_of_sync(self, node: int, position: NodePosition) -> bool:
        """Note that a node could not reach the model; return whether to ask it again."""
        self._synced.pop(node, None)
        if node in self._has_model:
            log.warning("node %d rejects the model that it was sent", node)
            return False
        if node not in self._next and not position.differs:
            message = self._shortest(position.round) if 0 <= position.round <= self._round else None
            if message is None and position.start == self._start:
                message = self._shortest(0, self.spec.text)
            if message is not None:
                self._next[node] = message
                return True
        why = "reached another model than the server" if position.differs else "is out of sync"
        log.warning("node %d %s: it is sent the model", node, why)
        self._send_state(node)
        return True

    def _message(self, since: int | None = None, **fields: Any) -> SyncMessage:
        since = self._round if since is None else since
        return SyncMessage(self.run, self._round, self._check, since, **fields)

    def _send_state(self, node: int) -> None:
        self._has_model.add(node)
        whole = self._message(spec=self.spec.text, state=self._state)
        self._next[node] = whole if self._state else None

    def _shortest(self, since: int, spec: str = "") -> SyncMessage | None:
        """Return the message from a round to the model, unless the state is shorter."""
        assert self._x is not None
        log = self._log.since(since, self._round)
        if log is not None and self._round - since <= MOST_ROUNDS:
            drawn = len(log) // self._x.itemsize * self._x.size
            most = self._x.nbytes if self._sums is None else self._sums.nbytes
            if len(log) <= most and drawn <= MOST_DRAWN:
                return self._message(since, log=log, spec=spec)
        if self._sums is None:
            return None
        return self._message(spec=spec, sums=little_endian(self._sums))
