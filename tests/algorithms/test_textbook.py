"""FedZO, with its engine and kernels, against Algorithm 1 as plain as a textbook: no engine."""

import numpy as np
import pytest

import fedzo
from fedzo.core.random import Draws, Stream


def textbook_fedzo(
    loss,
    x0,
    *,
    devices,
    rounds,
    learning_rate,
    smoothing=1e-3,
    directions=20,
    local_steps=5,
    participants=None,
    seed=0,
):
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


CENTRES = np.random.default_rng(3).normal(size=(7, 12))


def loss(x, device):
    return float(np.sum((x - CENTRES[device]) ** 2) + np.cos(x[0]) + device)


@pytest.mark.parametrize("participants", [None, 3])
@pytest.mark.parametrize("local_steps", [1, 4])
def test_fedzo_is_the_textbook_algorithm(participants, local_steps):
    """Values near 50 in float64 over μ = 1e-3 leave about ten digits of a step."""
    numbers = {
        "learning_rate": 0.01,
        "smoothing": 1e-3,
        "directions": 5,
        "local_steps": local_steps,
        "participants": participants,
    }
    x0 = np.linspace(-1, 1, 12)
    plain = textbook_fedzo(loss, x0, devices=7, rounds=6, seed=11, **numbers)
    result = fedzo.minimize(
        loss, x0, devices=7, rounds=6, seed=11, algorithm=fedzo.FedZO(**numbers), workers=2
    )
    assert np.linalg.norm(result.last - x0) > 0.1
    np.testing.assert_allclose(result.last, plain, atol=1e-8)


def test_it_is_short():
    """The function itself has at most 40 lines of code."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(textbook_fedzo)).body[0]
    lines = {node.lineno for statement in tree.body[1:] for node in ast.walk(statement)
             if hasattr(node, "lineno")}  # fmt: skip
    assert len(lines) <= 40
