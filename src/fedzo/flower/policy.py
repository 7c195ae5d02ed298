"""What a node allows: its configuration, limits and ledger, checked before it computes anything.

A node's configuration comes from ``--node-config`` and from the TOML file on the node that its key
``node-file`` names. A run cannot change it. A run chooses a problem by name among those that the
node allows, and cannot make a node import a module or open a file.

All limits have finite defaults that are wide enough for the examples. So no message can keep a node
busy for weeks or fill its memory.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedzo.algorithms.base import ZerothOrder
from fedzo.core.capabilities import OwnThreads
from fedzo.core.engine import LocalEngine
from fedzo.core.files import read_toml
from fedzo.core.machine import cores
from fedzo.core.objective import Objective, check_objective, is_plain, meter_of
from fedzo.core.tasks import Evaluate, LocalSteps, Losses, Slopes, Task, Update
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, Parameters, UsageError, check_counts, nearest, require, shown
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.ledger import Ledger, QueryTotals
from fedzo.flower.privacy import Privacy, Private, Releases
from fedzo.flower.protocol import settings_digest
from fedzo.flower.secure import MOST_GROUPED, Member, can_agree
from fedzo.flower.sync import StateCache, flower_home
from fedzo.problems import FunctionObjective
from fedzo.runs.registry import ALGORITHMS, make, maker

Problems = Mapping[str, Mapping[str, Any]]
Ask = Callable[[Objective, int], Any]
Count = Callable[[int], int]

MOST_DEVICES = 10**7
OVERHEAD = 2**28  # bytes for Python and its threads, besides the message's own

_TABLES = ("limits", "privacy", "problem", "problems", "secure")
_PLAIN = (
    "devices", "ledger", "models", "apps", "algorithms", "tasks",
    "partition-id", "num-partitions", "node-file",
)  # fmt: skip
_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # of --node-config, as Flower reads it
TASKS = {"local_steps": LocalSteps, "evaluate": Evaluate, "slopes": Slopes}


# ------------------------------------------------------------------------------------- devices


def held_devices(node_config: Mapping[str, Any], devices: int) -> list[int]:
    """Return which of N devices are on a node.

    >>> held_devices({"devices": "0-2,7"}, 10)
    [0, 1, 2, 7]
    >>> held_devices({"partition-id": 1, "num-partitions": 3}, 10)
    [4, 5, 6]
    """
    text, part = node_config.get("devices"), node_config.get("partition-id")
    if text is not None:
        return parse_devices(str(text), devices)
    parts = node_config.get("num-partitions")
    if not (isinstance(part, int) and isinstance(parts, int) and 0 <= part < parts):
        raise UsageError(
            'a node needs its devices in --node-config: devices="0-3,7", or partition-id=0 '
            "num-partitions=3",
            code="no-devices",
        )
    size, larger = divmod(devices, parts)  # as np.array_split does, in constant time
    first = part * size + min(part, larger)
    return list(range(first, first + size + (part < larger)))


def parse_devices(text: str, most: int = MOST_DEVICES) -> list[int]:
    """Return the devices of a list like ``0-2,7``; all must be below ``most``.

    >>> parse_devices("0-2, 7")
    [0, 1, 2, 7]
    """
    found: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        try:
            span = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            span = range(0)
        require(len(span) > 0, "devices", piece, "numbers and ranges like 0-3,7")
        require(span.stop <= most, "devices", piece, f"below {most:,}, the number of devices")
        found.update(span)
    return sorted(found)


def read_bindings(file: str | None) -> Mapping[int, frozenset[int]] | None:
    """Return the devices that each node may hold, by the node's id; None: no file, any devices.

    ``flwr supernode register`` prints the id of a node's key.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile("w") as file:
    ...     _ = file.write('1234 = "0-2,7"')
    ...     _ = file.seek(0)
    ...     read_bindings(file.name)
    {1234: frozenset({0, 1, 2, 7})}
    """
    if file is None:
        return None
    lines = read_toml(Path(file))
    try:
        return {int(node): frozenset(parse_devices(str(own))) for node, own in lines.items()}
    except ValueError as error:
        allowed = f'a file with lines like 1234 = "0-2,7", a node and its devices: {error}'
        raise InvalidValue("bindings", file, allowed) from error


# -------------------------------------------------------------------------------------- limits


@dataclass(frozen=True)
class Limits(Parameters):
    """The ``[limits]`` of a node.

    Parameters
    ----------
    queries_per_run, queries_per_day, queries : int
        Values F_i(x, ξ) in one run, in one day (UTC) and in total, evaluations included. The node
        counts them in its ledger. A direction that it draws to catch up with a run counts as one.
    local_steps, directions, batch_size : int
        The largest H, b2 and b1 of a message. Points that are only evaluated count as directions,
        and so do those of a fixed set.
    devices : int
        The largest number of devices in a message, each of them once.
    dim : int
        The largest dimension.
    memory : int
        Bytes for a message. A request that needs more by its numbers is rejected, and on Linux
        the limit is enforced for the problem's own memory.
    seconds : int
        The time for a message, with catching up. Devices that are not done by then are dropped.
    records : int
        The smallest number of records of a device, and of a batch.

    Examples
    --------
    >>> Limits(local_steps=0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: local_steps = 0: must be a whole number >= 1
    """

    queries_per_run: int = 10**9
    queries_per_day: int = 10**9
    queries: int = 10**12
    local_steps: int = 1000
    directions: int = 10_000
    batch_size: int = 10_000
    devices: int = 10_000
    dim: int = 10**9
    memory: int = 4 * 2**30
    seconds: int = 3600
    records: int = 1

    def __post_init__(self) -> None:
        check_counts(self, *(field.name for field in fields(self)))

    def of_queries(self, objective: Objective) -> QueryTotals:
        """Return the limits of queries; a problem's own ``max_queries`` limits the total."""
        meter = meter_of(objective)
        own = None if meter is None else meter.max_queries
        total = self.queries if own is None else min(own, self.queries)
        return QueryTotals(self.queries_per_run, self.queries_per_day, total)

    def check_devices(self, devices: Sequence[int]) -> None:
        """Reject a list with too many devices, or with a device twice."""
        if len(devices) > self.devices:
            text = f"{len(devices)} devices, more than {self.devices}"
            raise Rejected(ErrorCode.DEVICES, text)
        if len(set(devices)) < len(devices):
            raise Rejected(ErrorCode.DEVICES, "a device is listed twice")

    def check_dimension(self, x: Any, objective: Objective) -> None:
        """Reject a model with another dimension than the problem's, or above the limit."""
        if x.shape[-1] != objective.dim or objective.dim > self.dim:
            text = f"x has {x.shape[-1]} numbers, the problem {objective.dim}, the limit {self.dim}"
            raise Rejected(ErrorCode.DIMENSION, text)

    def check_task(self, task: Task) -> None:
        """Reject a task that is too large for one message, by its numbers alone."""
        steps, directions, batch = request_size(task)
        x = points_of(task)
        memory = directions * (x.shape[-1] * x.itemsize + batch * 8)
        fixed = task.algorithm.fixed_directions or 0 if isinstance(task, LocalSteps) else 0
        for code, value, limit in (
            (ErrorCode.STEPS, steps, self.local_steps),
            (ErrorCode.DIRECTIONS, directions, self.directions),
            (ErrorCode.DIRECTIONS, fixed, self.directions),
            (ErrorCode.BATCH, batch, self.batch_size),
            (ErrorCode.MEMORY, memory, self.memory),
        ):
            if value > limit:
                raise Rejected(code, f"{code.value} = {value}, more than {limit}")

    def check_records(self, records: int, whose: str) -> None:
        """Reject a request about too few records."""
        if records < self.records:
            raise Rejected(ErrorCode.RECORDS, f"{whose} has {records} records, not {self.records}")


# The configuration in a simulation, where node and server are one process.
UNLIMITED: Mapping[str, Any] = {
    "limits": Limits(**{field.name: 10**18 for field in fields(Limits)} | {"records": 1}),
    "algorithms": tuple(ALGORITHMS),
    "tasks": tuple(TASKS),
}


@dataclass(frozen=True)
class Secure(Parameters):
    """The ``[secure]`` of a node: it takes part in secure sums, and replies to nothing else.

    Parameters
    ----------
    peers : list of str
        The public keys of the other nodes, as ``fedzo node init`` prints them there. A node whose
        key is not listed is in no sum with this node, whatever the server says.
    min_peers : int
        The smallest number of them in a sum, at least 1. With one peer, each node can compute the
        other's numbers from the sum. With more than 14 nodes it is at most 6.

    Examples
    --------
    >>> Secure(peers=["1f"])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: peers = '1f': must be a list of public keys, 64 hexadecimal digits...
    """

    peers: list[str]
    min_peers: int = 2

    def __post_init__(self) -> None:
        allowed = "a list of public keys, 64 hexadecimal digits each; fedzo node init prints them"
        require(isinstance(self.peers, list), "peers", self.peers, allowed)
        for key in self.peers:
            valid = isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key) is not None
            require(valid and can_agree(bytes.fromhex(key)), "peers", key, allowed)
        check_counts(self, "min_peers")
        # A node may list its own key, so that all have the same list.
        allowed = f"at most {len(set(self.peers))}, the number of peers"
        require(self.min_peers <= len(set(self.peers)), "min_peers", self.min_peers, allowed)


