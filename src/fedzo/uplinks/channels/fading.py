r"""Channels: the complex gain of each device in each round.

A channel is a pure function of the address: the same seed and round give the same gains, with any
number of workers and after a resume. Random gains have :math:`E|h|^2 = 1`; :class:`Cell` has the
mean gain 1 at its edge. So ``snr_db`` is the mean SNR of a device, or of a device at the edge.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.errors import Parameters, check_choice, check_not_negative, check_positive, require

_PATHS = 32  # sinusoids per gain of Jakes: E|h|^4 = 2 - 1/32
_ANGLES, _POSITIONS, _SHADOWS = 16, 17, 18  # steps of the address


def complex_normals(draws: Draws, count: int) -> Array:
    """Return CN(0, 1) numbers: variance 1/2 in either part.

    >>> from fedzo.random import Stream
    >>> complex_normals(Draws(0, Stream.CHANNEL), 2).shape
    (2,)
    """
    real, imaginary = draws.normals(2, count)
    return np.asarray(math.sqrt(0.5) * (real + 1j * imaginary))


class Channel(Parameters):
    """Base class of channels: a frozen dataclass whose fields are its settings."""

    def gains(self, t: int, devices: int, draws: Draws) -> Array:
        """Return the complex gain of each device in round t, shape (devices,).

        ``draws`` is the address of the round's random numbers, ``draws.device`` the number of the
        receive antenna. Numbers that stay the same in all rounds are drawn at
        ``draws._replace(round=0)``.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Rayleigh(Channel):
    """Many paths and no line of sight: h ~ CN(0, 1), independent in each round.

    >>> from fedzo.random import Stream
    >>> h = Rayleigh().gains(0, 100_000, Draws(0, Stream.CHANNEL))
    >>> round(float(np.mean(abs(h) ** 2)), 2)
    1.0
    """

    def gains(self, t: int, devices: int, draws: Draws) -> Array:
        """Return CN(0, 1) numbers."""
        return complex_normals(draws, devices)


@dataclass(frozen=True)
class Rician(Channel):
    """A line of sight of power K/(K+1) and phase 0, and scattered paths, CN(0, 1/(K+1)).

    Parameters
    ----------
    factor : float
        K, the power of the line of sight over that of the other paths.
    """

    factor: float = 3.0

    def __post_init__(self) -> None:
        check_positive(self, "factor")

    def gains(self, t: int, devices: int, draws: Draws) -> Array:
        """Return sqrt(K/(K+1)) + CN(0, 1/(K+1)) numbers."""
        k = self.factor
        scattered = complex_normals(draws, devices)
        return np.asarray(math.sqrt(k / (k + 1)) + scattered / math.sqrt(k + 1))


@dataclass(frozen=True)
class Fixed(Channel):
    """No fading: h = 1."""

    def gains(self, t: int, devices: int, draws: Draws) -> Array:
        """Return ones."""
        return np.ones(devices, np.complex128)


@dataclass(frozen=True)
class Jakes(Channel):
    r"""Rayleigh fading that is correlated in time, as a sum of paths with random angles.

    .. math:: h(t) = \frac{1}{\sqrt{K}} \sum_{k=1}^{K} e^{i (2 \pi f t \cos\theta_k + \phi_k)},
              \qquad E[h(t) h^*(t + s)] = J_0(2 \pi f s)

    With K = 32 paths, :math:`E|h|^2 = 1` and :math:`E|h|^4 = 2 - 1/K` (Rayleigh: 2).

    Parameters
    ----------
    doppler : float
        f, the largest Doppler shift times the time from round to round.

    References
    ----------
    W. C. Jakes, "Microwave Mobile Communications", 1974; Y. R. Zheng and C. Xiao, "Simulation
    models with correct statistical properties for Rayleigh fading channels", IEEE Transactions on
    Communications 51, 2003.
    """

    doppler: float = 0.01

    def __post_init__(self) -> None:
        check_positive(self, "doppler")

    def gains(self, t: int, devices: int, draws: Draws) -> Array:
        """Return the sum of the paths at time t."""
        numbers = draws._replace(round=0, step=_ANGLES).uniform(2 * _PATHS * devices)
        angles, phases = 2 * np.pi * numbers.reshape(2, _PATHS, devices)
        turned = 2 * np.pi * self.doppler * t * np.cos(angles) + phases
        return np.asarray(np.exp(1j * turned).sum(axis=0) / math.sqrt(_PATHS))


@dataclass(frozen=True)
class Cell(Channel):
    r"""Devices at random places of a disc around the server: path loss, shadowing and fading.

    The mean power gain at the distance r is :math:`(r / r_{max})^{-\alpha}`: 1 at the edge. Places
    are uniform on the ring between ``nearest_m`` and ``radius_m``. They and the shadowing, normal
    in dB, stay the same in all rounds.

    Parameters
    ----------
    radius_m, nearest_m : float
        The largest and least distance of a device in metres.
    exponent : float
        α, the path loss exponent: 2 in free space, 3 to 4 in towns.
    shadowing_db : float
        Standard deviation of the shadowing in dB.
    fading : str
        Fading on top of it: ``rayleigh``, ``rician``, ``fixed`` or ``jakes``.
    """

    radius_m: float = 500.0
    nearest_m: float = 10.0
    exponent: float = 3.0
    shadowing_db: float = 0.0
    fading: str = "rayleigh"

    def __post_init__(self) -> None:
        check_positive(self, "radius_m", "nearest_m", "exponent")
        allowed = f"a number below radius_m = {self.radius_m}"
        require(self.nearest_m < self.radius_m, "nearest_m", self.nearest_m, allowed)
        check_not_negative("shadowing_db", self.shadowing_db)
        check_choice("fading", self.fading, [name for name in CHANNELS if name != "cell"])

    def distances(self, devices: int, draws: Draws) -> Array:
        """Return the distance of each device in metres."""
        u = draws._replace(round=0, device=0, step=_POSITIONS).uniform(devices)
        near, far = self.nearest_m**2, self.radius_m**2
        return np.asarray(np.sqrt(near + u * (far - near)))

    def gains(self, t: int, devices: int, draws: Draws) -> Array:
        """Return path loss and shadowing, in amplitude, times the fading."""
        loss = -10 * self.exponent * np.log10(self.distances(devices, draws) / self.radius_m)
        shadows = draws._replace(round=0, device=0, step=_SHADOWS).normals(devices)
        fading: Channel = CHANNELS[self.fading]()
        mean = 10 ** ((loss + self.shadowing_db * shadows) / 20)
        return np.asarray(mean * fading.gains(t, devices, draws))


CHANNELS: dict[str, type[Channel]] = {
    "rayleigh": Rayleigh,
    "rician": Rician,
    "fixed": Fixed,
    "jakes": Jakes,
    "cell": Cell,
}
