# The public names, and the file of each; lazy_loader and type checkers read this list.

from .fading import CHANNELS as CHANNELS
from .fading import Cell as Cell
from .fading import Channel as Channel
from .fading import Fixed as Fixed
from .fading import Jakes as Jakes
from .fading import Rayleigh as Rayleigh
from .fading import Rician as Rician
from .fading import complex_normals as complex_normals
from .power import POLICIES as POLICIES
from .power import FullInversion as FullInversion
from .power import LeastNoise as LeastNoise
from .power import PowerControl as PowerControl
from .power import TruncatedInversion as TruncatedInversion
from .radio import RADIOS as RADIOS
from .radio import Radio as Radio
