"""The algorithms, one page each, and the server optimizers.

A round of an algorithm yields tasks and is sent replies. An algorithm knows nothing of threads,
files, progress or Flower. May import: uplinks and core.
"""

from fedzo.algorithms.base import Algorithm, RoundInfo
from fedzo.algorithms.dzopa import DZOPA
from fedzo.algorithms.fedavg import FedAvg
from fedzo.algorithms.fedzo import FedZO
from fedzo.algorithms.search import CMA, LBFGS, TPE, Adaptive
from fedzo.algorithms.server import (
    Adagrad,
    Adam,
    FourierSign,
    HiSo,
    Mean,
    Momentum,
    Normalised,
    ServerOptimizer,
    Sign,
    SignMomentum,
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

SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "mean": Mean,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
    "hiso": HiSo,
    "normalised": Normalised,
    "sign": Sign,
    "sign_momentum": SignMomentum,
    "fourier_sign": FourierSign,
}

__all__ = [
    "ALGORITHMS",
    "CMA",
    "DZOPA",
    "LBFGS",
    "SERVER_OPTIMIZERS",
    "TPE",
    "ZOSGD",
    "Adaptive",
    "Algorithm",
    "FedAvg",
    "FedZO",
    "FourierSign",
    "RoundInfo",
    "ServerOptimizer",
    "SignMomentum",
    "ZoneS",
]
