"""The node's side: a ClientApp that does the work for the devices that live there.

A node decides what it computes, how much of it, and what leaves it: see :mod:`fedzo.flower.node`
and :mod:`fedzo.flower.limits`. Whatever goes wrong here leaves as a code, see
:mod:`fedzo.flower.reasons`, never as the text of an exception, which Flower would send.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedzo._version import __version__
from fedzo.algorithms import ALGORITHMS, Algorithm
from fedzo.core.federation import LocalFederation, Update, Work
from fedzo.core.objective import Objective, check_objective, name_of
from fedzo.errors import NoAnswer, UsageError, require
from fedzo.flower import reasons, wire
from fedzo.flower.bindings import span
from fedzo.flower.course import Course
from fedzo.flower.fingerprint import agreed_settings, directions_checksum, fingerprint
from fedzo.flower.following import Behind, Following, Reached, behind, reach
from fedzo.flower.limits import Limits, evaluation_queries, numbers_of, queries_of
from fedzo.flower.node import Node, Problems, check_settings
from fedzo.flower.privacy import Private
from fedzo.flower.reasons import Reason, Refused

Array = NDArray[Any]
Factory = Callable[[Context], Objective]

OPTIONAL = ("gradient", "metrics", "initial", "size", "values_streamed")


def make_client_app(
    problem: Factory | Problems | None = None,
    algorithms: Sequence[type[Algorithm]] = (),
    own: Sequence[str] = (),
    guarded: bool = True,
) -> ClientApp:
    """Return the ClientApp of nodes that hold a problem.

    Parameters
    ----------
    problem : callable or mapping, optional
        A function that is given Flower's context and returns the objective; or the problems that
        a run may name, with their settings, like ``{"softmax": {"devices": 50}}``. A node's own
        configuration may allow more of them, and settle their settings otherwise; without
        either, a node computes nothing. The function is called for each message, so it should
        keep what is dear to make. The objective must be that of all N devices, but is only asked
        about those that live on this node: of the others it needs no data.
    algorithms : sequence of classes
        Algorithms of one's own that this node is willing to do the work of, besides fedzo's.
    own : sequence of str
        The settings of the problem that may differ from node to node.
    guarded : bool
        Whether a node keeps to its limits, and keeps its reasons to itself. False is for a
        simulation, in which node and server are the same person.

    Notes
    -----
    Which devices live on a node is in its configuration: ``devices="0-3,7"``, or Flower's
    own ``partition-id`` and ``num-partitions``, which deal the devices out evenly.

    Examples
    --------
    >>> from fedzo.flower import InProcessGrid, make_client_app
    >>> from fedzo.problems.function import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: float(x @ x), dim=2, devices=3)
    >>> grid = InProcessGrid(make_client_app(lambda context: objective), nodes=2)
    >>> len(grid.get_node_ids())
    2
    """
    problem = {} if problem is None else problem
    allowed = "a function that is given Flower's context and returns an objective, or problems"
    require(callable(problem) or isinstance(problem, Mapping), "problem", problem, allowed)
    known = {**ALGORITHMS, **{name_of(kind): kind for kind in algorithms}}
    host = _Host(problem, known, tuple(own), guarded)
    app = ClientApp()
    for register, answer in (
        (app.query("hello"), host.hello),
        (app.query("initial"), host.initial),
        (app.train(), host.train),
        (app.evaluate(), host.evaluate),
    ):
        register(_careful(answer, host))
    return app


def _careful(answer: Callable[[Message, Context], RecordDict], host: _Host) -> Any:
    """Reply with a reason where an exception comes: Flower would send its text."""

    @functools.wraps(answer)
    def reply(message: Message, context: Context) -> Message:
        try:
            content = answer(message, context)
        except Behind as error:
            content = behind(error.where)
        except Exception as error:
            content = wire.refusal(host.reason(error))
        return wire.reply(content, message)

    return reply


@dataclass(frozen=True)
class _Host:
    """What is the same for all messages of a node."""

    source: Factory | Problems
    algorithms: Mapping[str, Any]
    own: tuple[str, ...]
    guarded: bool

    def hello(self, message: Message, context: Context) -> RecordDict:
        """Introduce the node."""
        node, objective = self._open(context)
        held = held_devices(node.config, objective.devices)
        own = {*self.own, *node.own}
        check_settings(objective, wire.read_greeting(message.content), own)
        settings = agreed_settings(objective, own)
        if node.privacy is not None:
            objective = Private(objective, node.privacy)
        if self.guarded:
            reasons.log.info("this node's problem, which all must have: %s", settings)
        introduction = wire.Hello(
            version=__version__,
            fingerprint=fingerprint(settings),
            checksum=directions_checksum(),
            dim=objective.dim,
            devices=objective.devices,
            held=tuple(held),
            sizes=tuple(objective.size(i) for i in held),
            offers=tuple(name for name in OPTIONAL if objective.offers(name)),
            cost=objective.evaluation_cost if objective.offers("evaluation_cost") else 0,
        )
        return wire.hello(introduction)

    def initial(self, message: Message, context: Context) -> RecordDict:
        """Tell where the problem starts."""
        _, objective = self._open(context)
        return RecordDict({"arrays": wire.vector(objective.initial())})

    def train(self, message: Message, context: Context) -> RecordDict:
        """Do a round's work, on this node's cores; a device that fails costs nobody but itself."""
        work, devices, coefficients = wire.read_task(message.content, self.algorithms)
        node = Node.read(context.node_config)
        if self.guarded:
            node.limits.check_devices(devices)
            if isinstance(work, Work):
                node.limits.check_work(work)
        node, objective = self._open(context)
        if isinstance(work, Following):
            reached = self._reach(work, node, objective)
            work = Work(reached.course.algorithm, reached.x, work.round, reached.course.seed)
        limits = node.limits if self.guarded else Limits(dim=objective.dim)
        limits.check_start(work, objective)
        held = set(held_devices(node.config, objective.devices))
        found = _Found(work.round)

        def careful(objective: Objective, device: int) -> Update:
            try:
                _require_held(device, held)
                found.require_time()
                update: Update = work(objective, device)
            except Exception as error:
                found.failures[device] = self.reason(error)
                raise NoAnswer from error
            return update

        def work_on() -> None:
            with LocalFederation(objective, seed=0) as here:
                for update in here.map(careful, devices):
                    found.updates.append(update)

        cost = {i: queries_of(work, objective, i) for i in devices if i in held}
        objective = self._private(node, objective, cost, numbers_of(work)[0])
        with _Charge(self, node, context, objective, sum(cost.values())) as charge:
            found.within(node.limits.seconds if self.guarded else None, work_on)
            done = {u.device: u.queries for u in found.updates}
            charge.asked = sum(done.get(i, cost[i]) for i in cost)
        late = self.reason(Refused(Reason.SECONDS)) if found.late else ""
        return wire.answer(found.answer(devices, late), coefficients)

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        """Tell the losses of devices, and the problem's metrics."""
        x, devices, wanted = wire.read_model(message.content)
        if self.guarded:
            Node.read(context.node_config).limits.check_devices(devices)
        node, objective = self._open(context, None if isinstance(x, Following) else x)
        if isinstance(x, Following):
            x = self._reach(x, node, objective).x
        held = set(held_devices(node.config, objective.devices))
        losses: dict[int, float] = {}
        failures: dict[int, str] = {}
        cost = {i: evaluation_queries(objective, i) for i in devices if i in held}
        objective = self._private(node, objective, cost, 1)
        with (
            _Charge(self, node, context, objective, sum(cost.values())),
            LocalFederation(objective, seed=0, workers=1),  # as fedzo evaluates elsewhere
        ):
            for device in devices:
                try:
                    _require_held(device, held)
                    losses[device] = float(objective.losses(x, np.array([device]))[0])
                except Exception as error:
                    failures[device] = self.reason(error)
            metrics = objective.metrics(x) if wanted else {}
        return wire.losses(losses, failures, metrics)

    def _reach(self, following: Following, node: Node, objective: Objective) -> Reached:
        """Come to a model by what is kept here and what is told, and keep where that has led."""

        def check(course: Course, x: Array) -> None:
            if self.guarded:
                node.limits.check_dimension(x, objective)
                node.limits.check_work(Work(course.algorithm, x, following.round, course.seed))

        kept = node.shelf.get(following.run)
        reached = reach(following, kept, objective.initial, self.algorithms, check)
        if reached.moved:
            node.shelf.put(following.run, reached.round, reached.text, reached.state)
        return reached

    def _private(
        self, node: Node, objective: Objective, devices: Iterable[int], answers: int
    ) -> Objective:
        """Return the objective as it is answered about, each device so many times."""
        if node.privacy is None:
            return objective
        node.ledger.reserve_answers(devices, answers, node.privacy.check)
        return Private(objective, node.privacy)

    def reason(self, error: Exception) -> str:
        """Return what is sent of an error: a code; in a simulation, what it says."""
        if self.guarded:
            return reasons.sent(error)
        return f"{type(error).__name__}: {error}"[:200]

    def _open(self, context: Context, x: Array | None = None) -> tuple[Node, Objective]:
        """Return the node's configuration and its problem, for a model of the right dimension."""
        try:
            node = Node.read(context.node_config)
            if callable(self.source):
                made = check_objective(self.source(context), "the problem's function returned")
            else:
                made = node.problem(self.source, context.run_config)
        except Refused:
            raise
        except Exception as error:
            if not self.guarded:
                raise
            raise Refused(Reason.CANNOT_BEGIN, f"{type(error).__name__}: {error}") from error
        if x is not None:
            limits = node.limits if self.guarded else Limits(dim=made.dim)
            limits.check_dimension(x, made)
        return node, made


