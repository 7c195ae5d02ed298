"""Aggregation that a minority of bad devices cannot control.

In the mean of Algorithm 1 one long update outweighs all others. Each rule here uses all M updates
of a round at once and ignores weights: every device counts once, however many samples it reports.

====================  ============================================================================
``median``            The median of each coordinate (Yin et al. 2018). Fewer than half of the
                      devices may be bad.
``trimmed_mean``      The mean of each coordinate without the ``ceil(trim M)`` numbers at either
                      end. At most that many devices may be bad.
``clipped_mean``      The mean of updates, shortened to at most ``clip`` times their median length
                      (Karimireddy et al. 2021). A share of 1 / (1 + ``clip``) bad devices can
                      cancel the honest mean: 1 in 6 by default.
``krum``              The update closest to its M - f - 2 nearest others (Blanchard et al. 2017),
                      or the mean of the ``keep`` closest. At most f = ``ceil(trim M)`` devices may
                      be bad, and M > 2 f + 2.
``geometric_median``  The point with the smallest sum of distances to all updates (Pillutla et al.
                      2022). Fewer than half may be bad.
====================  ============================================================================

A bound on the damage is not an honest mean. All rules are biased where the data of devices differ,
and small lies that agree pass all of them: see the table in ``docs/robust.md``.

:class:`Robust` receives whole updates, :class:`RobustSeeds` coefficients. With shared directions
the coefficients of all devices belong to the same directions, so the rules work on H x b2 numbers
in place of d, and one update is rebuilt.

References: D. Yin, Y. Chen, K. Ramchandran and P. Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates", ICML 2018; S. P. Karimireddy, L. He and M. Jaggi, "Learning from
History for Byzantine Robust Optimization", ICML 2021; P. Blanchard, E. M. El Mhamdi, R. Guerraoui
and J. Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS
2017; K. Pillutla, S. M. Kakade and Z. Harchaoui, "Robust Aggregation for Federated Learning", IEEE
Transactions on Signal Processing, 2022; S. Minsker, "Geometric Median and Robust Estimation in
Banach Spaces", Bernoulli, 2015.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, ClassVar

import numpy as np

from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.errors import check_choice, check_count, require
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo
from fedzo.uplinks.seeds import coefficients_of, of_all

RULES = ("median", "trimmed_mean", "clipped_mean", "krum", "geometric_median")
_COLUMNS = 1 << 16  # sorted at a time, which takes no second copy of all updates


@dataclass(frozen=True)
class Robust(Uplink):
    """Uniform sampling of M devices, and a robust centre of their updates.

    The server holds all M updates of a round at once: M d numbers.

    Parameters
    ----------
    rule : str
        ``median``, ``trimmed_mean``, ``clipped_mean``, ``krum`` or ``geometric_median``.
    trim : float
        The share of bad devices to expect, in [0, 0.5). ``trimmed_mean`` cuts off
        ``ceil(trim M)`` numbers at either end, and ``krum`` tolerates as many devices.
    clip : float
        How many times the median length an update of ``clipped_mean`` may have.
    keep : int
        The number of updates that ``krum`` averages.
    secure : bool
        Always False: a secure sum hides the single updates that the rules compare.

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
    keep: int = 1
    secure: bool = False

    def __post_init__(self) -> None:
        reason = "the rules compare single updates, which a secure sum hides"
        require(not self.secure, "secure", self.secure, f'false ({reason}; use name = "seeds")')
        check_count("keep", self.keep)
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
        if self.rule == "geometric_median":
            return geometric_median(rows)
        cut = min(math.ceil(self.trim * len(rows) - 1e-9), (len(rows) - 1) // 2)
        if self.rule == "krum":
            kept = rows[krum(rows, cut)[: self.keep]]
            return np.asarray(kept.mean(axis=0, dtype=np.float64))
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
    wants_shared_directions: ClassVar[bool] = True

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return the update that the centre of the round's coefficients makes."""
        received, task = list(updates), updates.task
        if not received:
            return np.zeros(setting.dim), UplinkInfo(0, 0, 0)
        rows = list(map(coefficients_of, received))
        (centre,) = self.compress(received, task, setting)
        return centre.delta, _info(rows, down=len(rows) * task.x.nbytes)

    def compress(
        self, updates: list[Update], task: LocalSteps, setting: RunSetting
    ) -> list[Update]:
        """Return the centre of the coefficients as one update."""
        if not updates:
            return []
        rows = np.stack(list(map(coefficients_of, updates)))
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
    most = clip * median_low(lengths.tolist())
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(lengths > most, most / lengths, 1.0)
    return np.asarray(rows * shares[:, None])


def krum(rows: Array, bad: int) -> Array:
    """Return the numbers of the rows, from the most to the least central.

    A row's score is the sum of squared distances to its M - ``bad`` - 2 nearest others, at least 1.

    >>> krum(np.array([[0.0], [0.1], [0.3], [5.0], [5.0]]), bad=1)
    array([1, 0, 2, 3, 4])
    """
    from scipy.spatial.distance import pdist, squareform

    parts = (pdist(part.astype(np.float64), "sqeuclidean") for part in _blocks(rows))
    nearest = np.sort(squareform(sum(parts)), axis=1)[:, 1:]  # without the row itself
    scores = nearest[:, : max(len(rows) - bad - 2, 1)].sum(axis=1)
    return np.argsort(scores, kind="stable")


def geometric_median(rows: Array) -> Array:
    """Return the point with the smallest sum of distances to the rows, by Weiszfeld's iteration.

    It starts at the median of each coordinate. A row at the point itself counts as if it were a
    tiny distance away, so that the iteration does not stop there.

    >>> geometric_median(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    array([0.5, 0.5])
    """
    own = rows.astype(np.float64)
    centre = np.median(own, axis=0)
    for _ in range(1000):  # at most
        distances = np.linalg.norm(own - centre, axis=1)
        scale = median_low(distances.tolist())
        if not scale:  # half of the rows are this point
            break
        weights = scale / np.maximum(distances, 1e-12 * scale)
        before, centre = centre, (weights / weights.sum()) @ own
        if np.linalg.norm(centre - before) <= 1e-12 * scale:
            break
    return np.asarray(centre)


def _blocks(rows: Array) -> list[Array]:
    return [rows[:, i : i + _COLUMNS] for i in range(0, rows.shape[1], _COLUMNS)]


def _info(rows: Sequence[Array], down: int) -> UplinkInfo:
    return UplinkInfo(sum(row.nbytes for row in rows), down, sum(row.size for row in rows))
