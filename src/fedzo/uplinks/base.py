"""The base class of uplinks, and the parts that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedzo.core.engine import Engine, ReplayEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.core.updates import UpdateMean as UpdateMean  # noqa: PLC0414 - public here
from fedzo.errors import Parameters
from fedzo.uplinks.channels import Radio


class UplinkInfo(NamedTuple):
    """The cost of a round's messages, and further numbers of the uplink.

    Attributes
    ----------
    uplink_bytes, downlink_bytes : int
        Bytes sent to the server, and to the devices.
    channel_uses : int
        Symbols, of one number each, for which the devices use the channel. In this unit, sending
        one after another and sending at once can be compared.
    costs : mapping
        Further costs by name, each a number of this round. The history has their sums over the
        rounds so far. ``energy`` is what all devices spend on sending, in units of a device's
        budget per round; ``seconds_on_air`` and ``joules`` are known if a radio is.
    metrics : mapping
        Further numbers for the history.
    """

    uplink_bytes: int
    downlink_bytes: int
    channel_uses: int
    costs: Mapping[str, float] = {}
    metrics: Mapping[str, Any] = {}


class RunSetting:
    """What the parts of a run may know of each other: the devices, the problem and the uplink.

    Attributes
    ----------
    seed, dim, devices : int
        The run's seed, d and N.
    engine : Engine
        What answers the tasks; rounds yield them and do not call it.
    uplink : Uplink
        How replies reach the server.
    numbers : int
        How many numbers an update is sent as: d, or H b2 coefficients.
    replaying : bool
        Whether the round is replayed from a log of what the server received.
    scale : array, optional
        The problem's typical length of each coordinate of x.
    scratch : dict
        Memory that is never saved, such as a suspended search. The state of the algorithm must be
        enough to rebuild it.
    commit : callable
        Returns a context in which a round changes the model. If that is the problem's own memory,
        the run's loop defers signals from there until the round counts.
    """

    def __init__(
        self, engine: Engine, uplink: Uplink, coefficients: tuple[int, int] | None = None
    ) -> None:
        self.seed, self.dim, self.devices = engine.seed, engine.dim, engine.devices
        self.engine, self.uplink, self.scale = engine, uplink, engine.scale
        sends = coefficients is not None and uplink.wants_coefficients
        self.numbers = math.prod(coefficients or ()) if sends else engine.dim
        self.replaying = isinstance(engine, ReplayEngine)
        self.scratch: dict[str, Any] = {}
        self.commit: Callable[[], AbstractContextManager[None]] = nullcontext

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the problem has a capability, such as ``HasGradient``."""
        return self.engine.provides(kind)

    @property
    def queries_left(self) -> float:
        """Number of queries left in the budget, after those of the evaluations to come."""
        meter = self.engine.meter
        if meter is None or meter.left is None:
            return math.inf
        return float(meter.left - meter.evaluations * self.engine.evaluation_cost)


