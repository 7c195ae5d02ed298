# The public names, and the file of each; lazy_loader and type checkers read this list.

from .fourier_sign import FourierSign as FourierSign
from .optimizers import Adagrad as Adagrad
from .optimizers import Adam as Adam
from .optimizers import Mean as Mean
from .optimizers import Momentum as Momentum
from .optimizers import Normalised as Normalised
from .optimizers import ServerOptimizer as ServerOptimizer
from .optimizers import SignMomentum as SignMomentum
from .optimizers import Yogi as Yogi
