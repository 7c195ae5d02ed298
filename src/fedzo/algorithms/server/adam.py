"""Adam at the server, and its relatives: one rule, three second moments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, ServerStep, check_share
from fedzo.errors import check_positive


@dataclass(frozen=True)
class Adam(ServerStep):
    r"""Adam at the server: each number moves by the size of its update relative to its usual size.

    .. math:: m^t = \beta_1 m^{t-1} + (1 - \beta_1) \Delta^t, \qquad
              v^t = \beta_2 v^{t-1} + (1 - \beta_2) (\Delta^t)^2, \qquad
              x^{t+1} = x^t + \eta_s \frac{\hat m^t}{\sqrt{\hat v^t} + \tau}

    with :math:`\hat m^t = m^t / (1 - \beta_1^{t+1})` and
    :math:`\hat v^t = v^t / (1 - \beta_2^{t+1})`, which are not biased towards the zeros they began
    with. The learning rate of local steps only says how far devices move between two meetings; η_s
    is in the units of x.

    Parameters
    ----------
    rate : float
        η_s, about how far each number moves in a round.
    beta_1, beta_2 : float
        β_1 and β_2 in [0, 1).
    floor : float
        τ, an update that counts as none.

    References
    ----------
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021. D. P. Kingma and J. Ba,
    "Adam: A Method for Stochastic Optimization", ICLR 2015.

    Examples
    --------
    The first step has the length η_s in each number, whatever the units of the updates:

    >>> step = Adam(rate=0.1)
    >>> x, kept = step.apply(0, step.init(np.zeros(2)), np.zeros(2), np.array([5.0, -0.001]))
    >>> x.round(6)
    array([ 0.1, -0.1])
    """

    rate: float = 0.03
    beta_1: float = 0.9
    beta_2: float = 0.99
    floor: float = 1e-12

    def __post_init__(self) -> None:
        check_positive(self, "rate", "floor")
        check_share(self, "beta_1", "beta_2")

    def init(self, x0: Array) -> Kept:
        """Return m = v = 0."""
        return np.zeros(x0.shape), np.zeros(x0.shape)

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Move by the mean update over the root of its mean square."""
        m = self.beta_1 * kept[0] + (1 - self.beta_1) * delta
        v = self.second_moment(kept[1], np.square(delta, dtype=np.float64))
        mean = m / (1 - self.beta_1 ** (t + 1))
        size = np.sqrt(self.unbiased(v, t)) + self.floor
        return (x + self.rate * mean / size).astype(x.dtype), (m, v)

    def second_moment(self, v: Array, square: Array) -> Array:
        """Return v^t from v^{t-1} and (Δ^t)²: where the relatives of Adam differ."""
        return self.beta_2 * v + (1 - self.beta_2) * square

    def unbiased(self, v: Array, t: int) -> Array:
        """Return v̂^t."""
        return v / (1 - self.beta_2 ** (t + 1))


@dataclass(frozen=True)
class Yogi(Adam):
    r"""Yogi at the server: as :class:`Adam`, but v falls as slowly as it rises.

    .. math:: v^t = v^{t-1} - (1 - \beta_2)\, (\Delta^t)^2\, \mathrm{sign}(v^{t-1} - (\Delta^t)^2)

    References
    ----------
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

    Examples
    --------
    >>> Yogi(beta_2=0.75).second_moment(np.array([9.0]), np.array([4.0]))  # Adam: 7.75
    array([8.])
    """

    def second_moment(self, v: Array, square: Array) -> Array:
        """Change v by (1 - β_2) (Δ^t)² towards (Δ^t)²."""
        return np.asarray(v - (1 - self.beta_2) * square * np.sign(v - square))


@dataclass(frozen=True)
class Adagrad(Adam):
    r"""Adagrad at the server: as :class:`Adam`, but v is the sum, so steps get shorter.

    .. math:: v^t = v^{t-1} + (\Delta^t)^2

    References
    ----------
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

    Examples
    --------
    >>> step = Adagrad(rate=1.0, beta_1=0.0)
    >>> x, kept = step.apply(0, step.init(np.zeros(1)), np.zeros(1), np.array([3.0]))
    >>> x, step.apply(1, kept, np.zeros(1), np.array([4.0]))[0]  # 3/3, and 4/5
    (array([1.]), array([0.8]))
    """

    def second_moment(self, v: Array, square: Array) -> Array:
        """Add (Δ^t)²."""
        return v + square

    def unbiased(self, v: Array, t: int) -> Array:
        """Return v: a sum has no bias."""
        return v
