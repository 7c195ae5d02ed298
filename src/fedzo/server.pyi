# The public names, and the file of each; lazy_loader and type checkers read this list.

from .algorithms.server.fourier_sign import FourierSign as FourierSign
from .algorithms.server.optimizers import Adagrad as Adagrad
from .algorithms.server.optimizers import Adam as Adam
from .algorithms.server.optimizers import Mean as Mean
from .algorithms.server.optimizers import Momentum as Momentum
from .algorithms.server.optimizers import Normalised as Normalised
from .algorithms.server.optimizers import ServerOptimizer as ServerOptimizer
from .algorithms.server.optimizers import SignMomentum as SignMomentum
from .algorithms.server.optimizers import Yogi as Yogi
