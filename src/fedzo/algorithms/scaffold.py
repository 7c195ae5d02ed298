r"""SCAFFOLD: Karimireddy et al. 2020."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.base import Round, RoundInfo
from fedzo.algorithms.fedavg import FedAvg
from fedzo.algorithms.server.optimizers import ServerState
from fedzo.core.estimator import Correction
from fedzo.core.tasks import LocalSteps, Replies
from fedzo.core.types import Array
from fedzo.errors import UsageError, check_memory, require
from fedzo.uplinks.base import RunSetting


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

    def correction(self, task: LocalSteps, device: int) -> Correction:
        """Return c - c_i, whatever x is."""
        row = task.row("c", device)
        return lambda x: row
