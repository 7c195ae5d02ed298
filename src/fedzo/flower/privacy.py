r"""Differential privacy on the scalars that leave a node.

An update is made of b2 coefficients per step, and each is a difference of a device's losses. Noise
is added there, to b2 numbers in place of the d numbers of an update:

* the b2 differences F(x + μv_n) - F(x) of each record are clipped together, to the length C;
* a record that is in a batch twice counts once. A batch of b has
  :math:`b' = n (1 - (1 - 1/n)^b)` distinct records on average, so one record moves the mean by at
  most 2C/b';
* normal noise of standard deviation z 2C/b' is added to each of the b2 means;
* the loss of each record in an evaluation is clipped to [-B, B], and the noise is z 2B/b';
* a value that is not finite counts as zero, so that one record cannot turn a mean into NaN.

Every step and every evaluated loss is then a Gaussian mechanism with the noise multiplier z, for
data sets that differ in the values of one record. Several mechanisms on a device are exactly as
private as one with 1 / z^2 = sum of all 1 / z^2 (Dong, Roth & Su, "Gaussian Differential Privacy",
2022). That holds also if later requests depend on earlier replies. dp-accounting computes the
smallest ε of that one at δ (Balle & Wang 2018), so no bound is involved. The node's ledger stores
the sum over all runs, and a node that has spent its ε rejects further requests. Sampling is not
counted as protection, because the server knows the seed of the batches.

A private node sends no metrics and no gradients, nor values at points that are not a difference.

The bound of 2C/b' on the effect of one record is not yet tested on neighbouring data sets, and is
false for some problems and batch sizes. So a node with ``[privacy]`` rejects every problem that
:data:`PROVEN` does not list.
"""

import math
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedzo.core import capabilities as can
from fedzo.core.objective import Objective, values_along
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum
from fedzo.core.wrappers import ObjectiveWrapper
from fedzo.errors import check_positive, require
from fedzo.flower.errors import ErrorCode, Rejected

