"""What the run loop asks of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from fedzo.core.federation import Federation
from fedzo.errors import InvalidValue, nearest, one_of, require
from fedzo.uplinks.base import Uplink
from fedzo.uplinks.ideal import Ideal

Array = NDArray[Any]


class RoundInfo(NamedTuple):
    """What a round did and cost: diagnostics, nothing that the next round needs."""

    participants: int
    queries: int
    uplink_bytes: int
    downlink_bytes: int
    channel_uses: int = 0
    metrics: Mapping[str, Any] = {}  # its numbers go into the history


class ModelState(NamedTuple):
    """The state of an algorithm that carries nothing but the global model."""

    x: Array  # x^t


class Algorithm(Protocol):
    """A frozen dataclass: its fields are the hyper-parameters, named as in a configuration.

    What must persist from round to round, and only that, is in a state of the algorithm's
    own, a NamedTuple of arrays.
    """

    def init(self, x0: Array, federation: Federation, uplink: Uplink) -> Any:
        """Return the state before round 0; raise if this cannot work together."""
        ...

    def round(
        self, t: int, state: Any, federation: Federation, uplink: Uplink
    ) -> tuple[Any, RoundInfo]:
        """Return the state after round t."""
        ...

    def model(self, state: Any) -> Array:
        """Return the global model x of a state."""
        ...


def check_participants(wanted: int | None, federation: Federation) -> None:
    """Raise unless so many devices can take part in a round."""
    if wanted is not None:
        allowed = f"at most the number of devices, {federation.devices}"
        require(wanted <= federation.devices, "participants", wanted, allowed)


WEIGHTINGS = ("uniform", "size")


def check_weighting(weighting: str, federation: Federation | None = None) -> None:
    """Raise unless updates can be weighted in this way, in this federation."""
    if weighting not in WEIGHTINGS:
        allowed = one_of(WEIGHTINGS) + nearest(weighting, WEIGHTINGS)
        raise InvalidValue("weighting", weighting, allowed)
    if federation is not None and weighting == "size" and not federation.offers("size"):
        raise InvalidValue("weighting", "size", "'uniform': the problem tells no device sizes")


def check_no_uplink(name: str, uplink: Uplink) -> None:
    """Raise unless the uplink is the ideal one, for algorithms that do not send through it."""
    if not isinstance(uplink, Ideal):
        allowed = f"one that sends its updates through an uplink, to use {type(uplink).__name__}"
        raise InvalidValue("name", name, allowed)
