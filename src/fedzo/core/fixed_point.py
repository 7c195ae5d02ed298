"""Numbers on a grid of fixed step, whose sums are exact in any order.

Differential privacy and secure sums use the same grid: 2^-40 of the bound, or a little more. A
number on it is a whole number of steps, so a sum of many is exact and does not depend on the order
or on how devices are split among nodes.
"""

import math

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import UsageError

GRID_BITS = 40  # a number within the bound is at most 2^40 steps
SLACK = 1 - 2.0**-36  # for the rounding errors of a length over as many as 10^5 numbers
MOST_WEIGHT = 2**22  # of all devices in a sum, which then fits into 63 bits


def grid_step(bound: float) -> float:
    """Return the step of the grid on which clipped values are summed: 2^-40 of the bound or more.

    It is a power of two, so all who have the same bound have the same grid.

    >>> grid_step(0.01) == 2.0**-46
    True
    """
    return 2.0 ** (math.ceil(math.log2(bound)) - GRID_BITS)


def to_grid(numbers: Array, bound: float) -> tuple[Array, bool]:
    """Return the nearest points of the grid as int64, and whether the numbers had to be clipped.

    They are clipped together, to a length of at most ``bound``. Without clipping, each number
    changes by at most half a step.

    >>> numbers, clipped = to_grid(np.array([3.0, 4.0]), bound=10.0)
    >>> numbers * grid_step(10.0), clipped
    (array([3., 4.]), False)
    >>> numbers, clipped = to_grid(np.array([30.0, 40.0]), bound=10.0)
    >>> (numbers * grid_step(10.0)).round(6), clipped
    (array([6., 8.]), True)
    """
    exact = np.asarray(numbers, np.float64)
    peak = max(float(np.abs(exact).max(initial=0.0)), bound)  # whose square may overflow
    length = peak * float(np.linalg.norm(exact / peak))
    clipped = length > bound
    if clipped:
        exact = exact * (SLACK * bound / length)
    return np.rint(exact / grid_step(bound)).astype(np.int64), clipped


def grid_mean(total: Array, weight: float, bound: float) -> Array:
    """Return the mean of a sum of points of the grid, in float64.

    >>> grid_mean(np.array([3 * 2**40]), 2, bound=1.0)
    array([1.5])
    """
    if not 0 < weight <= MOST_WEIGHT:
        text = f"secure: weights of all devices are {weight:,.0f}, at most {MOST_WEIGHT:,} fit"
        raise UsageError(text + " into a sum; use weighting = 'uniform'", code="too-heavy")
    return np.asarray(total.astype(np.float64) * grid_step(bound) / weight)
