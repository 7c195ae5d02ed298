"""The node's side: a ClientApp that does the work for the devices that live there.

A node decides what it computes, how much of it, and what leaves it: see :mod:`fedzo.flower.node`
and :mod:`fedzo.flower.limits`. Whatever goes wrong here leaves as a code, see
:mod:`fedzo.flower.reasons`, never as the text of an exception, which Flower would send.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedzo._version import __version__
from fedzo.algorithms import ALGORITHMS, Algorithm
from fedzo.core.capabilities import HasEvaluationCost, HasGradient, HasSizes, Streamed
from fedzo.core.objective import Objective, check_objective, name_of
from fedzo.core.tasks import LocalSteps, Task, Update
from fedzo.errors import UsageError, require
from fedzo.flower import reasons, wire
from fedzo.flower.bindings import span
from fedzo.flower.course import Course
from fedzo.flower.fingerprint import agreed_settings, directions_checksum, fingerprint
from fedzo.flower.following import Behind, Following, Reached, behind, reach
from fedzo.flower.gate import Cost, Gate
from fedzo.flower.limits import Limits, evaluation_queries, numbers_of, queries_of
from fedzo.flower.node import Node, Problems, check_settings
from fedzo.flower.pinned import check_enforced
from fedzo.flower.privacy import Private, check_proven
from fedzo.flower.reasons import Reason, Refused
from fedzo.problems import FunctionObjective

Array = NDArray[Any]
Factory = Callable[[Context], Objective]

REPORTED = (HasGradient, HasSizes, Streamed)  # the capabilities that a server asks about


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
        a run may name, with their settings, like ``{"softmax": {"devices": 50}}``. Where a node's
        own configuration has some, it computes those instead; without either, nothing. The
        function is called for each message, so it should keep what is dear to make. The objective
        must be that of all N devices, but is only asked about those that live on this node: of
        the others it needs no data.
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
    >>> from fedzo.problems import FunctionObjective
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
    app = _App(host)
    for register, answer in (
        (app.query("hello"), host.hello),
        (app.query("initial"), host.initial),
        (app.train(), host.train),
        (app.evaluate(), host.evaluate),
    ):
        register(_careful(answer, host))
    return app


class _App(ClientApp):
    """Flower's own, which would send the text of its error where a message is of no known type."""

    def __init__(self, host: _Host) -> None:
        super().__init__()
        self._host = host

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            return super().__call__(message, context)
        except Exception as error:
            refused = Refused(Reason.MALFORMED, f"{type(error).__name__}: {error}")
            return wire.reply(wire.refusal(self._host.reason(refused)), message)


