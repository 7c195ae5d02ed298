# The public names, and the file of each; lazy_loader and type checkers read this list.

from .aircomp import AirComp as AirComp
from .aircomp import AirCompSeeds as AirCompSeeds
from .base import Ideal as Ideal
from .base import UpdateMean as UpdateMean
from .base import Uplink as Uplink
from .base import UplinkInfo as UplinkInfo
from .digital import Digital as Digital
from .robust import Robust as Robust
from .robust import RobustSeeds as RobustSeeds
from .seeds import Seeds as Seeds
