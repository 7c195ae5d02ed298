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

:class:`AirCompSeeds` sends coefficients of shared directions in place of updates: the same
transceiver for H b2 numbers in place of d.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedzo.core.capabilities import InPlace
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.errors import (
    InvalidValue,
    UsageError,
    check_choice,
    check_not_negative,
    check_positive,
    is_number,
    require,
)
from fedzo.uplinks.base import RunSetting, UplinkInfo, sending_costs
from fedzo.uplinks.channels import POLICIES, PowerControl, complex_normals
from fedzo.uplinks.seeds import HEADER_BYTES, catch_up, coefficients_of, of_all
from fedzo.uplinks.wireless import Wireless, check_db

NOISES = ("complex", "real")
COMBININGS = ("aligned", "blind")
_CSI, _PHASES, _DELAYS, _DOWNLINK = 1, 2, 3, 4  # steps of the address


class Link(NamedTuple):
    """The channel of a round as the sum sees it.

    Attributes
    ----------
    factors : array
        By what a device's symbols arrive multiplied, complex, shape (N,).
    weights : array
        How a device counts if its channel is as estimated, shape (N,); 0 if it is silent.
    known : array
        The estimated channel that devices invert, shape (N,).
    level : float
        η: the receiver's noise counts with 1/η.
    """

    factors: Array
    weights: Array
    known: Array
    level: float

    @property
    def powers(self) -> Array:
        """The largest share of its power that each device sends with; 0 if it is silent."""
        with np.errstate(divide="ignore", invalid="ignore"):
            powers = (self.level * self.weights / np.abs(self.known)) ** 2
        return np.where(self.weights == 0, 0.0, powers)


