r"""Schedules of the learning rate: a factor for each round t.

A schedule multiplies the learning rate of the server optimizer if it has one, because Adam and its
relatives undo any factor of the local steps; else that of the local steps. ``fedzo.schedules`` has
the classes. In a configuration a schedule is a table::

    [algorithm.schedule]
    name = "cosine"
    rounds = 200
    warmup = 10
"""

import math
from dataclasses import dataclass

from fedzo.errors import Parameters, check_count, check_counts, require

__all__ = ["Constant", "Cosine", "Linear", "Schedule", "Step"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True, kw_only=True)
class Schedule(Parameters):
    """Base class: a custom schedule is a frozen dataclass that defines :meth:`decay`.

    Parameters
    ----------
    warmup : int
        Rounds in which the factor rises linearly to 1, before the schedule begins.
    """

    warmup: int = 0

    def __post_init__(self) -> None:
        check_count("warmup", self.warmup, least=0)

    def factor(self, t: int) -> float:
        """Return the factor of round t = 0, 1, ..."""
        if t < self.warmup:
            return (t + 1) / (self.warmup + 1)
        return self.decay(t - self.warmup)

    def decay(self, t: int) -> float:
        """Return the factor t rounds after the warm-up, > 0."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """No decay: for a warm-up alone.

    Examples
    --------
    >>> [round(Constant(warmup=2).factor(t), 2) for t in range(4)]
    [0.33, 0.67, 1.0, 1.0]
    """

    def decay(self, t: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class _Ends(Schedule):
    """A schedule from 1 to ``last`` in ``rounds`` rounds."""

    rounds: int
    last: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "rounds")
        require(0 < self.last <= 1, "last", self.last, "a number in (0, 1]")

    def decay(self, t: int) -> float:
        """Return the factor t rounds after the warm-up; ``last`` after the end."""
        left = max(self.rounds - self.warmup, 1)
        return self.last + (1 - self.last) * self.curve(min(t / left, 1.0))

    def curve(self, share: float) -> float:
        """Return a number that falls from 1 to 0 as the share of the rounds grows."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Cosine(_Ends):
    r"""Half a cosine wave: :math:`\ell + (1 - \ell) (1 + \cos(\pi t / T)) / 2`.

    Parameters
    ----------
    rounds : int
        The round in which the factor reaches ``last``, warm-up included.
    last : float
        ℓ, the last factor, in (0, 1].
    warmup : int
        See :class:`Schedule`.

    References
    ----------
    I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.

    Examples
    --------
    >>> [round(Cosine(rounds=4, last=0.1).factor(t), 2) for t in range(6)]
    [1.0, 0.87, 0.55, 0.23, 0.1, 0.1]
    """

    def curve(self, share: float) -> float:
        """Return half a cosine wave."""
        return (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True, kw_only=True)
class Linear(_Ends):
    """A straight line from 1 to ``last``; the parameters are those of :class:`Cosine`.

    Examples
    --------
    >>> [round(Linear(rounds=5, last=0.2, warmup=1).factor(t), 2) for t in range(7)]
    [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    """

    def curve(self, share: float) -> float:
        """Return a straight line."""
        return 1 - share


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """Multiply by ``gamma`` every ``every`` rounds; with ``every=1`` an exponential decay.

    Parameters
    ----------
    every : int
        Rounds between two steps.
    gamma : float
        The factor of a step, in (0, 1].
    warmup : int
        See :class:`Schedule`.

    Examples
    --------
    >>> [Step(every=2, gamma=0.5).factor(t) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "every")
        require(0 < self.gamma <= 1, "gamma", self.gamma, "a number in (0, 1]")

    def decay(self, t: int) -> float:
        """Return gamma to the power of the steps so far, at least the smallest normal number."""
        return max(float(self.gamma ** (t // self.every)), 1e-300)
