"""The server's side: Flower's nodes as a federation that any algorithm can be run over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedzo.algorithms.fedzo import LocalSteps, rebuild
from fedzo.budget import Meter
from fedzo.config import FlowerSettings
from fedzo.errors import FedzoError, Halted, NonFinite
from fedzo.federation import LeftOut, Replies, Update
from fedzo.flower import wire
from fedzo.flower.roll import Roll, log, lost
from fedzo.random import Draws, Stream
from fedzo.uplink import Uplink

Array = NDArray[Any]
T = TypeVar("T")

# Answers by device: what was found, or the reason why it was not, as a string.
Found = Mapping[int, Any]


class FlowerFederation:
    """The devices on the nodes of a Flower federation.

    A round is one message to each node that has participants: the model, the work and the
    devices that shall do it; the answer is their updates, or their coefficients alone where the
    uplink is made for them. They are summed in device order, whoever was quick, so a run is
    the same as in one process.

    An answer is not believed: an update of the wrong round, device, shape or precision, one that
    is not finite, or longer than ``settings.max_norm``, is left out and its device named.

    Parameters
    ----------
    grid : Grid
        Flower's, as a ServerApp is given it.
    seed : int
        Names all randomness of the run.
    uplink : Uplink
        Tells whether the devices send coefficients or whole updates.
    settings : FlowerSettings, optional
        Whom to wait for, and for how long.

    Raises
    ------
    Halted
        No quorum of the devices came within ``settings.patience`` seconds.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo import Ideal
    >>> from fedzo.flower import FlowerFederation, InProcessGrid, make_client_app
    >>> from fedzo.objective import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: float(x @ x) + device, 2, devices=3)
    >>> grid = InProcessGrid(make_client_app(lambda context: objective), nodes=2)
    >>> federation = FlowerFederation(grid, seed=0, uplink=Ideal())
    >>> federation.losses(np.ones(2))
    array([2., 3., 4.])
    """

    def __init__(
        self, grid: Grid, seed: int, uplink: Uplink, settings: FlowerSettings | None = None
    ) -> None:
        self.settings = settings or FlowerSettings()
        self.grid, self.seed = grid, seed
        self.coefficients = uplink.wants_coefficients
        self.left_out: list[LeftOut] = []
        self.meter: Meter | None = None  # each node counts for itself
        self._sent: list[Message] = []  # of the last round
        self._received: list[Message] = []
        self._metrics: dict[str, float] = {}
        self._ttl = self.settings.patience + self.settings.grace
        self._roll = Roll(grid, self._ttl)
        problem = self._gather()
        self.dim, self.devices = problem.dim, problem.devices

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
        assert self._roll.problem is not None
        return self._roll.problem.cost or sum(self._roll.sizes.values())

    def offers(self, method: str) -> bool:
        """Tell whether every node's problem has one of an objective's optional methods."""
        return self._roll.offers(method)

    def initial(self) -> Array:
        """Return where the problem starts, as the node of its first device says."""
        first = self._first()
        found = self._ask(
            wire.INITIAL, [first], lambda _: RecordDict(), lambda c: {first: wire.read_vector(c)}
        )
        x0 = found.get(first)
        if x0 is None or x0.shape != (self.dim,):
            self.left_out.clear()
            raise Halted(f"the node of device {first} told no start of {self.dim} numbers")
        return np.asarray(x0)

    def map(self, work: Any, devices: Sequence[int] | Array) -> Replies:
        """Have each device do the work; return the updates as a stream in device order."""
        return Replies(self._updates(work, [int(i) for i in devices]))

    def losses(self, x: Array) -> Array:
        """Return f_i(x) of all N devices, each from where its data are."""
        self._metrics = {}
        first = self._first()
        found = self._ask(
            wire.EVALUATE,
            range(self.devices),
            lambda own: wire.model(x, own, metrics=first in own),
            self._read_losses,
        )
        losses = np.full(self.devices, np.nan)
        for device, loss in found.items():
            losses[device] = loss
        finite = np.isfinite(losses)
        if finite.any():  # one device's NaN must not end the run; if all are, it has diverged
            wrong = [i for i in found if not finite[i]]
            self.left_out += [LeftOut(i, "its loss is not finite") for i in wrong]
        return losses

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return what the first device's node told at the last evaluation, and bytes measured.

        ``wire_up_bytes`` and ``wire_down_bytes`` are the last round's messages as Flower
        serialises them, without HTTP's headers.
        """
        up, down = (sum(map(wire.size, some)) for some in (self._received, self._sent))
        return {**self._metrics, "wire_up_bytes": up, "wire_down_bytes": down}

    def _first(self) -> int:
        homes = self._roll.homes(self._roll.sizes)
        return min((devices[0] for devices in homes.values()), default=0)

    # ---------------------------------------------------------------------- a round's updates

    def _updates(self, work: Any, devices: list[int]) -> Iterator[Update]:
        self._sent, self._received = [], []
        short = self.coefficients and isinstance(work, LocalSteps)
        only = getattr(work, "only", lambda own: work)
        found = self._ask(
            wire.TRAIN,
            devices,
            lambda own: wire.task(only(own), own, short),
            lambda content: self._read_updates(content, work, short),
        )
        heard = 0
        for device in sorted(found):
            try:
                update = self._whole(found[device], work) if short else found[device]
                self._check(update, work)
            except _Refused as error:
                self.left_out.append(LeftOut(device, str(error)))
                continue
            heard += 1
            yield update
        diverged = [one.device for one in self.left_out if "not finite" in one.reason]
        if diverged and not heard:
            raise NonFinite("the loss", work.round + 1, diverged[0])

    def _read_updates(self, content: RecordDict, work: Any, short: bool) -> Found:
        told = wire.read_answer(content, short)
        if told.round != work.round:
            raise wire.Malformed(f"its answer is of round {told.round + 1}")
        return {**told.failures, **{update.device: update for update in told.updates}}

    def _whole(self, update: Update, work: LocalSteps) -> Update:
        """Make an update of its coefficients, by the directions that the server draws too."""
        own, right = update.coefficients, (work.local_steps, work.estimator.directions)
        if own is None or own.shape != right or own.dtype != work.x.dtype:
            raise _Refused(f"its coefficients are not {right} of type {work.x.dtype}")
        if not np.isfinite(own).all():
            raise _Refused("its coefficients are not finite")
        at = Draws(self.seed, Stream.DIRECTIONS, work.round, update.device)
        return update._replace(delta=rebuild(own, work.estimator.kind, self.dim, at))

    def _check(self, update: Update, work: Any) -> None:
        """Raise unless an update may be added to the others."""
        delta, right = update.delta, getattr(work, "x", update.delta).dtype
        if delta.shape != (self.dim,) or delta.dtype != right:
            got = f"{delta.shape} of type {delta.dtype}"
            raise _Refused(f"its update has the shape {got}, not ({self.dim},) of {right}")
        if not np.isfinite(delta).all():
            raise _Refused("its update is not finite")
        norm, limit = float(np.linalg.norm(delta.astype(np.float64))), self.settings.max_norm
        if limit is not None and norm > limit:
            raise _Refused(f"its update has the length {norm:.4g}, more than max_norm = {limit:g}")
        if update.weight not in (1, self._roll.sizes.get(update.device)):
            raise _Refused(f"its weight {update.weight:g} is neither 1 nor its number of samples")
        if update.queries < 0:
            raise _Refused(f"it claims to have asked {update.queries} queries")

    def _read_losses(self, content: RecordDict) -> Found:
        found, failures, metrics = wire.read_losses(content)
        self._metrics.update(metrics)
        return {**failures, **found}

    # ------------------------------------------------------------------ asking, and waiting

    def _gather(self) -> wire.Hello:
        """Wait for the nodes: for all devices, or a quorum of them and ``grace`` seconds more."""
        wait = _Wait(self.settings)
        while True:
            self._roll.look()
            problem = self._roll.problem
            there = len(self._roll.sizes)
            everyone = problem.devices if problem is not None else 1
            enough = problem is not None and there >= self.settings.needed(everyone)
            if problem is not None and (there == everyone or (enough and wait.over())):
                return problem
            wait.a_moment(enough, f"{there} of the devices are there")

    def _ask(
        self,
        kind: str,
        devices: Sequence[int],
        content: Callable[[list[int]], RecordDict],
        read: Callable[[RecordDict], Found],
    ) -> dict[int, Any]:
        """Have the nodes of these devices answer; return what was found, by device.

        It waits for everyone; once a quorum has answered, ``grace`` seconds more, and only for
        those who are connected. Who is missing then is left out, and so is who failed. Nodes
        that come back in the meantime are asked (again).
        """
        found: dict[int, Any] = {}
        missing, under_way = dict.fromkeys(devices, "its node is not connected"), _UnderWay()
        need, wait = self.settings.needed(len(devices)), _Wait(self.settings)
        while missing:
            if wait.time_to_look():
                self._roll.look()
                for asked in under_way.without(self._roll):
                    missing.update(dict.fromkeys(asked, "its node was lost"))
            idle = missing.keys() - under_way.devices()
            self._send(kind, self._roll.homes(idle), content, under_way)
            for node, asked, reply in self._replies(kind, under_way):
                told = self._told(node, asked, reply, read)
                for device in asked:
                    if device not in told:
                        missing[device] = "its node was lost"
                        continue
                    del missing[device]
                    if isinstance(told[device], str):
                        self.left_out.append(LeftOut(device, told[device]))
                    else:
                        found[device] = told[device]
            enough = len(devices) - len(missing) >= need
            if not missing or (enough and (not under_way.asked or wait.over())):
                break
            answered = f"{len(devices) - len(missing)} of {len(devices)} devices have answered"
            wait.a_moment(enough, answered)
        for node, asked in under_way.asked.values():
            self._roll.strike(node, f"it was silent for the {self.settings.grace:g} s of grace")
            missing.update(dict.fromkeys(asked, "its node did not answer in time"))
        self.left_out += [LeftOut(device, reason) for device, reason in missing.items()]
        return found

    def _send(
        self,
        kind: str,
        homes: dict[int, list[int]],
        content: Callable[[list[int]], RecordDict],
        under_way: _UnderWay,
    ) -> None:
        messages = [Message(content(own), node, kind, ttl=self._ttl) for node, own in homes.items()]
        if messages:
            self._sent += messages if kind == wire.TRAIN else []
            ids = self.grid.push_messages(messages)
            for i, (node, own) in zip(ids, homes.items(), strict=True):
                if i:
                    under_way.asked[i] = (node, own)
                else:
                    self._roll.strike(node, "no message can be sent to it")

    def _replies(self, kind: str, under_way: _UnderWay) -> Iterator[tuple[int, list[int], Message]]:
        if not under_way.asked:
            return
        for reply in self.grid.pull_messages(list(under_way.asked)):
            node, asked = under_way.asked.pop(reply.metadata.reply_to_message_id)
            self._received += [reply] if kind == wire.TRAIN else []
            yield node, asked, reply

    def _told(
        self, node: int, asked: list[int], reply: Message, read: Callable[[RecordDict], Found]
    ) -> Found:
        """Return what a reply says of each device that was asked; nothing, if the node is lost."""
        if lost(reply):
            self._roll.strike(node, str(reply.error.reason))
            return {}
        if reply.has_error():
            reason = " ".join(str(reply.error.reason).split())[:200]
            return dict.fromkeys(asked, f"its node failed: {reason}")
        try:
            told = read(reply.content)
        except Exception as error:  # whatever a stranger's bytes can make a decoder raise
            return dict.fromkeys(asked, f"its node's answer is malformed: {error}"[:200])
        return {i: told.get(i, "its node did not answer for it") for i in asked}


