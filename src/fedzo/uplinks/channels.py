r"""The parts of a radio link: channels, power control and the radio with its units.

Each is a small frozen dataclass. A configuration names it by a word, ``channel = "rician"``, by a
table, ``channel = {name = "rician", factor = 5.0}``, or as ``module:Class`` for a custom one.

**Channels** are the complex gain of each device in each round. A channel is a pure function of the
address: the same seed and round give the same gains, with any number of workers and after a resume.
Random gains have :math:`E|h|^2 = 1`; :class:`Cell` has the mean gain 1 at its edge. So ``snr_db``
is the mean SNR of a device, or of a device at the edge.

**Power control** is who transmits in a round, and how loud. A device whose channel the estimate
says is :math:`\hat h_i` sends its symbols times :math:`p_i e^{-i \arg \hat h_i}` with
:math:`0 \le p_i \le 1`, where 1 is its full power. It arrives with the amplitude
:math:`|\hat h_i| p_i`. The server divides by the *level* η, so the device counts with the weight
:math:`|\hat h_i| p_i / \eta`, and the receiver's noise with 1/η.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.errors import Parameters, check_choice, check_not_negative, check_positive, require

_PATHS = 32  # sinusoids per gain of Jakes: E|h|^4 = 2 - 1/32
_ANGLES, _POSITIONS, _SHADOWS = 16, 17, 18  # steps of the address
_THERMAL_DBM = -173.975  # of k T at 290 K, per Hz
_LIGHT = 299_792_458.0  # m/s
_MOST_DBM = 100.0  # 10 MW


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


class PowerControl(Parameters):
    """Base class of policies: a frozen dataclass whose fields are its settings."""

    def arrivals(self, gains: Array, h_min: float) -> tuple[Array, float]:
        """Return the weight of each device, 0 if it is silent, and the level η.

        ``gains`` are the magnitudes of the estimated channels, shape (devices,), and ``h_min`` is
        the uplink's threshold. A weight can be at most gain / η: a device has no more power.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class TruncatedInversion(PowerControl):
    """The paper's: devices at or above ``h_min`` arrive alike, at the level ``h_min``.

    >>> TruncatedInversion().arrivals(np.array([0.5, 0.9, 2.0]), h_min=0.8)
    (array([0., 1., 1.]), 0.8)
    """

    def arrivals(self, gains: Array, h_min: float) -> tuple[Array, float]:
        """Return 1 for each device with a gain of at least ``h_min``."""
        return np.where(gains >= h_min, 1.0, 0.0), h_min


@dataclass(frozen=True)
class FullInversion(PowerControl):
    """All devices transmit and arrive alike, at the level of the worst channel.

    One bad channel silences everyone: with Rayleigh fading the mean of 1/η² is infinite.

    >>> FullInversion().arrivals(np.array([0.5, 0.9, 2.0]), h_min=0.8)
    (array([1., 1., 1.]), 0.5)
    """

    def arrivals(self, gains: Array, h_min: float) -> tuple[Array, float]:
        """Return 1 for each device, at the level of the least gain."""
        return np.ones_like(gains), float(gains.min())


@dataclass(frozen=True)
class LeastNoise(PowerControl):
    """Inversion with the threshold of each round that leaves the least noise in the mean.

    The noise of the mean is in proportion to 1/(M η): a low threshold has many devices M at a low
    level η. The best level is the gain of some device. With many Rayleigh channels it is 1/√2, and
    a share of 1/√e of the devices transmits. ``h_min`` is not used.

    >>> LeastNoise().arrivals(np.array([0.1, 0.9, 2.0]), h_min=0.8)
    (array([0., 0., 1.]), 2.0)
    """

    def arrivals(self, gains: Array, h_min: float) -> tuple[Array, float]:
        """Return 1 for each device at or above the level that maximises M η."""
        levels = np.sort(gains)
        best = float(levels[np.argmax(levels * np.arange(len(levels), 0, -1))])
        return np.where(gains >= best, 1.0, 0.0), best


POLICIES: dict[str, type[PowerControl]] = {
    "truncated_inversion": TruncatedInversion,
    "full_inversion": FullInversion,
    "least_noise": LeastNoise,
}


@dataclass(frozen=True)
class Radio(Parameters):
    r"""What turns channel uses into seconds and joules, and a distance into an SNR.

    A complex symbol takes 1/bandwidth seconds. The noise power is :math:`k T B` at 290 K times the
    noise figure. The path loss at r metres is that of free space at 1 m times
    :math:`r^\alpha`. Without a distance the uplink's ``snr_db`` is the SNR.

    Parameters
    ----------
    bandwidth_hz : float
        B.
    power_dbm : float
        The largest power of a device while it sends.
    noise_figure_db : float
        Of the server's receiver.
    distance_m : float, optional
        The distance at which channels have the mean gain 1: of every device, or of the edge of
        a :class:`~fedzo.uplinks.channels.Cell`. It decides the SNR.
    exponent : float
        α of the path loss from 1 m to ``distance_m``.
    carrier_hz : float
        The carrier's frequency.

    Examples
    --------
    >>> radio = Radio(bandwidth_hz=1e6, power_dbm=10.0, noise_figure_db=5.0, distance_m=200.0)
    >>> round(radio.noise_dbm, 1), round(radio.snr_db, 1)
    (-109.0, 9.9)
    >>> radio.seconds(1_000_000), round(radio.watts, 3)
    (1.0, 0.01)
    """

    bandwidth_hz: float = 1e6
    power_dbm: float = 10.0
    noise_figure_db: float = 0.0
    distance_m: float | None = None
    exponent: float = 3.0
    carrier_hz: float = 2.4e9

    def __post_init__(self) -> None:
        check_positive(self, "bandwidth_hz", "exponent", "carrier_hz", optional=["distance_m"])
        allowed = f"a number from -{_MOST_DBM:g} to {_MOST_DBM:g}"
        require(abs(self.power_dbm) <= _MOST_DBM, "power_dbm", self.power_dbm, allowed)
        check_not_negative("noise_figure_db", self.noise_figure_db)

    @property
    def watts(self) -> float:
        """The largest power of a device."""
        return float(10 ** (self.power_dbm / 10 - 3))

    @property
    def noise_dbm(self) -> float:
        """The power of the receiver's noise."""
        return _THERMAL_DBM + 10 * math.log10(self.bandwidth_hz) + self.noise_figure_db

    @property
    def snr_db(self) -> float | None:
        """The mean SNR at the distance; None without a distance."""
        if self.distance_m is None:
            return None
        one_metre = 20 * math.log10(4 * math.pi * self.carrier_hz / _LIGHT)
        loss = one_metre + 10 * self.exponent * math.log10(self.distance_m)
        return self.power_dbm - loss - self.noise_dbm

    def seconds(self, channel_uses: float) -> float:
        """Return the time on air of complex symbols sent one after another."""
        return channel_uses / self.bandwidth_hz


RADIOS: dict[str, type[Radio]] = {"radio": Radio}