# Problems with a test that measures, on neighbouring data sets, how far one record moves a reply.
# Exact classes, because a subclass can compute other values. No problem has such a test yet.
PROVEN: tuple[type[Objective], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The ``[privacy]`` of a node.

    Parameters
    ----------
    epsilon, delta : float
        The privacy budget of each record, over all runs.
    noise : float
        z, the noise of one release relative to the largest effect of one record on it.
    difference_clip : float
        C, the largest length of the differences of one record.
    loss_clip : float
        B, the largest absolute loss of one record.

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

    def __post_init__(self) -> None:
        check_positive(self, "epsilon", "noise", "difference_clip", "loss_clip", "delta")
        require(self.delta < 1, "delta", self.delta, "a number in (0, 1)")

    def spent(self, answers: int) -> float:
        """Return the ε of this number of releases about a record."""
        return self.epsilon_of(answers / self.noise**2)

    def epsilon_of(self, spent: float) -> float:
        """Return the ε of releases whose 1/z^2 sum up to ``spent``, by Google's accountant.

        Together they are one Gaussian mechanism with z = 1 / sqrt(spent), exactly.
        """
        from dp_accounting import get_epsilon_gaussian

        return float(get_epsilon_gaussian(1 / math.sqrt(spent), self.delta)) if spent else 0.0

    def check(self, spent: float) -> None:
        """Reject releases whose 1/z^2 would sum up to more than ε allows."""
        if self.epsilon_of(spent) > self.epsilon:
            text = f"epsilon would be {self.epsilon_of(spent):.4g}, more than {self.epsilon:g}"
            raise Rejected(ErrorCode.PRIVACY, text)


def check_proven(objective: Objective) -> None:
    """Reject a problem for which no test shows that the noise hides a record.

    >>> from fedzo.problems import Quadratic
    >>> check_proven(Quadratic())
    Traceback (most recent call last):
    fedzo.flower.errors.Rejected: [privacy] is not supported for Quadratic: no test on neighbouring
    data sets shows that its noise hides a record. Remove [privacy] or do not join this run.
    """
    if type(objective) not in PROVEN:
        raise Rejected(
            ErrorCode.NOT_PROVEN,
            f"[privacy] is not supported for {type(objective).__name__}: no test on neighbouring "
            "data sets shows that its noise hides a record. Remove [privacy] or do not join this "
            "run.",
        )


class Private(ObjectiveWrapper):
    """An objective whose differences and losses are clipped and noised.

    Every capability that would release values without clipping and noise is hidden.

    ``answers`` is how many of them each device may give: those that were paid for. None: any.

    Examples
    --------
    The noise has the standard deviation z 2C/b', here 3 x 2 x 0.5 / 1 of a function, whose only
    record it is:

    >>> from fedzo.problems import FunctionObjective
    >>> inner = FunctionObjective(lambda x, device: x[0], dim=1, devices=1)
    >>> privacy = Privacy(epsilon=1.0, noise=3.0, difference_clip=0.5, loss_clip=1.0)
    >>> private = Private(inner, privacy)
    >>> private.deviation(device=0, size=1, bound=0.5)
    3.0
    """

    passes = (*can.EXECUTION, can.HasSizes, can.InPlace)
    transforms = (can.Streamed,)
    adds = (can.ValuesAlong,)  # values at single points are rejected
    hides = (can.HasGradient, can.FusedStep, can.NamesRecords, *can.HINTS, *can.RESULTS)

    def __init__(
        self, objective: Objective, privacy: Privacy, answers: Mapping[int, int] | None = None
    ) -> None:
        super().__init__(objective)
        self.privacy = privacy
        self._left = None if answers is None else dict(answers)
        self._lock = threading.Lock()

    def batch(self, device: int, size: int, draws: Draws) -> tuple[int, int, Any]:
        """Return a batch of a device."""
        return device, size, self.inner.batch(device, size, draws)

    def values(self, points: Array, batch: Any) -> Array:
        """Refuse: only differences and evaluated losses are private."""
        raise Rejected(ErrorCode.PRIVACY, "values at points of a server's choice")

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
    ) -> Array:
        """Return values whose differences are clipped, averaged over records and noised."""
        device, size, inner = batch
        values = values_along(self.inner, x, directions, rows, steps, inner)
        return self._differences(values, bool(steps[0] == 0), device, size)

    def values_streamed(
        self,
        x: Array,
        walked: DirectionSum | None,
        steps: Sequence[DirectionSum | None],
        batch: Any,
    ) -> Array:
        """Return the same of a model whose directions are never held."""
        device, size, inner = batch
        streamed = self.inner.capability(can.Streamed)
        assert streamed is not None
        values = streamed.values_streamed(x, walked, steps, inner)
        return self._differences(values, steps[0] is None, device, size)

    def _differences(self, values: Array, forward: bool, device: int, size: int) -> Array:
        """Return values of the same shape whose differences may be told.

        Of forward differences the base comes first, of others the second half is the other side.
        """
        values = np.asarray(values, np.float64)
        half = 1 if forward else len(values) // 2
        changes = _finite(values[1:] - values[:1] if forward else values[:half] - values[half:])
        clip = self.privacy.difference_clip
        lengths = np.maximum(np.linalg.norm(changes, axis=0), clip)
        means = self._released(changes * (clip / lengths), clip, device, size)
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
        values = _finite(np.asarray(self.inner.values(x[None], inner), np.float64))
        return float(self._released(np.clip(values, -bound, bound), bound, device, size)[0])

    def deviation(self, device: int, size: int, bound: float) -> float:
        """Return the noise of a mean over a batch in which one record has such a bound."""
        return self.privacy.noise * 2 * bound / self._distinct(device, size)

    def _distinct(self, device: int, size: int) -> float:
        """Return how many different records a batch has on average."""
        records = max(self.inner.size(device), 1)
        return -records * math.expm1(size * math.log1p(-1 / records)) if records > 1 else 1.0

    def _released(self, columns: Array, bound: float, device: int, size: int) -> Array:
        """Return the noised sum over different columns, a record each, over their number.

        The noise comes from the operating system, because the server knows the run's seed.
        """
        self._pay(device)
        random, deviation = secrets.SystemRandom(), self.deviation(device, size, bound)
        total = np.unique(columns, axis=1).sum(axis=1) / self._distinct(device, size)
        return np.asarray(total + [random.gauss(0.0, deviation) for _ in total])

    def _pay(self, device: int) -> None:
        """Count an answer; no algorithm gets one that was not paid for."""
        if self._left is None:
            return
        with self._lock:
            if self._left.get(device, 0) < 1:
                raise Rejected(
                    ErrorCode.PRIVACY, f"device {device}: more answers than were paid for"
                )
            self._left[device] -= 1


def _finite(values: Array) -> Array:
    """Return values with zero in place of what is not finite."""
    return np.where(np.isfinite(values), values, 0.0)
