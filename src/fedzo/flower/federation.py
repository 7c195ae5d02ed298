"""The server's side: Flower's nodes as a federation that any algorithm can be run over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import TracebackType
from typing import Any, Self

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedzo.algorithms import FedZO
from fedzo.core.budget import Meter
from fedzo.core.random import check_seed
from fedzo.core.tasks import Evaluation, LocalSteps, Losses, Replies, Task, Update
from fedzo.errors import Halted, NonFinite, UsageError
from fedzo.flower import protocol as wire
from fedzo.flower.course import Course
from fedzo.flower.downlink import LOG, Downlink, Log, follows
from fedzo.flower.errors import Malformed, log
from fedzo.flower.following import MOST_DRAWN, Following, drawn_by_sums
from fedzo.flower.protocol import serialised, transported
from fedzo.flower.registry import Found, Requests
from fedzo.flower.validation import UpdateValidator as Believed
from fedzo.flower.validation import clipped_losses
from fedzo.runs.history import RESERVED
from fedzo.runs.loop import Job
from fedzo.runs.options import FlowerSettings
from fedzo.uplinks import Uplink

__all__ = ["FlowerFederation", "FlowerSettings"]

Array = NDArray[Any]


class FlowerFederation:
    """The devices on the nodes of a Flower federation.

    A round is one message to each node that has participants: the model, the work and the
    devices that shall do it; the answer is their updates, or their coefficients alone where the
    uplink is made for them. They are summed in device order, whoever was quick, so a run is
    the same as in one process.

    An answer is not believed: an update of the wrong round, device, shape or precision, one that
    is not finite, or longer than ``settings.max_norm``, is left out and its device named; one that
    is much longer than the others is shortened: see :mod:`fedzo.flower.belief`.

    Parameters
    ----------
    grid : Grid
        Flower's, as a ServerApp is given it.
    seed : int
        Names all randomness of the run.
    uplink : Uplink
        Tells whether the devices send coefficients or whole updates.
    settings : FlowerSettings, optional
        Whom to wait for, and for how long, and how far to believe an answer.
    problem : mapping, optional
        What the run knows of the problem's settings: nodes with others do not take part.
    warn : callable
        Told at once who is left out, as a logger is.

    Raises
    ------
    Halted
        No quorum of the devices came within ``settings.patience`` seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo import Ideal
    >>> from fedzo.flower import FlowerFederation, InProcessGrid, make_client_app
    >>> from fedzo.problems import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: float(x @ x) + device, 2, devices=3)
    >>> grid = InProcessGrid(make_client_app(lambda context: objective), nodes=2)
    >>> federation = FlowerFederation(grid, seed=0, uplink=Ideal())
    >>> federation.ask(Losses(np.ones(2))).losses
    array([2., 3., 4.])
    """

    def __init__(
        self,
        grid: Grid,
        seed: int,
        uplink: Uplink,
        settings: FlowerSettings | None = None,
        problem: Mapping[str, Any] | None = None,
        warn: Callable[..., None] = log.warning,
    ) -> None:
        check_seed("seed", seed)
        self.settings, self.seed = settings or FlowerSettings(), seed
        self.uplink, self.coefficients = uplink, uplink.wants_coefficients
        self.meter: Meter | None = None  # each node counts for itself
        self.scale: Array | None = None
        self._metrics: Mapping[str, float] = {}
        self._downlink: Downlink | None = None
        self._nodes = Requests(grid, self.settings, problem or {}, warn)
        self.dropped, self._registry = self._nodes.dropped, self._nodes.registry
        introduction = self._nodes.gather()
        self.dim, self.devices = introduction.dim, introduction.devices

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Do nothing: the grid is Flower's to close."""

    @property
    def evaluation_cost(self) -> int:
        """How many values F_i(x, ξ) one evaluation takes, of the devices heard of so far."""
        assert self._registry.problem is not None
        return self._registry.problem.cost or sum(self._registry.sizes.values())

    @property
    def sending_updates(self) -> set[int]:
        """The devices whose nodes draw other directions, and so send whole updates."""
        homes = self._registry.homes(range(self.devices))
        return {i for node, own in homes.items() if self._registry.unlike(node) for i in own}

    def follow(self, job: Job, x0: Array) -> None:
        """Have nodes follow a job from x0, where its uplink and its parts allow that.

        They are sent the coefficients that the server has heard, in place of the model. A job with
        a folder keeps these there, and a resumed one goes on with them.
        """
        if isinstance(job.algorithm, FedZO) and job.algorithm.automatic:
            return  # its numbers are not known yet
        course = Course(job.algorithm, self.uplink, self.seed, self.devices, x0.dtype.name)
        if not (follows(self.uplink) and course.can_be_told):
            return
        fixed = job.algorithm.fixed_directions is not None
        if drawn_by_sums(course, x0) > MOST_DRAWN:
            log.warning("fixed_directions are too many to be drawn by nodes: the model is sent")
            return
        heard = Log(
            None if job.run_dir is None else job.run_dir / LOG,
            bool(job.resume),
            most=1 if fixed else None,
        )
        before = job.folder.load() if job.folder is not None and job.resume else None
        self._downlink = Downlink(course, x0, heard, 0 if before is None else before.round)
        self._nodes.downlink = self._downlink

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the problem of most nodes has a capability."""
        return self._registry.provides(kind.__name__)

    def initial(self) -> Array:
        """Return where the problem starts: what most nodes say, of two the first device's."""
        nodes = self._registry.homes(range(self.devices)).values()
        found = self._nodes.ask(
            wire.INITIAL,
            sorted(devices[0] for devices in nodes),
            lambda node, own: RecordDict(),
            lambda content, asked: dict.fromkeys(asked, wire.read_vector(content, self.dim)),
        )
        if not found:
            raise Halted(f"no node answered with a start of {self.dim} numbers")
        votes = Counter((x.dtype.str, x.tobytes()) for _, x in sorted(found.items()))
        kind, numbers = max(votes, key=votes.__getitem__)
        return np.frombuffer(numbers, kind).copy()

    def ask(self, task: Task | Losses) -> Any:
        """Return the replies as a stream in device order, or the losses of all devices."""
        if isinstance(task, Losses):
            return Evaluation(self.losses(task.x), self.metrics())
        return Replies(self._updates(task), task)

    def losses(self, x: Array) -> Array:
        """Return f_i(x) of all N devices, each from where its data are."""
        self._metrics, first = {}, self._first()

        def read(content: RecordDict, asked: list[int]) -> Found:
            found, failures, metrics = wire.read_losses(content, len(asked))
            if first in asked:  # a node that was not asked has no say in it
                self._metrics = metrics
            return {**failures, **found}

        if self._downlink is not None:
            self._downlink.aim(x)
        found = self._nodes.ask(
            wire.EVALUATE,
            range(self.devices),
            lambda node, own: wire.model(self._followed(node) or x, own, metrics=first in own),
            read,
        )
        losses = np.full(self.devices, np.nan)
        for device, loss in found.items():
            losses[device] = loss
        if self.settings.clip:
            losses = clipped_losses(losses, self.settings.clip)
        finite = np.abs(losses) < np.finfo(float).max / self.devices  # and so is their sum
        if finite.any():  # one device's NaN must not end the run; if all are, it has diverged
            wrong = [i for i in found if not finite[i]]
            self._nodes.leave_out(dict.fromkeys(wrong, "the loss is not finite"))
        return losses

    def metrics(self) -> Mapping[str, float]:
        """Return what the first device's node answered at the last evaluation, and bytes.

        All are of the last round. ``message_up_bytes`` and ``message_down_bytes`` are its messages
        as Flower serialises them; ``transport_up_bytes`` and ``transport_down_bytes`` are an
        estimate of the requests that carry them, with HTTP's headers.
        """
        own = {k: v for k, v in self._metrics.items() if k not in RESERVED}
        sent, received = self._nodes.sent, self._nodes.received
        messages, carried = serialised(sent, received), transported(sent, received)
        return {
            **own,
            "message_up_bytes": messages.up,
            "message_down_bytes": messages.down,
            "transport_up_bytes": carried.up,
            "transport_down_bytes": carried.down,
        }

    def _first(self) -> int:
        homes = self._registry.homes(self._registry.sizes)
        return min((devices[0] for devices in homes.values()), default=0)

    # ---------------------------------------------------------------------- a round's updates

    def _updates(self, task: Task) -> Iterator[Update]:
        self._nodes.sent, self._nodes.received = [], []
        steps = task if isinstance(task, LocalSteps) else None
        if self.coefficients and steps and steps.algorithm.coefficients_shape is None:
            raise UsageError("uplink: the algorithm's updates have no coefficients to send")
        downlink = self._downlink if steps is not None and task.index == 0 else None
        if downlink is not None and steps is not None:
            downlink.aim(steps.x, steps)
        packed = cache(lambda: wire.pack(task))  # once for all nodes, if any needs it

        def message(node: int, own: list[int]) -> RecordDict:
            short = self.coefficients and not self._registry.unlike(node)
            followed = None if downlink is None else self._followed(node)
            if followed is not None:
                return wire.task(followed, own, short)
            rows = steps is not None and (steps.x.ndim == 2 or steps.rows)
            return wire.task(wire.pack(task.only(own)) if rows else packed(), own, short)

        found = self._nodes.ask(
            wire.TRAIN,
            task.devices,
            message,
            lambda content, asked: _read_updates(content, asked, task),
        )
        sizes = self._registry.sizes
        believed = Believed(task, self.dim, self.uplink, self.settings, sizes, self.devices)
        heard = list(believed.updates(found))
        self._nodes.leave_out(believed.refused)
        if downlink is not None and steps is not None:
            downlink.heard(steps, heard)
        yield from heard
        diverged = [absent.device for absent in self.dropped if "not finite" in absent.reason]
        if diverged and not heard:
            raise NonFinite("the loss", task.round + 1, diverged[0])

    def _followed(self, node: int) -> Following | None:
        """Return what a node is told in place of the model, if it follows the run."""
        if self._downlink is None or self._registry.unlike(node):
            return None
        return self._downlink.to(node)


def _read_updates(content: RecordDict, asked: list[int], task: Task) -> Found:
    answer = wire.read_answer(content, len(asked))
    if answer.round != task.round:
        raise Malformed(f"its answer is of round {answer.round + 1}")
    return {**answer.failures, **{update.device: update for update in answer.updates}}
