r"""FedZO over a fixed set of directions: all rounds so far are K numbers.

FedKSeed (Qin et al., ICML 2024) draws the directions of all steps from a fixed set of K. The server
adds up the coefficients of each direction, and the model is

.. math:: a^{t+1} = a^t + \Delta a^t, \qquad x^{t+1} = x^0 + \sum_{j=1}^{K} a_j^{t+1} g_j.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo
from fedzo.algorithms.fedzo import State, Variant
from fedzo.algorithms.server.optimizers import Mean
from fedzo.core.types import Array
from fedzo.core.updates import as_sum
from fedzo.errors import UsageError
from fedzo.uplinks.base import RunSetting


class SumsState(NamedTuple):
    """What is carried from round to round."""

    x: Array  # x^t
    start: Array  # x^0, and the updates of devices that draw other directions
    sums: Array  # (K / b2, b2) a^t, in the model's precision


@dataclass(frozen=True, kw_only=True)
class FixedDirections(Variant):
    """FedZO's rounds over an uplink of coefficients, with a model that is a sum over a fixed set.

    Parameters
    ----------
    fedzo : FedZO
        With ``fixed_directions`` and the server optimizer :class:`~fedzo.server.Mean`.
    """

    def init(self, x0: Array, setting: RunSetting) -> SumsState:
        """Return the state before round 0: all sums are zero."""
        if not isinstance(self.fedzo.server, Mean):
            kind = type(self.fedzo.server).__name__
            words = f"algorithm.fixed_directions need the server optimizer Mean, not {kind}"
            reason = "the model is a sum of those directions; set server.name = 'mean'"
            raise UsageError(f"{words}: {reason}", code="not-mean")
        x = self.fedzo.init(x0, setting).x
        return SumsState(x, x0.copy(), np.zeros(self.fedzo.estimator.set_shape, x0.dtype))

    def round(self, t: int, state: SumsState, setting: RunSetting) -> Round[SumsState]:
        """Yield FedZO's local steps; add the mean coefficients to the sums."""
        devices = setting.uplink.participants(t, self.fedzo.participants, setting)
        task = self.fedzo.task(t, State(state.x), devices, setting)
        updates = yield replace(task, state=state)
        delta, sent = setting.uplink.aggregate(t, updates, setting)
        return self._moved(state, delta, setting.seed), RoundInfo.of(updates, sent)

    def _moved(self, state: SumsState, delta: Any, seed: int) -> SumsState:
        """Return the state after the mean update of a round."""
        update, start = as_sum(delta), state.start
        if update.dense is not None:  # updates that are not sums over the set move the start
            start = (start + update.dense / update.divisor).astype(start.dtype)
        sums = (state.sums + update.table(state.sums.shape)).astype(state.sums.dtype)
        x = state.x if update.in_place else np.empty_like(start)
        self.fedzo.estimator.set_sum(start.size, seed, sums).add_to(x, 0, start)
        return SumsState(x, start, sums)

    def from_sums(self, state: SumsState, sums: Array, seed: int) -> SumsState:
        """Return the state with other sums, and the same start."""
        x = state.start.copy()
        self.fedzo.estimator.set_sum(x.size, seed, sums).add_to(x)
        return SumsState(x, state.start, sums)
