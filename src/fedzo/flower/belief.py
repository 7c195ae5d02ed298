"""How far a server believes what its nodes answer.

What cannot be added up is left out: another shape or precision, what is not finite, a false
weight. What is only too much is kept within bounds that the other answers of the same round set,
so that no device has more than its say, and nothing has to be remembered from round to round:

* an update longer than ``clip`` times the round's median length is shortened to that;
* a loss is kept within ``clip`` times the spread of all losses around their median, and so is each
  value that a search asked all devices for;
* a sample count, where it is a weight, is at most ``clip`` times the median count.

The median is the lower one, which half of the devices cannot move at will. In a round without
such outliers nothing is changed, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.tasks import Evaluate, LocalSteps, Slopes, Update, owners
from fedzo.errors import FedzoError
from fedzo.runs.options import FlowerSettings
from fedzo.uplinks import Uplink
from fedzo.uplinks.robust import lower_median

Array = NDArray[Any]

LONGEST = 1e150  # of an update, if nothing else is said: what is longer has no square
MOST_QUERIES = 10**12  # of a device in a round: who claims more would spoil the count


class Believed:
    """One round's answers, checked; who is ``refused`` is known when all are read."""

    def __init__(
        self,
        task: Any,
        dim: int,
        uplink: Uplink,
        settings: FlowerSettings,
        sizes: Mapping[int, int],
        devices: int,
    ) -> None:
        self.task, self.dim, self.uplink, self.settings = task, dim, uplink, settings
        self.question = task if isinstance(task, Evaluate | Slopes) else None
        weighted = task.algorithm if isinstance(task, LocalSteps) else task
        by_size = getattr(weighted, "weighting", "uniform") == "size"
        self.weights = sizes if by_size else dict.fromkeys(sizes, 1)  # as each should tell it
        self.shares = clipped_sizes(self.weights, settings.clip) if settings.clip else self.weights
        self.devices = devices
        self.refused: dict[int, str] = {}

    def updates(self, found: Mapping[int, Update]) -> Iterator[Update]:
        """Yield what is believed, whole, in device order."""
        lengths: dict[int, float] = {}
        for device in sorted(found):
            try:
                lengths[device] = self._check(found[device])
            except _Refused as error:
                self.refused[device] = str(error)
        if self.question is not None:
            yield from self._values({i: found[i] for i in lengths})
            return
        most = self._most(list(lengths.values()))
        for device, length in lengths.items():
            share = min(1.0, most / length) if length else 1.0
            yield self._whole(found[device]._replace(weight=self.shares[device]), share)

    def _check(self, update: Update) -> float:
        """Return an update's length, or raise if it cannot be added to the others."""
        self._check_counts(update)
        if self.question is not None:
            return self._check_values(update, self.question)
        if update.coefficients is not None:
            self._check_coefficients(update.coefficients)
        elif self.uplink.wants_updates:
            self._check_delta(update.delta)
        else:
            raise _Refused("it sent no coefficients, and the uplink compares them")
        length = length_of(update, self.task)
        limit = self.settings.max_norm
        if length > (limit or LONGEST):
            most = f"max_norm = {limit:g}" if limit else f"{LONGEST:g}"
            raise _Refused(f"its update has the length {length:.4g}, more than {most}")
        return length

    def _check_counts(self, update: Update) -> None:
        weight = self.weights[update.device]
        if update.weight != weight:
            raise _Refused(f"its weight is {update.weight:g}, not {weight:g}")
        if not 0 <= update.queries <= MOST_QUERIES:
            raise _Refused(f"it claims to have asked {update.queries} queries")

    def _check_values(self, update: Update, question: Evaluate | Slopes) -> float:
        if update.values is None or update.values.shape != (question.size,):
            raise _Refused(f"it did not answer {question.size} values")
        if not np.isfinite(update.values).all():
            raise _Refused("its values are not finite")
        if isinstance(question, Slopes):
            dim = self.dim
            own = owners(update.device, self.devices, dim, question.turn)
            slopes, claimed = update.values[1 : 1 + dim], update.values[1 + dim : 1 + 2 * dim]
            if not np.array_equal(claimed, own) or slopes[~own].any():
                raise _Refused("it claims slopes that it was not asked for")
        return 0.0

    def _values(self, found: Mapping[int, Update]) -> Iterator[Update]:
        """Yield answers to a search's question, none of them far beyond the others'.

        A slope that only one device measures cannot be compared: the values that a search takes
        its steps by can.
        """
        rows = np.array([update.values for update in found.values()])
        if self.settings.clip and len(rows):
            assert self.question is not None
            for column in np.flatnonzero(self.question.comparable):
                rows[:, column] = clipped_losses(rows[:, column], self.settings.clip)
        for row, (device, update) in zip(rows, found.items(), strict=True):
            yield update._replace(values=row, weight=self.shares[device])

    def _check_coefficients(self, own: Array) -> None:
        right, dtype = self.task.algorithm.coefficients_shape, self.task.x.dtype
        if own.shape != right or own.dtype != dtype:
            raise _Refused(f"its coefficients are not {right} of type {dtype}")
        if not np.isfinite(own).all():
            raise _Refused("its coefficients are not finite")

    def _check_delta(self, delta: Array) -> None:
        dtype = self.task.x.dtype
        if delta.shape != (self.dim,) or delta.dtype != dtype:
            got = f"{delta.shape} of type {delta.dtype}"
            raise _Refused(f"its update has the shape {got}, not ({self.dim},) of {dtype}")
        if not np.isfinite(delta).all():
            raise _Refused("its update is not finite")

    def _most(self, lengths: list[float]) -> float:
        """Return how long an update of this round may be."""
        clip = self.settings.clip
        return clip * lower_median(lengths) if clip and lengths else math.inf

    def _whole(self, update: Update, share: float) -> Update:
        """Return an update, shortened to its share, with what its coefficients make."""
        if update.coefficients is None:  # it came whole: nothing has to be drawn again
            delta = (
                update.delta if share == 1 else (share * update.delta).astype(update.delta.dtype)
            )
            return update._replace(delta=delta)
        if share < 1:
            shorter = (share * update.coefficients).astype(update.coefficients.dtype)
            update = update._replace(coefficients=shorter)
        return update._replace(delta=self.task.rebuilt(update))


