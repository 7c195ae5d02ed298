r"""FedZO: Algorithm 1 of Fang et al. 2022."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from fedzo.algorithms.base import (
    RoundInfo,
    ZerothOrder,
    check_participants,
    check_weighting,
    weight_of,
)
from fedzo.algorithms.server import Kept, Mean, ServerStep
from fedzo.algorithms.server.accumulated import Accumulated
from fedzo.algorithms.trials import values_of
from fedzo.core.federation import Federation
from fedzo.core.fixed import SetSum
from fedzo.core.objective import Objective
from fedzo.core.random import Draws
from fedzo.core.steps import local_steps
from fedzo.core.work import Update, Work
from fedzo.errors import InvalidValue, check_counts, check_positive, require
from fedzo.uplinks.base import Uplink

Array = NDArray[Any]


class State(NamedTuple):
    """What FedZO carries from round to round."""

    x: Array  # x^t
    server: Kept = ()  # what the server step keeps


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
        (:mod:`fedzo.runs.auto`) and adapts it meanwhile (:mod:`fedzo.algorithms.automatic`).
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
        and a round is described by H b2 numbers for all of them (DeComFL, Li et al. 2025).
    fixed_directions : int, optional
        K: the directions of all steps are drawn from a fixed set of K, b2 at a time, so that over
        :class:`~fedzo.Seeds` all rounds up to now are K numbers and no log grows (FedKSeed, Qin et
        al. 2024: :mod:`fedzo.core.fixed`). The model moves in those K directions only, and the
        server and whoever follows it draw all of them anew in each round.
    server : ServerStep
        What the server makes of the mean update: :mod:`fedzo.algorithms.server`. The paper's adds
        it; in a configuration this is the table ``[server]``.
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
    server: ServerStep = field(default_factory=Mean)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate != "auto":
            check_positive(self, "learning_rate")
        check_counts(self, "local_steps")
        if self.participants is not None:
            check_counts(self, "participants")
        check_weighting(self.weighting)
        allowed = "a server step such as fedzo.algorithms.server.Mean()"
        require(isinstance(self.server, ServerStep), "server", self.server, allowed)
        if self.fixed_directions is not None:
            allowed = "the mean with fixed_directions, so that the model is a sum of those"
            name = type(self.server).__name__
            require(isinstance(self.server, Mean), "server", name, allowed)

    @property
    def coefficients_shape(self) -> tuple[int, int]:
        """(H, b2)."""
        return self.local_steps, self.directions

    @property
    def automatic(self) -> bool:
        """Whether a number has still to be chosen."""
        return "auto" in (self.learning_rate, self.smoothing)

    def init(self, x0: Array, federation: Federation, uplink: Uplink) -> State:
        """Return the state before round 0."""
        self.check(federation)
        check_participants(self.participants, federation)
        check_weighting(self.weighting, federation)
        if uplink.wants_coefficients and self.corrects:
            name = type(self).__name__
            why = "whose updates are combinations of its directions: its local steps are corrected"
            raise InvalidValue("name", name, f"one {why}")
        kept = self._server(uplink).init(x0)
        if uplink.wants_coefficients and self.server.trial(kept) is not None:
            why = "one that only takes steps, and tries no points: this uplink carries coefficients"
            raise InvalidValue("server", type(self.server).__name__, why)
        if self.corrects and self.server.stretch(kept) is not None:
            why = "one that leaves the directions as they are: the local steps are corrected"
            raise InvalidValue("server", type(self.server).__name__, why)
        return State(x0, kept)

    def round(
        self, t: int, state: State, federation: Federation, uplink: Uplink
    ) -> tuple[State, RoundInfo]:
        """Return the state after round t."""
        server = self._server(uplink)
        if (trial := server.trial(state.server)) is not None:  # it wants to know values first
            values, info = values_of(t, trial, federation, uplink)
            return State(*server.tried(state.server, state.x, values)), info
        devices = uplink.participants(t, self.participants, federation)  # M_t
        stretch = server.stretch(state.server)
        work = Work(self, state.x, t, federation.seed, state=state, stretch=stretch)
        updates = federation.map(work, devices)  # Δ_i^t, a stream in device order
        delta, sent = uplink.aggregate(t, updates, federation)  # Δ^t
        x, kept = server.take(t, state.server, state.x, delta)  # x^{t+1}
        return State(x, kept), RoundInfo.of(updates, sent)

    def _server(self, uplink: Uplink) -> ServerStep:
        """Return the server step; of a fixed set of directions what is heard is added up."""
        if self.fixed_directions is None or not uplink.wants_coefficients:
            return self.server
        return Accumulated(self.estimator)

    def sums(self, state: State) -> Array | None:
        """Return the coefficients of the fixed directions that the model is made of, if it is."""
        return state.server[1] if self.fixed_directions and state.server else None

    def made_of(self, state: State, sums: Array, seed: int) -> State:
        """Return the state that these sums and a state's start make."""
        start = state.server[0]
        x = SetSum(self.estimator, seed, start.size, sums).moved(start)
        return State(x, (start, sums))

    def local(self, objective: Objective, device: int, x: Array, at: Draws) -> Update:
        """Return Δ_i^t: H steps of eq. (6) from x^t."""
        return local_steps(
            self.estimator,
            objective,
            x,
            at,
            learning_rate=float(self.learning_rate),
            batch_size=self.batch_size,
            steps=self.local_steps,
            weight=weight_of(self.weighting, objective, device),
            correction=self.correction if self.corrects else None,
        )

    def correction(self, x: Array, start: Array) -> Array:
        """Return what a local step at x adds to the estimate; ``start`` is x^t.

        The hook for variants: a proximal term is ``self.proximal * (x - start)``. It is used
        only where a subclass overrides it.
        """
        raise NotImplementedError

    @property
    def corrects(self) -> bool:
        """Whether a subclass corrects the local steps."""
        return type(self).correction is not FedZO.correction
