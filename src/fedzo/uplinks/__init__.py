"""Who takes part in a round, and what the server hears of their updates.

``ideal`` hears every update, ``aircomp`` a noisy sum over the air, ``seeds`` coefficients of
directions; ``robust`` and ``robust_seeds`` do not believe a minority. May import: core.
"""

from fedzo.uplinks.aircomp import AirComp
from fedzo.uplinks.base import Uplink, UplinkInfo
from fedzo.uplinks.ideal import Ideal
from fedzo.uplinks.robust import Robust, RobustSeeds
from fedzo.uplinks.seeds import Seeds

UPLINKS: dict[str, type[Uplink]] = {
    "ideal": Ideal,
    "aircomp": AirComp,
    "seeds": Seeds,
    "robust": Robust,
    "robust_seeds": RobustSeeds,
}

__all__ = [
    "UPLINKS",
    "AirComp",
    "Ideal",
    "Robust",
    "RobustSeeds",
    "Seeds",
    "Uplink",
    "UplinkInfo",
]
