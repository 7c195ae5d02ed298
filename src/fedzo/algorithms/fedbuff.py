r"""FedBuff: asynchronous rounds of FedZO, by replies as they come or by a simulated clock."""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo
from fedzo.algorithms.fedzo import FedZO, State
from fedzo.algorithms.server.optimizers import ServerState
from fedzo.core.random import Draws, Stream, check_seed
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.errors import UsageError, check_counts, require
from fedzo.uplinks import Ideal, Seeds
from fedzo.uplinks.base import RunSetting


class BufferState(NamedTuple):
    """The model, the clock, and the updates that are under way, one per slot."""

    x: Array  # x^t
    server: ServerState
    clock: Array  # () the virtual time
    device: Array  # (M,) the device at work in each slot, -1 if none
    started: Array  # (M,) the round whose model it started from
    finish: Array  # (M,) the virtual time of its arrival
    weight: Array  # (M,) its weight, 0 if it is lost
    update: Array  # (M, H, b2) its coefficients, if the uplink takes them; else (M, d)


@dataclass(frozen=True, kw_only=True)
class FedBuff(FedZO):
    r"""FedZO without waiting for slow devices.

    M devices are always at work. When K updates have arrived, the server applies

    .. math:: x^{t+1} = x^t + \frac{1}{K} \sum_{i} (1 + \tau_i)^{-a} \Delta_i,

    where :math:`\tau_i` is the number of rounds since device i received its model, and starts K
    other devices at :math:`x^{t+1}`. Over :class:`~fedzo.Seeds` an update under way is a device, a
    round and H b2 coefficients, whatever d is.

    With the virtual clock all times are a function of the seed, so a run is the same with any
    number of workers and after a resume. The history has the time as ``clock_seconds``. With the
    real clock, updates count in the order in which Flower's nodes send them. The log of
    coefficients names that order, so a run can be replayed to the bit. After a resume all devices
    start again.

    Parameters
    ----------
    buffer : int, optional
        K. By default all M: synchronous rounds under the same clock, for comparisons.
    staleness : float
        a, the power of the staleness weights; 0 gives late updates full weight.
    clock : str
        ``virtual``, or ``real``: K is the number of replies that the server waits for. This needs
        Flower's nodes, which reply when they are done.
    speed_spread : float
        A device takes between 1 and this many seconds per round, log-uniformly by device.
    dropout : float
        The probability that an update is lost. The server does not wait for a lost update.
    clock_seed : int
        The seed of speeds and losses.
    learning_rate, local_steps, participants, weighting, server, ...
        See :class:`~fedzo.FedZO`. ``participants`` is M, the devices at work.

    References
    ----------
    J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek and D. Huba, "Federated
    Learning with Buffered Asynchronous Aggregation", AISTATS 2022.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> clock = {"learning_rate": 0.02, "participants": 8, "speed_spread": 10.0}
    >>> run = {"rounds": 20, "evaluate_every": 20}
    >>> problem = Quadratic(dim=10, devices=16)
    >>> waits = fedzo.minimize(problem, algorithm=fedzo.FedBuff(**clock), **run)
    >>> buffers = fedzo.minimize(problem, algorithm=fedzo.FedBuff(buffer=4, **clock), **run)
    >>> waits.history[-1]["clock_seconds"] > 3 * buffers.history[-1]["clock_seconds"]
    True
    """

    buffer: int | None = None
    staleness: float = 0.5
    clock: str = "virtual"
    speed_spread: float = 1.0
    dropout: float = 0.0
    clock_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, optional=["buffer"])
        check_seed("clock_seed", self.clock_seed)
        require(self.staleness >= 0, "staleness", self.staleness, "a number >= 0")
        require(1 <= self.speed_spread < 1e9, "speed_spread", self.speed_spread, "in [1, 1e9)")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "a number in [0, 1)")
        require(self.clock in ("virtual", "real"), "clock", self.clock, "'virtual' or 'real'")
        if self.clock == "real":
            for key, unset in (("speed_spread", 1.0), ("dropout", 0.0)):
                value = getattr(self, key)
                require(value == unset, key, value, "omitted with clock = 'real'")
        for key in ("learning_rate", "smoothing"):
            require(getattr(self, key) != "auto", key, "auto", "a number > 0 for FedBuff")

    @cached_property
    def plain(self) -> FedZO:
        """What devices are asked for: the local steps of FedZO."""
        return FedZO(**{field.name: getattr(self, field.name) for field in fields(FedZO)})

    def init(self, x0: Array, setting: RunSetting) -> Any:
        """Return the state before round 0: nobody is at work."""
        state, slots = self.plain.init(x0, setting), self.participants or setting.devices
        for key in ("shared_directions", "fixed_directions"):  # late updates have other directions
            require(not getattr(self, key), key, getattr(self, key), "omitted for FedBuff")
        uplink = setting.uplink  # secure sums have no single updates
        if type(uplink) not in (Ideal, Seeds) or (isinstance(uplink, Seeds) and uplink.secure):
            text = f"FedBuff sums single late updates, which this {type(uplink).__name__} does not"
            raise UsageError(f"uplink.name: {text}; set uplink.name = 'ideal'", code="fedbuff")
        require(
            (self.buffer or 1) <= slots, "buffer", self.buffer, f"at most participants, {slots}"
        )
        if self.clock == "real":
            if not setting.engine.asynchronous:
                text = "algorithm.clock = 'real': only Flower's nodes reply when they are done"
                raise UsageError(f"{text}; use the virtual clock here", code="clock")
            return state
        times, none = np.zeros(slots), np.full(slots, -1)
        sent = self.coefficients_shape if setting.uplink.wants_coefficients else x0.shape
        updates = np.zeros((slots, *(sent or ())), x0.dtype)
        return BufferState(*state, np.zeros(()), none, none, times, times, updates)

    def round(self, t: int, state: Any, setting: RunSetting) -> Round[Any]:
        """Return the state after the next K updates."""
        by = self.by_arrival if self.clock == "real" else self.by_clock
        return (yield from by(t, state, setting))

    def by_arrival(self, t: int, state: State, setting: RunSetting) -> Round[State]:
        """Keep M devices at work; return the state after K of them have replied."""
        devices = Draws(setting.seed, Stream.PARTICIPANTS, round=t).permutation(setting.devices)
        task = self.plain.task(t, state, devices, setting)
        at_work = self.participants or setting.devices
        replies = yield replace(task, at_work=at_work, buffer=self.buffer or at_work)
        arrived = list(replies)
        x, server, info = self.step(t, state.x, state.server, arrived, task, setting)
        return State(x, server), info._replace(queries=replies.queries)

    def by_clock(self, t: int, state: BufferState, setting: RunSetting) -> Round[BufferState]:
        """Start devices in all free slots; return the state after K arrivals."""
        slots = state._replace(**{name: getattr(state, name).copy() for name in state._fields[3:]})
        free = np.flatnonzero(slots.device < 0)
        idle = np.setdiff1d(np.arange(setting.devices), slots.device)
        draws = Draws(setting.seed, Stream.PARTICIPANTS, round=t)
        chosen = idle[draws.subset(idle.size, min(free.size, idle.size))]
        task = self.plain.task(t, State(state.x, state.server), chosen, setting)
        replies = yield replace(task, state=state)
        for i, update in enumerate(replies):
            slot = free[i]
            slots.device[slot], slots.started[slot] = update.device, t
            slots.finish[slot] = state.clock + self.seconds(update.device)
            slots.weight[slot] = update.weight * (not self.lost(update.device, t))
            sends = setting.uplink.wants_coefficients
            slots.update[slot] = update.coefficients if sends else update.delta
        arrived, clock = self.arrivals(slots)
        taken = [self.update_of(slots, slot) for slot in arrived if slots.weight[slot] > 0]
        x, server, info = self.step(t, state.x, state.server, taken, task, setting)
        slots.device[arrived] = -1
        costs = {**info.costs, "clock_seconds": float(clock - state.clock)}
        end = slots._replace(x=x, server=server, clock=np.asarray(clock))
        return end, info._replace(queries=replies.queries, costs=costs)

    def step(
        self,
        t: int,
        x: Array,
        server: ServerState,
        arrived: list[Update],
        task: LocalSteps,
        setting: RunSetting,
    ) -> tuple[Array, ServerState, RoundInfo]:
        """Return the model, the server state and the diagnostics after late updates."""
        arrived = sorted(arrived, key=lambda update: (update.started, update.device))
        started, own = (np.array([getattr(u, k) for u in arrived]) for k in ("started", "weight"))
        age = t - started if arrived else np.zeros(0)
        weights = own * (1.0 + age) ** -self.staleness
        updates = Replies((whole(*pair, task) for pair in zip(arrived, weights, strict=True)), task)
        delta, sent = setting.uplink.aggregate(t, updates, setting)
        if arrived:
            scale = weights.sum() / own.sum()
            x, server = self.server.step(t, server, x, (scale * delta).astype(delta.dtype))
        info = RoundInfo.of(updates, sent)
        stale = float(age.mean()) if arrived else 0.0
        return x, server, info._replace(metrics={**info.metrics, "mean_staleness": stale})

    def arrivals(self, slots: BufferState) -> tuple[Array, float]:
        """Return the slots that are freed, in order of arrival, and the time of the last."""
        busy = np.flatnonzero(slots.device >= 0)
        order = busy[np.lexsort((slots.device[busy], slots.finish[busy]))]
        counted = np.cumsum(slots.weight[order] > 0)
        wanted = min(self.buffer or len(order), counted[-1] if len(order) else 0)
        count = int(np.searchsorted(counted, wanted)) + 1 if wanted else len(order)
        arrived = order[:count]
        return arrived, max(float(slots.clock), *slots.finish[arrived].tolist(), 0.0)

    def update_of(self, slots: BufferState, slot: int) -> Update:
        """Return the update of a slot; coefficients are not rebuilt yet."""
        device, started = int(slots.device[slot]), int(slots.started[slot])
        own, weight = slots.update[slot], float(slots.weight[slot])
        if own.ndim == 1:
            return Update(device, own, weight, 0, started=started)
        return Update(device, None, weight, 0, own, started=started)

    def seconds(self, device: int) -> float:
        """Return the virtual time that a device takes, between 1 and ``speed_spread``."""
        draws = Draws(self.clock_seed, Stream.CHOICES, device=device)
        return float(self.speed_spread ** draws.uniform(1)[0])

    def lost(self, device: int, t: int) -> bool:
        """Return whether the update that a device starts in round t is lost."""
        draws = Draws(self.clock_seed, Stream.CHOICES, round=t, device=device, task=1)
        return bool(draws.uniform(1)[0] < self.dropout)


def whole(update: Update, weight: float, task: LocalSteps) -> Update:
    """Return an update with another weight, rebuilt if it is coefficients."""
    delta = update.delta if update.coefficients is None else task.rebuild(update)
    return update._replace(delta=delta, weight=weight)