def points_of(task: Task | Losses) -> Any:
    """Return the point or points that a task is about, with d numbers in the last axis."""
    if isinstance(task, Evaluate):
        return task.points
    assert isinstance(task, LocalSteps | Slopes | Losses)
    return task.x


def request_size(task: Task) -> tuple[int, int, int]:
    """Return H, b2 and b1 of a task: one of each that it does not have.

    >>> from fedzo import FedAvg, FedZO
    >>> [request_size(LocalSteps(algorithm, np.zeros(3))) for algorithm in (FedZO(), FedAvg())]
    [(5, 20, 25), (5, 1, 25)]
    """
    if isinstance(task, Evaluate | Slopes):
        return 1, task.queries(1), task.batch_size
    assert isinstance(task, LocalSteps)
    return task.algorithm.local_steps, task.algorithm.directions, task.algorithm.batch_size


def queries_of(task: Task, objective: Objective | None = None) -> int:
    """Return the largest number of values that a device needs for a task.

    Without an objective, as on the server, repeated calls of a function are not included.

    >>> from fedzo import FedZO
    >>> from fedzo.problems import Quadratic
    >>> task = LocalSteps(FedZO(), np.zeros(3))
    >>> queries_of(task, Quadratic(dim=3, devices=2))  # 5 steps x (20 + 1) points x 25 samples
    2625
    """
    steps, points, batch = request_size(task)
    if isinstance(task, LocalSteps) and isinstance(task.algorithm, ZerothOrder):
        points = len(task.algorithm.estimator.stencil[0])
    if isinstance(objective, FunctionObjective):  # its batch is one call, for any b1
        batch = 1 + objective.retries
    return steps * points * batch


