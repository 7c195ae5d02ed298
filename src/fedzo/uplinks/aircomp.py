r"""Over-the-air aggregation, section IV of the paper: all devices send at once.

The complex baseband, round t (the paper's equation numbers):

* channels :math:`h_i \sim CN(0, 1)`: real and imaginary part N(0, 1/2) each;
* scheduled are the devices with :math:`|h_i| \ge h_{min}`;
* device i sends :math:`\alpha_i \Delta_i` with
  :math:`\alpha_i = \frac{h_{min}}{h_i} \sqrt{dP / \Delta_{max}}`,
  :math:`\Delta_{max} = \max_i \|\Delta_i\|^2`, which keeps its energy within dP;
* the server receives :math:`s = \sum_i h_i \alpha_i \Delta_i + n`,
  :math:`n \sim CN(0, \sigma_w^2 I)`, and scales by
  :math:`\frac{1}{M} \sqrt{\Delta_{max} / (dP h_{min}^2)}`.

The result is the mean update plus noise of complex variance
:math:`\sigma_w^2 \Delta_{max} / (M^2 dP h_{min}^2)` per coordinate. **Updates are real, so the
server takes the real part, which has half of that variance.** The paper writes the complex noise
into the model, and its bound counts all of it. Some published code adds real noise of the full
variance: ``noise = "real"``.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Replies
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, UsageError, check_choice, check_positive, require
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo

CHANNELS = ("rayleigh", "rician", "fixed")
NOISES = ("complex", "real")
_MOST_DB = 1000  # far beyond any radio, and well within what a float holds


@dataclass(frozen=True)
class AirComp(Uplink):
    r"""Analog over-the-air sum of the updates of all devices with a good channel.

    The channel schedules, so an algorithm's ``participants`` has no effect. A round in which no
    device reaches the threshold leaves the model unchanged and counts 0 participants.

    Parameters
    ----------
    snr_db : float
        P/σ_w² in dB, P the power of a symbol; ``inf`` for no noise, with the same channels and
        participants.
    h_min : float
        The threshold on |h_i|.
    channel : str
        ``rayleigh``: h ~ CN(0, 1), the paper's; ``rician``: a line of sight of power
        K/(K+1) and phase 0 plus CN(0, 1/(K+1)); ``fixed``: h = 1.
    rician_factor : float, optional
        K of the Rician channel, 3 by default.
    csi_error : float
        Variance of the error of the channel estimate. Devices are scheduled and precode by
        ĥ_i = h_i + CN(0, csi_error), so Δ_i arrives multiplied by h_i/ĥ_i.
    packing : bool
        Send two coordinates in one symbol, as its real and imaginary part: half the channel
        uses, of half the energy, and the server receives both parts of the noise. An error of the
        channel estimate rotates the symbol and mixes the two.
    noise : str
        ``complex``, or ``real``: a noise of the full variance in the real part.

    References
    ----------
    Fang et al. 2022, section IV; the precoding follows T. Sery, N. Shlezinger, K. Cohen and
    Y. C. Eldar, "Over-the-Air Federated Learning From Heterogeneous Data", IEEE Transactions
    on Signal Processing 69, 2021.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=10, devices=20, gradient_noise=0.0)
    >>> result = fedzo.minimize(
    ...     problem, algorithm=fedzo.FedZO(learning_rate=0.02), uplink=fedzo.AirComp(snr_db=0.0))
    >>> bool(result.history[-1]["optimality_gap"] < 0.1 * result.history[0]["optimality_gap"])
    True
    >>> result.channel_uses  # 100 rounds of d = 10 symbols, however many took part
    1000
    """

    snr_db: float = 0.0
    h_min: float = 0.8
    channel: str = "rayleigh"
    rician_factor: float | None = None
    csi_error: float = 0.0
    packing: bool = False
    noise: str = "complex"

    def __post_init__(self) -> None:
        heard = abs(self.snr_db) <= _MOST_DB or self.snr_db == math.inf
        allowed = f"a number from -{_MOST_DB} to {_MOST_DB}, or inf for no noise"
        require(heard, "snr_db", self.snr_db, allowed)
        check_positive(self, "h_min")
        if self.rician_factor is not None:
            check_positive(self, "rician_factor")
            allowed = f"omitted: the {self.channel} channel has none"
            require(self.channel == "rician", "rician_factor", self.rician_factor, allowed)
        require(0 <= self.csi_error < math.inf, "csi_error", self.csi_error, "a number >= 0")
        for key, known in (("channel", CHANNELS), ("noise", NOISES)):
            check_choice(key, getattr(self, key), known)
        if self.noise == "real" and self.packing:
            raise InvalidValue("noise", "real", "'complex' with packing, which uses both parts")

    def channels(self, t: int, setting: RunSetting) -> tuple[Array, Array]:
        """Return the channel h and its estimate ĥ of all N devices in round t."""
        n, at = setting.devices, Draws(setting.seed, Stream.CHANNEL, round=t)
        h = np.ones(n, np.complex128) if self.channel == "fixed" else _complex_normals(at, n)
        if self.channel == "rician":
            k = 3.0 if self.rician_factor is None else self.rician_factor
            h = math.sqrt(k / (k + 1)) + h / math.sqrt(k + 1)
        if self.csi_error == 0:
            return h, h
        return h, h + math.sqrt(self.csi_error) * _complex_normals(at._replace(step=1), n)

    def participants(self, t: int, wanted: int | None, setting: RunSetting) -> Array:
        """Return {i : |ĥ_i| >= h_min}."""
        _, known = self.channels(t, setting)
        return np.flatnonzero(np.abs(known) >= self.h_min)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Array, UplinkInfo]:
        """Return the mean update that the server recovers from the received sum.

        With perfect knowledge of the channel, h_i α_i is the same real number for all devices, so
        the sum can be formed as the updates arrive, before Δ_max is known. Weights other than the
        uniform 1/M multiply the symbols of a device.
        """
        dim = setting.dim
        h, known = self.channels(t, setting)
        heard, total = np.zeros(self._uses(dim), np.complex128), np.zeros(dim)
        shares, model_bytes, squares = 0.0, 0, {}
        for update in updates:
            i, sent = update.device, update.weight * np.asarray(update.delta, np.float64)
            heard += (h[i] / known[i]) * self._symbols(sent)
            total += sent
            shares += update.weight
            squares[i] = float(sent @ sent)  # |Δ_i|²
            model_bytes += update.delta.nbytes
        largest = max(squares.values(), default=0.0)  # Δ_max
        # |α_i Δ_i|² in units of the budget, uses P: at most 1, since |ĥ_i| >= h_min.
        energies = {
            i: (self.h_min / abs(known[i])) ** 2 * square / (largest or 1.0)
            for i, square in squares.items()
        }
        noise = self._noise(t, setting) * math.sqrt(largest) / self._amplitude(dim)
        added = float(np.linalg.norm(self._numbers(noise, dim)))
        signal = float(np.linalg.norm(total))
        metrics = {
            "energies": energies,
            "energy_max": max(energies.values(), default=0.0),
            "noise_to_update": added / signal if signal else 0.0,
        }
        # Beside the analog symbols each device reports |Δ_i|² (4 bytes), and receives Δ_max (4) and
        # its channel (8).
        count = updates.count
        info = UplinkInfo(
            uplink_bytes=4 * count,
            downlink_bytes=model_bytes + 12 * count,
            channel_uses=self._uses(dim) if count else 0,
            energy=math.fsum(energies.values()),
            metrics=metrics,
        )
        return self._numbers(heard + noise, dim) / (shares or 1.0), info

    def _uses(self, dim: int) -> int:
        return -(-dim // 2) if self.packing else dim

    def _amplitude(self, dim: int) -> float:
        """Return the amplitude h_min sqrt(uses P / σ_w²) of a received sum with Δ_max = 1."""
        return self.h_min * math.sqrt(self._uses(dim)) * 10 ** (self.snr_db / 20)

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Raise: the channel carries updates only."""
        raise UsageError("AirComp cannot send values: use the uplink 'ideal'", code="no-values")

    def _noise(self, t: int, setting: RunSetting) -> Array:
        """Return n / σ_w, one complex number per channel use."""
        uses = self._uses(setting.dim)
        if self.snr_db == math.inf:
            return np.zeros(uses, np.complex128)
        at = Draws(setting.seed, Stream.NOISE, round=t)
        return at.normals(uses) if self.noise == "real" else _complex_normals(at, uses)

    def _symbols(self, numbers: Array) -> Array:
        if not self.packing:
            return numbers
        even = np.append(numbers, np.zeros(len(numbers) % 2))
        half = len(even) // 2
        return np.asarray(even[:half] + 1j * even[half:])

    def _numbers(self, symbols: Array, dim: int) -> Array:
        if not self.packing:
            return np.asarray(symbols.real)
        return np.concatenate((symbols.real, symbols.imag))[:dim]


def _complex_normals(at: Draws, count: int) -> Array:
    """Return CN(0, 1) numbers: variance 1/2 in either part."""
    real, imaginary = at.normals(2, count)
    return np.asarray(math.sqrt(0.5) * (real + 1j * imaginary))
