"""An error-free uplink: the server receives every update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedzo.core.tasks import Replies
from fedzo.core.types import Array
from fedzo.core.updates import UpdateMean
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo, mean_values


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
        uses = updates.count * setting.dim
        info = UplinkInfo(uplink_bytes=sent, downlink_bytes=sent, channel_uses=uses)
        return mean.value(), info

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Return the weighted mean of the values, each a number of eight bytes."""
        return mean_values(updates)
