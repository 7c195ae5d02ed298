"""Federated optimisation from loss values only.

``import fedzo`` is quick: each name below is fetched from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedzo._version import __version__

if TYPE_CHECKING:
    from fedzo.algorithms import DZOPA, ZOSGD, FedAvg, FedZO, ZoneS
    from fedzo.attack import UniversalAttack
    from fedzo.objective import Objective
    from fedzo.perturbation import Perturbation
    from fedzo.result import Progress, Result, Status
    from fedzo.run import minimize
    from fedzo.uplink import AirComp, Ideal, Seeds

_HOME = {
    "AirComp": "fedzo.uplink",
    "DZOPA": "fedzo.algorithms",
    "FedAvg": "fedzo.algorithms",
    "FedZO": "fedzo.algorithms",
    "Ideal": "fedzo.uplink",
    "Objective": "fedzo.objective",
    "Perturbation": "fedzo.perturbation",
    "Progress": "fedzo.result",
    "Result": "fedzo.result",
    "Seeds": "fedzo.uplink",
    "Status": "fedzo.result",
    "UniversalAttack": "fedzo.attack",
    "ZOSGD": "fedzo.algorithms",
    "ZoneS": "fedzo.algorithms",
    "minimize": "fedzo.run",
}

__all__ = [
    "DZOPA",
    "ZOSGD",
    "AirComp",
    "FedAvg",
    "FedZO",
    "Ideal",
    "Objective",
    "Perturbation",
    "Progress",
    "Result",
    "Seeds",
    "Status",
    "UniversalAttack",
    "ZoneS",
    "__version__",
    "minimize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedzo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