def costs_of(task: Task | Losses, objective: Objective) -> tuple[Count, Releases]:
    """Return the largest number of values that a device needs, and its private releases."""
    if isinstance(task, Losses):
        calls = 1 + (objective.retries if isinstance(objective, FunctionObjective) else 0)
        return lambda device: calls * objective.size(device), Releases(1, None)
    steps, _, batch = request_size(task)
    queries = queries_of(task, objective)
    return lambda device: queries, Releases(steps, batch)


# ------------------------------------------------------------------------------- configuration


@dataclass(frozen=True)
class NodeConfig:
    """A node's configuration, checked.

    Attributes
    ----------
    limits : Limits
        The largest requests that the node accepts.
    ledger : Ledger
        The queries and the privacy budget spent. By default a file beside Flower's own files.
    states : StateCache
        The models of runs that the node replays, in the folder ``models``. By default beside
        Flower's own files.
    privacy : Privacy, optional
        The noise on the node's replies, and the privacy budget.
    secure : Secure, optional
        The nodes with which this node takes part in secure sums.
    problems : mapping
        The allowed problems, by name, with their settings. If empty, those of the app's code.
    own : mapping
        Settings of the problem for this node only, such as the folder of its data.
    apps : tuple of str
        The SHA-256 of each app that the node runs, see :mod:`fedzo.flower.allowlist`.
    algorithms : tuple of str
        The algorithms of fedzo that the node runs; by default FedZO, which needs no gradients.
        Custom algorithms of the app's code are allowed by that code.
    tasks : tuple of str
        The tasks that the node does: ``local_steps`` by default, ``evaluate`` (values of a few
        samples at points that the server chooses) and ``slopes``. The mean loss over all records
        of a device is part of every run.
    plain : mapping
        The other keys: ``devices``, or ``partition-id`` and ``num-partitions``.
    """

    limits: Limits
    ledger: Ledger
    states: StateCache
    privacy: Privacy | None = None
    secure: Secure | None = None
    problems: Problems = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    apps: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ("fedzo",)
    tasks: tuple[str, ...] = ("local_steps",)
    plain: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> NodeConfig:
        """Return the configuration of the text of ``--node-config``.

        >>> NodeConfig.parse('ledger="a.sqlite"').ledger.path
        'a.sqlite'
        """
        return cls.read(parse_node_config(text))

    @classmethod
    def read(cls, node_config: Mapping[str, Any]) -> NodeConfig:
        """Return the configuration of ``--node-config`` and of the file that it names.

        >>> config = NodeConfig.read(
        ...     {"devices": "0-3", "limits.local-steps": 10, "problem.data-dir": "x"})
        >>> config.limits.local_steps, dict(config.own), dict(config.plain)
        (10, {'data_dir': 'x'}, {'devices': '0-3'})
        >>> NodeConfig.read({"limits.steps": 10})
        Traceback (most recent call last):
        fedzo.errors.UsageError: limits.steps = 10: unknown key (did you mean 'local_steps'?); ...
        """
        tables: dict[str, Any] = {}
        if (file := node_config.get("node-file")) is not None:
            tables = read_toml(Path(str(file)))
        for key, value in node_config.items():
            table, dot, name = key.partition(".")
            if dot:
                tables[table] = {**tables.get(table, {}), name.replace("-", "_"): value}
            else:
                tables[key] = value
        _check_keys(tables)
        limits = make("limits", Limits, tables["limits"])[0] if "limits" in tables else Limits()
        private = make("privacy", Privacy, tables["privacy"])[0] if "privacy" in tables else None
        secure = make("secure", Secure, tables["secure"])[0] if "secure" in tables else None
        # The same after a restart, and different for nodes that share a folder.
        owner = settings_digest({key: tables.get(key) for key in ("devices", "partition-id")})
        return cls(
            limits=limits,
            privacy=private,
            secure=secure,
            ledger=Ledger(str(tables.get("ledger") or flower_home() / "fedzo-ledger.sqlite")),
            problems=tables.get("problems", {}),
            own=tables.get("problem", {}),
            states=StateCache(Path(tables.get("models") or flower_home() / "fedzo-models"), owner),
            apps=tuple(tables.get("apps", [])),
            algorithms=tuple(tables.get("algorithms", cls.algorithms)),
            tasks=tuple(tables.get("tasks", cls.tasks)),
            plain={k: tables[k] for k in _PLAIN if k in tables},
        )

    def member(self) -> Member:
        """Return the node's side of secure sums. All members agree on noise that they share."""
        if self.secure is None:
            raise Rejected(ErrorCode.NOT_SECURE)
        private = self.privacy if self.privacy is not None and self.privacy.honest else None
        context = private and f"{private.noise!r} {private.difference_clip!r} {private.honest!r}"
        peers, least = [bytes.fromhex(key) for key in self.secure.peers], self.secure.min_peers
        member = self.ledger.member(peers, least, (context or "").encode())
        if len({member.key, *peers}) > MOST_GROUPED and least >= MOST_GROUPED // 2:
            groups = f"more than {MOST_GROUPED} nodes sum in groups of {MOST_GROUPED // 2} or more"
            text = f"min_peers = {least}: must be at most {MOST_GROUPED // 2 - 1}: {groups}"
            raise Rejected(ErrorCode.PEERS, text)
        return member

    def check_task(self, task: Task) -> None:
        """Reject a task of a kind that this node does not do, or that is too large."""
        name = next(name for name, kind in TASKS.items() if isinstance(task, kind))
        if name not in self.tasks:
            raise Rejected(ErrorCode[f"TASK_{name.upper()}"], f"tasks has no {name}")
        self.limits.check_task(task)

    def problem(self, allowed: Problems, run_config: Mapping[str, Any]) -> Objective:
        """Return the problem that a run names, made with this node's settings.

        ``allowed`` are the problems of the app's code. If the node has its own, only those count.
        """
        problems = self.problems or allowed
        name = str(run_config.get("problem.name") or run_config.get("config"))
        if len(problems) == 1 and not run_config.get("problem.name"):
            name = next(iter(problems))
        if name not in problems:
            text = f"problem.name = {name!r}: this node allows {', '.join(problems) or 'none'}"
            raise Rejected(ErrorCode.UNKNOWN_PROBLEM, text)
        return _made(name, json.dumps({**problems[name], **self.own}))


