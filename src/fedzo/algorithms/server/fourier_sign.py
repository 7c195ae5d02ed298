r"""Signs of the numbers that lower f, from a plane wave on: for one perturbation of many images."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedzo.algorithms.server.halving import FIRST, CandidatePoints, Halving, stages
from fedzo.algorithms.server.optimizers import Moved, ServerState, SignMomentum
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.core.waves import pattern, plane_wave_count, plane_waves
from fedzo.errors import check_count, check_counts, check_positive, require

_SURE = 0.7  # the mean of the expected signs' absolute values, before sampling begins anew


@dataclass(frozen=True)
class FourierSign(SignMomentum):
    r"""The best of waves and patterns, and then signs sampled from all values so far.

    Slopes at x = 0 do not show which textures fool a classifier: those are strong and fine. So the
    first rounds choose among x = 0, single plane waves (``divisions``) and random patterns of ±1
    (``patterns``), each of height ``amplitude``, by successive halving
    (:mod:`~fedzo.algorithms.server.halving`).

    With ``sampled``, each later round samples that many perturbations of ±``amplitude``, where the
    sign of a number is + with the probability that + is better, given all values so far (Thompson
    sampling in a linear model). For perturbations :math:`s_i`, the first starts and those of later
    rounds, with mean values :math:`v_i` on ``compared`` samples,

    .. math:: G = \sum_i (\bar v - v_i) (s_i - \mathrm{E}\, s_i), \quad
              V = \sum_i (\bar v - v_i)^2 (s_i - \mathrm{E}\, s_i)^2, \quad
              P(s = +) = \Phi\bigl( G / \sqrt V \bigr)

    for each number, and x has the signs of G. Half of the perturbations of images are drawn with
    equal signs within squares (:func:`fedzo.core.waves.pattern`), because neighbours in an image
    matter alike. This needs no differences between scores, and few queries.
    Without ``sampled``, the later rounds make steps of :class:`~fedzo.server.SignMomentum`.

    When most signs are certain, sampling has settled at a local optimum. With ``restart`` it then
    begins anew from G = V = 0. The caller keeps the best evaluated x.

    Parameters
    ----------
    learning_rate, last_learning_rate, beta, rounds
        η_0, η_T, β and T of SignMomentum.
    shape : tuple of int
        The inputs' shape: (3, 32, 32), (32, 32, 3) or (28, 28) for images, say.
    divisions : int
        g: there are :math:`2g^2 + 2` plane waves in each of the colours
        (:func:`fedzo.core.waves.plane_waves`); 0 for none.
    amplitude : float
        The height of waves and patterns, in units of x.
    patterns : int
        The number of random patterns; 0 for none.
    samples : int
        The number of samples in the first stage of the halving.
    sampled : int
        The number of perturbations sampled per round; 0 for steps.
    compared : int
        The number of samples on which they are compared.
    restart : int
        The number of rounds after which sampling begins anew, if the expected signs are ±0.7 on
        average; 0 for never.

    References
    ----------
    S.-M. Moosavi-Dezfooli, A. Fawzi, O. Fawzi and P. Frossard, "Universal adversarial
    perturbations", CVPR 2017; Y. Tsuzuku and I. Sato, "On the Structural Sensitivity of Deep
    Convolutional Networks to the Directions of Fourier Basis Functions", CVPR 2019, whose
    universal perturbations are single waves; W. Thompson, "On the Likelihood that One Unknown
    Probability Exceeds Another", Biometrika 1933.

    Examples
    --------
    Ten waves, and none, are compared in two rounds:

    >>> server = FourierSign(shape=(8, 8), divisions=2)
    >>> server.starts, server.first_step
    (11, 2)
    """

    shape: tuple[int, ...] = ()
    divisions: int = 0
    amplitude: float = 8.0
    patterns: int = 0
    samples: int = FIRST
    sampled: int = 0
    compared: int = 10
    restart: int = 0
    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "amplitude")
        check_counts(self, "samples", "compared")
        for key in ("divisions", "patterns", "sampled", "restart"):
            check_count(key, getattr(self, key), least=0)

    @property
    def starts(self) -> int:
        """The number of points to choose from: zero, the waves and the patterns."""
        return 1 + plane_wave_count(tuple(self.shape), self.divisions) + self.patterns

    @property
    def first_step(self) -> int:
        """The number of rounds that choose the start."""
        return stages(self.starts)

    def init(self, x0: Array) -> ServerState:
        """Return G = V = 0, or m = 0 for steps, and the halving."""
        fits = not (self.starts > 1 or self.sampled) or math.prod(self.shape) == x0.size
        require(fits, "server.shape", self.shape, f"the inputs' shape, of {x0.size} numbers")
        own = (np.zeros(x0.size), np.zeros(x0.size)) if self.sampled else super().init(x0)
        return *own, *Halving.of(self.starts)

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Move each number by η_t."""
        moved, momentum = super().apply(t, state[:-2], x, delta)
        return moved, (*momentum, *state[-2:])

    def restarted(self, t: int, state: ServerState) -> ServerState:
        """Return the state before round t, without the values so far if sampling begins anew."""
        if not (self.sampled and self.restart and t > self.first_step and t % self.restart == 0):
            return state
        if np.abs(self._belief(state)[1]).mean() < _SURE:
            return state
        return np.zeros_like(state[0]), np.zeros_like(state[1]), *state[2:]

    def candidates(self, t: int, state: ServerState, x: Array, seed: int) -> CandidatePoints | None:
        """Return the points to compare in round t; None if it makes a step."""
        halving, shape = Halving(*state[-2:]), tuple(self.shape)
        if halving.winner is None:
            points = np.stack([self._start(int(one), seed) for one in halving.left])
            return CandidatePoints(points, self.samples * halving.growth)
        if not self.sampled:
            return None
        draws, (sure, _) = Draws(seed, Stream.SEARCH, t, 0, 0), self._belief(state)
        points = np.empty((self.sampled, sure.size), np.float32)
        for number in range(self.sampled):
            here = draws._replace(step=3 * number)
            doubt = pattern(shape, number, here)
            doubt *= np.abs(here._replace(step=here.step + 2).normals(sure.size))
            points[number] = np.where(sure + doubt >= 0, self.amplitude, -self.amplitude)
        return CandidatePoints(points, self.compared)

    def choose(self, state: ServerState, x: Array, points: Array, values: Array) -> Moved:
        """Return x and the state, from the mean value at each candidate."""
        halving, finite = Halving(*state[-2:]), np.isfinite(values)
        if not finite.any():
            return x, state
        new, own = halving, state[:-2]
        if halving.winner is None:
            new = halving.after(values)
            if new.winner is not None:
                x = points[list(halving.left).index(new.winner)].astype(x.dtype)
        # Later stages show no other points.
        if self.sampled and (halving.winner is not None or halving.growth == 1):
            effects = np.where(finite, values[finite].mean() - values, 0)
            signs = np.sign(points) - self._belief(state)[1]
            own = own[0] + effects @ signs, own[1] + np.square(effects) @ np.square(signs)
        if halving.winner is not None:
            x = np.where(own[0] >= 0, self.amplitude, -self.amplitude).astype(x.dtype)
        return x, (*own, *new)

    @staticmethod
    def _belief(state: ServerState) -> tuple[Array, Array]:
        """Return G over the root of V, and the expected signs."""
        from scipy.special import ndtr

        sure = state[0] / np.sqrt(np.maximum(state[1], np.finfo(float).tiny))
        return sure, 2 * ndtr(sure) - 1

    def _start(self, number: int, seed: int) -> Array:
        """Return one of the points to choose from: zero, a wave or a pattern."""
        waves = self.starts - self.patterns
        if number < waves:
            return np.asarray(self._plane_waves[number])
        draws = Draws(seed, Stream.SEARCH, 0, 0, 2 * number)
        return self.amplitude * pattern(tuple(self.shape), number - waves, draws)

    @cached_property
    def _plane_waves(self) -> Array:
        """Zero, and each wave."""
        waves = plane_waves(tuple(self.shape), self.divisions)
        return np.concatenate([np.zeros((1, waves.shape[1]), waves.dtype), self.amplitude * waves])
