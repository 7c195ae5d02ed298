"""The PyTorch versions that we compare with do the same job, so that the comparison is fair."""

import sys
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.problems import softmax

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import torch_batched  # noqa: E402
import torch_textbook  # noqa: E402
from scaling import Synthetic  # noqa: E402
from timing import PAPER, medians  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("version", [torch_textbook, torch_batched])
def test_the_same_learning_curve(version):
    """After 25 rounds from zero the loss has fallen by about as much as ours has.

    Ours falls from ln 10 = 2.303 by 0.25; seeds differ by a few hundredths.
    """
    problem = softmax()
    torch.manual_seed(0)
    theirs = version.Round(
        problem.data.train_inputs,
        problem.data.train_labels,
        problem.parts,
        participants=20,
        lr=0.001,
        mu=0.001,
        b1=25,
        b2=20,
        local_steps=5,
    )
    for _ in range(25):
        theirs()
    with torch.no_grad():
        loss = float(theirs.loss(theirs.x, theirs.inputs, theirs.labels))
    ours = fedzo.minimize(problem, algorithm=PAPER, rounds=25, evaluate_every=25).fun
    assert loss == pytest.approx(ours, abs=0.04)
    assert ours < 2.15


def test_synthetic_objective():
    """Its expanded square is the square, at and around any point."""
    objective = Synthetic(30, devices=4)
    x, *directions = Draws(0, Stream.INIT).normals(4, 30, dtype=np.float32)
    rows, steps = np.array([0, 1, 2]), np.array([0.0, 0.5, -0.25])
    batch = objective.batch(3, 1, Draws(0, Stream.BATCHES))
    along = objective.values_along(x, np.array(directions), rows, steps, batch)
    points = x + steps[:, None] * np.array(directions)[rows]
    np.testing.assert_allclose(along, objective.values(points, batch), rtol=1e-5)
    everyone = objective.losses(x, np.arange(4))
    expected = [objective.values(x[None], i / 4)[0, 0] for i in range(4)]
    np.testing.assert_allclose(everyone, expected, rtol=1e-5)
    estimator = Estimator(1e-2, 30, "orthogonal")
    buffer = estimator.buffer(30, np.float32)
    at = Draws(0, Stream.DIRECTIONS, device=3)
    coefficients, _ = estimator.estimate(objective, x, 1, buffer, at)
    np.testing.assert_allclose(coefficients @ buffer.rows, x - 0.75, atol=0.1)


def test_medians_take_turns():
    calls = []
    times = medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, burst=2)
    assert "".join(calls) == "ab" + "aabb" * 2
    assert set(times) == {"a", "b"}


@pytest.mark.parametrize("name", ["mezo", "mezo, tidied", "decomfl", "decomfl, one vector"])
def test_the_steps_of_the_field_descend_a_linear_loss_by_its_gradient(name):
    """Over 600 seeds: within 5 standard errors of -rate a, rate |a| sqrt((d + 1) / n) in all."""
    from mezo import METHODS

    a = torch.arange(1.0, 7.0, dtype=torch.float32)
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))]

    def value():
        return float(a @ torch.cat([parameter.detach().flatten() for parameter in parameters]))

    total = torch.zeros(6)
    with torch.no_grad():
        for seed in range(600):
            for parameter in parameters:
                parameter.data = torch.zeros_like(parameter)
            METHODS[name](parameters, value, seed, rate=0.1)
            total += torch.cat([parameter.flatten() for parameter in parameters]) / 600
    error = float((total + 0.1 * a).norm())
    assert error < 5 * 0.1 * float(a.norm()) * 7**0.5 / 600**0.5


@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_our_step_descends_a_linear_loss_by_its_gradient(kind):
    """As above, in the memory of the module."""
    from mezo import RATE, own_step

    a = torch.arange(1.0, 7.0)
    module = torch.nn.Linear(6, 1, bias=False)
    problem = fedzo.TorchProblem(
        module, lambda module, batch: module(batch[0])[:, 0], [(a[None],)], in_place=True
    )
    step, total = own_step(problem, kind, texts=1), np.zeros(6)
    for seed in range(600):
        problem.initial()[:] = 0.0
        step(seed)
        total += problem.initial() / 600
    error = np.linalg.norm(total + RATE * a.numpy())
    assert error < 5 * RATE * float(a.norm()) * 7**0.5 / 600**0.5


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["mlp, digits", "layer norm, images"])
def test_the_plain_call_keeps_up_with_the_best_of_three_rates(pair):
    """Of ten pairs two, with seed 0: at least 85 % of the gain, at no more queries."""
    import modules

    start, reached, queries = modules.run(pair, 0.0, 0, 60)
    rounds = int(queries // modules.run_cost(pair))
    best = max(modules.run(pair, rate, 0, rounds)[1] for rate in (0.003, 0.01, 0.03))
    assert reached - start > 0.85 * (best - start)


def test_spectral_steps_are_orthogonal_and_as_long_as_adams():
    """The root mean square of a matrix's step is the rate, and vectors take Adam's step."""
    from matrices import Spectral

    delta = np.random.default_rng(0).standard_normal(17)
    server = Spectral(learning_rate=0.1, matrices=((2, 3, 4),))
    x, _ = server.apply(0, server.init(np.zeros(17)), np.zeros(17), delta)
    matrix = x[2:14].reshape(3, 4)
    np.testing.assert_allclose(matrix @ matrix.T, 0.1**2 * 4 * np.eye(3), atol=1e-6)
    assert np.trace(matrix @ delta[2:14].reshape(3, 4).T) > 0
    np.testing.assert_allclose(x[[0, 1, 14, 15, 16]], 0.1 * np.sign(delta[[0, 1, 14, 15, 16]]))