def parse_node_config(text: str) -> dict[str, Any]:
    """Return the keys and values of ``--node-config``, as Flower reads them.

    >>> parse_node_config('node-file="node.toml" partition-id=0')
    {'node-file': 'node.toml', 'partition-id': 0}
    """
    try:
        if left := _PAIR.sub("", text).strip():
            raise ValueError(left)
        return tomllib.loads("\n".join(f'"{k}" = {v}' for k, v in _PAIR.findall(text)))
    except ValueError:
        allowed = "must be pairs such as 'node-file=\"node.toml\" partition-id=0'"
        raise UsageError(f"--node-config {shown(text)}: {allowed}", code="node-config") from None


def _check_keys(tables: Mapping[str, Any]) -> None:
    known = (*_TABLES, *_PLAIN)
    for key, value in tables.items():
        if key in _TABLES:
            require(isinstance(value, dict), key, value, f"a table, [{key}]")
        elif key not in known and nearest(key, known):  # other keys are for the app's code
            raise UsageError(
                f"{key} = {shown(value)}: unknown key{nearest(key, known)}", code="unknown-key"
            )
    for name, settings in tables.get("problems", {}).items():
        require(isinstance(settings, dict), f"problems.{name}", settings, "a table of settings")
    for key, names in (("algorithms", ALGORITHMS), ("tasks", TASKS)):
        given, one_of = tables.get(key, []), f"a list of {', '.join(names)}"
        require(isinstance(given, list) and set(given) <= set(names), key, given, one_of)
    apps, allowed = tables.get("apps", []), "a list of SHA-256 sums, 64 hexadecimal digits each"
    require(isinstance(apps, list), "apps", apps, allowed)
    for one in apps:  # a typing error must not look like an empty list
        whole = isinstance(one, str) and re.fullmatch(r"[0-9a-f]{64}", one) is not None
        require(whole, "apps", one, allowed)


