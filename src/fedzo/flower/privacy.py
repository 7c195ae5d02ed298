r"""Differential privacy on the scalars that leave a node.

An update is made of b2 coefficients a step, and each comes of differences of a device's losses. So
that is where noise goes, on b2 numbers rather than on the d numbers of an update:

* of each record the b2 differences F(x + μv_n) - F(x) are clipped together, to the length C;
* a record that a batch has twice counts once, so one record moves the mean over b of them, of
  which :math:`b' = n (1 - (1 - 1/n)^b)` are different on average, by at most 2C/b';
* normal noise of standard deviation z 2C/b' is added to each of the b2 means;
* of an evaluated loss, each record's is clipped to [-B, B], and the noise is z 2B/b'.

Every step and every evaluated loss is then a Gaussian mechanism with the noise multiplier z, for
data sets that differ in the values of one record. T of them on a device, whatever was asked
in between, are exactly as private as one with z / sqrt(T) (Dong, Roth & Su, "Gaussian Differential
Privacy", 2022), whose ε at δ is known in closed form (Balle & Wang 2018): nothing is lost to a
bound. The node's ledger counts them over all runs, and a node that has spent its ε answers no more.
Nothing is claimed for sampling: batches are drawn by a seed that the server knows.

Metrics and gradients are not answered at all, nor values at points that are not a difference.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.errors import check_count, check_positive, require
from fedzo.flower.reasons import Reason, Refused

Array = NDArray[Any]

_TELLING = ("gradient", "fused_step", "metrics", "constants")  # what would tell data unclipped


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The ``[privacy]`` of a node.

    Parameters
    ----------
    epsilon, delta : float
        What all answers about one record may come to, over all runs.
    noise : float
        z, the noise of one answer over what one record can change in it.
    difference_clip : float
        C, how long the differences of one record may be.
    loss_clip : float
        B, how large the loss of one record may be.
    records : int
        A device with fewer records answers nothing.

    Examples
    --------
    >>> privacy = Privacy(epsilon=8.0, noise=30.0, difference_clip=0.01, loss_clip=5.0)
    >>> privacy.spent(100) < privacy.epsilon < privacy.spent(10_000)
    True
    """

    epsilon: float
    noise: float
    difference_clip: float
    loss_clip: float
    delta: float = 1e-5
    records: int = 1

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", "noise", "difference_clip", "loss_clip", "delta")
        require(self.delta < 1, "delta", self.delta, "a number in (0, 1)")
        check_count("records", self.records)

    def spent(self, answers: int) -> float:
        """Return the ε that so many answers about a record come to."""
        return gaussian_epsilon(math.sqrt(answers) / self.noise, self.delta) if answers else 0.0

    def check(self, answers: int) -> None:
        """Refuse to answer so many times in all, where that is more than ε allows."""
        if self.spent(answers) > self.epsilon:
            text = f"{answers} answers would be more than epsilon = {self.epsilon:g}"
            raise Refused(Reason.PRIVACY, text)