def _careful(answer: Callable[[Message, Context], RecordDict], host: _Host) -> Any:
    """Reply with a reason where an exception comes: Flower would send its text."""

    @functools.wraps(answer)
    def reply(message: Message, context: Context) -> Message:
        try:
            content = answer(message, context)
        except Behind as error:
            content = behind(error.where)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: it may say anything
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
        own_cost = objective.capability(HasEvaluationCost)
        introduction = wire.Hello(
            version=__version__,
            fingerprint=fingerprint(settings),
            checksum=directions_checksum(),
            dim=objective.dim,
            devices=objective.devices,
            held=tuple(held),
            sizes=tuple(objective.size(i) for i in held),
            offers=tuple(k.__name__ for k in REPORTED if objective.capability(k) is not None),
            cost=0 if own_cost is None else own_cost.evaluation_cost,
        )
        return wire.hello(introduction)

    def initial(self, message: Message, context: Context) -> RecordDict:
        """Tell where the problem starts."""
        _, objective = self._open(context)
        return RecordDict({"arrays": wire.vector(objective.initial())})

    def train(self, message: Message, context: Context) -> RecordDict:
        """Do a round's work, on this node's cores; a device that fails costs nobody but itself."""
        task, devices, coefficients = wire.read_task(message.content, self.algorithms)
        node = Node.read(context.node_config)
        if self.guarded:
            node.limits.check_devices(devices)
            if isinstance(task, Task):
                node.limits.check_work(task)
        node, objective = self._open(context)
        if isinstance(task, Following):
            reached = self._reach(task, node, objective)
            task = reached.course.task(task.round, reached.state)
        limits = node.limits if self.guarded else Limits(dim=objective.dim)
        limits.check_start(task, objective)
        steps, _, batch = numbers_of(task)
        if not isinstance(objective, FunctionObjective):  # which has no batches
            limits.check_records(batch, "a batch")
        held = self._held(node, objective)
        costs = {i: Cost(queries_of(task, objective, i), steps) for i in devices if i in held}

        def ask(objective: Objective, device: int) -> Update:
            held.check(objective, device)
            return task.reply(objective, device)

        found = self._gate(node, context).answer(objective, devices, costs, ask)
        failures = {i: self.reason(error) for i, error in found.failures.items()}
        updates = tuple(found.answers[i] for i in devices if i in found.answers)
        return wire.answer(wire.Answer(task.round, updates, failures), coefficients)

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        """Tell the losses of devices, and the problem's metrics, which cost a loss at least."""
        x, devices, wanted = wire.read_model(message.content)
        if self.guarded:
            Node.read(context.node_config).limits.check_devices(devices)
        node, objective = self._open(context, None if isinstance(x, Following) else x)
        if isinstance(x, Following):
            x = self._reach(x, node, objective).x
        held = self._held(node, objective)
        costs = {i: Cost(evaluation_queries(objective, i), 1) for i in devices if i in held}
        first = next(iter(costs), None)
        metrics: Mapping[str, float] = {}

        def ask(objective: Objective, device: int) -> float:
            nonlocal metrics
            held.check(objective, device)
            loss = float(objective.losses(x, np.array([device]))[0])
            if wanted and device == first:
                metrics = objective.metrics(x)
            return loss

        found = self._gate(node, context).answer(objective, devices, costs, ask)
        losses = {i: found.answers[i] for i in devices if i in found.answers}
        failures = {i: self.reason(error) for i, error in found.failures.items()}
        return wire.losses(losses, failures, metrics if first in losses else {})

    def _reach(self, following: Following, node: Node, objective: Objective) -> Reached:
        """Come to a model by what is kept here and what is told, and keep where that has led."""

        def check(course: Course, x: Array) -> None:
            if self.guarded:
                node.limits.check_dimension(x, objective)
                node.limits.check_work(LocalSteps(course.algorithm, x))

        kept = node.shelf.get(following.run)
        reached = reach(following, kept, objective.initial, self.algorithms, check)
        if reached.moved:
            node.shelf.put(following.run, reached.round, reached.text, reached.state)
        return reached

    def _gate(self, node: Node, context: Context) -> Gate:
        return Gate(node, str(context.run_id), self.guarded)

    def _held(self, node: Node, objective: Objective) -> Held:
        limits = node.limits if self.guarded else Limits()
        return Held(frozenset(held_devices(node.config, objective.devices)), limits)

    def reason(self, error: BaseException) -> str:
        """Return what is sent of an error: a code; in a simulation, what it says."""
        if self.guarded:
            return reasons.sent(error)
        return f"{type(error).__name__}: {error}"[:200]

    def _open(self, context: Context, x: Array | None = None) -> tuple[Node, Objective]:
        """Return the node's configuration and its problem, for a model of the right dimension."""
        try:
            node = Node.read(context.node_config)
            check_enforced(node.apps)
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
        if node.privacy is not None:
            check_proven(made)
        if x is not None:
            limits = node.limits if self.guarded else Limits(dim=made.dim)
            limits.check_dimension(x, made)
        return node, made


@dataclass(frozen=True)
class Held:
    """The devices that live on a node, and what they answer about."""

    devices: frozenset[int]
    limits: Limits

    def __contains__(self, device: int) -> bool:
        return device in self.devices

    def check(self, objective: Objective, device: int) -> None:
        """Raise unless a device lives here and has records enough."""
        if device not in self:
            raise Refused(Reason.NOT_HELD, f"device {device} does not live on this node")
        self.limits.check_records(objective.size(device), f"device {device}")


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
