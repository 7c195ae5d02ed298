r"""Server steps: what the server makes of the mean update that it hears.

The paper's server adds it, :math:`x^{t+1} = x^t + \Delta^t`. Others treat it as a gradient estimate
of their own: in the manner of optax, a step is a pure function of what it kept and what it hears.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.rebuilt import Rebuilt
from fedzo.core.streams import Combination
from fedzo.errors import check_counts, check_positive, require

Array = NDArray[Any]
Kept = tuple[Array, ...]


class ServerStep:
    """A frozen dataclass: its fields are its numbers; what it keeps is a tuple of arrays.

    Everything it keeps can be rebuilt from the updates that were heard, so whoever has the
    coefficients of all rounds can follow the server.
    """

    def init(self, x0: Array) -> Kept:
        """Return what is kept before round 0."""
        return ()

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Return x^{t+1} and what is kept after round t, from the mean update Δ^t."""
        raise NotImplementedError

    def take(self, t: int, kept: Kept, x: Array, delta: Any) -> tuple[Array, Kept]:
        """Do the same from a mean update that may not have been built yet."""
        return self.apply(t, kept, x, np.asarray(delta))


@dataclass(frozen=True)
class Mean(ServerStep):
    r"""The paper's server: :math:`x^{t+1} = x^t + \Delta^t`.

    Examples
    --------
    >>> import numpy as np
    >>> Mean().apply(0, (), np.array([1.0, 2.0]), np.array([0.5, -1.0]))
    (array([1.5, 1. ]), ())
    """

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Add the mean update, in the precision that it is summed in."""
        return (x + delta).astype(x.dtype), kept

    def take(self, t: int, kept: Kept, x: Array, delta: Any) -> tuple[Array, Kept]:
        """Add it as it is drawn, where it is known by its coefficients: it is never built."""
        if isinstance(delta, Combination | Rebuilt):
            return delta.moved(x), kept
        return self.apply(t, kept, x, delta)


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


@dataclass(frozen=True)
class Normalised(ServerStep):
    r"""Steps of one length: only the direction of the mean update counts.

    .. math:: x^{t+1} = x^t + \eta_s \frac{\Delta^t}{\lVert \Delta^t \rVert}

    FZOO divides by the spread of the losses along its directions. To first order that spread is
    μ ||∇f|| / sqrt(d), so dividing by the norm is the same rule, from what the server hears.

    Parameters
    ----------
    rate : float
        η_s, how far the model moves in a round.

    References
    ----------
    S. Dang et al., "FZOO: Fast Zeroth-Order Optimizer for Fine-Tuning Large Language Models towards
    Adam-Scale Speed", 2025.

    Examples
    --------
    >>> Normalised(rate=10.0).apply(0, (), np.zeros(2), np.array([0.3, -0.4]))[0]
    array([ 6., -8.])
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "rate")

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Move by ``rate`` along the mean update; nowhere, where that is zero."""
        length = float(np.linalg.norm(delta))
        return (x + (self.rate / length if length else 0.0) * delta).astype(x.dtype), kept


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
        rate = self.rate * (self.last_rate / self.rate) ** min(t / self.rounds, 1.0)
        return (x + rate * np.sign(m)).astype(x.dtype), (m,)


def check_share(settings: object, *keys: str) -> None:
    """Raise unless these settings are numbers in [0, 1).

    >>> Momentum(beta=1.0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: beta = 1.0: must be a number in [0, 1)
    """
    for key in keys:
        value = getattr(settings, key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number and 0 <= value < 1, key, value, "a number in [0, 1)")
