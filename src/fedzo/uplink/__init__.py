"""Who takes part in a round, and what the server hears of their updates."""

from fedzo.uplink.base import Uplink, UplinkInfo
from fedzo.uplink.ideal import Ideal

UPLINKS: dict[str, type[Uplink]] = {"ideal": Ideal}

__all__ = ["UPLINKS", "Ideal", "Uplink", "UplinkInfo"]
