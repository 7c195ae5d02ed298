"""Momentum at the server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, ServerStep, check_share
from fedzo.errors import check_positive


@dataclass(frozen=True)
class Momentum(ServerStep):
    r"""Heavy ball at the server: what past rounds agree on adds up.

    .. math:: m^t = \beta m^{t-1} + \Delta^t, \qquad x^{t+1} = x^t + \eta_s m^t

    Parameters
    ----------
    rate : float
        η_s. Updates that stay the same are taken η_s / (1 - β) times.
    beta : float
        β in [0, 1).

    References
    ----------
    T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019.

    Examples
    --------
    >>> step = Momentum(beta=0.5)
    >>> x, kept = step.apply(0, step.init(np.zeros(1)), np.zeros(1), np.array([2.0]))
    >>> step.apply(1, kept, x, np.array([1.0]))[0]  # 2, and then 0.5 * 2 + 1
    array([4.])
    """

    rate: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_positive(self, "rate")
        check_share(self, "beta")

    def init(self, x0: Array) -> Kept:
        """Return m = 0."""
        return (np.zeros(x0.shape),)

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Add the sum of past updates, each β times what it was a round ago."""
        m = self.beta * kept[0] + delta
        return (x + self.rate * m).astype(x.dtype), (m,)
