r"""FedAvg: McMahan et al. 2017, with FedProx (Li et al. 2020) and SCAFFOLD (2020)."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.base import (
    Algorithm,
    Round,
    RoundInfo,
    check_participants,
    check_uplink,
    check_weighting,
)
from fedzo.algorithms.fedzo import State, check_schedule, check_server, init_server
from fedzo.algorithms.schedules import Schedule
from fedzo.algorithms.server.optimizers import Mean, ServerOptimizer, ServerState
from fedzo.core.capabilities import HasGradient
from fedzo.core.estimator import Correction
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Replies, Update, weight_of
from fedzo.core.types import Array
from fedzo.errors import (
    NonFinite,
    UsageError,
    check_counts,
    check_memory,
    check_not_negative,
    check_positive,
    require,
)
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
        check_counts(self, "batch_size", "local_steps", optional=["participants"])
        check_weighting(self.weighting)
        check_server(self.server)
        allowed = f"a number: {type(self).__name__} measures no rate"
        require(not self.server.automatic, "server.learning_rate", "auto", allowed)
        check_schedule(self)

    def init(self, x0: Array, setting: RunSetting) -> Any:
        """Return the state before round 0."""
        check_participants(self.participants, setting)
        check_weighting(self.weighting, setting)
        check_uplink(self, setting, "updates")
        if not setting.provides(HasGradient):
            words = f"{type(self).__name__} needs gradients, but problem.name is one that provides"
            help_ = "set algorithm.name = 'fedzo', or give the problem a gradient (HasGradient)"
            raise UsageError(f"{words} only loss values: {help_}", code="no-gradient")
        return State(x0, init_server(self, x0))

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

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return Δ_i^t: H gradient steps from x^t."""
        return gradient_steps(self, objective, device, task, draws)


