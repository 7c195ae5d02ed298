"""What the run loop asks of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from fedzo.federation import Federation
from fedzo.uplink.base import Uplink

Array = NDArray[Any]


class RoundInfo(NamedTuple):
    """What a round did and cost: diagnostics, nothing that the next round needs."""

    participants: int
    queries: int
    uplink_bytes: int
    downlink_bytes: int
    metrics: Mapping[str, float] = {}


class Algorithm(Protocol):
    """A frozen dataclass: its fields are the hyper-parameters, named as in a configuration.

    What must persist from round to round, and only that, is in a state of the algorithm's
    own, a NamedTuple of arrays.
    """

    def init(self, x0: Array, federation: Federation) -> Any:
        """Return the state before round 0; raise if the federation cannot be worked with."""
        ...

    def round(
        self, t: int, state: Any, federation: Federation, uplink: Uplink
    ) -> tuple[Any, RoundInfo]:
        """Return the state after round t."""
        ...

    def model(self, state: Any) -> Array:
        """Return the global model x of a state."""
        ...
