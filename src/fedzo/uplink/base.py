"""What an algorithm may ask of an uplink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from fedzo.federation import Federation, Replies

Array = NDArray[Any]


class UplinkInfo(NamedTuple):
    """What a round's messages cost, and what else the uplink has to tell."""

    uplink_bytes: int
    downlink_bytes: int
    metrics: Mapping[str, float] = {}


class Uplink(Protocol):
    """A frozen dataclass: its fields are its settings, and it has no state."""

    def participants(self, t: int, wanted: int | None, federation: Federation) -> Array:
        """Return M_t, the devices of round t, sorted; ``wanted`` is M, None for all."""
        ...

    def aggregate(
        self, t: int, updates: Replies, federation: Federation
    ) -> tuple[Array, UplinkInfo]:
        """Return Δ^t, the server's view of the mean update."""
        ...
