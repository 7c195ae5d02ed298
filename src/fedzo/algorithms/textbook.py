"""Algorithm 1 as plain as a textbook: NumPy, one loop per line of the paper, no engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.random import Draws, Stream


def textbook_fedzo(
    loss: Callable[[NDArray[Any], int], float],
    x0: ArrayLike,
    *,
    devices: int,
    rounds: int,
    learning_rate: float,
    smoothing: float = 1e-3,
    directions: int = 20,
    local_steps: int = 5,
    participants: int | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Return x after some rounds of FedZO; parameters are those of :class:`~fedzo.FedZO`.

    It draws the same participants and directions as :class:`~fedzo.FedZO`, and returns the same
    model to rounding. It is meant to be read.

    >>> x = textbook_fedzo(lambda x, i: sum((x - i) ** 2), [0.0, 0.0], devices=3, rounds=100,
    ...                    learning_rate=0.02)
    >>> x.round(1)
    array([1., 1.])
    """
    x = np.array(x0, np.float64)
    d = x.size
    for t in range(rounds):
        drawn = Draws(seed, Stream.PARTICIPANTS, round=t).subset(devices, participants or devices)
        deltas = []
        for i in drawn:  # M_t; these devices work side by side
            x_i = x.copy()
            for k in range(local_steps):
                v = Draws(seed, Stream.DIRECTIONS, t, int(i), k).normals(directions, d)
                v /= np.linalg.norm(v, axis=1, keepdims=True)  # uniform on the unit sphere
                base = loss(x_i, int(i))
                rises = np.array([loss(x_i + smoothing * v_n, int(i)) - base for v_n in v])
                estimate = d / (smoothing * directions) * rises @ v  # eq. (2)
                x_i = x_i - learning_rate * estimate  # eq. (6)
            deltas.append(x_i - x)  # Δ_i^t
        x = x + np.mean(deltas, axis=0)  # x^{t+1}
    return x
