"""Federated optimisation from loss values only.

``import fedzo`` is quick: each name below is fetched from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedzo._version import __version__

if TYPE_CHECKING:
    from fedzo.algorithms import FedZO
    from fedzo.objective import Objective
    from fedzo.run import Progress, Result, Status, minimize
    from fedzo.uplink import Ideal

_HOME = {
    "FedZO": "fedzo.algorithms",
    "Ideal": "fedzo.uplink",
    "Objective": "fedzo.objective",
    "Progress": "fedzo.run",
    "Result": "fedzo.run",
    "Status": "fedzo.run",
    "minimize": "fedzo.run",
}

__all__ = [
    "FedZO",
    "Ideal",
    "Objective",
    "Progress",
    "Result",
    "Status",
    "__version__",
    "minimize",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedzo' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
