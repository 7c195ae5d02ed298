"""What an algorithm may ask of an uplink."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.engine import Engine
from fedzo.core.fixed import SetMean
from fedzo.core.random import Draws, Stream
from fedzo.core.rebuilt import Rebuilt
from fedzo.core.streams import Combination
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.errors import InvalidValue

Array = NDArray[Any]


class UplinkInfo(NamedTuple):
    """What a round's messages cost, and what else the uplink has to tell.

    Attributes
    ----------
    uplink_bytes, downlink_bytes : int
        What was sent to the server, and to the devices.
    channel_uses : int
        How many symbols, of a number each, the devices took the channel for: the unit in which
        sending one after another and sending at once can be compared.
    energy : float or None
        What all devices sent with, in units of what one may spend in a round; None where the
        uplink has no notion of it.
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
    """A frozen dataclass: its fields are its settings, and it has no state.

    A subclass defines :meth:`aggregate`, and :meth:`participants` where devices are not sampled
    uniformly. ``wants_coefficients`` says that it can only send what is made of directions;
    without ``wants_updates`` it works on coefficients alone, and no update is rebuilt for it.
    """

    wants_coefficients: ClassVar[bool] = False
    wants_updates: ClassVar[bool] = True

    def participants(self, t: int, wanted: int | None, setting: RunSetting) -> Array:
        """Return M_t, the devices of round t, sorted; ``wanted`` is M, None for all."""
        return sample_uniformly(t, wanted, setting)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t, the server's view of the mean update: an array, or what makes one."""
        raise NotImplementedError

    def essence(self, updates: list[Update], task: LocalSteps) -> list[Update]:
        """Return the coefficients that :meth:`aggregate` makes the same of as of these updates.

        They are what others must be told to follow the server. Here it is all updates; where
        directions are shared, one update of their centre is enough.
        """
        return updates

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Return the mean of the values that devices replied, and what was sent."""
        kind = type(self).__name__
        raise InvalidValue("name", kind, "one that can send values, such as 'ideal'")


def sample_uniformly(t: int, wanted: int | None, setting: RunSetting, task: int = 0) -> Array:
    """Return M of the N devices, uniformly, without replacement; ``task`` is its index."""
    n = setting.devices
    return Draws(setting.seed, Stream.PARTICIPANTS, round=t, task=task).subset(n, wanted or n)


class Mean:
    """The mean of a stream of updates, uniform or by their weights.

    The sum runs in the order of the stream, which is that of the devices, and in float64, so
    it does not depend on who was quick. Of updates that are known by their coefficients the mean is
    too: it is not built here.
    """

    def __init__(self, dim: int) -> None:
        self._dim, self._shares = dim, 0.0
        self._total: Any = None  # an array, a Combination or a Rebuilt, as the updates are

    def add(self, update: Update) -> None:
        """Count an update in."""
        delta, weight = update.delta, update.weight
        self._shares += weight
        if isinstance(delta, Combination | Rebuilt) and not isinstance(self._total, np.ndarray):
            share = delta.scaled(weight)
            self._total = share if self._total is None else self._total + share
            return
        if not isinstance(self._total, np.ndarray):  # nothing yet, or what this is not made of
            self._total = np.zeros(self._dim) if self._total is None else np.array(self._total)
        delta = np.asarray(delta)
        self._total += delta if weight == 1 else weight * delta.astype(np.float64)

    def value(self) -> Any:
        """Return the mean; nothing, where nobody sent anything."""
        if self._total is None or not self._shares:
            return np.zeros(self._dim)
        if isinstance(self._total, Combination | Rebuilt):
            return self._total.divided(self._shares)
        return self._total / self._shares


def mean_of(task: LocalSteps | None, dim: int) -> Mean | SetMean:
    """Return what takes the mean of a round's updates, by what their directions are drawn from."""
    fixed = task is not None and task.algorithm.fixed_directions is not None
    return SetMean(task, dim) if fixed and task is not None else Mean(dim)


def mean_values(updates: Replies) -> tuple[Array, UplinkInfo]:
    """Return the mean of the devices' values, float64 numbers sent as they are.

    Where nobody answered, there is nothing to average: the values are NaN.
    """
    task = updates.task
    total: Array = np.zeros(1)
    shares, sent, count = 0.0, 0, 0
    for update in updates:
        assert update.values is not None
        total = total + update.weight * update.values
        shares += update.weight
        sent += update.values.nbytes
        count += update.values.size
    mean = total / shares if shares else np.full(task.size, np.nan)
    down = updates.count * task.nbytes
    return mean, UplinkInfo(uplink_bytes=sent, downlink_bytes=down, channel_uses=count)
