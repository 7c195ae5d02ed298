r"""Signs of the mean update where it exceeds the noise: for one perturbation of many images."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedzo.algorithms.server.halving import FIRST, CandidatePoints, Halving, stages
from fedzo.algorithms.server.optimizers import Moved, ServerState, SignMomentum, check_share
from fedzo.core.patterns import pattern
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.core.waves import Waves, plane_wave_count, plane_waves
from fedzo.errors import check_count, check_counts, check_positive, require

_LEAST = 0.1  # of the mean power, in case a band has more than its estimate


@dataclass(frozen=True)
class FourierSign(SignMomentum):
    r"""Signs of the momentum, without its likely noise, along directions scaled by frequency.

    x is an image's amounts of waves (:class:`fedzo.core.waves.Waves`), each in a band b of
    frequencies. All directions are scaled by :math:`a_b`, so a mean update is
    :math:`\Delta = a_b g + ` noise. The noise has the same power for all waves, since directions
    are drawn alike in all of them. That power is about the power of Δ itself, because d numbers of
    a gradient are measured along far fewer directions.

    .. math:: m^t = \beta m^{t-1} + \Delta^t, \quad A^t = \beta A^{t-1} + a^t, \quad
              V^t = \beta^2 V^{t-1} + \lVert \Delta^t \rVert^2 / d

    So :math:`m \approx A g + \sqrt V z`. The power S of g in a band is estimated by the excess of
    the power of m over V, divided by :math:`A^2`. Each is a mean over the band, with exponential
    forgetting by γ. The best estimate of g is Wiener's; x moves by the signs of its image, and S
    determines the next scales:

    .. math:: \hat g = \frac{S A}{S A^2 + V}\, m, \qquad
              x^{t+1} = x^t + \eta_t\, W \mathrm{sign}(W^\top \hat g), \qquad
              (a^{t+1}_b)^2 \propto \max\Bigl( \frac{S_b}{\bar S},\, 0.1 \Bigr),

    with the mean square of a at 1, W the transform into waves, and η_t as in
    :class:`~fedzo.server.SignMomentum`. Initially a = 1. For inputs that are not images, this is
    SignMomentum.

    Slopes at x = 0 do not show which textures fool a classifier: those are strong and fine. So the
    first rounds choose among x = 0, single plane waves (``divisions``) and random patterns of ±1
    (``patterns``), each of height ``amplitude``, by successive halving
    (:mod:`~fedzo.algorithms.server.halving`). The steps start at the winner.

    With ``sampled``, the later rounds make no steps. Each samples that many perturbations of
    ±``amplitude``, where the sign of a number is + with the probability that + is better, given all
    values so far (Thompson sampling in a linear model). For perturbations :math:`s_i`, the first
    starts and those of later rounds, with mean values :math:`v_i` on ``compared`` samples,

    .. math:: G = \sum_i (\bar v - v_i) (s_i - \mathrm{E}\, s_i), \quad
              V = \sum_i (\bar v - v_i)^2 (s_i - \mathrm{E}\, s_i)^2, \quad
              P(s = +) = \Phi\bigl( G / \sqrt V \bigr)

    for each number, and x has the signs of G. Half of the perturbations of images are drawn with
    equal signs within squares (:func:`fedzo.core.patterns.pattern`), because neighbours in an image
    matter alike. This needs no differences between scores, and few queries.

    Parameters
    ----------
    learning_rate, last_learning_rate, beta, rounds
        η_0, η_T, β and T of SignMomentum; η is how far each number of the image moves.
    shape : tuple of int
        The images' shape: (3, 32, 32), (32, 32, 3) or (28, 28), say.
    memory : float
        γ in [0, 1), how slowly the powers of bands are forgotten.
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
        The number of perturbations sampled per round; 0 for sign steps.
    compared : int
        The number of samples on which they are compared.

    References
    ----------
    S.-M. Moosavi-Dezfooli, A. Fawzi, O. Fawzi and P. Frossard, "Universal adversarial
    perturbations", CVPR 2017; Y. Tsuzuku and I. Sato, "On the Structural Sensitivity of Deep
    Convolutional Networks to the Directions of Fourier Basis Functions", CVPR 2019, whose
    universal perturbations are single waves; J. Bernstein et al., "signSGD", ICML 2018; N. Wiener,
    "Extrapolation, Interpolation, and Smoothing of Stationary Time Series", 1949; W. Thompson, "On
    the Likelihood that One Unknown Probability Exceeds Another", Biometrika 1933.

    Examples
    --------
    >>> server = FourierSign(learning_rate=0.4, last_learning_rate=0.1, beta=0.5, rounds=2)
    >>> x, state = server.apply(0, server.init(np.zeros(1)), np.zeros(1), np.array([7.0]))
    >>> x, server.apply(1, state, x, np.array([-1.0]))[0]  # by 0.4, and then, m = 2.5, by 0.2
    (array([0.4]), array([0.6]))
    """

    shape: tuple[int, ...] = ()
    memory: float = 0.95
    divisions: int = 0
    amplitude: float = 2.0
    patterns: int = 0
    samples: int = FIRST
    sampled: int = 0
    compared: int = 10
    elementwise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, "memory")
        check_positive(self, "amplitude")
        check_counts(self, "samples", "compared")
        for key in ("divisions", "patterns", "sampled"):
            check_count(key, getattr(self, key), least=0)

    @cached_property
    def _waves(self) -> Waves:
        return Waves(tuple(self.shape))

    @property
    def starts(self) -> int:
        """The number of points to choose from: zero, the waves and the patterns."""
        return 1 + plane_wave_count(tuple(self.shape), self.divisions) + self.patterns

    def init(self, x0: Array) -> ServerState:
        """Return the halving behind G and V, or m = 0 and for images a = 1, A, V and means of S."""
        wanted = bool(self._waves.shape) or self.starts > 1 or self.sampled > 0
        fits = not wanted or math.prod(self.shape) == x0.size
        require(fits, "server.shape", self.shape, f"the inputs' shape, of {x0.size} numbers")
        if self.sampled:
            return np.zeros(x0.size), np.zeros(x0.size), *Halving.of(self.starts)
        if not self._waves.shape:
            return *super().init(x0), *Halving.of(self.starts)
        bands = self._waves.count
        m = np.zeros(x0.shape, np.float32)
        return m, np.ones(bands), np.zeros((5, bands)), *Halving.of(self.starts)

    def direction_scale(self, state: ServerState) -> Array | None:
        """Return a for each wave; None without sign steps, or if inputs are not images."""
        steps = bool(self._waves.shape) and not self.sampled
        return state[1][self._waves.bands] if steps else None

    @property
    def first_step(self) -> int:
        """The number of rounds that choose the start."""
        return stages(self.starts)

    def candidates(self, t: int, state: ServerState, x: Array, seed: int) -> CandidatePoints | None:
        """Return the points to compare in round t; None if it makes a sign step."""
        halving = Halving(*state[-2:])
        if halving.winner is None:
            points = np.stack([self._start(int(one), seed) for one in halving.left])
            return CandidatePoints(points, self.samples * halving.growth)
        if not self.sampled:
            return None
        draws, (sure, _) = Draws(seed, Stream.SEARCH, t, 0, 0), self._belief(state)
        signs = np.empty((self.sampled, x.size))
        for number in range(self.sampled):
            here = draws._replace(step=3 * number)
            doubt = pattern(tuple(self.shape), number, here)
            doubt *= np.abs(here._replace(step=here.step + 2).normals(x.size))
            signs[number] = np.where(sure + doubt >= 0, self.amplitude, -self.amplitude)
        return CandidatePoints(self._waves.coefficients(signs.astype(x.dtype)), self.compared)

    def choose(self, state: ServerState, x: Array, points: Array, values: Array) -> Moved:
        """Return x and the state, from the mean value at each candidate."""
        halving, finite = Halving(*state[-2:]), np.isfinite(values)
        if not finite.any():
            return x, state
        left, new = halving.left, halving
        if halving.winner is None:
            new = halving.after(values)
            if new.winner is not None:
                x = points[list(left).index(new.winner)].astype(x.dtype)
        if not self.sampled:
            return x, (*state[:-2], *new)
        if halving.winner is not None or halving.growth == 1:  # later stages show no other points
            effects = np.where(finite, values[finite].mean() - values, 0)
            signs = np.sign(self._waves.images(points)) - self._belief(state)[1]
            gain, noise = effects @ signs, np.square(effects) @ np.square(signs)
            state = (state[0] + gain, state[1] + noise, *state[2:])
        if halving.winner is not None:
            image = np.where(state[0] >= 0, self.amplitude, -self.amplitude)
            x = self._waves.coefficients(image[None])[0].astype(x.dtype)
        return x, (*state[:2], *new)

    @staticmethod
    def _belief(state: ServerState) -> tuple[Array, Array]:
        """Return G over the root of V, and the expected signs."""
        from scipy.special import ndtr

        sure = state[0] / np.sqrt(np.maximum(state[1], np.finfo(float).tiny))
        return sure, 2 * ndtr(sure) - 1

    def _start(self, number: int, seed: int) -> Array:
        """Return one of the points to choose from: zero, a wave or a pattern."""
        shape, waves = tuple(self.shape), self.starts - self.patterns
        if number < waves:
            return np.asarray(self._plane_waves[number])
        draws = Draws(seed, Stream.SEARCH, 0, 0, 2 * number)
        image = pattern(shape, number - waves, draws)
        return np.asarray(self.amplitude * self._waves.coefficients(image[None])[0])

    @cached_property
    def _plane_waves(self) -> Array:
        """Zero, and each wave."""
        waves = plane_waves(tuple(self.shape), self.divisions)
        return np.concatenate([np.zeros((1, waves.shape[1]), waves.dtype), self.amplitude * waves])

    def apply(self, t: int, state: ServerState, x: Array, delta: Array) -> Moved:
        """Move each number of the image by η_t."""
        if not self._waves.shape:
            moved, momentum = super().apply(t, state[:-2], x, delta)
            return moved, (*momentum, *state[-2:])
        m, a, (gain, noise, *means), *halving = state
        m, gain = self.beta * m + delta, self.beta * gain + a
        noise = self.beta**2 * noise + np.mean(np.square(delta))
        seen = (self._mean(np.square(m)), noise, gain**2)
        means = [self.memory * old + new for old, new in zip(means, seen, strict=True)]
        power = np.maximum(means[0] - means[1], 0) / np.maximum(means[2], np.finfo(float).tiny)
        guess = m
        if power.any():
            guess = (power * gain / (power * gain**2 + noise))[self._waves.bands] * m
            a = self._scales(power)
        signs = np.sign(self._waves.images(guess[None]))
        moved = x + self.learning_rate_at(t) * self._waves.coefficients(signs)[0]
        bands = np.stack([gain, noise, *means])
        return moved.astype(x.dtype), (m.astype(np.float32), a, bands, *halving)

    def _mean(self, values: Array) -> Array:
        """Return the mean over each band."""
        sums = np.bincount(self._waves.bands, weights=values, minlength=len(self._counts))
        return np.asarray(sums / np.maximum(self._counts, 1))

    @cached_property
    def _counts(self) -> Array:
        """The number of waves in each band."""
        return np.bincount(self._waves.bands, minlength=self._waves.count)

    def _overall(self, values: Array) -> float:
        """Return the mean over all waves of a number per band."""
        return float(np.average(values, weights=self._counts))

    def _scales(self, power: Array) -> Array:
        """Return a for the estimated power of each band."""
        squares = np.maximum(power / self._overall(power), _LEAST)
        return np.asarray(np.sqrt(squares / self._overall(squares)))
