"""The algorithms, one page each."""

from fedzo.algorithms.base import Algorithm, RoundInfo
from fedzo.algorithms.dzopa import DZOPA
from fedzo.algorithms.fedavg import FedAvg
from fedzo.algorithms.fedzo import FedZO
from fedzo.algorithms.zo_sgd import ZOSGD
from fedzo.algorithms.zone_s import ZoneS

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedzo": FedZO,
    "zo_sgd": ZOSGD,
    "dzopa": DZOPA,
    "zone_s": ZoneS,
    "fedavg": FedAvg,
}

__all__ = ["ALGORITHMS", "DZOPA", "ZOSGD", "Algorithm", "FedAvg", "FedZO", "RoundInfo", "ZoneS"]
