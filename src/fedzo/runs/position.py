"""How far a run has come: its round, the algorithm's state and what has been counted."""

from __future__ import annotations

from typing import Any, NamedTuple

from fedzo.algorithms import RoundInfo

COUNTED = ("participants", "queries", "uplink_bytes", "downlink_bytes", "channel_uses")


class Position(NamedTuple):
    """How far a run has come: replaced as a whole, so an interrupt never finds half a round."""

    round: int
    state: Any
    queries: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    channel_uses: int = 0
    energy: float | None = None  # None where the uplink does not know
    idle: int = 0  # rounds in which no device took part
    still: int = 0  # rounds in which devices took part, and the model did not move
    last: RoundInfo = RoundInfo(participants=0, queries=0)

    def moved(self, state: Any, info: RoundInfo, still: bool = False) -> Position:
        """Return the position one round on; what a round has counted may be NumPy's numbers."""
        counted: dict[str, Any] = {key: int(getattr(info, key)) for key in COUNTED}
        info = info._replace(**counted)
        return Position(
            self.round + 1,
            state,
            self.queries + info.queries,
            self.uplink_bytes + info.uplink_bytes,
            self.downlink_bytes + info.downlink_bytes,
            self.channel_uses + info.channel_uses,
            self.energy if info.energy is None else (self.energy or 0.0) + float(info.energy),
            self.idle + (info.participants == 0),
            self.still + (still and info.participants > 0),
            info,
        )

    @property
    def totals(self) -> dict[str, Any]:
        """The sums over all rounds so far, as a checkpoint has them."""
        sent = ("uplink_bytes", "downlink_bytes")
        sums = ("queries", *sent, "channel_uses", "energy", "idle", "still")
        return {key: getattr(self, key) for key in sums}
