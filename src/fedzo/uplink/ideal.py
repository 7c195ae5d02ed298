"""An error-free uplink: the server hears every update as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.federation import Federation, Replies
from fedzo.random import Draws, Stream
from fedzo.uplink.base import UplinkInfo

Array = NDArray[Any]


@dataclass(frozen=True)
class Ideal:
    """Uniform sampling of M devices, and the mean of what they send (Algorithm 1).

    A message is the d numbers of the model or of an update in the model's precision; each
    participant is sent the model and sends its update.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.federation import LocalFederation, Replies, Update
    >>> from fedzo.objective import FunctionObjective
    >>> federation = LocalFederation(FunctionObjective(lambda x, i: 0.0, 2, devices=9), seed=1)
    >>> Ideal().participants(0, 4, federation)
    array([0, 2, 5, 8])
    >>> updates = [Update(i, np.array([i, 1.0]), weight=1, queries=3) for i in (0, 2)]
    >>> delta, info = Ideal().aggregate(0, Replies(updates), federation)
    >>> delta, info.uplink_bytes
    (array([1., 1.]), 32)
    """

    def participants(self, t: int, wanted: int | None, federation: Federation) -> Array:
        """Return M of the N devices, uniformly, without replacement."""
        devices = federation.devices
        return Draws(federation.seed, Stream.PARTICIPANTS, round=t).subset(
            devices, wanted or devices
        )

    def aggregate(
        self, t: int, updates: Replies, federation: Federation
    ) -> tuple[Array, UplinkInfo]:
        """Return Δ^t = 1/M sum_i Δ_i^t, or the weighted mean where weights differ.

        The sum runs in device order and in float64, so it does not depend on who was quick.
        """
        total, shares, sent = np.zeros(federation.dim), 0.0, 0
        for update in updates:
            total += update.delta if update.weight == 1 else update.weight * update.delta
            shares += update.weight
            sent += update.delta.nbytes
        return total / shares, UplinkInfo(uplink_bytes=sent, downlink_bytes=sent)
