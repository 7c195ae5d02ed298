"""The paper's theory as a tool: guarantees for given constants, and how to measure the constants.

Bounds, the choices of the corollaries, and estimates of the constants, by their equation numbers.
May import: algorithms and the rooms below it.
"""

from fedzo.theory.advice import (
    LocalSteps,
    Rate,
    Steps,
    best_local_steps,
    best_steps,
    corollary,
    largest_local_steps,
    orders_of_local_steps,
    table_one,
)
from fedzo.theory.bounds import (
    Bound,
    Constants,
    Limit,
    Moments,
    Setting,
    Term,
    bound,
    limit,
    moments,
)
from fedzo.theory.estimate import Estimate, estimate
from fedzo.theory.report import Report, report

__all__ = [
    "Bound",
    "Constants",
    "Estimate",
    "Limit",
    "LocalSteps",
    "Moments",
    "Rate",
    "Report",
    "Setting",
    "Steps",
    "Term",
    "best_local_steps",
    "best_steps",
    "bound",
    "corollary",
    "estimate",
    "largest_local_steps",
    "limit",
    "moments",
    "orders_of_local_steps",
    "report",
    "table_one",
]
