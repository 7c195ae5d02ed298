"""Which devices take part in a round, and what the server receives of their updates.

With ``ideal`` it receives every update, with ``aircomp`` a noisy sum over the air, with ``seeds``
coefficients of directions. ``robust`` and ``robust_seeds`` tolerate a minority of bad devices. May
import: core.
"""

from fedzo.core.updates import UpdateMean
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
    "UpdateMean",
    "Uplink",
    "UplinkInfo",
]
