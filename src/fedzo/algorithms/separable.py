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

from fedzo.algorithms.account import EPS, Account
from fedzo.algorithms.questions import Question

Array = NDArray[Any]

LEAST = 80  # values on a line, for it to be searched
REACH = 5.0  # how far a line goes, in units of the scale
_VALLEYS, _ZOOMS, _NEAR = 3, 2, 12  # of a grid that are looked into; finer grids; their values


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

        def look(grid: Array, j: int = j) -> Generator[Question, Array, Array]:
            points = np.repeat(account.x[None], len(grid), axis=0)
            points[:, j] = grid
            return (yield from account.values(points))

        reach, count = REACH * scale[j], each - (_VALLEYS + _ZOOMS) * _NEAR
        grid = np.linspace(account.x[j] - reach, account.x[j] + reach, count)
        width = grid[1] - grid[0]
        lowest = valleys((yield from look(grid)), _VALLEYS)
        near = np.linspace(-width, width, _NEAR)
        grid = (grid[lowest][:, None] + near).ravel()
        for _ in range(1 + _ZOOMS):
            values = yield from look(grid)
            near = near * 2 / _NEAR
            grid = grid[int(np.argmin(values))] + near
    return True


def valleys(values: Array, most: int) -> Array:
    """Return where values are lower than beside them, the lowest first.

    >>> valleys(np.array([3.0, 1.0, 2.0, 0.0, 5.0, 4.0]), most=2)
    array([3, 1])
    """
    padded = np.concatenate([[np.inf], values, [np.inf]])
    found = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    return found[np.argsort(values[found], kind="stable")][:most]
