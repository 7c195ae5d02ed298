r"""FedZO: Algorithm 1 of Fang et al. 2022."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.base import ModelState, RoundInfo, check_participants, check_weighting
from fedzo.core.directions import Frame, check_directions
from fedzo.core.estimator import Estimator
from fedzo.core.federation import Federation, Update
from fedzo.core.objective import Objective, size_of
from fedzo.core.random import Draws, Stream
from fedzo.errors import UsageError, check_counts, check_positive
from fedzo.uplinks.base import Uplink

Array = NDArray[Any]


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
    learning_rate : float or "auto"
        η, the length of a local step; "auto" measures it before the run: :mod:`fedzo.runs.auto`.
    smoothing : float or "auto"
        μ, how far from x the values are taken; "auto" is the corollaries'.
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
        ``coordinate``: see :mod:`fedzo.core.directions`.
    difference : str
        ``forward`` (the paper's) or ``central``: see :mod:`fedzo.core.estimator`.
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
    >>> def distance(x, device):
    ...     return np.sum((x - centres[device]) ** 2)
    >>> algorithm = fedzo.FedZO(
    ...     learning_rate=0.05, directions=2, direction_kind="orthogonal", local_steps=2)
    >>> result = fedzo.minimize(distance, np.zeros(2), devices=3, algorithm=algorithm, rounds=100)
    >>> result.x.round(1)
    array([1., 1.])
    """

    learning_rate: float | Literal["auto"] = 1e-3
    smoothing: float | Literal["auto"] = 1e-3
    batch_size: int = 25
    directions: int = 20
    local_steps: int = 5
    participants: int | None = None
    direction_kind: str = "sphere"
    difference: str = "forward"
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        if self.learning_rate != "auto":
            check_positive(self, "learning_rate")
        check_counts(self, "batch_size", "local_steps")
        if self.participants is not None:
            check_counts(self, "participants")
        check_weighting(self.weighting)
        _ = self.estimator  # checks μ, b2, the kind and the difference

    @cached_property
    def estimator(self) -> Estimator:
        """Eq. (2) with this algorithm's μ and b2."""
        # While μ is not chosen yet, any will do to check the others.
        smoothing = 1.0 if self.smoothing == "auto" else self.smoothing
        return Estimator(smoothing, self.directions, self.direction_kind, self.difference)

    @property
    def automatic(self) -> bool:
        """Whether a number has still to be chosen."""
        return "auto" in (self.learning_rate, self.smoothing)

    def init(self, x0: Array, federation: Federation, uplink: Uplink) -> ModelState:
        """Return the state before round 0."""
        if self.automatic:
            raise UsageError("'auto' is for fedzo.minimize and fedzo run, which choose a number")
        check_participants(self.participants, federation)
        check_weighting(self.weighting, federation)
        check_directions(self.direction_kind, self.directions, federation.dim)
        return ModelState(x0)

    def round(
        self, t: int, state: ModelState, federation: Federation, uplink: Uplink
    ) -> tuple[ModelState, RoundInfo]:
        """Return the state after round t."""
        devices = uplink.participants(t, self.participants, federation)  # M_t
        work = LocalSteps(
            self.estimator,
            float(self.learning_rate),
            self.batch_size,
            state.x,
            t,
            federation.seed,
            self.local_steps,
            self.weighting,
        )
        updates = federation.map(work, devices)  # Δ_i^t, a stream in device order
        delta, sent = uplink.aggregate(t, updates, federation)  # Δ^t
        x = (state.x + delta).astype(state.x.dtype)  # x^{t+1}
        return ModelState(x), RoundInfo(updates.count, updates.queries, *sent)

    def model(self, state: ModelState) -> Array:
        """Return x^t."""
        return state.x


@dataclass(frozen=True)
class LocalSteps:
    """One device's part of a round: H steps from x, a pure function of (objective, device)."""

    estimator: Estimator
    learning_rate: float
    batch_size: int
    x: Array
    round: int
    seed: int
    local_steps: int = 1
    weighting: str = "uniform"

    def __call__(self, objective: Objective, device: int) -> Update:
        """Return Δ_i^t, and the coefficients of the directions that it is made of.

        It is summed by itself, step by step, rather than taken as x_i^{(t,H)} - x^t: what is
        small is not rounded to the precision of what is large, and whoever knows the seed
        and the coefficients gets the same sum, to the bit.
        """
        frame = self.estimator.frame(self.x.size, self.x.dtype)
        at = Draws(self.seed, Stream.DIRECTIONS, self.round, device)
        x, delta, queries = self.x, np.zeros_like(self.x), 0  # x_i^{(t,0)} = x^t
        steps = np.empty((self.local_steps, self.estimator.directions), self.x.dtype)
        for k in range(self.local_steps):
            steps[k], x, asked = self.estimator.step(  # eq. (6)
                objective,
                x,
                self.batch_size,
                frame,
                at._replace(step=k),
                self.learning_rate,
                delta,
                self.x,
            )
            queries += asked
        weight = 1 if self.weighting == "uniform" else size_of(objective, device)
        return Update(device, delta, weight, queries, steps)


def rebuild(coefficients: Array, kind: str, dim: int, at: Draws) -> Array:
    """Return the Δ_i^t that these (H, b2) coefficients make, as the device at ``at`` summed it.

    The directions are drawn again and go through the same kernel in the same order, so the
    result is the device's own to the bit, on machines whose vector units are alike.
    """
    frame = Frame(kind, coefficients.shape[1], dim, coefficients.dtype)
    start, delta = np.zeros((2, dim), coefficients.dtype)
    for k, step in enumerate(coefficients):
        frame.draw(at._replace(stream=Stream.DIRECTIONS, step=k))
        frame.advance(step, delta, start)
    return delta
