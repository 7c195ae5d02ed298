"""Signs at the server, of the mean update or of its momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, ServerStep, check_share
from fedzo.errors import check_counts, check_positive


@dataclass(frozen=True)
class Sign(ServerStep):
    r"""Steps of one length in each number: only the signs of the mean update count.

    .. math:: x^{t+1} = x^t + \eta_s\, \mathrm{sign}(\Delta^t)

    Parameters
    ----------
    rate : float
        η_s, how far each number moves in a round.

    References
    ----------
    S. Liu, P.-Y. Chen, X. Chen and M. Hong, "signSGD via Zeroth-Order Oracle", ICLR 2019.

    Examples
    --------
    >>> Sign(rate=0.5).apply(0, (), np.ones(3), np.array([7.0, -0.1, 0.0]))[0]
    array([1.5, 0.5, 1. ])
    """

    rate: float = 0.01

    def __post_init__(self) -> None:
        check_positive(self, "rate")

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Move each number by ``rate``."""
        return (x + self.rate * np.sign(delta)).astype(x.dtype), kept


@dataclass(frozen=True)
class SignMomentum(ServerStep):
    r"""Signs of what past rounds agree on, in steps that get shorter.

    .. math:: m^t = \beta m^{t-1} + \Delta^t, \qquad x^{t+1} = x^t + \eta_t\, \mathrm{sign}(m^t),
              \qquad \eta_t = \eta_0 \left(\frac{\eta_T}{\eta_0}\right)^{\min(t / T,\, 1)}

    Parameters
    ----------
    rate, last_rate : float
        η_0 and η_T, how far each number moves in the first round, and from round T on.
    beta : float
        β in [0, 1).
    rounds : int
        T, those of the run.

    References
    ----------
    J. Bernstein, Y.-X. Wang, K. Azizzadenesheli and A. Anandkumar, "signSGD: Compressed
    Optimisation for Non-Convex Problems" (there Signum), ICML 2018.

    Examples
    --------
    >>> step = SignMomentum(rate=0.4, last_rate=0.1, beta=0.5, rounds=2)
    >>> x, kept = step.apply(0, step.init(np.zeros(1)), np.zeros(1), np.array([7.0]))
    >>> x, step.apply(1, kept, x, np.array([-1.0]))[0]  # by 0.4, and then, m = 2.5, by 0.2
    (array([0.4]), array([0.6]))
    """

    rate: float = 0.1
    last_rate: float = 0.01
    beta: float = 0.9
    rounds: int = 200

    def __post_init__(self) -> None:
        check_positive(self, "rate", "last_rate")
        check_share(self, "beta")
        check_counts(self, "rounds")

    def init(self, x0: Array) -> Kept:
        """Return m = 0."""
        return (np.zeros(x0.shape),)

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Move each number by η_t."""
        m = self.beta * kept[0] + delta
        return (x + self.rate_of(t) * np.sign(m)).astype(x.dtype), (m,)

    def rate_of(self, t: int) -> float:
        """Return η_t."""
        return float(self.rate * (self.last_rate / self.rate) ** min(t / self.rounds, 1.0))
