r"""Server optimizers: the server's rule for the mean update.

The paper's server adds it, :math:`x^{t+1} = x^t + \Delta^t` (:class:`Mean`). Others use it as a
gradient estimate, as optax's optimizers do: a pure function of the state, the model and the update.
"""

from fedzo.algorithms.server.base import ServerOptimizer
from fedzo.algorithms.server.fourier_sign import FourierSign
from fedzo.algorithms.server.optimizers import (
    Adagrad,
    Adam,
    HiSo,
    Mean,
    Momentum,
    Normalised,
    Sign,
    SignMomentum,
    Yogi,
)

__all__ = [
    "Adagrad",
    "Adam",
    "FourierSign",
    "HiSo",
    "Mean",
    "Momentum",
    "Normalised",
    "ServerOptimizer",
    "Sign",
    "SignMomentum",
    "Yogi",
]
