"""The node's side: a ClientApp that does the work of the devices on the node.

The node decides what it computes, how much, and what it sends, see :mod:`fedzo.flower.policy`. An
error leaves the node as a code, see :mod:`fedzo.flower.errors`, never as the text of an exception,
which Flower would send.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedzo._version import __version__
from fedzo.algorithms import Algorithm
from fedzo.core.capabilities import HasEvaluationCost, HasGradient, HasSizes, Streamed
from fedzo.core.fixed_point import grid_step, to_grid
from fedzo.core.objective import Objective, check_objective, name_of, returned
from fedzo.core.tasks import LocalSteps, Losses, Task, Update
from fedzo.core.types import Array
from fedzo.errors import NonFinite, UsageError, require
from fedzo.flower import policy, protocol
from fedzo.flower.allowlist import check_enforced
from fedzo.flower.errors import ErrorCode, Malformed, Rejected, log, log_error
from fedzo.flower.ledger import Ledger
from fedzo.flower.policy import NodeConfig, Problems, RequestGuard
from fedzo.flower.privacy import Private
from fedzo.flower.protocol import SumReply, SumRequest
from fedzo.flower.secure import names_in
from fedzo.flower.sync import (
    OutOfSync,
    RunSpec,
    SyncedState,
    SyncMessage,
    catch_up,
    checksum,
    out_of_sync,
)
from fedzo.problems import FunctionObjective
from fedzo.runs.registry import ALGORITHMS

if TYPE_CHECKING:
    from fedzo.problems.network import Loss

Factory = Callable[[Context], Objective]


class Partitioner(Protocol):
    """What Flower Datasets' partitioners have: the data of each device."""

    @property
    def num_partitions(self) -> int:
        """The number of devices."""
        ...

    def load_partition(self, partition_id: int) -> Any:
        """Return the data of a device."""
        ...


REPORTED = (HasGradient, HasSizes, Streamed)  # the capabilities that a server asks about