class _Charge:
    """Queries of one message: charged before they are asked, and settled afterwards.

    What was asked is what the problem's own meter says, if it has one, else ``asked``, else all.
    """

    def __init__(
        self, host: _Host, node: Node, context: Context, objective: Objective, most: int
    ) -> None:
        self._ledger = node.ledger if host.guarded else None
        self._limits, self._run = node.limits.of_queries(objective), str(context.run_id)
        self._meter, self._most, self.asked = objective.meter, most, most

    def __enter__(self) -> _Charge:
        if self._ledger is not None:
            self._ledger.reserve(self._run, self._most, self._limits)
        self._before = 0 if self._meter is None else self._meter.queries
        return self

    def __exit__(self, *_error: object) -> None:
        asked = self.asked if self._meter is None else self._meter.queries - self._before
        if self._ledger is not None and asked != self._most:
            self._ledger.settle(self._run, asked - self._most)


class _Found:
    """What the devices of one message have come to, also if it is cut short."""

    def __init__(self, round: int) -> None:
        self.round, self.late = round, False
        self.updates: list[Update] = []
        self.failures: dict[int, str] = {}
        self._deadline = float("inf")

    def within(self, seconds: float | None, work: Callable[[], None]) -> None:
        """Work, for so many seconds at most; what cannot be interrupted is left to itself."""
        if seconds is None:
            work()
            return
        self._deadline = time.monotonic() + seconds
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="fedzo", daemon=True)
        thread.start()
        thread.join(seconds)
        if errors:
            raise errors[0]
        self.late = thread.is_alive()

    def require_time(self) -> None:
        """Raise if a device would begin too late."""
        if time.monotonic() > self._deadline:
            raise Refused(Reason.SECONDS)

    def answer(self, devices: Sequence[int], late: str) -> wire.Answer:
        """Return what there is; who is not done yet is late."""
        updates, failures = tuple(self.updates), dict(self.failures)
        done = {update.device for update in updates} | failures.keys()
        return wire.Answer(
            self.round, updates, failures | {i: late for i in devices if i not in done}
        )


def _require_held(device: int, held: set[int]) -> None:
    if device not in held:
        raise Refused(Reason.NOT_HELD, f"device {device} does not live on this node")


def held_devices(node_config: Mapping[str, Any], devices: int) -> list[int]:
    """Return which of N devices live on a node.

    >>> held_devices({"devices": "0-2,7"}, 10)
    [0, 1, 2, 7]
    >>> held_devices({"partition-id": 1, "num-partitions": 3}, 10)
    [4, 5, 6]
    """
    listed, part = node_config.get("devices"), node_config.get("partition-id")
    if listed is not None:
        pieces = [span(piece) for piece in str(listed).split(",")]
        if any(piece.stop > devices for piece in pieces):
            raise UsageError(f"devices = {listed!r}: must be below {devices}, the problem's number")
        return sorted({i for piece in pieces for i in piece})
    parts = node_config.get("num-partitions")
    if not (isinstance(part, int) and isinstance(parts, int) and 0 <= part < parts):
        raise UsageError(
            'a node learns its devices from --node-config, devices="0-3,7" or partition-id=0 '
            "num-partitions=3"
        )
    return [int(i) for i in np.array_split(np.arange(devices), parts)[part]]
