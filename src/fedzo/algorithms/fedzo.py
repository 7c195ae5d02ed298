r"""FedZO: Algorithm 1 of Fang et al. 2022."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedzo.algorithms.base import (
    Algorithm,
    Round,
    RoundInfo,
    ZerothOrder,
    check_participants,
    check_uplink,
    check_weighting,
)
from fedzo.algorithms.schedules import Schedule
from fedzo.algorithms.server.optimizers import Mean, ServerOptimizer, ServerState
from fedzo.core.tasks import LocalSteps
from fedzo.core.types import Array
from fedzo.errors import check_counts, check_positive, require
from fedzo.uplinks.base import RunSetting


class State(NamedTuple):
    """What FedZO carries from round to round."""

    x: Array  # x^t
    server: ServerState = ()


@dataclass(frozen=True, kw_only=True)
class FedZO(ZerothOrder):
    r"""Federated zeroth-order optimisation with local steps and partial participation.

    In round t each device i of a random set M_t of M devices starts at
    :math:`x_i^{(t,0)} = x^t`, takes H steps, eq. (5)-(6),

    .. math:: x_i^{(t,k+1)} = x_i^{(t,k)} - \eta\, \tilde\nabla F_i\bigl(x_i^{(t,k)},
              \{\xi_m\}_{m=1}^{b_1}, \{v_n\}_{n=1}^{b_2}, \mu\bigr),

    and sends :math:`\Delta_i^t = x_i^{(t,H)} - x^t`; the server takes
    :math:`x^{t+1} = x^t + \frac1M \sum_{i \in M_t} \Delta_i^t`.

    Parameters
    ----------
    learning_rate : float or "auto"
        η, the length of a local step; "auto" measures it before the run
        (:mod:`fedzo.runs.auto`) and adapts it meanwhile (:mod:`fedzo.algorithms.adaptive_rate`).
    smoothing : float or "auto"
        μ, how far from x the values are taken; "auto" is the corollaries'.
    local_steps : int
        H, steps between two meetings with the server.
    participants : int, optional
        M, devices in a round; all N by default. An over-the-air uplink schedules by the
        channel instead.
    weighting : str
        ``uniform`` (the paper's 1/M), or ``size``: devices count by the number of their
        samples.
    shared_directions : bool
        All devices of a round use the same directions, so their coefficients can be averaged,
        and H b2 numbers describe a round of all devices (DeComFL, Li et al. 2025).
    fixed_directions : int, optional
        K: the directions of all steps are drawn from a fixed set of K, b2 at a time. Over
        :class:`~fedzo.Seeds` K numbers then describe all rounds so far, and no log grows
        (FedKSeed, Qin et al. 2024: :mod:`fedzo.algorithms.fixed_directions`). The model moves in
        those K directions only. The server, and nodes that replay it, draw all K in each round.
    schedule : Schedule, optional
        How the learning rate changes from round to round, such as
        ``fedzo.schedules.Cosine(rounds=200, warmup=10)``; in a configuration the table
        ``[algorithm.schedule]``.
    server : ServerOptimizer
        The server optimizer: :mod:`fedzo.server`. The paper's adds the mean update; in a
        configuration this is the table ``[server]``.
    batch_size, directions, direction_kind, difference
        See :class:`~fedzo.algorithms.base.ZerothOrder`.

    References
    ----------
    W. Fang, Z. Yu, Y. Jiang, Y. Shi, C. N. Jones and Y. Zhou, "Communication-Efficient
    Stochastic Zeroth-Order Optimization for Federated Learning", IEEE Transactions on
    Signal Processing 70, 2022.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> centres = np.array([[1.0, 0.0], [0.0, 2.0], [2.0, 1.0]])  # one for each device
    >>> def distance(x, device):
    ...     return np.sum((x - centres[device]) ** 2)
    >>> algorithm = fedzo.FedZO(
    ...     learning_rate=0.05, directions=2, direction_kind="orthogonal", local_steps=2)
    >>> result = fedzo.minimize(distance, np.zeros(2), devices=3, algorithm=algorithm, rounds=100)
    >>> result.x.round(1)
    array([1., 1.])
    """

    learning_rate: float | Literal["auto"] = 1e-3
    local_steps: int = 5
    participants: int | None = None
    weighting: str = "uniform"
    shared_directions: bool = False
    fixed_directions: int | None = None
    schedule: Schedule | None = None
    server: ServerOptimizer = field(default_factory=Mean)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate != "auto":
            check_positive(self, "learning_rate")
        check_settings(self)

    @property
    def automatic(self) -> bool:
        """Whether a number has still to be chosen."""
        return "auto" in (self.learning_rate, self.smoothing)

    def init(self, x0: Array, setting: RunSetting) -> State:
        """Return the state before round 0."""
        self.check(setting)
        return start(self, x0, setting)

    def round(self, t: int, state: State, setting: RunSetting) -> Round[State]:
        """Yield the local steps of round t; return the state after it."""
        devices = setting.uplink.participants(t, self.participants, setting)  # M_t
        updates = yield self.task(t, state, devices, setting)  # Δ_i^t, a stream in device order
        delta, sent = setting.uplink.aggregate(t, updates, setting)  # Δ^t
        with setting.commit():
            x, server = self.server.step(t, state.server, state.x, delta)  # x^{t+1}
        return State(x, server), RoundInfo.of(updates, sent)

    def task(self, t: int, state: State, devices: Array, setting: RunSetting) -> LocalSteps:
        """Return what the devices of round t are asked for."""
        rate = float(self.learning_rate)
        asked: dict[str, Any] = {"seed": setting.seed, "round": t, "devices": devices}
        x = setting.uplink.broadcast(t, state.x, devices, setting)
        return LocalSteps(self, x, rate, state=state, **asked)


def check_settings(algorithm: Any) -> None:
    """Raise unless the settings of rounds, which FedZO shares with FedAvg, are possible."""
    check_counts(algorithm, "local_steps", optional=["participants"])
    check_weighting(algorithm.weighting)
    if algorithm.schedule is not None and isinstance(algorithm, FedZO):
        allowed = "omitted: 'auto' adapts the learning rate itself"
        measured = algorithm.automatic or algorithm.server.automatic
        require(not measured, "schedule", algorithm.schedule, allowed)


def start(algorithm: Any, x0: Array, setting: RunSetting) -> State:
    """Return the state before round 0; raise unless devices, uplink and server fit together."""
    check_participants(algorithm.participants, setting)
    check_weighting(algorithm.weighting, setting)
    check_uplink(algorithm, setting, "updates")
    return State(x0, algorithm.server.init(x0))


@dataclass(frozen=True, kw_only=True)
class Variant(Algorithm):
    """Base class of variants that wrap FedZO and yield its tasks."""

    fedzo: FedZO

    @property
    def coefficients_shape(self) -> tuple[int, int] | None:
        """(H, b2)."""
        return self.fedzo.coefficients_shape

    @property
    def first_step(self) -> int:
        """The number of rounds in which the server chooses the start."""
        return self.fedzo.server.first_step
