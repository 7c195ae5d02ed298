"""The base class of uplinks, and the parts that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedzo.core.engine import Engine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.core.updates import UpdateMean as UpdateMean  # noqa: PLC0414 - public here


class UplinkInfo(NamedTuple):
    """The cost of a round's messages, and further numbers of the uplink.

    Attributes
    ----------
    uplink_bytes, downlink_bytes : int
        Bytes sent to the server, and to the devices.
    channel_uses : int
        Symbols, of one number each, for which the devices use the channel. In this unit, sending
        one after another and sending at once can be compared.
    energy : float or None
        The energy that all devices spend on sending, in units of a device's budget per round; None
        if the uplink does not model it.
    metrics : mapping
        Further numbers for the history.
    """

    uplink_bytes: int
    downlink_bytes: int
    channel_uses: int
    energy: float | None = None
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
    scale : array, optional
        The problem's typical length of each coordinate of x.
    scratch : dict
        Memory that is never saved, such as a suspended search. The state of the algorithm must be
        enough to rebuild it.
    """

    def __init__(self, engine: Engine, uplink: Uplink) -> None:
        self.seed, self.dim, self.devices = engine.seed, engine.dim, engine.devices
        self.engine, self.uplink, self.scale = engine, uplink, engine.scale
        self.scratch: dict[str, Any] = {}

    def provides(self, kind: type[Any]) -> bool:
        """Return whether the problem has a capability, such as ``HasGradient``."""
        return self.engine.provides(kind)

    @property
    def sending_updates(self) -> set[int]:
        """Devices that send whole updates although the uplink takes coefficients."""
        return self.engine.sending_updates

    @property
    def queries_left(self) -> float:
        """Number of queries left in the budget, after those of the evaluations to come."""
        meter = self.engine.meter
        if meter is None or meter.max_queries is None:
            return math.inf
        reserved = meter.evaluations * self.engine.evaluation_cost
        return float(meter.max_queries - meter.queries - reserved)


class Uplink:
    """A frozen dataclass without a state: its fields are its settings.

    A subclass defines :meth:`aggregate`, and :meth:`participants` if devices are not sampled
    uniformly. With ``wants_coefficients`` the updates must be sums of directions. Without
    ``wants_updates`` the uplink uses coefficients only, and no update is rebuilt for it. If
    ``downlink`` is ``log``, nodes that replay the run receive coefficients in place of the model.
    """

    wants_coefficients: ClassVar[bool] = False
    wants_updates: ClassVar[bool] = True
    downlink: str = "log"

    def participants(self, t: int, wanted: int | None, setting: RunSetting) -> Array:
        """Return M_t, the devices of round t, sorted; ``wanted`` is M, None for all."""
        return sample_uniformly(t, wanted, setting)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t, the mean update as the server receives it: an array or a DirectionSum."""
        raise NotImplementedError

    def compress(self, updates: list[Update], task: LocalSteps) -> list[Update]:
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

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t = 1/M sum_i Δ_i^t, or the weighted mean where weights differ."""
        mean, sent = UpdateMean(setting.dim), 0
        for update in updates:
            mean.add(update.delta, update.weight)
            sent += update.delta.nbytes
        return mean.value(), UplinkInfo(sent, sent, channel_uses=updates.count * setting.dim)