def gradient_steps(
    algorithm: FedAvg,
    objective: Objective,
    device: int,
    task: LocalSteps,
    draws: Draws,
    correction: Correction | None = None,
) -> Update:
    """Take H gradient steps from x^t, each with the ``correction`` of x; return the update."""
    first_order, start = objective.capability(HasGradient), task.start(device)
    assert first_order is not None, "init checks it"
    delta = np.zeros_like(start)
    for k in range(algorithm.local_steps):
        at = draws.on(Stream.BATCHES)._replace(step=k)
        batch, x = objective.batch(device, algorithm.batch_size, at), start + delta
        gradient = first_order.gradient(x, batch)
        if correction is not None:
            gradient = gradient + correction(x)
        delta -= (task.learning_rate * gradient).astype(delta.dtype)
    if not np.isfinite(delta).all():
        raise NonFinite("the gradient", draws.round + 1, device)
    return Update(
        device=device,
        delta=delta,
        weight=weight_of(algorithm.weighting, objective, device),
        queries=algorithm.local_steps * algorithm.batch_size,
    )


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    r"""FedAvg whose local steps are pulled back to the model of the round.

    A device takes H gradient steps on :math:`F_i(x) + \frac{\lambda}{2} \|x - x^t\|^2`, eq. (2) of
    the reference, where λ is called μ,

    .. math:: x_i^{(t,k+1)} = x_i^{(t,k)} - \eta \Bigl( \frac{1}{b_1} \sum_{m=1}^{b_1}
              \nabla F_i\bigl(x_i^{(t,k)}, \xi_m\bigr) + \lambda (x_i^{(t,k)} - x^t) \Bigr),

    so that devices with different data stay closer together. λ = 0 is FedAvg.

    Parameters
    ----------
    proximal : float
        λ, the strength of the pull.
    learning_rate, batch_size, local_steps, participants, weighting, server
        See :class:`~fedzo.FedAvg`.

    References
    ----------
    T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated Optimization in
    Heterogeneous Networks", MLSys 2020.

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0)
    >>> algorithm = fedzo.FedProx(learning_rate=0.2, proximal=0.5)
    >>> result = fedzo.minimize(problem, algorithm=algorithm, rounds=200)
    >>> bool(result.history[-1]["optimality_gap"] < 1e-9)
    True
    """

    proximal: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("proximal", self.proximal)

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return Δ_i^t of steps that are pulled back to x^t."""
        start = task.start(device)

        def pull(x: Array) -> Array:
            return self.proximal * (x - start)

        return gradient_steps(self, objective, device, task, draws, pull)


class ScaffoldState(NamedTuple):
    """What SCAFFOLD carries from round to round."""

    x: Array  # x^t
    server: ServerState
    controls: Array  # (N, d), c_i of each device


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    r"""FedAvg with control variates, which correct for the difference between devices.

    Every device has a control variate :math:`c_i`, and :math:`c = \frac1N \sum_i c_i`. A device
    takes H steps, eq. (3) of the reference, and its control variate becomes the mean of its
    gradients, option II of eq. (4),

    .. math:: x_i \leftarrow x_i - \eta \Bigl( \frac{1}{b_1} \sum_{m=1}^{b_1} \nabla F_i(x_i, \xi_m)
              - c_i + c \Bigr), \qquad
              c_i^+ = c_i - c - \frac{\Delta_i^t}{H \eta}.

    :math:`c_i^+` follows from :math:`\Delta_i^t`, so the server holds all :math:`c_i`, N d numbers,
    and sends each participant :math:`c - c_i` with the model. A device sends :math:`\Delta_i^t`
    only, and stores nothing.

    Parameters
    ----------
    learning_rate, batch_size, local_steps, participants, server
        See :class:`~fedzo.FedAvg`.
    weighting : str
        ``uniform``: c is the plain mean.

    References
    ----------
    S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich and A. T. Suresh, "SCAFFOLD:
    Stochastic Controlled Averaging for Federated Learning", ICML 2020.

    Examples
    --------
    With few participants FedAvg ends in a neighbourhood of the optimum, SCAFFOLD at the optimum:

    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0, dissimilarity=1.0)
    >>> settings = dict(learning_rate=0.1, participants=2)
    >>> for algorithm in (fedzo.FedAvg(**settings), fedzo.Scaffold(**settings)):
    ...     result = fedzo.minimize(problem, algorithm=algorithm, rounds=400, seed=1)
    ...     print(result.history[-1]["optimality_gap"] < 1e-9)
    False
    True
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.weighting == "uniform", "weighting", self.weighting, "'uniform' for Scaffold")

    def init(self, x0: Array, setting: RunSetting) -> ScaffoldState:
        """Return the state before round 0: all control variates are zero."""
        if not setting.uplink.carries_values:
            kind = type(setting.uplink).__name__
            words = f"Scaffold needs the exact update of each device, which {kind} does not send"
            raise UsageError(f"uplink.name: {words}; set uplink.name = 'ideal'", code="no-updates")
        check_memory("devices", setting.devices, setting.devices * x0.nbytes)
        start = super().init(x0, setting)
        controls = np.zeros((setting.devices, x0.size), x0.dtype)
        return ScaffoldState(start.x, start.server, controls)

    def round(self, t: int, state: Any, setting: RunSetting) -> Round[ScaffoldState]:
        """Yield the corrected steps of round t; return the state after it."""
        devices = setting.uplink.participants(t, self.participants, setting)  # S
        mean, controls = state.controls.mean(axis=0), state.controls.copy()  # c
        steps = replace(
            self.task(t, state.x, devices, setting), rows={"c": mean - controls[devices]}
        )
        updates = list((yield steps))
        for update in updates:
            controls[update.device] -= mean + update.delta / (self.local_steps * self.learning_rate)
        replies = Replies(updates, steps)
        delta, sent = setting.uplink.aggregate(t, replies, setting)
        x, server = self.server.step(t, state.server, state.x, delta)
        info = RoundInfo.of(replies, sent)
        downlink = info.downlink_bytes + replies.count * mean.nbytes
        return ScaffoldState(x, server, controls), info._replace(downlink_bytes=downlink)

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return Δ_i^t of steps that are corrected by c - c_i."""
        row = task.row("c", device)
        return gradient_steps(self, objective, device, task, draws, lambda x: row)
