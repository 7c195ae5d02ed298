r"""FedAvg: McMahan et al. 2017, the first-order baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.base import ModelState, RoundInfo, check_participants, check_weighting
from fedzo.core.federation import Federation, Update
from fedzo.core.objective import size_of
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue, NonFinite, check_counts, check_positive
from fedzo.uplinks.base import Uplink

Array = NDArray[Any]


@dataclass(frozen=True)
class FedAvg:
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
    >>> from fedzo.problems.quadratic import Quadratic
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
        check_counts(self, "batch_size", "local_steps")
        if self.participants is not None:
            check_counts(self, "participants")
        check_weighting(self.weighting)

    def init(self, x0: Array, federation: Federation, uplink: Uplink) -> ModelState:
        """Return the state before round 0."""
        check_participants(self.participants, federation)
        check_weighting(self.weighting, federation)
        if not federation.offers("gradient"):
            raise InvalidValue("name", "fedavg", "another one: the problem gives no gradients")
        if uplink.wants_coefficients:
            raise InvalidValue(
                "name", "fedavg", "one that has coefficients for this uplink to send"
            )
        return ModelState(x0)

    def round(
        self, t: int, state: ModelState, federation: Federation, uplink: Uplink
    ) -> tuple[ModelState, RoundInfo]:
        """Return the state after round t."""
        devices = uplink.participants(t, self.participants, federation)  # M_t
        updates = federation.map(LocalGradientSteps(self, state.x, t, federation.seed), devices)
        delta, sent = uplink.aggregate(t, updates, federation)
        x = (state.x + delta).astype(state.x.dtype)
        return ModelState(x), RoundInfo(updates.count, updates.queries, *sent)

    def model(self, state: ModelState) -> Array:
        """Return x^t."""
        return state.x


@dataclass(frozen=True)
class LocalGradientSteps:
    """One device's part of a round: a pure function of (objective, device)."""

    algorithm: FedAvg
    x: Array
    round: int
    seed: int

    def __call__(self, objective: Any, device: int) -> Update:
        """Return Δ_i^t."""
        algorithm = self.algorithm
        at = Draws(self.seed, Stream.BATCHES, self.round, device)
        delta = np.zeros_like(self.x)
        for k in range(algorithm.local_steps):
            batch = objective.batch(device, algorithm.batch_size, at._replace(step=k))
            gradient = objective.gradient(self.x + delta, batch)
            delta -= (algorithm.learning_rate * gradient).astype(delta.dtype)
        if not np.isfinite(delta).all():
            raise NonFinite("the gradient", self.round + 1, device)
        weight = 1 if algorithm.weighting == "uniform" else size_of(objective, device)
        queries = algorithm.local_steps * algorithm.batch_size
        return Update(device, delta, weight, queries)
