r"""FedAvg: McMahan et al. 2017, the first-order baseline."""

from dataclasses import dataclass

import numpy as np

from fedzo.algorithms.base import (
    Algorithm,
    ModelState,
    Round,
    RoundInfo,
    check_participants,
    check_uplink,
    check_weighting,
)
from fedzo.core.capabilities import HasGradient
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Update, weight_of
from fedzo.core.types import Array
from fedzo.errors import NonFinite, UsageError, check_counts, check_positive
from fedzo.uplinks.base import RunSetting


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    r"""Local stochastic gradient steps and averaging, for problems that give gradients.

    The same as :class:`~fedzo.FedZO` with the true gradient of the same batch in place of its
    estimate,

    .. math:: x_i^{(t,k+1)} = x_i^{(t,k)} - \eta\, \frac{1}{b_1} \sum_{m=1}^{b_1}
              \nabla F_i\bigl(x_i^{(t,k)}, \xi_m\bigr),
              \qquad x^{t+1} = x^t + \frac1M \sum_{i \in M_t} \bigl(x_i^{(t,H)} - x^t\bigr).

    With the same seed it has the same participants and the same batches as FedZO. Of its
    ``queries`` each is a gradient ∇F_i(x, ξ) rather than a value.

    Parameters
    ----------
    learning_rate : float
        η, the length of a local step.
    batch_size : int
        b1, samples in a gradient, drawn independently (with replacement).
    local_steps : int
        H, steps between two meetings with the server.
    participants : int, optional
        M, devices in a round; all N by default.
    weighting : str
        ``uniform`` (1/M, as in the paper), or ``size``, as McMahan et al. have it.

    References
    ----------
    B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0)
    >>> result = fedzo.minimize(problem, algorithm=fedzo.FedAvg(learning_rate=0.2), rounds=100)
    >>> bool(result.history[-1]["optimality_gap"] < 1e-9)
    True
    """

    learning_rate: float = 1e-3
    batch_size: int = 25
    local_steps: int = 5
    participants: int | None = None
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate")
        check_counts(self, "batch_size", "local_steps", optional=["participants"])
        check_weighting(self.weighting)

    def init(self, x0: Array, setting: RunSetting) -> ModelState:
        """Return the state before round 0."""
        check_participants(self.participants, setting)
        check_weighting(self.weighting, setting)
        check_uplink(self, setting, "updates")
        if not setting.provides(HasGradient):
            words = "FedAvg needs gradients, but problem.name is one that provides only loss values"
            help_ = "set algorithm.name = 'fedzo', or give the problem a gradient (HasGradient)"
            raise UsageError(f"{words}: {help_}", code="no-gradient")
        return ModelState(x0)

    def round(self, t: int, state: ModelState, setting: RunSetting) -> Round[ModelState]:
        """Yield the local steps of round t; return the state after it."""
        devices = setting.uplink.participants(t, self.participants, setting)  # M_t
        x = setting.uplink.broadcast(t, state.x, devices, setting)
        updates = yield LocalSteps(
            self, x, self.learning_rate, seed=setting.seed, round=t, devices=devices
        )
        delta, sent = setting.uplink.aggregate(t, updates, setting)
        return ModelState((state.x + delta).astype(state.x.dtype)), RoundInfo.of(updates, sent)

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return Δ_i^t: H gradient steps from x^t."""
        first_order, x = objective.capability(HasGradient), task.start(device)
        assert first_order is not None, "init checks it"
        delta = np.zeros_like(x)
        for k in range(self.local_steps):
            at = draws.on(Stream.BATCHES)._replace(step=k)
            batch = objective.batch(device, self.batch_size, at)
            gradient = first_order.gradient(x + delta, batch)
            delta -= (task.learning_rate * gradient).astype(delta.dtype)
        if not np.isfinite(delta).all():
            raise NonFinite("the gradient", draws.round + 1, device)
        return Update(
            device=device,
            delta=delta,
            weight=weight_of(self.weighting, objective, device),
            queries=self.local_steps * self.batch_size,
        )
