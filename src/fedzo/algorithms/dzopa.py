r"""DZOPA: Yi et al. 2021, the decentralised baseline."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo, ZerothOrder, check_uplink
from fedzo.core.tasks import LocalSteps
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, check_positive, nearest, one_of
from fedzo.uplinks.base import RunSetting

GRAPHS = ("complete", "ring")


class State(NamedTuple):
    """What DZOPA carries from round to round: a model at each device."""

    models: Array  # (N, d), row i is x_i


@dataclass(frozen=True, kw_only=True)
class DZOPA(ZerothOrder):
    r"""Distributed zeroth-order descent with averaging between neighbours.

    Every device takes one step and moves towards its neighbours, with no server,

    .. math:: x_i \leftarrow x_i - \gamma \sum_j L_{ij} x_j - \eta\, \tilde\nabla F_i(x_i),

    L the Laplacian of the graph. The model that is reported is the mean of the x_i, and the
    history records their ``disagreement``, the root-mean-square distance from that mean. As
    in the paper's comparison the estimator is the mini-batch one, eq. (2), where Yi et al.
    have b1 = b2 = 1.

    Parameters
    ----------
    learning_rate : float
        η.
    coupling : float, optional
        γ. The default is 1/(1 + the largest degree), stable on any graph. On the complete
        graph that is 1/N, one exact averaging step per round (x - (1/N) L x is the mean); on a
        ring it is 1/3, the mean of a device and its two neighbours.
    graph : str or list
        ``complete`` (the paper's comparison), ``ring``, or a symmetric N x N matrix of
        weights >= 0, as a list of lists, whose Laplacian is L.
    smoothing, batch_size, directions, direction_kind, difference
        See :class:`~fedzo.algorithms.base.ZerothOrder`.

    References
    ----------
    X. Yi, S. Zhang, T. Yang and K. H. Johansson, "Zeroth-Order Algorithms for Stochastic
    Distributed Nonconvex Optimization", Automatica 142, 2022 (arXiv:2106.02958, 2021).

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=5, devices=4, gradient_noise=0.0, dissimilarity=0.1)
    >>> algorithm = fedzo.DZOPA(learning_rate=0.3, directions=5, direction_kind="orthogonal")
    >>> result = fedzo.minimize(problem, algorithm=algorithm, rounds=200)
    >>> bool(result.history[-1]["optimality_gap"] < 1e-5)
    True
    """

    learning_rate: float = 5e-3
    coupling: float | None = None
    graph: str | list[Any] = "complete"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "learning_rate", optional=["coupling"])
        if isinstance(self.graph, str) and self.graph not in GRAPHS:
            allowed = f"{one_of(GRAPHS)} or a matrix of weights{nearest(self.graph, GRAPHS)}"
            raise InvalidValue("graph", self.graph, allowed)

    def init(self, x0: Array, setting: RunSetting) -> State:
        """Return the state before round 0: everybody at x0."""
        check_uplink(self, setting, "nothing")
        self.check(setting)
        self.weights(setting.devices)  # is the graph one of N devices?
        return State(np.tile(x0, (setting.devices, 1)))

    def round(self, t: int, state: State, setting: RunSetting) -> Round[State]:
        """Yield the local steps of round t; return the state after it."""
        updates = yield LocalSteps(  # -η times the estimates, each at the device's own model
            self,
            state.models,
            self.learning_rate,
            seed=setting.seed,
            round=t,
            devices=tuple(range(setting.devices)),
        )
        weights = self.weights(setting.devices)
        mixed = self._mix(state.models.astype(np.float64), weights)
        for update in updates:
            mixed[update.device] += update.delta
        models = mixed.astype(state.models.dtype)
        sent = int(np.count_nonzero(weights)) * state.models[0].nbytes
        away = models - models.mean(axis=0, dtype=np.float64)
        disagreement = float(np.sqrt(np.mean(np.sum(away**2, axis=1))))
        info = RoundInfo(
            participants=updates.count,
            queries=updates.queries,
            uplink_bytes=sent,
            channel_uses=models.size,
            metrics={"disagreement": disagreement},
        )
        return State(models), info

    def _mix(self, models: Array, weights: Array) -> Array:
        """Return (I - γ L) X with L = diag(W 1) - W."""
        degrees = weights.sum(axis=1)
        coupling = self.coupling or 1 / (1 + degrees.max())
        return np.asarray(models - coupling * (degrees[:, None] * models - weights @ models))

    def weights(self, devices: int) -> Array:
        """Return the graph's matrix W of weights, zero on the diagonal."""
        others = 1 - np.eye(devices)
        if isinstance(self.graph, str):
            if self.graph == "complete":
                return others
            step = np.roll(np.eye(devices), 1, axis=1)
            return np.minimum(step + step.T, 1) * others
        try:
            matrix = np.asarray(self.graph, np.float64)
        except (TypeError, ValueError):
            matrix = np.empty(0)  # ragged, or not of numbers
        square = matrix.shape == (devices, devices)
        if not (square and np.isfinite(matrix).all() and (matrix >= 0).all()) or (
            not np.array_equal(matrix, matrix.T)
        ):
            allowed = f"a symmetric matrix, {devices} x {devices} (the devices), of weights >= 0"
            raise InvalidValue("graph", self.graph, allowed)
        return matrix * others

    def model(self, state: State) -> Array:
        """Return the mean of the devices' models."""
        return np.asarray(state.models.mean(axis=0, dtype=np.float64), state.models.dtype)
