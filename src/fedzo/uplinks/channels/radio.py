"""The radio: bandwidth, power and noise in the units of data sheets."""

import math
from dataclasses import dataclass

from fedzo.errors import Parameters, check_not_negative, check_positive, require

_THERMAL_DBM = -173.975  # of k T at 290 K, per Hz
_LIGHT = 299_792_458.0  # m/s
_MOST_DBM = 100.0  # 10 MW


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
