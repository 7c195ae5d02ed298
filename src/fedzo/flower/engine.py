"""The server's side: an engine that sends the tasks of any algorithm to Flower's nodes."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedzo.algorithms import FedZO
from fedzo.core.engine import Engine
from fedzo.core.random import check_seed
from fedzo.core.tasks import Evaluation, LocalSteps, Losses, Replies, Task, Update
from fedzo.core.types import Array
from fedzo.errors import Halted, NonFinite, UsageError
from fedzo.flower import protocol
from fedzo.flower.errors import Malformed, log
from fedzo.flower.policy import queries_of
from fedzo.flower.privacy import Measured
from fedzo.flower.registry import Exchange, Found, Requests, Wait
from fedzo.flower.schema import Layout
from fedzo.flower.sums import SecureSums, Summed
from fedzo.flower.sync import LOG, MOST_DRAWN, Downlink, Log, RunSpec, drawn_by_sums
from fedzo.flower.validation import InvalidUpdate, UpdateValidator, clipped_losses
from fedzo.runs.history import RESERVED
from fedzo.runs.loop import Job
from fedzo.runs.options import FlowerSettings
from fedzo.runs.registry import describe_parts
from fedzo.uplinks import Seeds, Uplink
from fedzo.uplinks.seeds import warn_clipped

__all__ = ["FlowerEngine", "FlowerSettings"]


class FlowerEngine(Engine):
    """Sends the tasks of a run to the devices on Flower's nodes, and validates the replies.

    In each round every node with participants receives one message: the model, the task and its
    devices. It replies with their updates, or with their coefficients alone if the uplink needs no
    more. Updates are summed in device order, not in that of their arrival, so a run is the same as
    in one process.

    An update is rejected, and its device dropped, if it has another round, device, shape or
    precision than the task, is not finite, or is longer than ``settings.max_norm``. An update that
    is much longer than the others is shortened: see :mod:`fedzo.flower.validation`.

    Parameters
    ----------
    grid : Grid
        Flower's grid, which a ServerApp receives.
    seed : int
        The seed of all random draws of the run.
    uplink : Uplink
        Its ``wants_coefficients`` selects coefficients or whole updates.
    settings : FlowerSettings, optional
        The quorum, the times to wait, and the limits of a valid update.
    problem : mapping, optional
        The run's settings of the problem: nodes with other settings do not take part.
    warn : callable
        Called like a logger when devices are dropped.
    masked : bool
        Whether nodes mask what they send if the uplink is secure. False is for a simulation, where
        node and server are one process: the same sums, without masks.

    Raises
    ------
    Halted
        No quorum of the devices joined within ``settings.patience`` seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo import Ideal
    >>> from fedzo.flower import FlowerEngine, InProcessGrid, make_client_app
    >>> from fedzo.problems import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: float(x @ x) + device, 2, devices=3)
    >>> grid = InProcessGrid(make_client_app(lambda context: objective), nodes=2)
    >>> engine = FlowerEngine(grid, seed=0, uplink=Ideal())
    >>> engine.ask(Losses(np.ones(2))).losses
    array([2., 3., 4.])
    """

    asynchronous = True

    def __init__(
        self,
        grid: Grid,
        seed: int,
        uplink: Uplink,
        settings: FlowerSettings | None = None,
        problem: Mapping[str, Any] | None = None,
        warn: Callable[..., None] = log.warning,
        masked: bool = True,
    ) -> None:
        check_seed("seed", seed)
        self.settings, self.seed = settings or FlowerSettings(), seed
        self.uplink, self.coefficients = uplink, uplink.wants_coefficients
        self.quorum = self.settings.quorum
        self._metrics: Mapping[str, float] = {}
        self.nodes = Requests(grid, self.settings, problem or {}, warn)
        self.sums = SecureSums(self.nodes) if uplink.secure and masked else None
        self._evaluated: tuple[Array, float] | None = None  # the last model and its mean loss
        if self.sums is not None and self.settings.max_norm is not None:
            text = "flower.max_norm needs single updates, which a secure sum hides: set uplink.clip"
            raise UsageError(text, code="secure-max-norm")
        self.dropped, self._registry = self.nodes.dropped, self.nodes.registry
        introduction = self.nodes.gather()
        self.dim, self.devices = introduction.dim, introduction.devices

    @property
    def evaluation_cost(self) -> int:
        """Number of values F_i(x, ξ) per evaluation, of the devices introduced so far."""
        assert self._registry.problem is not None
        return self._registry.problem.cost or sum(self._registry.sizes.values())

    def enable_replay(self, job: Job, x0: Array) -> None:
        """Let nodes replay a job from x0, if its uplink and its parts allow that.

        They receive the coefficients of earlier rounds, in place of the model. A job with a folder
        stores them there, and a resumed job continues with them, in its round.
        """
        before = job.folder.load() if job.folder is not None and job.resume else None
        self.nodes.round = 0 if before is None else before.at.round
        own = job.algorithm
        if isinstance(own, FedZO) and (own.automatic or own.server.automatic):
            return  # its hyper-parameters are not known yet
        spec = RunSpec(job.algorithm, self.uplink, self.seed, self.devices, x0.dtype.name)
        sends_log = self.coefficients and self.uplink.downlink == "log"
        if not (sends_log and spec.can_be_sent):
            return
        if drawn_by_sums(spec, x0) > MOST_DRAWN:
            log.warning("nodes cannot draw as many fixed_directions: the model is sent")
            return
        file = None if job.run_dir is None else job.run_dir / LOG
        most = None if job.algorithm.fixed_directions is None else 1
        log_file = Log(file, bool(job.resume), most)
        self.nodes.downlink = Downlink(spec, x0, log_file, self.nodes.round)

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the problem of most nodes has a capability."""
        return self._registry.provides(kind.__name__)

    def initial(self) -> Array:
        """Return the start that most nodes send; if two are as frequent, the first device's."""
        nodes = self._registry.homes(range(self.devices)).values()
        found = self.nodes.ask(
            Exchange(
                protocol.INITIAL,
                sorted(devices[0] for devices in nodes),
                lambda node, own: RecordDict(),
                lambda content, asked: dict.fromkeys(
                    asked, protocol.read_vector(content, self.dim)
                ),
            )
        )
        self.dropped.clear()  # a node without a start is dropped from no round
        if not found:
            raise Halted(f"no node sent a start of {self.dim} numbers")
        votes = Counter((x.dtype.str, x.tobytes()) for _, x in sorted(found.items()))
        kind, numbers = max(votes, key=votes.__getitem__)
        return np.frombuffer(numbers, kind).copy()

    def ask(self, task: Task | Losses) -> Any:
        """Return the replies as a stream in device order, or the losses of all devices."""
        if self.sums is None:
            exchange = self.exchange(task)
            return self.answer(task, self.nodes.replies(exchange))
        if isinstance(task, Losses):
            return self._mean_loss(self.sums, task.x)
        return Replies(self._secure_update(self.sums, task), task)

    def exchange(self, task: Task | Losses, layout: Layout | None = None) -> Exchange:
        """Return the messages that ask for the replies to a task, and how these are read.

        With the layout of a model, each node replies with its whole new model in that layout.
        """
        if isinstance(task, Losses):
            return self._evaluation(task.x)
        self.nodes.sent, self.nodes.received, self.nodes.round = [], [], task.round + 1
        steps = task if isinstance(task, LocalSteps) else None
        if steps is not None:
            described = describe_parts(steps.algorithm, self.uplink)
            self.nodes.algorithm = described["algorithm"]["name"]
        if self.coefficients and steps and steps.algorithm.coefficients_shape is None:
            raise UsageError("uplink: the algorithm's updates have no coefficients to send")
        downlink = self.nodes.downlink if steps is not None and task.index == 0 else None
        if downlink is not None and steps is not None:
            downlink.set_target(steps.x, steps)
        packed = cache(lambda: protocol.pack(task, layout))  # once for all nodes, if any needs it

        def message(node: int, own: list[int]) -> RecordDict:
            sync = None if downlink is None else downlink.message_to(node)
            if sync is not None:
                return protocol.task(sync, own, self.coefficients)
            rows = steps is not None and (steps.x.ndim == 2 or steps.rows)
            whole = protocol.pack(task.only(own)) if rows else packed()
            return protocol.task(whole, own, self.coefficients)

        if steps is not None and steps.at_work:
            shape = np.broadcast_to(steps.x.dtype.type(0), steps.x.shape)  # x is not held
            late = partial(self._read_late, self._validator(replace(steps, x=shape, state=None)))
            return Exchange(
                protocol.TRAIN, task.devices, message, late, steps.at_work, steps.buffer
            )

        def read(content: RecordDict, asked: list[int]) -> Found:
            if layout is not None and steps is not None:
                return protocol.read_models(content, asked, steps, layout)
            return _read_updates(content, asked, task.round)

        return Exchange(protocol.TRAIN, task.devices, message, read)

    def _read_late(
        self, validator: UpdateValidator, content: RecordDict, asked: list[int]
    ) -> Found:
        """Return late updates with their round; one that is not valid makes room for another."""
        task = validator.task
        found = dict(_read_updates(content, asked, task.round))
        for device in found.keys() & set(asked):
            update = found[device]
            if isinstance(update, Update):
                try:
                    validator.check(update)
                    found[device] = update._replace(started=task.round)
                except InvalidUpdate as error:
                    found[device] = str(error)
        return found

    def _validator(self, task: Task) -> UpdateValidator:
        sizes = self._registry.sizes
        return UpdateValidator(task, self.dim, self.uplink, self.settings, sizes, self.devices)

    def answer(self, task: Task | Losses, replies: Iterable[Message]) -> Any:
        """Return what :meth:`ask` returns, from the nodes' replies to the messages of a task."""
        if isinstance(task, Losses):
            return Evaluation(self._losses(self.nodes.results(replies)), self.metrics())
        return Replies(self._updates(task, replies), task)

    def _evaluation(self, x: Array, metrics: bool = True) -> Exchange:
        """Return the request for the losses of all devices, and for the metrics of the first."""
        self._metrics, first = {}, self._first() if metrics else -1

        def read(content: RecordDict, asked: list[int]) -> Found:
            found, metrics = protocol.read_losses(content, len(asked))
            if first in asked:  # metrics of other nodes were not requested
                self._metrics = metrics
            return found

        downlink = self.nodes.downlink
        if downlink is not None:
            downlink.set_target(x)

        def message(node: int, own: list[int]) -> RecordDict:
            sync = None if downlink is None else downlink.message_to(node)
            return protocol.model(sync or x, own, metrics=first in own)

        return Exchange(protocol.EVALUATE, range(self.devices), message, read)

    def _losses(self, found: Mapping[int, float]) -> Array:
        """Return the losses of all devices, without outliers; NaN for those without one."""
        losses = np.full(self.devices, np.nan)
        for device, loss in found.items():
            losses[device] = loss
        if self.settings.clip:
            losses = clipped_losses(losses, self.settings.clip)
        finite = np.abs(losses) < np.finfo(float).max / self.devices  # and so is their sum
        if finite.any():  # one device's NaN must not end the run; if all are, it has diverged
            wrong = [i for i in found if not finite[i]]
            self.nodes.leave_out(dict.fromkeys(wrong, "the loss is not finite"))
        return losses

    def _mean_loss(self, sums: SecureSums, x: Array) -> Evaluation:
        """Return the mean of f_i(x) over all devices that replied, as all that is known of them.

        A sum that is lost is asked for again, as long as the server waits for a quorum.
        """
        bound, losses = self.uplink.loss_clip, np.full(self.devices, np.nan)
        if self._evaluated is not None and np.array_equal(self._evaluated[0], x):
            mean = self._evaluated[1]  # nodes reveal it for one set of nodes, and some may be back
            return Evaluation(np.full(self.devices, mean), self.metrics(), mean)
        before = len(self.nodes.sent), len(self.nodes.received), len(self.dropped)
        exchange, wait = self._evaluation(x, metrics=False), Wait(self.settings)
        while not (found := sums.ask(exchange, 1, bound)).devices:
            wait.pause(False, f"the losses have no sum: {self.dropped[-1].reason}")
            del self.dropped[before[2] :]
        del self.nodes.sent[before[0] :], self.nodes.received[before[1] :]
        warn_clipped(found.clipped, "losses", "loss_clip", bound)
        mean = float(found.mean(bound)[0])
        losses[list(found.devices)] = mean
        self._evaluated = x.copy(), mean
        return Evaluation(losses, self.metrics(), mean)

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of the last evaluation, by the first device's node, and bytes.

        The bytes are those of the last round, see :func:`~fedzo.flower.protocol.traffic`.
        """
        own = {k: v for k, v in self._metrics.items() if k not in RESERVED}
        return {**own, **protocol.traffic(self.nodes.sent, self.nodes.received)}

    def _first(self) -> int:
        homes = self._registry.homes(self._registry.sizes)
        return min((devices[0] for devices in homes.values()), default=0)

    # ---------------------------------------------------------------------- a round's updates

    def _updates(self, task: Task, replies: Iterable[Message]) -> Iterator[Update]:
        validator = self._validator(task)
        valid = list(validator.updates(self.nodes.results(replies)))
        self.nodes.leave_out(validator.refused)
        self._record(task, valid)
        yield from valid
        diverged = [absent.device for absent in self.dropped if "not finite" in absent.reason]
        if diverged and not valid:
            raise NonFinite("the loss", task.round + 1, diverged[0])

    def _record(self, task: Task, updates: list[Update]) -> None:
        """Log the updates of a round, if nodes replay it."""
        if self.nodes.downlink is not None and isinstance(task, LocalSteps) and task.index == 0:
            self.nodes.downlink.record(task, updates)

    def _secure_update(self, sums: SecureSums, task: Task) -> Iterator[Update]:
        """Yield one update for all devices, the mean of their sum."""
        if not isinstance(task, LocalSteps):
            raise UsageError("uplink.secure: only local steps are summed", code="secure-task")
        uplink, exchange = cast(Seeds, self.uplink), self.exchange(task)
        weights = self._registry.sizes if task.algorithm.weighting == "size" else None
        size = math.prod(task.algorithm.coefficients_shape)
        found = sums.ask(exchange, size, uplink.bound(task), weights, queries_of(task))
        updates = [self._summed(task, found, uplink)] if found.devices else []
        self._record(task, updates)
        yield from updates

    def _summed(self, task: LocalSteps, found: Summed, uplink: Seeds) -> Update:
        warn_clipped(found.clipped, "updates", "clip", uplink.clip)
        mean = found.mean(uplink.bound(task))
        own = mean.reshape(task.algorithm.coefficients_shape).astype(task.x.dtype)
        if found.step:
            device = Measured(task, mean / task.algorithm.batch_size)
            made = np.asarray(task.reply(device, min(found.devices)).coefficients, np.float64)
            length = max(float(np.linalg.norm(made)), uplink.bound(task))
            own = (made * (uplink.bound(task) / length)).astype(task.x.dtype)
        update = Update(
            min(found.devices), np.empty(0), 1, found.queries, own, contributors=len(found.devices)
        )
        return update._replace(delta=task.rebuilt(update))


def _read_updates(content: RecordDict, asked: list[int], round: int) -> Found:
    answer = protocol.read_answer(content, len(asked))
    if answer.round != round:
        raise Malformed(f"its reply is of round {answer.round + 1}")
    return {**answer.failures, **{update.device: update for update in answer.updates}}
