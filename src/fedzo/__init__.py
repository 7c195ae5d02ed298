"""Federated optimisation from loss values only.

``import fedzo`` is quick: each name below is fetched from its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedzo._version import __version__
from fedzo.lazily import fetched

if TYPE_CHECKING:
    from fedzo.algorithms import DZOPA, ZOSGD, FedAvg, FedZO, ZoneS
    from fedzo.as_scipy import scipy_method
    from fedzo.asktell import AskTell
    from fedzo.attack import UniversalAttack
    from fedzo.function import FunctionObjective
    from fedzo.objective import Objective
    from fedzo.perturbation import Perturbation
    from fedzo.progress import ProgressLine
    from fedzo.result import Progress, Result, Status
    from fedzo.run import minimize
    from fedzo.space import Float, Int, Space
    from fedzo.tuner import Tuned, tune
    from fedzo.uplink import AirComp, Ideal, Seeds

_HOME = {
    "AirComp": "fedzo.uplink",
    "AskTell": "fedzo.asktell",
    "DZOPA": "fedzo.algorithms",
    "FedAvg": "fedzo.algorithms",
    "FedZO": "fedzo.algorithms",
    "Float": "fedzo.space",
    "FunctionObjective": "fedzo.function",
    "Ideal": "fedzo.uplink",
    "Int": "fedzo.space",
    "Objective": "fedzo.objective",
    "Perturbation": "fedzo.perturbation",
    "Progress": "fedzo.result",
    "ProgressLine": "fedzo.progress",
    "Result": "fedzo.result",
    "Seeds": "fedzo.uplink",
    "Space": "fedzo.space",
    "Status": "fedzo.result",
    "Tuned": "fedzo.tuner",
    "UniversalAttack": "fedzo.attack",
    "ZOSGD": "fedzo.algorithms",
    "ZoneS": "fedzo.algorithms",
    "minimize": "fedzo.run",
    "scipy_method": "fedzo.as_scipy",
    "tune": "fedzo.tuner",
}

__all__ = [
    "DZOPA",
    "ZOSGD",
    "AirComp",
    "AskTell",
    "FedAvg",
    "FedZO",
    "Float",
    "FunctionObjective",
    "Ideal",
    "Int",
    "Objective",
    "Perturbation",
    "Progress",
    "ProgressLine",
    "Result",
    "Seeds",
    "Space",
    "Status",
    "Tuned",
    "UniversalAttack",
    "ZoneS",
    "__version__",
    "minimize",
    "scipy_method",
    "tune",
]


__getattr__ = fetched(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