def gaussian_epsilon(mu: float, delta: float) -> float:
    r"""Return the least ε at which a Gaussian mechanism is (ε, δ)-private.

    ``mu`` is what a record can change over the noise's standard deviation. It solves

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu)
              - e^\varepsilon\, \Phi(-\mu/2 - \varepsilon/\mu)

    (B. Balle and Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML
    2018, Theorem 5), whose right-hand side falls with ε.

    >>> round(gaussian_epsilon(1.0, 1e-5), 6)
    4.377178
    """

    def excess(epsilon: float) -> float:
        tail = math.exp(min(epsilon + _log_normal(-mu / 2 - epsilon / mu), 0.0))
        return math.exp(_log_normal(mu / 2 - epsilon / mu)) - tail - delta

    low, high = 0.0, 1.0
    if excess(0.0) <= 0:
        return 0.0
    while excess(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def _log_normal(z: float) -> float:
    """Return log Φ(z), also where Φ is too small for a number."""
    if z > -30:
        return math.log(0.5 * math.erfc(-z / math.sqrt(2)))
    return -z * z / 2 - math.log(-z * math.sqrt(2 * math.pi)) + math.log1p(-1 / (z * z))


class Private(Objective):
    """An objective whose differences and losses are clipped and noised.

    Examples
    --------
    The noise has the standard deviation z 2C/b', here 3 x 2 x 0.5 / 1 of a function, whose only
    record it is:

    >>> from fedzo.problems.function import FunctionObjective
    >>> inner = FunctionObjective(lambda x, device: x[0], dim=1, devices=1)
    >>> privacy = Privacy(epsilon=1.0, noise=3.0, difference_clip=0.5, loss_clip=1.0)
    >>> private = Private(inner, privacy)
    >>> private.deviation(device=0, size=1, bound=0.5)
    3.0
    """

    def __init__(self, objective: Objective, privacy: Privacy) -> None:
        self.inner, self.privacy = objective, privacy
        self.dim, self.devices = objective.dim, objective.devices
        self.meter, self.scale, self.reach = objective.meter, objective.scale, objective.reach

    def offers(self, name: str) -> bool:
        """Tell whether it has one of the optional methods: the inner ones that tell no data."""
        return name not in _TELLING and self.inner.offers(name)

    def initial(self) -> Array:
        """Return where to start."""
        return self.inner.initial()

    def size(self, device: int) -> int:
        """Return how many records a device holds."""
        return self.inner.size(device)

    def batch(self, device: int, size: int, draws: Draws) -> tuple[int, int, Any]:
        """Return a batch of a device, if it has records enough to answer about."""
        if self.inner.size(device) < self.privacy.records:
            text = f"device {device} has fewer than {self.privacy.records} records"
            raise Refused(Reason.RECORDS, text)
        return device, size, self.inner.batch(device, size, draws)

    def values(self, points: Array, batch: Any) -> Array:
        """Refuse: only differences and evaluated losses are private."""
        raise Refused(Reason.PRIVACY, "values at points of a server's choice")

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
    ) -> Array:
        """Return values whose differences are clipped, averaged over records and noised."""
        device, size, inner = batch
        values = np.asarray(self.inner.values_along(x, directions, rows, steps, inner), np.float64)
        forward = steps[0] == 0  # the base comes first, else the other side is the second half
        half = 1 if forward else len(values) // 2
        changes = values[1:] - values[:1] if forward else values[:half] - values[half:]
        lengths = np.maximum(np.linalg.norm(changes, axis=0), self.privacy.difference_clip)
        means = self._released(
            changes * (self.privacy.difference_clip / lengths),
            self.deviation(device, size, self.privacy.difference_clip),
            self._distinct(device, size),
        )
        zero = np.zeros(half)
        column = np.concatenate((zero, means) if forward else (means, zero))
        return np.repeat(column[:, None], values.shape[1], axis=1)  # as many as were asked for

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the devices, each over records drawn from all, clipped and noised."""
        return np.array([self._loss(x, int(device)) for device in devices])

    def _loss(self, x: Array, device: int) -> float:
        size, bound = max(self.inner.size(device), 1), self.privacy.loss_clip
        draws = Draws(secrets.randbits(64), Stream.BATCHES, device=device)
        _, _, inner = self.batch(device, size, draws)
        values = np.clip(np.asarray(self.inner.values(x[None], inner), np.float64), -bound, bound)
        noise = self.deviation(device, size, bound)
        return float(self._released(values, noise, self._distinct(device, size))[0])

    def deviation(self, device: int, size: int, bound: float) -> float:
        """Return the noise of a mean over a batch in which one record has such a bound."""
        return self.privacy.noise * 2 * bound / self._distinct(device, size)

    def _distinct(self, device: int, size: int) -> float:
        """Return how many different records a batch has on average."""
        records = max(self.inner.size(device), 1)
        return -records * math.expm1(size * math.log1p(-1 / records)) if records > 1 else 1.0

    def _released(self, columns: Array, deviation: float, count: float) -> Array:
        """Return the noised sum over different columns, a record each, over their count.

        The noise is the system's, not of an address: whoever knows the run's seed must not know it.
        """
        random = secrets.SystemRandom()
        total = np.unique(columns, axis=1).sum(axis=1) / count
        return np.asarray(total + [random.gauss(0.0, deviation) for _ in total])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return nothing: a metric has no bound."""
        return {}