def check_settings(objective: Objective, sent: Mapping[str, Any], own: Collection[str]) -> None:
    """Reject a run whose settings of the problem differ from this node's."""
    made = objective.factory_kwargs
    for key in (sent.keys() & made.keys()) - set(own):
        if is_plain(made[key]) and sent[key] != made[key]:
            text = f"problem.{key} = {sent[key]!r} in the run, {made[key]!r} on this node"
            raise Rejected(ErrorCode.OTHER_SETTINGS, text)


@lru_cache(maxsize=4)
def _made(name: str, settings: str) -> Objective:
    made, _ = make("problem", maker("problem", name), json.loads(settings))
    return check_objective(made, f"problem {name!r}: made")


# --------------------------------------------------------------------------------------- guard


@dataclass(frozen=True)
class RequestGuard:
    """Charges and limits the work of one message.

    Every message that needs values passes through :meth:`answer`. Its queries and its private
    releases are reserved in the ledger first, and its time and memory are limited. The time begins
    when the guard is made, so it includes catching up with the run.

    Parameters
    ----------
    node : NodeConfig
        The node's limits, ledger and privacy.
    run : str
        The run of the message.
    guarded : bool
        False in a simulation, where node and server are one process: there are no limits.
    """

    node: NodeConfig
    run: str
    guarded: bool = True
    began: float = field(default_factory=time.monotonic)

    @property
    def _seconds_left(self) -> float | None:
        spent = time.monotonic() - self.began
        return max(self.node.limits.seconds - spent, 0.0) if self.guarded else None

    def charge_directions(self, objective: Objective, count: int) -> None:
        """Charge directions that are drawn to catch up, as many queries."""
        if self.guarded and count:
            self.node.ledger.reserve(self.run, count, self.node.limits.of_queries(objective))

    def limited(self, objective: Objective, work: Callable[[], Any]) -> Any:
        """Return the result of work that no device is charged for, within time and memory."""
        outcomes = Outcomes()
        with _memory(self.node.limits.memory if self.guarded else None):
            outcomes.fill(objective, [0], lambda *_: work(), self._seconds_left)
        if 0 in outcomes.failures:
            raise outcomes.failures[0]
        return outcomes.answers[0]

    def answer(
        self,
        objective: Objective,
        devices: Sequence[int],
        queries: Count,
        releases: Releases,
        ask: Ask,
        totals: dict[int, Array] | None = None,
    ) -> Outcomes:
        """Call ``ask(objective, device)`` for each device; return the results and the errors.

        ``queries(device)`` is the largest number of values F_i(x, ξ) that it needs. ``releases``
        are those that differential privacy counts: steps and evaluated losses. Devices that are not
        on this node are rejected, and so are devices with too few records. If ``totals`` is given,
        it receives the sums of private steps, which the node adds noise to.
        """
        limits, held = self.node.limits, set(held_devices(self.node.plain, objective.devices))
        costs = {device: queries(device) for device in devices if device in held}

        def checked(objective: Objective, device: int) -> Any:
            if device not in costs:
                raise Rejected(ErrorCode.NOT_HELD, f"device {device} is not on this node")
            limits.check_records(objective.size(device), f"device {device}")
            return ask(objective, device)

        if self.node.privacy is not None:
            private = Private(objective, self.node.privacy)
            charges = {device: private.charge(device, releases) for device in costs}
            private.paid = self.node.ledger.charge(charges, self.node.privacy)
            objective, private.totals = private, totals
        outcomes = Outcomes()
        with (
            self._charged(objective, costs, outcomes),
            _memory(limits.memory if self.guarded else None),
            LocalEngine(objective, seed=0, workers=1),  # limits BLAS to one thread
        ):
            outcomes.fill(objective, devices, checked, self._seconds_left)
        return outcomes

    @contextmanager
    def _charged(
        self, objective: Objective, costs: Mapping[int, int], outcomes: Outcomes
    ) -> Iterator[None]:
        """Charge queries before they are evaluated, and settle the difference afterwards.

        The number of evaluated queries is that of the problem's meter, else that of the updates,
        else the reserved one.
        """
        if not self.guarded:
            yield
            return
        most = sum(costs.values())
        self.node.ledger.reserve(self.run, most, self.node.limits.of_queries(objective))
        meter = meter_of(objective)
        before = 0 if meter is None else meter.queries
        yield  # if it raises, or the process is killed, the whole reservation stays charged
        if self.node.privacy is not None:
            asked = most  # the size of a private batch is a secret
        elif meter is None:
            asked = sum(outcomes.queries(i, cost) for i, cost in costs.items())
        else:
            asked = meter.queries - before
            if outcomes.late:  # a thread may still be evaluating
                asked = max(asked, most)
        if asked != most:
            self.node.ledger.settle(self.run, asked - most)


