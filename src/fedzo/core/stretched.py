"""A problem seen from a model in stretched coordinates."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fedzo.core.objective import Objective
from fedzo.core.random import Draws

Array = NDArray[Any]


class Stretched(Objective):
    r"""What one device is asked for in a round whose directions are stretched: F_i(x + s y).

    In y a step along v is a step of s v in x, so an algorithm that knows nothing of s takes the
    stretched steps.

    Parameters
    ----------
    objective : Objective
        F.
    x : array
        Where y = 0 is.
    stretch : array
        s, a factor for each number.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems.function import FunctionObjective
    >>> square = FunctionObjective(lambda x, device: x @ x, dim=2, devices=1)
    >>> seen = Stretched(square, np.array([1.0, 0.0]), np.array([2.0, 0.5]))
    >>> seen.values(np.array([[0.0, 0.0], [1.0, 2.0]]), seen.batch(0, 1, None))  # (1, 0), (3, 1)
    array([[ 1.],
           [10.]])
    """

    def __init__(self, objective: Objective, x: Array, stretch: Array) -> None:
        self.objective, self.x, self.stretch = objective, x, stretch.astype(x.dtype)
        self.dim, self.devices = objective.dim, objective.devices

    def batch(self, device: int, size: int, draws: Draws) -> Any:
        """Return what the problem draws."""
        return self.objective.batch(device, size, draws)

    def values(self, points: Array, batch: Any) -> Array:
        """Return the values at x + s y."""
        return self.objective.values(self.x + self.stretch * points, batch)

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
    ) -> Array:
        """Return the values along stretched directions, in the problem's quickest way."""
        start, stretched = self.x + self.stretch * x, self.stretch * directions
        return self.objective.values_along(start, stretched, rows, steps, batch)

    def losses(self, x: Array, devices: Array) -> Array:
        """Return the losses at x + s y."""
        return self.objective.losses(self.x + self.stretch * x, devices)

    def size(self, device: int) -> int:
        """Return how many samples a device holds."""
        return self.objective.size(device)
