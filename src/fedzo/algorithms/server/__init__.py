r"""Server steps: what the server makes of the mean update that it hears.

The paper's server adds it, :math:`x^{t+1} = x^t + \Delta^t`. Others treat it as a gradient estimate
of their own: in the manner of optax, a step is a pure function of what it kept and what it hears.
A step may also ask for values at points of its own first: :meth:`ServerStep.trial`.
"""

from fedzo.algorithms.server.adam import Adagrad, Adam, Yogi
from fedzo.algorithms.server.base import Kept, ServerStep, Trial
from fedzo.algorithms.server.hiso import HiSo
from fedzo.algorithms.server.mean import Mean
from fedzo.algorithms.server.momentum import Momentum
from fedzo.algorithms.server.normalised import Normalised
from fedzo.algorithms.server.sign import Sign, SignMomentum
from fedzo.algorithms.server.wave_signs import WaveSigns

__all__ = [
    "Adagrad",
    "Adam",
    "HiSo",
    "Kept",
    "Mean",
    "Momentum",
    "Normalised",
    "ServerStep",
    "Sign",
    "SignMomentum",
    "Trial",
    "WaveSigns",
    "Yogi",
]
