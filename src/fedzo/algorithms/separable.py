r"""Sums of functions of single numbers: each number is searched along its own line.

Where :math:`f(x) = \sum_j f_j(x_j)`, all that f knows of a coordinate is seen on one line, and a
line can be searched everywhere, however many minima it has. Whether f is such a sum is told by
moves δ split into two parts, a and b: :math:`f(x + a + b) - f(x + a) = f(x + b) - f(x)`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.asking import EPS, Account, Question

Array = NDArray[Any]

LEAST = 40  # values on a line, for it to be searched
REACH = 5.0  # how far a line goes, in units of the scale
_GRID, _ZOOMS, _NEAR = 0.6, 4, 12  # share of a line's values; finer and finer grids of so many


def is_separable(account: Account, scale: Array) -> Generator[Question, Array, bool]:
    """Return whether f is a sum of functions of single numbers, to rounding, around the best x."""
    x, fun = account.x, account.fun
    for _ in range(3):
        draws = account.draw().uniform(2 * account.dim)
        move = 2 * scale * (2 * draws[: account.dim] - 1)
        part = np.where(draws[account.dim :] < 0.5, move, 0.0)
        values = yield from account.values(np.array([x + move, x + part, x + move - part]))
        both, one, other = values
        rounding = 1000 * EPS * float(np.max(np.abs([*values, fun])))
        visible = max(rounding, 1e-9 * float(np.ptp([*values, fun])))
        if not abs(both - one - other + fun) <= visible:
            return False
    return True


def search_lines(
    account: Account, scale: Array, queries: float
) -> Generator[Question, Array, bool]:
    """Search the line of each coordinate in turn; return whether the queries were enough for it."""
    each = int(queries / (account.dim * account.devices))
    if each < LEAST:
        return False
    for j in range(account.dim):
        low, high = account.x[j] - REACH * scale[j], account.x[j] + REACH * scale[j]
        count = max(int(_GRID * each), each - 1000)
        for _ in range(_ZOOMS):
            grid = np.linspace(low, high, count)
            points = np.repeat(account.x[None], count, axis=0)
            points[:, j] = grid
            values = yield from account.values(points)
            centre, width = grid[int(np.argmin(values))], grid[1] - grid[0]
            low, high, count = centre - width, centre + width, _NEAR
    return True
