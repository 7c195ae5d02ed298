r"""ZO-SGD: Ghadimi & Lan 2013, the centralised baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo, ZerothOrder, check_uplink
from fedzo.algorithms.fedzo import State
from fedzo.core import capabilities as can
from fedzo.core.objective import Objective, ObjectiveWrapper
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Update
from fedzo.core.types import Array
from fedzo.errors import check_positive
from fedzo.uplinks.base import RunSetting


@dataclass(frozen=True, kw_only=True)
class ZOSGD(ZerothOrder):
    r"""Stochastic zeroth-order descent in one place that holds all data: one step per round.

    .. math:: x^{t+1} = x^t - \eta\, \tilde\nabla F\bigl(x^t, \{\xi_m\}_{m=1}^{b_1},
              \{v_n\}_{n=1}^{b_2}, \mu\bigr)

    with the estimator (2) over the pooled data: each ξ_m is a sample of a device drawn
    uniformly, so that the expectation is f = 1/N sum_i f_i. Nothing is sent.

    Parameters
    ----------
    learning_rate : float
        η.
    smoothing, batch_size, directions, direction_kind, difference
        See :class:`~fedzo.algorithms.base.ZerothOrder`.

    References
    ----------
    S. Ghadimi and G. Lan, "Stochastic First- and Zeroth-Order Methods for Nonconvex Stochastic
    Programming", SIAM Journal on Optimization 23, 2013.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0, dissimilarity=0.0)
    >>> algorithm = fedzo.ZOSGD(learning_rate=0.5, directions=5, direction_kind="orthogonal")
    >>> result = fedzo.minimize(problem, algorithm=algorithm, rounds=200)
    >>> bool(result.history[-1]["optimality_gap"] < 1e-5), result.uplink_bytes
    (True, 0)
    """

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "learning_rate")

    def init(self, x0: Array, setting: RunSetting) -> State:
        """Return the state before round 0."""
        check_uplink(self, setting, "nothing")
        self.check(setting)
        return State(x0)

    def round(self, t: int, state: State, setting: RunSetting) -> Round[State]:
        """Yield the local steps of round t; return the state after it."""
        updates = yield LocalSteps(
            self, state.x, self.learning_rate, seed=setting.seed, round=t, devices=(0,)
        )
        x = state.x
        for update in updates:  # none, if nobody could be heard
            x = (x + update.delta).astype(x.dtype)
        return State(x), RoundInfo(participants=updates.count, queries=updates.queries)

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return -η times the estimate over all devices' data, as if one place held them all."""
        return super().local(Pooled(objective), device, task, draws)


class Pooled(ObjectiveWrapper):
    """The data of all devices as those of one device: a batch is samples of several devices."""

    passes = can.EXECUTION
    transforms = (can.Streamed,)
    hides = (
        *(can.HasGradient, can.ValuesAlong, can.FusedStep),
        *(can.NamesRecords, can.TakesRecords, can.HasSizes, can.InPlace, *can.HINTS, *can.RESULTS),
    )

    def __init__(self, inner: Objective) -> None:
        super().__init__(inner)
        self.devices = 1

    def batch(self, device: int, size: int, draws: Draws) -> list[Any]:
        """Return one batch for each device that has a sample in it."""
        owners = draws.on(Stream.PARTICIPANTS).integers(self.inner.devices, size)
        return [
            self.inner.batch(int(i), int(count), draws._replace(device=int(i)))
            for i, count in zip(*np.unique(owners, return_counts=True), strict=True)
        ]

    def values(self, points: Array, batch: list[Any]) -> Array:
        """Return the values at each point, (k, d) -> (k, b)."""
        return np.hstack([self.inner.values(points, part) for part in batch])

    def values_streamed(
        self, x: Array, walked: Any, steps: Sequence[Any], batch: list[Any]
    ) -> Array:
        """Return the values of a model whose directions are never held."""
        inner = self.inner.capability(can.Streamed)
        assert inner is not None
        return np.hstack([inner.values_streamed(x, walked, steps, part) for part in batch])
