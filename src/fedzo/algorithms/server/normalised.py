"""Steps of one length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, ServerStep
from fedzo.errors import check_positive


@dataclass(frozen=True)
class Normalised(ServerStep):
    r"""Steps of one length: only the direction of the mean update counts.

    .. math:: x^{t+1} = x^t + \eta_s \frac{\Delta^t}{\lVert \Delta^t \rVert}

    FZOO divides its estimate by the spread σ of the losses :math:`l_n` at its b2 points. An
    estimate is a combination of directions with the coefficients :math:`l_n - l_0`, so where the
    directions are orthogonal, or nearly so as in many dimensions, its norm *is* that spread, taken
    around :math:`l_0`, but for a constant: one device and one local step make FZOO's step with
    :math:`\eta_s = \eta / \sqrt{b_2}`. The norm is what a server can take over every uplink; of the
    mean of many devices it is also small where they disagree.

    Parameters
    ----------
    rate : float
        η_s, how far the model moves in a round.

    References
    ----------
    S. Dang et al., "FZOO: Fast Zeroth-Order Optimizer for Fine-Tuning Large Language Models towards
    Adam-Scale Speed", 2025.

    Examples
    --------
    >>> Normalised(rate=10.0).apply(0, (), np.zeros(2), np.array([0.3, -0.4]))[0]
    array([ 6., -8.])
    """

    rate: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "rate")

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Move by ``rate`` along the mean update; nowhere, where that is zero."""
        length = float(np.linalg.norm(delta))
        return (x + (self.rate / length if length else 0.0) * delta).astype(x.dtype), kept