class Uplink(Parameters):
    """A frozen dataclass without a state: its fields are its settings.

    A subclass defines :meth:`aggregate`, and :meth:`participants` if devices are not sampled
    uniformly. With ``wants_coefficients`` the updates must be sums of directions. With
    ``wants_shared_directions`` it needs the same directions on all devices. Without
    ``carries_values`` it sends no losses, as searches need. With ``secure`` the server receives
    sums of all devices only. If ``downlink`` is ``log``, nodes that replay the run receive
    coefficients in place of the model.
    """

    wants_coefficients: ClassVar[bool] = False
    wants_shared_directions: ClassVar[bool] = False
    carries_values: ClassVar[bool] = True
    downlink: str = "log"
    secure: bool = False
    loss_clip: float = math.inf

    def check(self, setting: RunSetting) -> None:
        """Raise unless the settings suit the run; called before the first round."""

    def participants(self, t: int, wanted: int | None, setting: RunSetting) -> Array:
        """Return M_t, the devices of round t, sorted; ``wanted`` is M, None for all."""
        return sample_uniformly(t, wanted, setting)

    def broadcast(self, t: int, x: Array, devices: Array, setting: RunSetting) -> Array:
        """Return the model as the devices receive it, shape (d,), or (M, d) if it differs."""
        return x

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t, the mean update as the server receives it: an array or a DirectionSum."""
        raise NotImplementedError

    def compress(
        self, updates: list[Update], task: LocalSteps, setting: RunSetting
    ) -> list[Update]:
        """Return a minimal list of updates with the same aggregate.

        The server sends it to nodes that replay the round. By default all updates are needed; with
        shared directions one is enough.
        """
        return updates

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Return the weighted mean of the devices' values, and the cost of sending them as float64.

        The mean is NaN if no device replied.
        """
        task, total, weight, sent = updates.task, np.zeros(1), 0.0, 0
        for update in updates:
            assert update.values is not None
            total = total + update.weight * update.values
            weight, sent = weight + update.weight, sent + update.values.nbytes
        mean = total / weight if weight else np.full(task.size, np.nan)
        return mean, UplinkInfo(sent, updates.count * task.nbytes, sent // 8)


def sample_uniformly(t: int, wanted: int | None, setting: RunSetting, task: int = 0) -> Array:
    """Return M of the N devices, uniformly, without replacement; ``task`` is its index."""
    n = setting.devices
    return Draws(setting.seed, Stream.PARTICIPANTS, round=t, task=task).subset(n, wanted or n)


@dataclass(frozen=True)
class Ideal(Uplink):
    """Uniform sampling of M devices, and the mean of their updates (Algorithm 1).

    Each participant receives the model and sends its update: d numbers each, in the model's
    precision. Over the air this is conventional orthogonal access: the devices use the channel one
    after another, d symbols each.

    Parameters
    ----------
    radio : Radio, optional
        Report ``energy``, ``seconds_on_air`` and ``joules``, as if every symbol carried one number
        at full power without errors.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.engine import LocalEngine
    >>> from fedzo.core.tasks import Replies, Update
    >>> from fedzo.problems import FunctionObjective
    >>> from fedzo.uplinks.base import RunSetting
    >>> engine = LocalEngine(FunctionObjective(lambda x, i: 0.0, 2, devices=9), seed=1)
    >>> setting = RunSetting(engine, Ideal())
    >>> Ideal().participants(0, 4, setting)
    array([2, 4, 5, 8])
    >>> updates = [Update(i, np.array([i, 1.0]), weight=1, queries=3) for i in (0, 2)]
    >>> delta, info = Ideal().aggregate(0, Replies(updates), setting)
    >>> delta, info.uplink_bytes, info.channel_uses
    (array([1., 1.]), 32, 4)
    """

    radio: Radio | None = field(default=None, kw_only=True)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t = 1/M sum_i Δ_i^t, or the weighted mean where weights differ."""
        mean, sent = UpdateMean(setting.dim), 0
        for update in updates:
            mean.add(update.delta, update.weight)
            sent += update.delta.nbytes
        costs = full_power(self.radio, updates.count, setting.dim)
        return mean.value(), UplinkInfo(sent, sent, updates.count * setting.dim, costs)


def sending_costs(radio: Radio | None, uses: float, sent: float) -> dict[str, float]:
    """Return the time that the channel is in use, and the energy of all devices.

    ``sent`` is the energy in units of P times the duration of a symbol.

    >>> sending_costs(Radio(bandwidth_hz=1e6, power_dbm=30.0), uses=100, sent=50.0)
    {'seconds_on_air': 0.0001, 'joules': 5e-05}
    """
    if radio is None:
        return {}
    return {"seconds_on_air": radio.seconds(uses), "joules": radio.watts * radio.seconds(sent)}


def full_power(radio: Radio | None, devices: int, numbers: int) -> dict[str, float]:
    """Return what devices spend that send one number per symbol, one after another."""
    uses = devices * numbers
    return {"energy": float(devices), **sending_costs(radio, uses, uses)} if radio else {}
