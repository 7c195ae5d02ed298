r"""FedAvg: McMahan et al. 2017."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedzo.algorithms.base import Algorithm, Round, RoundInfo
from fedzo.algorithms.fedzo import State, check_settings, start
from fedzo.algorithms.schedules import Schedule
from fedzo.algorithms.server.optimizers import Mean, ServerOptimizer
from fedzo.core.capabilities import HasGradient
from fedzo.core.estimator import Correction
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Update, weight_of
from fedzo.core.types import Array
from fedzo.errors import NonFinite, UsageError, check_counts, check_positive, require
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
    schedule : Schedule, optional
        How the learning rate changes from round to round, such as
        ``fedzo.schedules.Cosine(rounds=200, warmup=10)``; in a configuration the table
        ``[algorithm.schedule]``.
    server : ServerOptimizer
        The server optimizer. With :class:`fedzo.server.Adam` this is FedAdam, with ``Yogi`` and
        ``Adagrad`` FedYogi and FedAdagrad (Reddi et al.), with ``Momentum`` FedAvgM.

    References
    ----------
    B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
    S. J. Reddi et al., "Adaptive Federated Optimization", ICLR 2021.

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
    schedule: Schedule | None = None
    server: ServerOptimizer = field(default_factory=Mean)

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate")
        check_counts(self, "batch_size")
        check_settings(self)
        allowed = f"a number: {type(self).__name__} measures no rate"
        require(not self.server.automatic, "server.learning_rate", "auto", allowed)

    def init(self, x0: Array, setting: RunSetting) -> Any:
        """Return the state before round 0."""
        if not setting.provides(HasGradient):
            words = f"{type(self).__name__} needs gradients, but problem.name is one that provides"
            help_ = "set algorithm.name = 'fedzo', or give the problem a gradient (HasGradient)"
            raise UsageError(f"{words} only loss values: {help_}", code="no-gradient")
        return start(self, x0, setting)

    def round(self, t: int, state: Any, setting: RunSetting) -> Round[Any]:
        """Yield the local steps of round t; return the state after it."""
        devices = setting.uplink.participants(t, self.participants, setting)  # M_t
        updates = yield self.task(t, state.x, devices, setting)  # Δ_i^t
        delta, sent = setting.uplink.aggregate(t, updates, setting)  # Δ^t
        x, server = self.server.step(t, state.server, state.x, delta)  # x^{t+1}
        return State(x, server), RoundInfo.of(updates, sent)

    def task(self, t: int, x: Array, devices: Array, setting: RunSetting) -> LocalSteps:
        """Return what the devices of round t are asked for."""
        x = setting.uplink.broadcast(t, x, devices, setting)
        return LocalSteps(self, x, self.learning_rate, seed=setting.seed, round=t, devices=devices)

    def correction(self, task: LocalSteps, device: int) -> Correction | None:
        """Return what a device's steps add to the gradient, a function of x; None for nothing."""
        return None

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return Δ_i^t: H gradient steps from x^t."""
        first_order, start = objective.capability(HasGradient), task.start(device)
        assert first_order is not None, "init checks it"
        delta, correction = np.zeros_like(start), self.correction(task, device)
        for k in range(self.local_steps):
            at = draws.on(Stream.BATCHES)._replace(step=k)
            batch, x = objective.batch(device, self.batch_size, at), start + delta
            gradient = first_order.gradient(x, batch)
            if correction is not None:
                gradient = gradient + correction(x)
            delta -= (task.learning_rate * gradient).astype(delta.dtype)
        if not np.isfinite(delta).all():
            raise NonFinite("the gradient", draws.round + 1, device)
        weight = weight_of(self.weighting, objective, device)
        return Update(device, delta, weight, queries=self.local_steps * self.batch_size)
