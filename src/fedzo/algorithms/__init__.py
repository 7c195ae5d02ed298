"""The algorithms, one page each, and the server steps they can be given.

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
