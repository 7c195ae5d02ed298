r"""Power control: who transmits in a round, and how loud.

A device whose channel the estimate says is :math:`\hat h_i` sends its symbols times
:math:`p_i e^{-i \arg \hat h_i}` with :math:`0 \le p_i \le 1`, where 1 is its full power. It arrives
with the amplitude :math:`|\hat h_i| p_i`. The server divides by the *level* η, so the device counts
with the weight :math:`|\hat h_i| p_i / \eta`, and the receiver's noise with 1/η.
"""

from dataclasses import dataclass

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import Parameters


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