def length_of(update: Update, task: LocalSteps) -> float:
    """Return how long an update is; of coefficients, as accurately as random lengths are alike.

    A row of normals has the length sqrt(d) to about 1 / sqrt(2 d), and rows are nearly
    orthogonal, so nothing has to be drawn to tell an outlier.
    """
    with np.errstate(over="ignore"):
        if update.coefficients is None:
            return float(np.linalg.norm(update.delta.astype(np.float64)))
        own = float(np.linalg.norm(update.coefficients.astype(np.float64)))
    unit = task.algorithm.estimator.kind in ("orthogonal", "coordinate")
    return own if unit else own * math.sqrt(task.x.shape[-1])


def clipped_losses(losses: Array, clip: float) -> Array:
    """Return losses within ``clip`` times their spread around the median; NaN stays NaN.

    The spread is the median distance from the median, or the median itself where that is more:
    an honest device may be much worse off than the others. Where both are zero there is nothing
    to compare by.

    >>> clipped_losses(np.array([2.0, 2.5, -1e300, 2.25, np.nan]), clip=5)
    array([ 2.  ,  2.5 , -8.  ,  2.25,   nan])
    """
    known = losses[np.isfinite(losses)]
    if not len(known):
        return losses
    middle = lower_median(known.tolist())
    spread = max(lower_median(np.abs(known - middle).tolist()), abs(middle))
    if not spread:
        return losses
    with np.errstate(invalid="ignore"):
        return np.asarray(np.clip(losses, middle - clip * spread, middle + clip * spread))


def clipped_sizes(sizes: Mapping[int, int], clip: float) -> dict[int, int]:
    """Return sample counts, none more than ``clip`` times the median.

    >>> clipped_sizes({0: 100, 1: 120, 2: 10**9}, clip=5)
    {0: 100, 1: 120, 2: 600}
    """
    most = int(clip * lower_median(list(sizes.values()))) if sizes else 0
    return {device: min(size, most) for device, size in sizes.items()}


class _Refused(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """An update that is left out; says why."""
