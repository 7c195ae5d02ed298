"""Validate the replies of nodes on the server.

A reply that cannot be added to the others is rejected: another shape or precision, numbers that are
not finite, a false weight. A reply that is only too large is clipped, by bounds that the other
replies of the same round set. So no device outweighs the others, and no state is kept between
rounds:

* an update longer than ``clip`` times the round's median length is shortened to that length;
* a loss, and each value that all devices evaluated, is clipped to ``clip`` times the spread around
  the median;
* a sample count that is a weight is at most ``clip`` times the median count.

The median is the lower one, which half of the devices cannot move at will. A round without such
outliers is unchanged, to the bit.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import numpy as np

from fedzo.core.tasks import Evaluate, LocalSteps, Slopes, Update
from fedzo.core.types import Array
from fedzo.errors import FedzoError
from fedzo.flower.policy import queries_of
from fedzo.runs.options import FlowerSettings
from fedzo.uplinks import Uplink

LONGEST = 1e150  # of an update by default: the square of a longer one overflows


@dataclass(eq=False)
class UpdateValidator:
    """Validates the updates of one round.

    ``refused`` maps the devices of rejected updates to the reasons. It is complete when all
    updates are read.

    Parameters
    ----------
    task : Task
        The task that the devices replied to.
    dim : int
        The dimension d.
    uplink : Uplink
        Whether it needs whole updates or coefficients.
    settings : FlowerSettings
        ``max_norm`` and ``clip``.
    sizes : mapping
        The number of samples of each device.
    devices : int
        The number of devices N.
    """

    task: Any  # LocalSteps, unless there is a question
    dim: int
    uplink: Uplink
    settings: FlowerSettings
    sizes: Mapping[int, int]
    devices: int

    def __post_init__(self) -> None:
        self.question = self.task if isinstance(self.task, Evaluate | Slopes) else None
        # The weight that each device should report, and the weight that it gets.
        weighting = (self.question or self.task.algorithm).weighting
        self.weights = self.sizes if weighting == "size" else dict.fromkeys(self.sizes, 1)
        clip = self.settings.clip
        self.shares = clipped_sizes(self.weights, clip) if clip else self.weights
        self.most_queries = queries_of(self.task)
        self.refused: dict[int, str] = {}

    def updates(self, found: Mapping[int, Update]) -> Iterator[Update]:
        """Yield the valid updates, with their deltas, in device order."""
        lengths: dict[int, float] = {}
        for device in sorted(found):
            try:
                lengths[device] = self.check(found[device])
            except InvalidUpdate as error:
                self.refused[device] = str(error)
        if self.question is not None:
            yield from self._values({i: found[i] for i in lengths}, self.question)
            return
        clip = self.settings.clip
        most = clip * median_low(list(lengths.values())) if clip and lengths else math.inf
        for device, length in lengths.items():
            share = min(1.0, most / length) if length else 1.0
            yield self._whole(found[device]._replace(weight=self.shares[device]), share)

    def check(self, update: Update) -> float:
        """Return the length of an update, or raise if it cannot be added to the others."""
        weight = self.weights[update.device]
        if update.weight != weight:
            raise InvalidUpdate(f"reported weight {update.weight:g}, expected {weight:g}")
        if not 0 <= update.queries <= self.most_queries:
            most = f"at most {self.most_queries} are needed"
            raise InvalidUpdate(f"reported {update.queries} queries, {most}")
        if self.question is not None:
            self._check_values(update, self.question)
            return 0.0
        dtype = self.task.x.dtype
        if update.coefficients is not None:
            shape = self.task.algorithm.coefficients_shape
            _check_array("coefficients", update.coefficients, shape, dtype)
        elif self.uplink.wants_coefficients:
            raise InvalidUpdate("sent no coefficients")
        else:
            _check_array("update", update.delta, (self.dim,), dtype)
        length, limit = length_of(update, self.task), self.settings.max_norm
        if length > (limit or LONGEST):
            most = f"max_norm = {limit:g}" if limit else f"{LONGEST:g}"
            raise InvalidUpdate(f"update: length {length:.4g}, more than {most}")
        return length

    def _check_values(self, update: Update, question: Evaluate | Slopes) -> None:
        values = np.empty(0) if update.values is None else update.values
        _check_array("values", values, (question.size,), values.dtype)
        if isinstance(question, Slopes):
            dim = self.dim
            own = question.own(update.device, self.devices)
            slopes, claimed = values[1 : 1 + dim], values[1 + dim : 1 + 2 * dim]
            if not np.array_equal(claimed, own) or slopes[~own].any():
                raise InvalidUpdate("sent slopes that were not requested")

    def _values(self, found: Mapping[int, Update], question: Evaluate | Slopes) -> Iterator[Update]:
        """Yield replies to a search, with values clipped where all devices sent one.

        A slope that only one device measures has nothing to be compared with.
        """
        rows = np.array([update.values for update in found.values()])
        if self.settings.clip and len(rows):
            for column in np.flatnonzero(question.comparable):
                rows[:, column] = clipped_losses(rows[:, column], self.settings.clip)
        for row, (device, update) in zip(rows, found.items(), strict=True):
            yield update._replace(values=row, weight=self.shares[device])

    def _whole(self, update: Update, share: float) -> Update:
        """Return an update, shortened to its share, with its delta."""
        if update.coefficients is None:  # sent whole: no direction has to be drawn
            return update._replace(delta=_scaled(update.delta, share))
        update = update._replace(coefficients=_scaled(update.coefficients, share))
        return update._replace(delta=self.task.rebuilt(update))


def _check_array(
    name: str, found: Array, shape: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> None:
    if found.shape != shape or found.dtype != dtype:
        got = f"{found.shape} of type {found.dtype}"
        raise InvalidUpdate(f"{name}: shape {got}, expected {shape} of type {dtype}")
    if not np.isfinite(found).all():
        raise InvalidUpdate(f"{name}: not finite")


def _scaled(array: Array, share: float) -> Array:
    return array if share == 1 else (share * array).astype(array.dtype)


def length_of(update: Update, task: LocalSteps) -> float:
    """Return the length of an update; if it is coefficients, an estimate.

    Directions are nearly orthogonal, so outliers are found without drawing any.
    """
    with np.errstate(over="ignore"):
        if update.coefficients is None:
            return float(np.linalg.norm(update.delta.astype(np.float64)))
        own = float(np.linalg.norm(update.coefficients.astype(np.float64)))
    return own * task.direction_length


def clipped_losses(losses: Array, clip: float) -> Array:
    """Return losses within ``clip`` times their spread around the median; NaN stays NaN.

    The spread is the median distance from the median, or the median itself if that is larger: an
    honest device may have a much larger loss than the others. If both are zero, or if there are
    fewer than three losses, nothing is clipped.

    >>> clipped_losses(np.array([2.0, 2.5, -1e300, 2.25, np.nan]), clip=5)
    array([ 2.  ,  2.5 , -8.  ,  2.25,   nan])
    """
    known = losses[np.isfinite(losses)]
    if len(known) < 3:
        return losses
    middle = median_low(known.tolist())
    spread = max(median_low(np.abs(known - middle).tolist()), abs(middle))
    if not spread:
        return losses
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(losses, middle - clip * spread, middle + clip * spread))


def clipped_sizes(sizes: Mapping[int, int], clip: float) -> dict[int, int]:
    """Return sample counts, each at most ``clip`` times the median.

    >>> clipped_sizes({0: 100, 1: 120, 2: 10**9}, clip=5)
    {0: 100, 1: 120, 2: 600}
    """
    most = int(clip * median_low(list(sizes.values()))) if sizes else 0
    return {device: min(size, most) for device, size in sizes.items()}


class InvalidUpdate(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """An update that is rejected."""
