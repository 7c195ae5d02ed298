"""What all wireless uplinks share: the channel of a round and the SNR."""

import math
from dataclasses import dataclass

import numpy as np

from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.errors import UsageError, check_choice, check_counts, require
from fedzo.uplinks.base import RunSetting, Uplink
from fedzo.uplinks.channels import CHANNELS, Channel, Radio

_MOST_DB = 1000  # far beyond any radio, and well within what a float holds


@dataclass(frozen=True, kw_only=True)
class Wireless(Uplink):
    """Base class of uplinks with a channel.

    Parameters
    ----------
    snr_db : float
        P/σ_w² in dB, P the power of a symbol, σ_w² that of the noise; ``inf`` for no noise.
    channel : str or Channel
        ``rayleigh``, ``rician``, ``fixed``, ``jakes``, ``cell``, or a table with its settings:
        :mod:`fedzo.uplinks.channels`.
    coherence : int
        Number of rounds in which the channel stays the same (block fading).
    antennas : int
        Number of the server's antennas.
    radio : Radio, optional
        Bandwidth, power and noise in their units. The history then has ``seconds_on_air`` and
        ``joules``, and with a distance the radio decides the SNR.
    """

    snr_db: float = 0.0
    channel: str | Channel = "rayleigh"
    coherence: int = 1
    antennas: int = 1
    radio: Radio | None = None

    def __post_init__(self) -> None:
        check_db("snr_db", self.snr_db)
        check_counts(self, "coherence", "antennas")
        if isinstance(self.channel, str):
            check_choice("channel", self.channel, CHANNELS)
        if self.radio is not None and self.radio.distance_m is not None:
            allowed = "omitted: radio.distance_m decides the SNR"
            require(self.snr_db == 0, "snr_db", self.snr_db, allowed)

    @property
    def mean_snr_db(self) -> float:
        """The SNR of a channel of gain 1, in dB."""
        told = None if self.radio is None else self.radio.snr_db
        return self.snr_db if told is None else told

    def draws(self, t: int, setting: RunSetting, antenna: int = 0, step: int = 0) -> Draws:
        """Return the address of the channel's random numbers in round t."""
        at = t - t % self.coherence
        return Draws(setting.seed, Stream.CHANNEL, round=at, device=antenna, step=step)

    def gains(self, t: int, setting: RunSetting, step: int = 0) -> Array:
        """Return the complex gains of all devices at each antenna, shape (antennas, N)."""
        model = CHANNELS[self.channel]() if isinstance(self.channel, str) else self.channel
        at, n, rows = t - t % self.coherence, setting.devices, []
        for antenna in range(self.antennas):
            row = np.asarray(model.gains(at, n, self.draws(t, setting, antenna, step)))
            if row.shape != (n,) or not np.isfinite(row).all():
                raise UsageError(
                    f"uplink.channel: {type(model).__name__}.gains returned the shape {row.shape}; "
                    f"it must be {n} finite numbers",
                    code="bad-gains",
                )
            rows.append(row)
        return np.asarray(rows, np.complex128)

    def check(self, setting: RunSetting) -> None:
        """Raise unless the channel has a gain for each device."""
        self.gains(0, setting)


def check_db(key: str, value: float) -> None:
    """Raise unless this is an SNR in dB.

    >>> check_db("snr_db", -2000.0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: snr_db = -2000.0: must be a number from -1000 to 1000, or inf for no
    noise
    """
    heard = abs(value) <= _MOST_DB or value == math.inf
    require(heard, key, value, f"a number from -{_MOST_DB} to {_MOST_DB}, or inf for no noise")
