r"""ZONE-S: Hajinezhad, Hong & Garcia 2019, the primal-dual baseline."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo, ZerothOrder, check_uplink
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps
from fedzo.core.types import Array
from fedzo.errors import check_choice, check_positive
from fedzo.uplinks.base import RunSetting

NORMALISATIONS = ("mean", "sum")


class State(NamedTuple):
    """What ZONE-S carries from round to round."""

    z: Array  # (d,), the server's model
    multipliers: Array  # (N, d), row i is λ_i


@dataclass(frozen=True, kw_only=True)
class ZoneS(ZerothOrder):
    r"""Zeroth-order primal-dual descent on a star, one device a round.

    In each round the server draws a device i with probability p_i = 1/N, which forms

    .. math:: x_i = z - \frac{\lambda_i + \frac1N G_i(z)}{\alpha_i \rho}, \qquad
              \lambda_i^+ = \lambda_i + \alpha_i \rho\,(x_i - z),

    G_i the estimate (2) and α_i = p_i; for all others x_j = z and λ_j stays. Then

    .. math:: z^+ = \frac{1}{N\rho} \sum_j (\rho\, x_j + \lambda_j).

    **Which λ enters z**: those *before* the update. Put x_i into λ_i^+: it is -G_i(z)/N, so
    the multipliers are a table of the last estimates, λ_j = -g_j / N. With them

    .. math:: z^+ = z - \frac{1}{N\rho} \Bigl( G_i(z) - g_i + \frac1N \sum_j g_j \Bigr),

    where all g are old: a SAGA step (Defazio, Bach & Lacoste-Julien 2014) of length
    1/(Nρ). Its expectation over i is exactly -(1/Nρ) ∇f, and its variance goes to zero as
    the table fills with gradients at the optimum. With λ_i^+ in the sum G_i - g_i would come
    in with the weight 1 + 1/N, and the expectation would be off by what the table lags
    behind.

    **Mean or sum.** The above minimises f = (1/N) Σ f_i, as all algorithms here do, so ρ weighs
    against f_i / N. Hajinezhad et al. minimise the *sum* of the f_i, where ρ weighs against f_i
    itself: put N f_i in the place of f_i, and G_i(z)/N in x_i becomes G_i(z), the table is
    λ_j = -g_j, and

    .. math:: z^+ = z - \frac{1}{\rho} \Bigl( G_i(z) - g_i + \frac1N \sum_j g_j \Bigr),

    the same step but N times as long. Both have the same minimisers, and a penalty of ρ with the
    sum is a penalty of ρ/N with the mean: a ρ that was chosen for one is not for the other.

    Parameters
    ----------
    penalty : float
        ρ; a step has the length 1/(Nρ), or 1/ρ with ``normalisation="sum"``.
    normalisation : str
        What ρ is a penalty for: ``mean``, f = (1/N) Σ f_i, or ``sum``, f = Σ f_i as published.
    smoothing, batch_size, directions, direction_kind, difference
        See :class:`~fedzo.algorithms.base.ZerothOrder`.

    References
    ----------
    D. Hajinezhad, M. Hong and A. Garcia, "ZONE: Zeroth-Order Nonconvex Multiagent Optimization
    Over Networks", IEEE Transactions on Automatic Control 64, 2019.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0)
    >>> algorithm = fedzo.ZoneS(penalty=1.0, directions=5, direction_kind="orthogonal")
    >>> result = fedzo.minimize(problem, algorithm=algorithm, rounds=500)
    >>> bool(result.history[-1]["optimality_gap"] < 1e-5)
    True
    """

    penalty: float = 500.0
    normalisation: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "penalty")
        check_choice("normalisation", self.normalisation, NORMALISATIONS)

    def init(self, x0: Array, setting: RunSetting) -> State:
        """Return the state before round 0."""
        check_uplink(self, setting, "nothing")
        self.check(setting)
        return State(x0, np.zeros((setting.devices, setting.dim), x0.dtype))

    def round(self, t: int, state: State, setting: RunSetting) -> Round[State]:
        """Yield the local steps of round t; return the state after it."""
        n, seed = setting.devices, setting.seed
        i = int(Draws(seed, Stream.PARTICIPANTS, round=t).integers(n, 1)[0])
        replies = yield LocalSteps(self, state.z, 1.0, seed=seed, round=t, devices=(i,))
        update = next(replies, None)
        sent = state.z.nbytes
        if update is None:  # it did not answer
            return state, RoundInfo(participants=0, queries=0, downlink_bytes=sent)
        z, multipliers = state.z.astype(np.float64), state.multipliers
        estimate = -update.delta.astype(np.float64)  # G_i(z)
        among = n if self.normalisation == "mean" else 1  # of the f_i, in f
        x_i = z - (multipliers[i] + estimate / among) / (self.penalty / n)
        # sum_j ρ x_j = ρ (N z + x_i - z); the multipliers are those before their update
        new_z = z + (x_i - z) / n + multipliers.sum(axis=0, dtype=np.float64) / (n * self.penalty)
        new_multipliers = multipliers.copy()
        new_multipliers[i] += (self.penalty / n) * (x_i - z)
        info = RoundInfo(
            participants=1,
            queries=update.queries,
            uplink_bytes=sent,
            downlink_bytes=sent,
            channel_uses=state.z.size,
        )
        return State(new_z.astype(state.z.dtype), new_multipliers), info

    def model(self, state: State) -> Array:
        """Return z."""
        return state.z
