"""Aggregation that a minority of bad devices cannot move at will.

The mean of Algorithm 1 follows whoever sends the longest update. Each rule here looks at all
updates of a round at once, coordinate by coordinate or by their lengths, and ignores weights: every
device has one say, whatever it claims to hold.

==================  ==============================================================================
``median``          the median of each coordinate (Yin et al. 2018); half of the devices can be bad,
                    and devices whose data differ pay for it with a bias
``trimmed_mean``    the mean of each coordinate without the share ``trim`` at either end
``clipped_mean``    the mean of updates that are shortened to ``clip`` times their median length
                    (centred clipping around zero, Karimireddy et al. 2021)
==================  ==============================================================================

:class:`Robust` hears whole updates, :class:`RobustSeeds` coefficients: under shared directions
those of all devices mean the same, so the rules work on H x b2 numbers in place of d, and an update
is rebuilt once.

References: D. Yin, Y. Chen, K. Ramchandran and P. Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018; S. P. Karimireddy, L. He and M. Jaggi, "Learning from
History for Byzantine Robust Optimization", ICML 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.errors import InvalidValue, UsageError, nearest, one_of, require
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo, mean_of
from fedzo.uplinks.seeds import centred

Array = NDArray[Any]

RULES = ("median", "trimmed_mean", "clipped_mean")
_COLUMNS = 1 << 16  # looked at together, so that sorting takes no second copy of all updates


@dataclass(frozen=True)
class Robust(Uplink):
    """Uniform sampling of M devices, and a robust centre of their updates.

    It holds all M updates of a round at once: M d numbers.

    Parameters
    ----------
    rule : str
        ``median``, ``trimmed_mean`` or ``clipped_mean``.
    trim : float
        The share of devices that ``trimmed_mean`` cuts off at either end, in [0, 0.5).
    clip : float
        How many times the median length an update of ``clipped_mean`` may have.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.engine import LocalEngine
    >>> from fedzo.core.tasks import Replies, Update
    >>> from fedzo.problems import FunctionObjective
    >>> from fedzo.uplinks.base import RunSetting
    >>> engine = LocalEngine(FunctionObjective(lambda x, i: 0.0, 1, devices=3), seed=1)
    >>> setting = RunSetting(engine, Robust())
    >>> updates = [Update(i, np.array([v]), 1, 3) for i, v in enumerate([1.0, 2.0, -1e9])]
    >>> Robust("median").aggregate(0, Replies(updates), setting)[0]
    array([1.])
    """

    rule: str = "median"
    trim: float = 0.3
    clip: float = 5.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InvalidValue("rule", self.rule, one_of(RULES) + nearest(self.rule, RULES))
        require(0 <= self.trim < 0.5, "trim", self.trim, "a number in [0, 0.5)")
        require(1 <= self.clip < np.inf, "clip", self.clip, "a number >= 1")

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Array, UplinkInfo]:
        """Return the centre of the round's updates."""
        rows = [update.delta for update in updates]
        if not rows:
            return np.zeros(setting.dim), UplinkInfo(0, 0, 0)
        return self._centre(np.stack(rows)), _info(rows, down=sum(row.nbytes for row in rows))

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Return the centre of the values that devices answered to points.

        What only one device was asked for has no centre: of that it is the mean.
        """
        task = updates.task
        rows = [update.values for update in updates if update.values is not None]
        down = updates.count * task.nbytes
        if not rows:
            return np.full(task.size, np.nan), UplinkInfo(0, 0, 0)
        told = np.stack(rows)
        centre = told.mean(axis=0)
        centre[task.comparable] = self._centre(told[:, task.comparable])
        return centre, _info(rows, down)

    def _centre(self, rows: Array) -> Array:
        """Return the centre of (M, k) numbers, a block of columns at a time."""
        if self.rule == "clipped_mean":
            return np.asarray(clipped(rows, self.clip).mean(axis=0, dtype=np.float64))
        cut = int(self.trim * len(rows))
        parts = [self._of_columns(part, cut) for part in _blocks(rows)]
        return np.concatenate(parts)

    def _of_columns(self, rows: Array, cut: int) -> Array:
        if self.rule == "median":
            return np.asarray(np.median(rows, axis=0), np.float64)
        kept = np.sort(rows, axis=0)[cut : len(rows) - cut]
        return np.asarray(kept.mean(axis=0, dtype=np.float64))


@dataclass(frozen=True)
class RobustSeeds(Robust):
    """Devices send coefficients of shared directions; the server rebuilds their robust centre.

    It needs an algorithm with ``shared_directions = true``: only then are the coefficients of
    two devices those of the same directions.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> algorithm = fedzo.FedZO(learning_rate=0.01, participants=5, shared_directions=True)
    >>> problem, uplink = Quadratic(dim=10, devices=8), RobustSeeds("median")
    >>> result = fedzo.minimize(problem, algorithm=algorithm, uplink=uplink, rounds=50)
    >>> result.uplink_bytes  # 50 rounds x 5 devices x (5 x 20) float64 numbers
    200000
    """

    wants_coefficients: ClassVar[bool] = True
    wants_updates: ClassVar[bool] = False

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return what the centre of the round's coefficients makes."""
        heard, task = list(updates), updates.task
        mean = mean_of(task, setting.dim)
        if not heard:
            return mean.value(), UplinkInfo(0, 0, 0)
        if task is None or not task.algorithm.shared_directions:
            raise UsageError(
                "uplink.name = 'robust_seeds': coefficients can only be compared along the same "
                "directions; set algorithm.shared_directions = true"
            )
        rows = [update.coefficients for update in heard if update.coefficients is not None]
        if len(rows) < len(heard):
            raise UsageError("uplink.name = 'robust_seeds': an update came without coefficients")
        (centre,) = self.essence(heard, task)
        mean.add(centre)
        return mean.value(), _info(rows, down=len(rows) * task.x.nbytes)

    def essence(self, updates: list[Update], task: LocalSteps) -> list[Update]:
        """Return the centre of the coefficients, as one update."""
        if not updates:
            return []
        rows = np.stack([np.asarray(update.coefficients) for update in updates])
        centre = self._centre(rows.reshape(len(rows), -1)).reshape(rows.shape[1:])
        return [centred(updates[0], centre.astype(rows.dtype), task)]


def clipped(rows: Array, clip: float) -> Array:
    """Return rows that are no longer than ``clip`` times their (lower) median length.

    >>> clipped(np.array([[3.0, 4.0], [0.0, 5.0], [6e9, 8e9]]), clip=2.0)
    array([[3., 4.],
           [0., 5.],
           [6., 8.]])
    """
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    most = clip * lower_median(lengths.tolist())
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(lengths > most, most / lengths, 1.0)
    return np.asarray(rows * shares[:, None])


def lower_median(numbers: Sequence[float]) -> float:
    """Return the median; of an even number of them, the smaller of the two in the middle.

    >>> lower_median([1e100, 1.0]), lower_median([3.0, 1.0, 2.0])
    (1.0, 2.0)
    """
    return sorted(numbers)[(len(numbers) - 1) // 2]


def _blocks(rows: Array) -> list[Array]:
    return [rows[:, i : i + _COLUMNS] for i in range(0, rows.shape[1], _COLUMNS)]


def _info(rows: Sequence[Array], down: int) -> UplinkInfo:
    return UplinkInfo(
        uplink_bytes=sum(row.nbytes for row in rows),
        downlink_bytes=down,
        channel_uses=sum(row.size for row in rows),
    )
