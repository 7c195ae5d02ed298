"""Aggregation that a minority of bad devices cannot control.

In the mean of Algorithm 1 one long update outweighs all others. Each rule here uses all updates of
a round at once, coordinate by coordinate or by their lengths, and ignores weights: every device
counts once, however many samples it reports.

==================  ==============================================================================
``median``          the median of each coordinate (Yin et al. 2018). Half of the devices can be bad;
                    it is biased where the devices' data differ.
``trimmed_mean``    the mean of each coordinate without the share ``trim`` at either end
``clipped_mean``    the mean of updates, shortened to at most ``clip`` times their median length
                    (centred clipping around zero, Karimireddy et al. 2021)
==================  ==============================================================================

:class:`Robust` receives whole updates, :class:`RobustSeeds` coefficients. With shared directions
the coefficients of all devices belong to the same directions, so the rules task on H x b2 numbers
in place of d, and one update is rebuilt.

References: D. Yin, Y. Chen, K. Ramchandran and P. Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018; S. P. Karimireddy, L. He and M. Jaggi, "Learning from
History for Byzantine Robust Optimization", ICML 2021.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.errors import UsageError, check_choice, require
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo
from fedzo.uplinks.seeds import of_all

RULES = ("median", "trimmed_mean", "clipped_mean")
_COLUMNS = 1 << 16  # sorted at a time, which takes no second copy of all updates


@dataclass(frozen=True)
class Robust(Uplink):
    """Uniform sampling of M devices, and a robust centre of their updates.

    The server holds all M updates of a round at once: M d numbers.

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
        check_choice("rule", self.rule, RULES)
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
        """Return the robust centre over devices of the value at each point.

        Values that only one device was asked for are averaged.
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

    It needs an algorithm with ``shared_directions = true``: only then do the coefficients of two
    devices belong to the same directions.

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
    wants_shared_directions: ClassVar[bool] = True

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return the update that the centre of the round's coefficients makes."""
        received, task = list(updates), updates.task
        if not received:
            return np.zeros(setting.dim), UplinkInfo(0, 0, 0)
        if task is None or not task.algorithm.shared_directions:
            raise UsageError(
                "the robust_seeds uplink compares coefficients, which needs the same directions on "
                "all devices; set algorithm.shared_directions = true",
                code="directions-not-shared",
            )
        rows = [update.coefficients for update in received if update.coefficients is not None]
        if len(rows) < len(received):
            raise UsageError(
                "the robust_seeds uplink needs the coefficients of every update, but an update "
                "came without; use 'robust'",
                code="no-coefficients",
            )
        (centre,) = self.compress(received, task, setting)
        return centre.delta, _info(rows, down=len(rows) * task.x.nbytes)

    def compress(
        self, updates: list[Update], task: LocalSteps, setting: RunSetting
    ) -> list[Update]:
        """Return the centre of the coefficients as one update."""
        if not updates:
            return []
        rows = np.stack([np.asarray(update.coefficients) for update in updates])
        centre = self._centre(rows.reshape(len(rows), -1)).reshape(rows.shape[1:])
        return [of_all(updates[0], centre, task)]


def clipped(rows: Array, clip: float) -> Array:
    """Return the rows, shortened to at most ``clip`` times their (lower) median length.

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
    """Return the median; of an even count, the smaller of the two middle numbers.

    >>> lower_median([1e100, 1.0]), lower_median([3.0, 1.0, 2.0])
    (1.0, 2.0)
    """
    return sorted(numbers)[(len(numbers) - 1) // 2]


def _blocks(rows: Array) -> list[Array]:
    return [rows[:, i : i + _COLUMNS] for i in range(0, rows.shape[1], _COLUMNS)]


def _info(rows: Sequence[Array], down: int) -> UplinkInfo:
    return UplinkInfo(sum(row.nbytes for row in rows), down, sum(row.size for row in rows))
