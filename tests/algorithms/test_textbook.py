"""FedZO, with its engine and kernels, against the same algorithm written as in a textbook."""

import numpy as np
import pytest

import fedzo
from fedzo.algorithms.textbook import textbook_fedzo

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
