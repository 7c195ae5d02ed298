"""The algorithms, one page each, and the server steps they can be given.

An algorithm meets the world at two seams only: ``federation.map`` and the uplink. It knows nothing
of threads, files or progress. May import: uplinks and core.
"""

from fedzo.algorithms.adaptive import Adaptive
from fedzo.algorithms.base import Algorithm, RoundInfo
from fedzo.algorithms.dzopa import DZOPA
from fedzo.algorithms.fedavg import FedAvg
from fedzo.algorithms.fedzo import FedZO
from fedzo.algorithms.population import CMA, TPE
from fedzo.algorithms.quasi_newton import LBFGS
from fedzo.algorithms.server import (
    Adagrad,
    Adam,
    HiSo,
    Mean,
    Momentum,
    Normalised,
    ServerStep,
    Sign,
    SignMomentum,
    WaveSigns,
    Yogi,
)
from fedzo.algorithms.zo_sgd import ZOSGD
from fedzo.algorithms.zone_s import ZoneS

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedzo": FedZO,
    "zo_sgd": ZOSGD,
    "dzopa": DZOPA,
    "zone_s": ZoneS,
    "fedavg": FedAvg,
    "adaptive": Adaptive,
    "lbfgs": LBFGS,
    "cma": CMA,
    "tpe": TPE,
}

SERVER_STEPS: dict[str, type[ServerStep]] = {
    "mean": Mean,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
    "hiso": HiSo,
    "normalised": Normalised,
    "sign": Sign,
    "sign_momentum": SignMomentum,
    "wave_signs": WaveSigns,
}

__all__ = [
    "ALGORITHMS",
    "CMA",
    "DZOPA",
    "LBFGS",
    "SERVER_STEPS",
    "TPE",
    "ZOSGD",
    "Adaptive",
    "Algorithm",
    "FedAvg",
    "FedZO",
    "RoundInfo",
    "ServerStep",
    "SignMomentum",
    "WaveSigns",
    "ZoneS",
]
