"""Who takes part in a round, and what the server hears of their updates."""

from fedzo.uplink.aircomp import AirComp
from fedzo.uplink.base import Uplink, UplinkInfo
from fedzo.uplink.ideal import Ideal
from fedzo.uplink.seeds import Seeds

UPLINKS: dict[str, type[Uplink]] = {"ideal": Ideal, "aircomp": AirComp, "seeds": Seeds}

__all__ = ["UPLINKS", "AirComp", "Ideal", "Seeds", "Uplink", "UplinkInfo"]
