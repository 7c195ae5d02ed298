"""The paper's theory as a tool: what it promises for given constants, and how to measure them.

Bounds, the corollaries' choices and estimates of the constants, each by its equation's number. May
import: algorithms and what lies below it.
"""

from fedzo.theory.advice import (
    LocalSteps,
    Steps,
    best_local_steps,
    best_steps,
    corollary,
    largest_local_steps,
    orders_of_local_steps,
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
from fedzo.theory.table import Rate, table_one

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