def make_client_app(
    problem: Factory | Problems | None = None,
    algorithms: Sequence[type[Algorithm]] = (),
    guarded: bool = True,
) -> ClientApp:
    """Return the ClientApp of nodes that hold a problem.

    Parameters
    ----------
    problem : callable or mapping, optional
        A function that takes Flower's context and returns the objective; or the problems that a
        run may name, with their settings, like ``{"softmax": {"devices": 50}}``. The problems of a
        node's own configuration replace these. The function is called for each message, so it
        should cache what is slow to make. The objective is that of all N devices, but needs data
        of the devices on this node only.
    algorithms : sequence of classes
        Custom algorithms that this node allows, besides fedzo's.
    guarded : bool
        Whether the node has limits and sends error codes only. False is for a simulation, where
        node and server are one process.

    Notes
    -----
    The node's configuration names its devices: ``devices="0-3,7"``, or Flower's ``partition-id``
    and ``num-partitions``, which split the devices evenly.

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
    allowed = "a function that takes Flower's context and returns an objective, or a mapping"
    require(callable(problem) or isinstance(problem, Mapping), "problem", problem, allowed)
    known = {**ALGORITHMS, **{name_of(kind): kind for kind in algorithms}}
    return _App(_Host(problem, known, guarded))


def torch_client(
    module: Callable[[], Any],
    loss: Loss,
    data: Callable[[int, int], Any] | Partitioner,
    trainable: str | Sequence[str] | None = None,
    *,
    devices: int | None = None,
    metrics: Callable[[Any], Mapping[str, float]] | None = None,
    evaluation_batch: int = 64,
) -> ClientApp:
    """Return the ClientApp of nodes that train a torch module from its losses alone.

    Parameters
    ----------
    module : callable
        Returns the module, such as its class. With :class:`~fedzo.flower.FedzoStrategy` its
        parameters are the server's. If it always returns the same ones, such as pretrained
        weights, they are not even sent.
    loss : callable
        ``loss(module, batch)`` returns the loss of each sample of a batch.
    data : callable
        ``data(device, devices)`` returns the data of a device: tensors, a data set or a loader, as
        for :class:`~fedzo.TorchProblem`. It is called for the devices of this node only. A
        partitioner of Flower Datasets with a data set is accepted, too: device i has its partition
        i. Its rows should be tensors: ``partitioner.dataset = data_set.with_format("torch")``.
    trainable : str or sequence of str, optional
        Names or patterns of the parameters to be trained; by default those that require a gradient.
    devices : int, optional
        N; by default the partitioner's number, or Flower's ``num-partitions``.
    metrics : callable, optional
        ``metrics(module)`` returns further numbers for the history.
    evaluation_batch : int
        The number of samples per forward pass of an evaluation.

    Examples
    --------
    >>> import torch
    >>> from fedzo import FedZO, Seeds
    >>> from fedzo.flower import FedzoStrategy, InProcessGrid, torch_client
    >>> def line(device, devices):
    ...     inputs = torch.linspace(-1, 1, 40)[device::devices, None]
    ...     return inputs, 2 * inputs + 1
    >>> def squared_error(module, batch):
    ...     return (module(batch[0]) - batch[1]).square().sum(1)
    >>> app = torch_client(lambda: torch.nn.Linear(1, 1), squared_error, line)
    >>> grid = InProcessGrid(app, nodes=3)
    >>> strategy = FedzoStrategy(FedZO(learning_rate=0.1, directions=4), Seeds())
    >>> result = strategy.start(grid, num_rounds=15)
    >>> [round(float(number)) for number in result.arrays["x"].numpy()]
    [2, 1]
    """
    from fedzo.problems.network import TorchProblem

    load = data if callable(data) else lambda device, _: data.load_partition(device)
    given = devices or (None if callable(data) else data.num_partitions)

    @functools.lru_cache(maxsize=1)
    def made(own: tuple[int, ...], count: int) -> TorchProblem:
        samples = {device: load(device, count) for device in own}
        stand_in = samples[own[0]]  # for the devices of other nodes, which are never used here
        return TorchProblem(
            module(),
            loss,
            [samples.get(device, stand_in) for device in range(count)],
            trainable,
            metrics=metrics,
            evaluation_batch=evaluation_batch,
        )

    def problem(context: Context) -> Objective:
        count = given or context.node_config.get("num-partitions")
        if not isinstance(count, int):
            text = "torch_client needs devices, or nodes with num-partitions"
            raise UsageError(text, code="no-devices")
        return made(tuple(policy.held_devices(context.node_config, count)), count)

    return make_client_app(problem)


class _App(ClientApp):
    """Flower's ClientApp, but an exception leaves the node as a code, and not with its text."""

    def __init__(self, host: _Host) -> None:
        super().__init__()
        self._host, exchange = host, host.exchange
        answers = host.hello, host.initial, host.work, host.work, exchange, exchange
        self._answers = dict(zip(protocol.MESSAGE_TYPES, answers, strict=True))

    def __call__(self, message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        try:
            if kind not in self._answers:
                raise Rejected(ErrorCode.MALFORMED, f"message of type {kind}")
            content = self._answers[kind](message, context)
        except OutOfSync as error:
            content = out_of_sync(error.position)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too, whose text may be private
            content = protocol.refusal(self._host.error(error))
        return Message(content, reply_to=message)


def _simulated() -> bool:
    """Return whether this process is a worker of Flower's simulation, not of a node."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@dataclass(frozen=True)
class _Host:
    """What is the same for all messages of a node."""

    source: Factory | Problems
    algorithms: Mapping[str, Any]
    guarded: bool

    def hello(self, message: Message, context: Context) -> RecordDict:
        """Introduce the node."""
        node = self._node(context)
        objective = self._problem(node, context)
        held = policy.held_devices(node.plain, objective.devices)
        policy.check_settings(objective, protocol.read_greeting(message.content), node.own)
        settings = protocol.agreed_settings(objective, node.own)
        if node.privacy is not None:
            objective = Private(objective, node.privacy)
        if self.guarded:
            log.info("settings in which all nodes must agree: %s", settings)
        own_cost = objective.capability(HasEvaluationCost)
        introduction = protocol.Hello(
            version=__version__,
            fingerprint=protocol.settings_digest(settings),
            checksum=protocol.directions_checksum(),
            dim=objective.dim,
            devices=objective.devices,
            held=tuple(held),
            sizes=tuple(objective.size(i) for i in held),
            offers=tuple(k.__name__ for k in REPORTED if objective.capability(k) is not None),
            cost=0 if own_cost is None else own_cost.evaluation_cost,
            key="" if node.secure is None else node.member().key.hex(),
        )
        return protocol.hello(introduction)

    def initial(self, message: Message, context: Context) -> RecordDict:
        """Send the start of the problem."""
        objective = self._problem(self._node(context), context)
        return RecordDict({"arrays": protocol.vector(objective.initial())})

    def work(self, message: Message, context: Context) -> RecordDict:
        """Do a task, or an evaluation, on this node's cores. One device's error affects no other.

        Metrics are sent together with a loss that was charged.
        """
        node, run, kind = self._node(context), str(context.run_id), message.metadata.message_type
        summed = self._sum(node, message, run)
        task, devices, form = protocol.read_task(message.content, self._algorithms(node), kind)
        guard = RequestGuard(node, run, self.guarded)
        node.limits.check_devices(devices)
        if isinstance(task, Task):
            node.check_task(task)
        objective = self._problem(node, context)
        if isinstance(task, SyncMessage):
            synced = self._catch_up(task, guard, objective)
            after = kind == protocol.EVALUATE
            task = Losses(synced.x) if after else synced.spec.task(task.round, synced.state)
        node.limits.check_dimension(policy.points_of(task), objective)
        queries, releases = policy.costs_of(task, objective)
        batch, size = releases.batch_size, None if summed is None else _summed_numbers(task)
        if batch is not None and not isinstance(objective, FunctionObjective):
            node.limits.check_records(batch, "a batch")
        metrics: Mapping[str, float] = {}
        totals: dict[int, Array] | None = None
        if size is not None and isinstance(task, LocalSteps) and node.privacy is not None:
            totals = {} if node.privacy.shares_noise(task, objective) else None

        def reply(objective: Objective, device: int) -> Update:
            nonlocal metrics
            if totals is not None and objective.size(device) <= (batch or 0):  # another divisor
                raise Rejected(ErrorCode.RECORDS, f"device {device} has no more than b1 records")
            if isinstance(task, Losses):
                loss = objective.losses(task.x, np.array([device]))
                loss = returned(f"{name_of(objective)}.losses", loss, (1,)).astype(np.float64)
                update = Update(device, np.empty(0), 1, 0, values=loss)
                if form and size is None and device == devices[0]:
                    metrics = objective.metrics(task.x)
            else:
                update = task.reply(objective, device)
            if size is not None and not np.isfinite(_numbers(update)).all():
                raise NonFinite("the loss", 0, device)
            return update

        found = guard.answer(objective, devices, queries, releases, reply, totals)
        failures = {i: self.error(error) for i, error in found.failures.items()}
        round = task.round if isinstance(task, Task) else 0
        if self.guarded and isinstance(task, Task):
            node.ledger.note(run, round + 1)
        answer = protocol.Answer(round, tuple(found.answers.values()), failures)
        if summed is not None and size is not None:
            about = _about(task), repr(sorted(found.answers))
            return self._masked(summed, guard, answer, size, about, totals)
        paid = bool(devices) and devices[0] in found.answers
        x = task.x if isinstance(task, LocalSteps) else None
        return protocol.answer(answer, form, x, metrics if paid else {})

    def exchange(self, message: Message, context: Context) -> RecordDict:
        """Begin a secure sum, or send the shares that unmask one. The state is on disk first."""
        node, run = self._node(context), str(context.run_id)
        request = protocol.take_sum(message.content)
        if request is None:
            raise Malformed("the message is not about a secure sum", "task")
        member, number, begun, shares = node.member(), request.attempt, None, b""
        if request.members:
            begun, shares = member.begin(run, number, request.members)
        with node.ledger.attempt(run, number, begun) as states:
            if begun is None:
                attempt, shares = member.reveal(states[-1], request.survivors)
                states.append(attempt)
        return protocol.sum_reply(SumReply(shares=shares))

    def _sum(self, node: NodeConfig, message: Message, run: str) -> SumRequest | None:
        """Return the secure sum that a message is for, if the attempt is new.

        A node with ``[secure]`` rejects other messages, which would show its own numbers.
        """
        request = protocol.take_sum(message.content)
        if request is None:
            if node.secure is not None:
                raise Rejected(ErrorCode.SECURE_ONLY)
            return None
        node.member()
        if not 0 < request.bound < 1e300:
            raise Malformed("the bound is not a number > 0", "bound")
        with node.ledger.attempt(run, request.attempt) as states:
            if states[-1].present:
                raise Rejected(ErrorCode.SECURE, "numbers were masked in this attempt before")
        return request

    def _masked(
        self,
        request: SumRequest,
        guard: RequestGuard,
        found: protocol.Answer,
        size: int,
        about: tuple[str, str],
        totals: Mapping[int, Array] | None,
    ) -> RecordDict:
        """Return the masked sum over this node's devices, and last the number of clipped ones.

        ``about`` names what is summed and of which devices: in a run the first is revealed for one
        set of nodes and devices. A device that failed is in no second sum of it. ``totals`` are
        private differences, in place of coefficients: noise is added to their sum.
        """
        node, step, total = guard.node, 0.0, np.zeros(size + 1, np.int64)
        member = node.member()
        for update in found.updates:
            own, clipped = to_grid(_numbers(update), request.bound)
            own = own if totals is None else totals[update.device]
            total[:-1] += own.ravel() * int(update.weight)
            total[-1] += clipped
        task = b"".join(hashlib.sha256(text.encode()).digest()[:16] for text in about)
        with node.ledger.attempt(guard.run, request.attempt) as states:
            if totals is not None and node.privacy is not None:
                step = grid_step(node.privacy.difference_clip)
                members = len(names_in(states[-1].members))
                total[:-1] += node.privacy.part_of_noise(members, size)
            attempt, masked = member.mask(states[-1], request.present, request.inbox, total, task)
            states.append(attempt)
        return protocol.sum_reply(
            SumReply(
                masked=masked,
                step=step,
                devices=tuple(update.device for update in found.updates),
                queries=sum(update.queries for update in found.updates),
                failed=tuple(found.failures),
                reasons=tuple(found.failures.values()),
            )
        )

    def _catch_up(
        self, message: SyncMessage, guard: RequestGuard, objective: Objective
    ) -> SyncedState:
        """Replay the run from the cached state and the message, and cache the new state."""
        node = guard.node

        def check(spec: RunSpec, x: Array) -> None:
            node.limits.check_dimension(x, objective)
            node.check_task(LocalSteps(spec.algorithm, x))

        def replay() -> SyncedState:
            cached, known = node.states.get(message.run), self._algorithms(node)
            charge = functools.partial(guard.charge_directions, objective)
            return catch_up(message, cached, objective.initial, known, check, charge)

        synced: SyncedState = guard.limited(objective, replay)
        if synced.moved:
            node.states.put(message.run, synced.round, synced.text, synced.state)
        return synced

    def _algorithms(self, node: NodeConfig) -> Mapping[str, Any]:
        """Return the algorithms that a node allows: those it lists, and those of the app's code."""
        own = {k: v for k, v in self.algorithms.items() if k in node.algorithms}
        return own | {k: v for k, v in self.algorithms.items() if k not in ALGORITHMS}

    def error(self, error: BaseException) -> str:
        """Return the text to send for an error: a code; in a simulation, the exception's text."""
        if self.guarded:
            return log_error(error)
        return f"{type(error).__name__}: {error}"[:200]

    def _node(self, context: Context) -> NodeConfig:
        """Return the configuration of the node, which rejects all messages without a ledger."""
        with self._beginning():
            node = NodeConfig.read(context.node_config)
            check_enforced(node.apps)
            if self.guarded and _simulated() and node.privacy is None:
                if "ledger" not in context.node_config:  # not the one of a real node
                    name = f"fedzo-ledger-{os.getuid()}-{context.run_id}.sqlite"
                    node = replace(node, ledger=Ledger(str(Path(gettempdir()) / name)))
                node.ledger.create()
            if not self.guarded:
                return replace(node, **policy.UNLIMITED)
            node.ledger.spent(str(context.run_id))
            return node

    def _problem(self, node: NodeConfig, context: Context) -> Objective:
        with self._beginning():
            if callable(self.source):
                made = check_objective(self.source(context), "the problem's function returned")
            else:
                made = node.problem(self.source, context.run_config)
        if node.privacy is not None:
            node.privacy.sampling_of(made)
        return made

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        try:
            yield
        except Rejected:
            raise
        except Exception as error:
            if not self.guarded:
                raise
            raise Rejected(ErrorCode.CANNOT_BEGIN, f"{type(error).__name__}: {error}") from error


def _numbers(update: Update) -> Array:
    """Return the numbers of an update that are summed."""
    return np.asarray(update.values if update.coefficients is None else update.coefficients)


def _summed_numbers(task: Task | Losses) -> int:
    """Return how many numbers a device has in a secure sum; reject what cannot be summed."""
    if isinstance(task, Losses):
        return 1
    if not isinstance(task, LocalSteps) or task.algorithm.coefficients_shape is None:
        raise Rejected(ErrorCode.SECURE, "secure sums are of coefficients and losses")
    return math.prod(task.algorithm.coefficients_shape)


def _about(task: Task | Losses) -> str:
    """Return the name of a task in its run."""
    if isinstance(task, Losses):
        return f"losses {checksum(task.x)}"
    return f"steps {task.seed} {task.round} {task.index}"
