r"""FedZO: Algorithm 1 of Fang et al. 2022."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.base import RoundInfo
from fedzo.directions import check_directions
from fedzo.errors import InvalidValue, NonFinite, one_of, require
from fedzo.estimator import Estimator
from fedzo.federation import Federation, Update
from fedzo.objective import Objective, size_of
from fedzo.random import Draws, Stream
from fedzo.uplink.base import Uplink

Array = NDArray[Any]


class State(NamedTuple):
    """What FedZO carries from round to round."""

    x: Array  # x^t


@dataclass(frozen=True)
class FedZO:
    r"""Federated zeroth-order optimisation with local steps and partial participation.

    In round t each device i of a random set M_t of M devices starts at
    :math:`x_i^{(t,0)} = x^t`, takes H steps, eq. (5)-(6),

    .. math:: x_i^{(t,k+1)} = x_i^{(t,k)} - \eta\, \tilde\nabla F_i\bigl(x_i^{(t,k)},
              \{\xi_m\}_{m=1}^{b_1}, \{v_n\}_{n=1}^{b_2}, \mu\bigr),

    and sends :math:`\Delta_i^t = x_i^{(t,H)} - x^t`; the server takes
    :math:`x^{t+1} = x^t + \frac1M \sum_{i \in M_t} \Delta_i^t`.

    Parameters
    ----------
    learning_rate : float
        η, the length of a local step.
    smoothing : float
        μ, how far from x the values are taken.
    batch_size : int
        b1, realisations ξ in an estimate, drawn independently (with replacement).
    directions : int
        b2, directions v in an estimate.
    local_steps : int
        H, steps between two meetings with the server.
    participants : int, optional
        M, devices in a round; all N by default. An over-the-air uplink schedules by the
        channel instead.
    direction_kind : str
        ``sphere`` (the paper's), ``gaussian``, ``rademacher``, ``orthogonal`` or
        ``coordinate``: see :mod:`fedzo.directions`.
    difference : str
        ``forward`` (the paper's) or ``central``: see :mod:`fedzo.estimator`.
    weighting : str
        ``uniform`` (the paper's 1/M), or ``size``: devices count by the number of their
        samples.

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
    >>> result = fedzo.minimize(
    ...     lambda x, device: np.sum((x - centres[device]) ** 2), x0=np.zeros(2), devices=3,
    ...     algorithm=fedzo.FedZO(learning_rate=0.05, directions=2, local_steps=2), rounds=100)
    >>> result.x.round(1)
    array([1., 1.])
    """

    learning_rate: float = 1e-3
    smoothing: float = 1e-3
    batch_size: int = 25
    directions: int = 20
    local_steps: int = 5
    participants: int | None = None
    direction_kind: str = "sphere"
    difference: str = "forward"
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        require(
            0 < self.learning_rate < np.inf, "learning_rate", self.learning_rate, "a number > 0"
        )
        for key in ("batch_size", "local_steps"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "a whole number >= 1")
        if self.participants is not None:
            require(
                self.participants >= 1, "participants", self.participants, "a whole number >= 1"
            )
        if self.weighting not in ("uniform", "size"):
            raise InvalidValue("weighting", self.weighting, one_of(("uniform", "size")))
        _ = self.estimator  # checks μ, b2, the kind and the difference

    @cached_property
    def estimator(self) -> Estimator:
        """Eq. (2) with this algorithm's μ and b2."""
        return Estimator(self.smoothing, self.directions, self.direction_kind, self.difference)

    def init(self, x0: Array, federation: Federation) -> State:
        """Return the state before round 0."""
        if self.participants is not None:
            allowed = f"at most the number of devices, {federation.devices}"
            ok = self.participants <= federation.devices
            require(ok, "participants", self.participants, allowed)
        if self.weighting == "size" and not federation.sized:
            raise InvalidValue("weighting", "size", "'uniform': the problem tells no device sizes")
        check_directions(self.direction_kind, self.directions, federation.dim)
        return State(x0)

    def round(
        self, t: int, state: State, federation: Federation, uplink: Uplink
    ) -> tuple[State, RoundInfo]:
        """Return the state after round t."""
        devices = uplink.participants(t, self.participants, federation)  # M_t
        work = LocalSteps(self, state.x, t, federation.seed)
        updates = federation.map(work, devices)  # Δ_i^t, a stream in device order
        delta, sent = uplink.aggregate(t, updates, federation)  # Δ^t
        x = (state.x + delta).astype(state.x.dtype)  # x^{t+1}
        return State(x), RoundInfo(updates.count, updates.queries, *sent)

    def model(self, state: State) -> Array:
        """Return x^t."""
        return state.x


@dataclass(frozen=True)
class LocalSteps:
    """One device's part of a round: H steps from x, a pure function of (objective, device)."""

    algorithm: FedZO
    x: Array
    round: int
    seed: int

    def __call__(self, objective: Objective, device: int) -> Update:
        """Return Δ_i^t.

        It is summed by itself, step by step, rather than taken as x_i^{(t,H)} - x^t: what is
        small is not rounded to the precision of what is large.
        """
        algorithm = self.algorithm
        estimator = algorithm.estimator
        frame = estimator.frame(self.x.size, self.x.dtype)
        at = Draws(self.seed, Stream.DIRECTIONS, self.round, device)
        x, delta, queries = self.x, np.zeros_like(self.x), 0  # x_i^{(t,0)} = x^t
        for k in range(algorithm.local_steps):
            coefficients, asked = estimator.estimate(
                objective, x, algorithm.batch_size, frame, at._replace(step=k)
            )
            if not np.isfinite(coefficients).all():
                raise NonFinite("the loss", self.round + 1, device)
            x = frame.advance(-algorithm.learning_rate * coefficients, delta, self.x)  # eq. (6)
            queries += asked
        weight = 1 if algorithm.weighting == "uniform" else size_of(objective, device)
        return Update(device, delta, weight, queries)