@contextmanager
def _memory(limit: int | None) -> Iterator[None]:
    """On Linux, let this process allocate at most this number of bytes more than it has.

    The memory that a problem needs for its values is not known beforehand.
    """
    if limit is None or sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    allowed = 1024 * kilobytes + OVERHEAD + limit
    most = min(n for n in (allowed, *before) if n != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class Outcomes:
    """The results and errors of the devices of one message, also if time runs out."""

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}
        self.failures: dict[int, BaseException] = {}
        self.late = False

    def fill(
        self, objective: Objective, devices: Sequence[int], ask: Ask, seconds: float | None
    ) -> None:
        """Ask the devices on several threads, for this number of seconds at most.

        The threads are daemons: a call that hangs cannot be interrupted, but ends with its process,
        which ends after the reply.
        """
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        waiting, lock = list(reversed(devices)), threading.Lock()
        answers, failures = self.answers, self.failures

        def work() -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # the run reports divergence
                while True:
                    with lock:
                        if not waiting or time.monotonic() > deadline:
                            return
                        device = waiting.pop()
                    try:
                        answers[device] = ask(objective, device)
                    except BaseException as error:  # SystemExit too, whose text may be private
                        failures[device] = error

        count = 1 if objective.capability(OwnThreads) is not None else min(cores(), len(devices))
        if seconds is None and count == 1:  # a simulated node: no thread is needed to end it
            count = 0
            work()
        threads = [threading.Thread(target=work, name="fedzo", daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            left = deadline - time.monotonic()
            thread.join(None if seconds is None else max(left, 0.0))
        # Results that arrive later, while the reply is written, do not count.
        self.answers = {i: answers[i] for i in devices if i in answers}
        self.failures = dict(failures)
        for device in devices:
            if device not in self.answers and device not in self.failures:
                self.late = True
                self.failures[device] = Rejected(ErrorCode.SECONDS)

    def queries(self, device: int, most: int) -> int:
        """Return the number of values of a device; ``most`` if it is not known."""
        answer = self.answers.get(device)
        return answer.queries if isinstance(answer, Update) and answer.queries else most
