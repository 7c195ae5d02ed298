r"""A digital uplink: quantised numbers, sent one device after another over the same channel.

A device rounds its numbers to ``bits`` bits and sends them, coded, in its own time slot, at full
power. A symbol of a channel with the gain :math:`|h|^2` carries at most
:math:`\log_2(1 + SNR |h|^2)` bits. Beside :class:`~fedzo.AirComp` at the same bandwidth and power
this is what analogue and digital cost in channel uses, seconds and joules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Replies, Update
from fedzo.core.types import Array
from fedzo.errors import check_choice, check_counts, check_positive, require
from fedzo.uplinks.base import Ideal, RunSetting, UplinkInfo, sending_costs
from fedzo.uplinks.seeds import Seeds, lazy
from fedzo.uplinks.wireless import Wireless

PAYLOADS = ("update", "coefficients")
ACCESSES = ("capacity", "outage")
_ATTEMPTS = 64  # the first step of the address of an attempt's channel
_MOST_BITS = 32
_MOST_ATTEMPTS = 1000


@dataclass(frozen=True, kw_only=True)
class Digital(Wireless):
    r"""Quantised updates or coefficients, sent one device after another.

    Parameters
    ----------
    bits : int
        Bits per number, 1 to 32. A device rounds to :math:`2^{bits}` levels between its largest
        number and minus that, up or down at random, without bias.
    payload : str
        ``update``: d numbers; ``coefficients``: H b2 numbers, which the server rebuilds the
        update from.
    access : str
        ``capacity``: devices know their channel and send at its capacity; those with
        |h| >= ``h_min`` take part. ``outage``: devices do not know it and send ``rate`` bits per
        symbol; a message is lost if the capacity is less. The algorithm's ``participants`` are
        sampled.
    h_min : float
        The threshold on |h_i| with ``capacity``, as in :class:`~fedzo.AirComp`.
    rate : float
        Bits per symbol with ``outage``.
    attempts : int
        How often a message is sent at most with ``outage``, each time over a new channel.
    snr_db, channel, coherence, antennas, radio
        See :class:`~fedzo.uplinks.wireless.Wireless`. Several antennas are combined by maximum
        ratio: the gain is the sum of theirs.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem, algorithm = Quadratic(dim=50, devices=20), fedzo.FedZO(learning_rate=0.01)
    >>> run = dict(algorithm=algorithm, rounds=20)
    >>> digital = fedzo.minimize(problem, uplink=fedzo.Digital(bits=4), **run)
    >>> analogue = fedzo.minimize(problem, uplink=fedzo.AirComp(), **run)
    >>> 10 < digital.channel_uses / analogue.channel_uses < 100
    True
    """

    bits: int = 8
    payload: str = "update"
    access: str = "capacity"
    h_min: float = 0.8
    rate: float = 1.0
    attempts: int = 1

    carries_values: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.snr_db < math.inf, "snr_db", self.snr_db, "a number: use 'ideal' for no noise")
        check_counts(self, "bits", "attempts")
        for key, most in (("bits", _MOST_BITS), ("attempts", _MOST_ATTEMPTS)):
            require(getattr(self, key) <= most, key, getattr(self, key), f"at most {most}")
        check_choice("payload", self.payload, PAYLOADS)
        check_choice("access", self.access, ACCESSES)
        check_positive(self, "h_min", "rate")

    @property
    def wants_coefficients(self) -> bool:  # type: ignore[override]
        """Whether coefficients are sent."""
        return self.payload == "coefficients"

    def participants(self, t: int, wanted: int | None, setting: RunSetting) -> Array:
        """Return the devices at or above the threshold, or M devices if channels are not known."""
        if self.access == "outage":
            return super().participants(t, wanted, setting)
        return np.flatnonzero(self._powers(t, setting) >= self.h_min**2)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return the mean of what arrives, and what it cost to send."""
        symbols, sent, lost, count = 0, 0, 0, 1
        times, arrives = self._attempts(t, setting)
        rates = np.full(setting.devices, self.rate)
        if self.access == "capacity":
            rates = self._capacities(t, setting)

        def decoded() -> Iterator[Update]:
            nonlocal symbols, sent, lost, count
            for update in updates:
                i, own = update.device, update.delta
                if self.wants_coefficients and update.coefficients is not None:
                    own = update.coefficients
                count = own.size
                bits = 32 + self.bits * count  # the largest number, and the others
                symbols += int(times[i]) * math.ceil(bits / rates[i])
                sent += int(times[i]) * math.ceil(bits / 8)
                if not arrives[i]:
                    lost += 1
                    continue
                at = Draws(setting.seed, Stream.NOISE, round=t, device=i, step=1)
                rounded = quantise(np.asarray(own), self.bits, at)
                if own is update.delta:
                    yield update._replace(delta=rounded, coefficients=None)
                else:
                    heard = update._replace(coefficients=rounded)
                    yield heard._replace(delta=lazy(heard, updates.task))

        inner = Seeds(downlink="model") if self.wants_coefficients else Ideal()
        delta, info = inner.aggregate(t, Replies(decoded(), updates.task), setting)
        costs = {"energy": symbols / count, **sending_costs(self.radio, symbols, symbols)}
        return delta, UplinkInfo(
            sent, info.downlink_bytes, symbols, costs=costs, metrics={"lost": lost}
        )

    def _powers(self, t: int, setting: RunSetting, step: int = 0) -> Array:
        """Return the power gain of each device after maximum ratio combining, shape (N,)."""
        return np.asarray((np.abs(self.gains(t, setting, step)) ** 2).sum(axis=0))

    def _capacities(self, t: int, setting: RunSetting, step: int = 0) -> Array:
        """Return log2(1 + SNR |h|²) of each device, in bits per symbol."""
        snr = 10 ** (self.mean_snr_db / 10)
        return np.asarray(np.log1p(snr * self._powers(t, setting, step)) / math.log(2))

    def _attempts(self, t: int, setting: RunSetting) -> tuple[Array, Array]:
        """Return how often each device sends its message, and whether it arrives."""
        times, arrives = np.ones(setting.devices, int), np.ones(setting.devices, bool)
        if self.access == "capacity":
            return times, arrives
        arrives[:] = False
        for attempt in range(self.attempts):
            times += ~arrives & (attempt > 0)
            arrives |= self._capacities(t, setting, _ATTEMPTS + attempt) >= self.rate
        return times, arrives


def quantise(numbers: Array, bits: int, draws: Draws) -> Array:
    r"""Return numbers rounded to :math:`2^{bits}` equidistant levels, up or down at random.

    The levels reach from -a to a, the largest magnitude, which is sent in 32 bits. A number at the
    share q between two levels at the distance s is rounded up with probability q. So the
    mean is the number, and the variance is :math:`s^2 q (1 - q) \le s^2 / 4`.

    >>> from fedzo.random import Stream
    >>> quantise(np.array([-1.0, 0.2, 1.0]), 1, Draws(0, Stream.NOISE)).tolist()
    [-1.0, 1.0, 1.0]
    """
    flat = numbers.ravel().astype(np.float64)
    largest = np.float32(np.abs(flat).max(initial=0.0))
    if largest < np.abs(flat).max(initial=0.0):
        largest = np.nextafter(largest, np.float32(np.inf))
    if not largest:
        return np.asarray(numbers)
    step = 2 * float(largest) / (2**bits - 1)
    places = (flat + float(largest)) / step
    up = draws.uniform(flat.size) < places - np.floor(places)
    levels = np.minimum(np.floor(places) + up, 2**bits - 1)
    return np.asarray((levels * step - float(largest)).reshape(numbers.shape), numbers.dtype)
