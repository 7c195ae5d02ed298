"""What an algorithm may ask of an uplink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedzo.core.federation import Federation, Replies, Update
from fedzo.core.random import Draws, Stream

Array = NDArray[Any]


class UplinkInfo(NamedTuple):
    """What a round's messages cost, and what else the uplink has to tell.

    ``channel_uses`` is how many symbols, of a number each, the devices took the channel for:
    the unit in which sending one after another and sending at once can be compared.
    """

    uplink_bytes: int
    downlink_bytes: int
    channel_uses: int
    metrics: Mapping[str, Any] = {}


class Uplink(Protocol):
    """A frozen dataclass: its fields are its settings, and it has no state."""

    wants_coefficients: ClassVar[bool]  # whether it can only send what is made of directions

    def participants(self, t: int, wanted: int | None, federation: Federation) -> Array:
        """Return M_t, the devices of round t, sorted; ``wanted`` is M, None for all."""
        ...

    def aggregate(
        self, t: int, updates: Replies, federation: Federation
    ) -> tuple[Array, UplinkInfo]:
        """Return Δ^t, the server's view of the mean update."""
        ...


def sample_uniformly(t: int, wanted: int | None, federation: Federation) -> Array:
    """Return M of the N devices, uniformly, without replacement."""
    n = federation.devices
    return Draws(federation.seed, Stream.PARTICIPANTS, round=t).subset(n, wanted or n)


class Mean:
    """The mean of a stream of updates, uniform or by their weights.

    The sum runs in the order of the stream, which is that of the devices, and in float64, so
    it does not depend on who was quick.
    """

    def __init__(self, dim: int) -> None:
        self._total, self._shares = np.zeros(dim), 0.0

    def add(self, update: Update) -> None:
        """Count an update in."""
        delta = update.delta
        self._total += delta if update.weight == 1 else update.weight * delta.astype(np.float64)
        self._shares += update.weight

    def value(self) -> Array:
        """Return the mean; nothing, where nobody sent anything."""
        return self._total / self._shares if self._shares else self._total