@dataclass(frozen=True, kw_only=True)
class AirComp(Wireless):
    r"""Analog over-the-air sum of the updates of all devices with a good channel.

    The channel schedules, so an algorithm's ``participants`` has no effect. A round in which no
    device reaches the threshold leaves the model unchanged and counts 0 participants.

    Parameters
    ----------
    h_min : float
        The threshold on |h_i|.
    csi_error : float
        Variance of the error of the channel estimate. Devices are scheduled and precode by
        ĥ_i = h_i + CN(0, csi_error), so Δ_i arrives multiplied by h_i/ĥ_i.
    phase_error : float
        Standard deviation, in radians, of a device's phase: Δ_i arrives multiplied by
        e^{iφ_i}, φ_i ~ N(0, phase_error²).
    misalignment : float
        Devices are late by up to this share of a symbol, uniformly. The matched filter of a device
        that is late by τ receives 1 - τ of its symbol and τ of the one before.
    packing : bool
        Send two numbers in one symbol, as its real and imaginary part: half the channel
        uses, of half the energy, and the server receives both parts of the noise. An error of the
        channel estimate rotates the symbol and mixes the two.
    noise : str
        ``complex``, or ``real``: a noise of the full variance in the real part.
    combining : str
        What the server does with several antennas. ``aligned``: it combines them along the
        strongest direction of all channels, and devices invert the channel that results.
        ``blind``: devices know no channel and send with full power; the server combines by the
        conjugate of the summed channels (Amiri et al. 2021).
    power : str or PowerControl
        ``truncated_inversion``, the paper's; ``full_inversion``, ``least_noise``, or a custom one:
        :mod:`fedzo.uplinks.channels`.
    clip : float, optional
        C: a device shortens its update, times its weight, to the length C and scales by C in
        place of the largest length of all devices. No length is exchanged, and the receiver's noise
        does not depend on the data.
    joules : float or list of float, optional
        What each device may spend on sending during the run. A device that cannot afford the full
        energy of a round stays silent in it. Needs a ``radio``.
    downlink_snr_db : float
        SNR of an analog broadcast of the model, of which each device receives its own noise;
        ``inf``, the default, is the paper's error-free downlink.
    snr_db, channel, coherence, antennas, radio
        See :class:`~fedzo.uplinks.wireless.Wireless`.

    References
    ----------
    Fang et al. 2022, section IV; the precoding follows T. Sery, N. Shlezinger, K. Cohen and
    Y. C. Eldar, "Over-the-Air Federated Learning From Heterogeneous Data", IEEE Transactions
    on Signal Processing 69, 2021. M. M. Amiri, T. M. Duman, D. Gündüz, S. R. Kulkarni and H. V.
    Poor, "Blind Federated Edge Learning", IEEE Transactions on Wireless Communications 20, 2021.

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

    h_min: float = 0.8
    csi_error: float = 0.0
    phase_error: float = 0.0
    misalignment: float = 0.0
    packing: bool = False
    noise: str = "complex"
    combining: str = "aligned"
    power: str | PowerControl = "truncated_inversion"
    clip: float | None = None
    joules: float | tuple[float, ...] | None = None
    downlink_snr_db: float = math.inf

    carries_values: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "h_min", optional=["clip"])
        check_not_negative("csi_error", self.csi_error)
        check_not_negative("phase_error", self.phase_error)
        late = self.misalignment
        require(0 <= late <= 1, "misalignment", late, "a number from 0 to 1")
        for key, known in (("noise", NOISES), ("combining", COMBININGS)):
            check_choice(key, getattr(self, key), known)
        if isinstance(self.power, str):
            check_choice("power", self.power, POLICIES)
        if self.combining == "blind" and self.power != "truncated_inversion":
            raise InvalidValue("power", self.power, "omitted: blind devices send at full power")
        if self.noise == "real" and self.packing:
            raise InvalidValue("noise", "real", "'complex' with packing, which uses both parts")
        check_db("downlink_snr_db", self.downlink_snr_db)
        if self.joules is not None:
            given = [*self.joules] if isinstance(self.joules, tuple | list) else [self.joules]
            fits = bool(given) and all(is_number(one) and one >= 0 for one in given)
            require(fits, "joules", self.joules, "a number >= 0, or one per device")
            require(self.radio is not None, "joules", self.joules, "omitted, or set a radio")

    def check(self, setting: RunSetting) -> None:
        """Raise unless channel, power control and energy budgets fit the devices."""
        self.link(0, setting)
        if isinstance(self.joules, tuple | list):
            n = setting.devices
            require(len(self.joules) == n, "joules", self.joules, f"one number, or {n}")

        direct = isinstance(setting.engine, LocalEngine) and not setting.provides(InPlace)
        if self.downlink_snr_db < math.inf and not direct:
            raise UsageError(
                "uplink.downlink_snr_db: a noisy downlink is simulated for models of this process "
                "that are not changed in place; omit it",
                code="downlink-noise",
            )

    def broadcast(self, t: int, x: Array, devices: Array, setting: RunSetting) -> Array:
        """Return x plus real noise of the variance |x|²/(2 d SNR) per number, for each device."""
        if self.downlink_snr_db == math.inf:
            return x
        scale = float(np.linalg.norm(x)) / math.sqrt(2 * x.size) / 10 ** (self.downlink_snr_db / 20)
        at = Draws(setting.seed, Stream.NOISE, round=t, step=_DOWNLINK)
        rows = [x + scale * at._replace(device=int(i)).normals(x.size) for i in devices]
        return np.asarray(rows, x.dtype).reshape(-1, x.size)

    def channels(self, t: int, setting: RunSetting) -> tuple[Array, Array]:
        """Return the channel h and its estimate ĥ of all N devices in round t.

        Of several antennas that are aligned, they are combined into one.
        """
        h, known = self._channels(t, setting)
        if self.antennas == 1:
            return h[0], known[0]
        _, vectors = np.linalg.eigh(known @ known.conj().T)
        strongest = vectors[:, -1].conj()
        return strongest @ h, strongest @ known

    def _channels(self, t: int, setting: RunSetting) -> tuple[Array, Array]:
        """Return h and ĥ at each antenna, (antennas, N)."""
        known = h = self.gains(t, setting)
        if self.csi_error > 0:
            wrong = [
                complex_normals(self.draws(t, setting, antenna, _CSI), setting.devices)
                for antenna in range(self.antennas)
            ]
            known = h + math.sqrt(self.csi_error) * np.asarray(wrong)
        if self.phase_error > 0:
            phases = self.draws(t, setting, step=_PHASES).normals(setting.devices)
            h = h * np.exp(1j * self.phase_error * phases)
        return h, known

    def link(self, t: int, setting: RunSetting) -> Link:
        """Return how the symbols of each device arrive in round t."""
        if self.combining == "blind":
            h, known = self._channels(t, setting)
            summed = known.sum(axis=1)  # Σ_i ĥ_i, one per antenna
            level, each = self.antennas / float(np.linalg.norm(summed)), np.ones(setting.devices)
            return Link(summed.conj() @ h / self.antennas, each, level * each, level)
        h, known = self.channels(t, setting)
        policy = POLICIES[self.power]() if isinstance(self.power, str) else self.power
        weights, level = policy.arrivals(np.abs(known), self.h_min)
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.where(weights == 0, 0.0, (h / known) * weights)
        link = Link(factors, weights, known, level)
        most = float(np.max(link.powers, initial=0.0))
        if not (level > 0 and most <= 1 + 1e-9):  # NaN is neither
            raise UsageError(
                f"uplink.power: {type(policy).__name__} asks for {most:.3g} times the power of a "
                "device; a weight can be at most gain / level",
                code="too-much-power",
            )
        return link

    def participants(self, t: int, wanted: int | None, setting: RunSetting) -> Array:
        """Return the devices that transmit: by default {i : |ĥ_i| >= h_min}."""
        powers = self.link(t, setting).powers
        return np.flatnonzero(self._affordable(t, powers, setting))

    def _affordable(self, t: int, powers: Array, setting: RunSetting) -> Array:
        """Return the powers without those of devices that have spent their joules.

        Rounds are charged with the most that a device may send, which is known before the round.
        """
        if self.joules is None or self.radio is None:
            return powers
        each = self.radio.watts * self.radio.seconds(self._uses(setting.numbers))
        budget = np.broadcast_to(np.asarray(self.joules, np.float64), setting.devices)
        spent = setting.scratch.setdefault("joules", [np.zeros(setting.devices)])
        for earlier in range(len(spent) - 1, t):
            cost = each * self.link(earlier, setting).powers
            before = spent[earlier]
            spent.append(before + np.where(before + cost <= budget, cost, 0.0))
        return np.where(spent[t] + each * powers <= budget, powers, 0.0)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Array, UplinkInfo]:
        """Return the mean update that the server recovers from the received sum."""
        model_bytes = 0

        def rows() -> Iterable[tuple[Update, Array]]:
            nonlocal model_bytes
            for update in updates:
                model_bytes += update.delta.nbytes
                yield update, update.delta

        mean, info = self._received(t, rows(), setting.dim, setting)
        return mean, info._replace(downlink_bytes=info.downlink_bytes + model_bytes)

    def _received(
        self, t: int, rows: Iterable[tuple[Update, Any]], count: int, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Return the mean of the devices' ``count`` numbers that the server recovers.

        h_i α_i is known before Δ_max is, so the sum can be formed as the numbers arrive. Weights
        other than the uniform 1/M multiply the symbols of a device.
        """
        link, uses = self.link(t, setting), self._uses(count)
        heard, total = np.zeros(uses, np.complex128), np.zeros(count)
        late = None
        if self.misalignment > 0:
            at = self.draws(t, setting, step=_DELAYS)
            late = self.misalignment * at.uniform(setting.devices)
        shares, squares = 0.0, {}
        for update, numbers in rows:
            i, sent = update.device, update.weight * np.asarray(numbers, np.float64)
            square = float(sent @ sent)  # |Δ_i|²
            if self.clip is not None and square > self.clip**2:
                sent *= self.clip / math.sqrt(square)
                square = self.clip**2
            symbols = link.factors[i] * self._symbols(sent)
            if late is not None:
                symbols[1:] += late[i] * (symbols[:-1] - symbols[1:])
                symbols[0] *= 1 - late[i]
            heard += symbols
            total += sent
            shares += update.weight
            squares[i] = square
        largest = max(squares.values(), default=0.0)  # Δ_max
        if self.clip is not None and squares:
            largest = self.clip**2
        # |α_i Δ_i|² in units of the budget, uses P: at most 1.
        powers = link.powers.tolist()
        energies = {i: powers[i] * s / (largest or 1.0) for i, s in squares.items()}
        amplitude = link.level * math.sqrt(uses) * 10 ** (self.mean_snr_db / 20)
        noise = self._noise(t, uses, setting) * math.sqrt(largest) / amplitude
        added = float(np.linalg.norm(self._numbers(noise, count)))
        signal = float(np.linalg.norm(total))
        metrics = {
            "energies": energies,
            "energy_max": max(energies.values(), default=0.0),
            "noise_to_update": added / signal if signal else 0.0,
        }
        # Beside the symbols each device reports |Δ_i|² (4 bytes), and receives Δ_max (4) and its
        # channel (8).
        devices, energy = len(squares), math.fsum(energies.values())
        norms, channel = 4 * (self.clip is None), 8 * (self.combining == "aligned")
        used = uses if devices else 0
        info = UplinkInfo(
            uplink_bytes=norms * devices,
            downlink_bytes=(norms + channel) * devices,
            channel_uses=used,
            costs={"energy": energy, **sending_costs(self.radio, used, energy * uses)},
            metrics=metrics,
        )
        return self._numbers(heard + noise, count) / (shares or 1.0), info

    def _uses(self, count: int) -> int:
        return -(-count // 2) if self.packing else count

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Raise: the channel carries updates only."""
        raise UsageError("AirComp cannot send values: set uplink.name = 'ideal'", code="no-values")

    def _noise(self, t: int, uses: int, setting: RunSetting) -> Array:
        """Return n / σ_w, one complex number per channel use."""
        if self.mean_snr_db == math.inf:
            return np.zeros(uses, np.complex128)
        at = Draws(setting.seed, Stream.NOISE, round=t)
        return at.normals(uses) if self.noise == "real" else complex_normals(at, uses)

    def _symbols(self, numbers: Array) -> Array:
        if not self.packing:
            return numbers
        even = np.append(numbers, np.zeros(len(numbers) % 2))
        half = len(even) // 2
        return np.asarray(even[:half] + 1j * even[half:])

    def _numbers(self, symbols: Array, count: int) -> Array:
        if not self.packing:
            return np.asarray(symbols.real)
        return np.concatenate((symbols.real, symbols.imag))[:count]


@dataclass(frozen=True, kw_only=True)
class AirCompSeeds(AirComp):
    r"""Analog over-the-air sum of the *coefficients* of directions that all devices share.

    An update is a sum of H b2 directions, which the server can draw. If all devices share them, the
    mean of their coefficients is the mean update. So H b2 channel uses per round do what d do
    in :class:`AirComp`, at the same ratio of noise to update and the same power per symbol.
    Devices replay the round from the received coefficients: H b2 numbers per device and round.

    It needs an algorithm with ``shared_directions = true``. The parameters are those of
    :class:`AirComp`; Δ_i stands for a device's coefficients.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=500, devices=20, gradient_noise=0.0)
    >>> algorithm = fedzo.FedZO(learning_rate=0.005, directions=10, shared_directions=True)
    >>> uplink = fedzo.AirCompSeeds(snr_db=-10.0)
    >>> result = fedzo.minimize(problem, algorithm=algorithm, uplink=uplink, rounds=100)
    >>> bool(result.history[-1]["optimality_gap"] < 0.5 * result.history[0]["optimality_gap"])
    True
    >>> result.channel_uses  # 100 rounds of H b2 = 50 symbols
    5000
    """

    wants_coefficients: ClassVar[bool] = True
    wants_shared_directions: ClassVar[bool] = True

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return the update that the received coefficients make."""
        received, task = list(updates), updates.task
        if not received:
            return np.zeros(setting.dim), UplinkInfo(0, 0, 0)
        if setting.replaying:  # the log has what the server received
            return received[0].delta, UplinkInfo(0, 0, 0)
        heard, info = self._heard(t, received, task, setting)
        own = coefficients_of(heard)
        fixed, most = task.algorithm.fixed_directions, task.x.nbytes
        if fixed:
            most = min(most, fixed * task.x.itemsize)
        devices = [update.device for update in received]
        down, caught_up = catch_up(self, t, devices, HEADER_BYTES + own.nbytes, most, setting)
        metrics = {**info.metrics, "caught_up": caught_up}
        down += info.downlink_bytes
        return heard.delta, info._replace(downlink_bytes=down, metrics=metrics)

    def compress(
        self, updates: list[Update], task: LocalSteps, setting: RunSetting
    ) -> list[Update]:
        """Return the received coefficients as one update."""
        return [self._heard(task.round, updates, task, setting)[0]] if updates else []

    def _heard(
        self, t: int, updates: list[Update], task: Any, setting: RunSetting
    ) -> tuple[Update, UplinkInfo]:
        own = list(map(coefficients_of, updates))
        rows = zip(updates, map(np.ravel, own), strict=True)
        shape = own[0].shape
        mean, info = self._received(t, rows, math.prod(shape), setting)
        return of_all(updates[0], mean.reshape(shape), task), info