class _Refused(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """An update that is left out; says why."""


class _UnderWay:
    """The messages that have not been answered yet: to whom, and about which devices."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[int, list[int]]] = {}

    def devices(self) -> set[int]:
        """Return the devices that an answer is expected for."""
        return {device for _, own in self.asked.values() for device in own}

    def without(self, roll: Roll) -> list[list[int]]:
        """Give up what was asked of nodes that are off the roll; return the devices of each."""
        gone = [i for i, (node, _) in self.asked.items() if node not in roll]
        return [self.asked.pop(i)[1] for i in gone]


class _Wait:
    """How long has been waited, with and without a quorum."""

    def __init__(self, settings: FlowerSettings) -> None:
        self._settings, self._began = settings, time.monotonic()
        self._enough_since: float | None = None
        self._look_at = self._tell_at = self._began
        self._tell_at += 10
        self._pause = 0.002

    def time_to_look(self) -> bool:
        """Tell, about once a second, that it is time to see who is there."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + 1
        return True

    def over(self) -> bool:
        """Tell whether the time of grace after the quorum is over."""
        if self._enough_since is None:
            self._enough_since = time.monotonic()
        return time.monotonic() - self._enough_since >= self._settings.grace

    def a_moment(self, enough: bool, state: str) -> None:
        """Sleep a little, longer and longer; without a quorum, tell so, and halt in the end."""
        now = time.monotonic()
        if not enough:
            self._enough_since = None
            limit = self._settings.patience
            if now - self._began >= limit:
                raise Halted(f"no quorum within {limit:g} s: {state}")
            if now >= self._tell_at:
                left = limit - (now - self._began)
                log.warning("waiting for a quorum, %.0f s at most: %s", left, state)
                self._tell_at = now + 10
        time.sleep(self._pause)
        self._pause = min(1.3 * self._pause, 0.2)
