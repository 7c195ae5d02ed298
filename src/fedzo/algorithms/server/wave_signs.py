r"""Signs of what stands out of the noise, wave by wave: for one perturbation of many images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, Trial, check_share
from fedzo.algorithms.server.contest import Contest
from fedzo.algorithms.server.sign import SignMomentum
from fedzo.core.waves import Waves, plane_waves
from fedzo.errors import check_positive, require

_FLOOR = 0.1  # of the mean power, in case that a band has more than it seems


@dataclass(frozen=True)
class WaveSigns(SignMomentum):
    r"""Signs of the momentum, less what is likely noise, along directions with little of it.

    x is an image's amounts of waves (:class:`fedzo.core.waves.Waves`), each of a band b. All
    directions are stretched by :math:`a_b`, so that a mean update is :math:`\Delta = a_b g + `
    noise, which is the same for all waves, since directions are drawn alike in all of them.
    Its power is that of Δ itself: d numbers of a gradient are measured along far fewer directions.

    .. math:: m^t = \beta m^{t-1} + \Delta^t, \quad A^t = \beta A^{t-1} + a^t, \quad
              V^t = \beta^2 V^{t-1} + \lVert \Delta^t \rVert^2 / d

    So :math:`m \approx A g + \sqrt V z`. The power of g in a band, S, is what that of m exceeds V
    by, over :math:`A^2`, each a mean over the band that forgets by γ. Then the best guess of g is
    Wiener's, whose signs are taken as an image, and S says where to look next:

    .. math:: \hat g = \frac{S A}{S A^2 + V}\, m, \qquad
              x^{t+1} = x^t + \eta_t\, W \mathrm{sign}(W^\top \hat g), \qquad
              (a^{t+1}_b)^2 \propto \max\Bigl( \frac{S_b}{\bar S},\, 0.1 \Bigr),

    with the mean square of a at 1, W the transform into waves, and η_t as in
    :class:`~fedzo.algorithms.server.SignMomentum`. At first a = 1. Where there is no image, this is
    SignMomentum.

    Slopes at x = 0 do not tell which textures a classifier falls for: those are strong, and fine.
    So, if ``divisions`` says so, the first rounds are a contest
    (:mod:`~fedzo.algorithms.server.contest`) of single plane waves as high as ``amplitude``, x = 0
    among them, and the steps begin at its winner.

    Parameters
    ----------
    rate, last_rate, beta, rounds
        η_0, η_T, β and T of SignMomentum; η is how far each number of the image moves.
    shape : tuple of int
        The images' shape: (3, 32, 32), (32, 32, 3) or (28, 28), say.
    memory : float
        γ in [0, 1), how slowly the powers of bands are forgotten.
    divisions : int
        g: the waves of the contest are :math:`2g^2 + 2` in each of the colours
        (:func:`fedzo.core.waves.plane_waves`); 0: there is none.
    amplitude : float
        How high they are, in units of x.

    References
    ----------
    S.-M. Moosavi-Dezfooli, A. Fawzi, O. Fawzi and P. Frossard, "Universal adversarial
    perturbations", CVPR 2017; Y. Tsuzuku and I. Sato, "On the Structural Sensitivity of Deep
    Convolutional Networks to the Directions of Fourier Basis Functions", CVPR 2019, whose
    universal perturbations are single waves; J. Bernstein et al., "signSGD", ICML 2018; N. Wiener,
    "Extrapolation, Interpolation, and Smoothing of Stationary Time Series", 1949.

    Examples
    --------
    >>> step = WaveSigns(rate=0.4, last_rate=0.1, beta=0.5, rounds=2)
    >>> x, kept = step.apply(0, step.init(np.zeros(1)), np.zeros(1), np.array([7.0]))
    >>> x, step.apply(1, kept, x, np.array([-1.0]))[0]  # by 0.4, and then, m = 2.5, by 0.2
    (array([0.4]), array([0.6]))
    """

    shape: tuple[int, ...] = ()
    memory: float = 0.95
    divisions: int = 0
    amplitude: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(self, "memory")
        check_positive(self, "amplitude")
        whole = isinstance(self.divisions, int) and not isinstance(self.divisions, bool)
        allowed = "a whole number >= 0"
        require(whole and self.divisions >= 0, "divisions", self.divisions, allowed)

    @cached_property
    def _waves(self) -> Waves:
        return Waves(tuple(self.shape))

    def init(self, x0: Array) -> Kept:
        """Return m = 0, a = 1, and for each band A, V and the means that S is made of."""
        if not self._waves.shape:
            return super().init(x0)
        fits = math.prod(self.shape) == x0.size
        require(fits, "server.shape", self.shape, f"the images' shape, of {x0.size} numbers")
        bands = self._waves.count
        contest = Contest.of(len(self._starts) if self.divisions else 1)
        return np.zeros(x0.shape), np.ones(bands), np.zeros((5, bands)), *contest

    def stretch(self, kept: Kept) -> Array | None:
        """Return a for each wave; nothing, where there are none."""
        return kept[1][self._waves.bands] if self._waves.shape else None

    def trial(self, kept: Kept) -> Trial | None:
        """Return the waves that are still in the contest, until one has won."""
        contest = Contest(*kept[3:]) if self._waves.shape else Contest.of(1)
        if contest.winner is not None:
            return None
        return Trial(self._starts[contest.left], contest.samples)

    def tried(self, kept: Kept, x: Array, values: Array) -> tuple[Array, Kept]:
        """Return the winner, if there is one by now."""
        contest = Contest(*kept[3:]).heard(values)
        if contest.winner is not None:
            x = self._starts[contest.winner].astype(x.dtype)
        return x, (*kept[:3], *contest)

    @cached_property
    def _starts(self) -> Array:
        """The points of the contest: nothing, and each wave."""
        waves = plane_waves(tuple(self.shape), self.divisions)
        return np.concatenate([np.zeros_like(waves[:1]), self.amplitude * waves])

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Move each number of the image by η_t."""
        if not self._waves.shape:
            return super().apply(t, kept, x, delta)
        m, a, (gain, noise, *means), *contest = kept
        m, gain = self.beta * m + delta, self.beta * gain + a
        noise = self.beta**2 * noise + np.mean(np.square(delta))
        seen = (self._mean(np.square(m)), noise, gain**2)
        means = [self.memory * old + new for old, new in zip(means, seen, strict=True)]
        power = np.maximum(means[0] - means[1], 0) / np.maximum(means[2], np.finfo(float).tiny)
        guess = m
        if power.any():
            guess = (power * gain / (power * gain**2 + noise))[self._waves.bands] * m
            a = self._stretch(power)
        signs = np.sign(self._waves.images(guess[None]))
        moved = x + self.rate_of(t) * self._waves.coefficients(signs)[0]
        return moved.astype(x.dtype), (m, a, np.stack([gain, noise, *means]), *contest)

    def _mean(self, values: Array) -> Array:
        """Return the mean over each band."""
        sums = np.bincount(self._waves.bands, weights=values, minlength=len(self._counts))
        return np.asarray(sums / np.maximum(self._counts, 1))

    @cached_property
    def _counts(self) -> Array:
        """How many waves a band has."""
        return np.bincount(self._waves.bands, minlength=self._waves.count)

    def _overall(self, values: Array) -> float:
        """Return the mean over all waves of what each band has."""
        return float(np.average(values, weights=self._counts))

    def _stretch(self, power: Array) -> Array:
        """Return a for the power that each band seems to have."""
        squares = np.maximum(power / self._overall(power), _FLOOR)
        return np.asarray(np.sqrt(squares / self._overall(squares)))
