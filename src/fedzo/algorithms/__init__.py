"""The algorithms, one page each."""

from fedzo.algorithms.base import Algorithm, RoundInfo
from fedzo.algorithms.fedzo import FedZO

ALGORITHMS: dict[str, type[Algorithm]] = {"fedzo": FedZO}

__all__ = ["ALGORITHMS", "Algorithm", "FedZO", "RoundInfo"]
