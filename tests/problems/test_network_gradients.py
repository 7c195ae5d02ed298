"""Gradients of a torch module by autograd: what FedAvg and its relatives take steps with."""

import copy

import numpy as np
import pytest

import fedzo
from fedzo.core.capabilities import HasGradient
from fedzo.core.random import Draws, Stream
from fedzo.server import Adam
from raising import fails

torch = pytest.importorskip("torch")

AT = Draws(seed=3, stream=Stream.BATCHES)
BASELINES = {
    "fedavg": fedzo.FedAvg(learning_rate=0.1, batch_size=8),
    "fedprox": fedzo.FedProx(learning_rate=0.1, batch_size=8, proximal=0.1),
    "scaffold": fedzo.Scaffold(learning_rate=0.1, batch_size=8, participants=2),
    "fedadam": fedzo.FedAvg(learning_rate=0.1, batch_size=8, server=Adam(learning_rate=0.05)),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]).double(), batch[1], reduction="none")


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Tanh()
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).to(dtype)


def data(dtype=torch.float64):
    inputs = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [(inputs[i], inputs[i, :, :3].argmax(-1)) for i in range(3)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("trainable", [None, "head", ["0.bias", "1.weight"]])
def test_the_gradient_is_autograds_at_any_point(trainable, in_place):
    module = network()
    problem = fedzo.TorchProblem(module, loss, data(), trainable, in_place=in_place)
    reference, before = copy.deepcopy(module).eval(), copy.deepcopy(module.state_dict())
    x = problem.initial() + 0.1 * Draws(1, Stream.INIT).normals(problem.dim)
    batch = problem.batch(1, 7, AT)
    named = dict(reference.named_parameters())
    with torch.no_grad():
        for name, _, start, stop in problem.pieces:
            named[name].copy_(torch.from_numpy(x[start:stop]).view(named[name].shape))
    loss(reference, batch.content).mean().backward()
    expected = [named[piece.name].grad.reshape(-1).numpy() for piece in problem.pieces]
    module[0].weight.requires_grad_(False)
    found = problem.gradient(x, batch)
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-12)
    assert not module[0].weight.requires_grad
    assert all(one.grad is None for one in module.parameters())
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def test_the_gradient_is_the_limit_of_differences_of_values():
    problem = fedzo.TorchProblem(network(), loss, data())
    x, batch = problem.initial(), problem.batch(0, 9, AT)
    directions = Draws(2, Stream.INIT).normals(3, problem.dim)
    slopes = [
        np.diff(problem.values(np.stack([x - 1e-6 * v, x + 1e-6 * v]), batch).mean(1))[0] / 2e-6
        for v in directions
    ]
    np.testing.assert_allclose(directions @ problem.gradient(x, batch), slopes, rtol=1e-7)


def test_after_a_failing_loss_the_module_is_as_it_was():
    module, calls = network(torch.float32), []

    def breaks(module, batch):
        calls.append(1)
        if len(calls) > 3:
            raise ValueError("no more")
        return loss(module, batch)

    module[0].weight.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    problem = fedzo.TorchProblem(module, breaks, data(torch.float32), "all")
    for _ in range(3):
        problem.gradient(problem.initial() + 1, problem.batch(0, 2, AT))
    with pytest.raises(ValueError, match="no more"):
        problem.gradient(problem.initial() + 1, problem.batch(0, 2, AT))
    assert not module[0].weight.requires_grad
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_train_a_module(name, dtype):
    module = network(dtype)
    problem = fedzo.TorchProblem(module, loss, data(dtype))
    assert problem.capability(HasGradient) is problem
    result = fedzo.minimize(problem, algorithm=BASELINES[name], rounds=20, evaluate_every=20)
    assert result.fun < 0.7 * result.history[0]["train_loss"]
    assert problem.losses(result.x, np.arange(3)).mean() == pytest.approx(result.fun)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_in_place_are_the_same_run(name):
    runs = []
    for in_place in (False, True):
        module = network()
        problem = fedzo.TorchProblem(module, loss, data(), in_place=in_place)
        result = fedzo.minimize(problem, algorithm=BASELINES[name], rounds=5, seed=2)
        runs.append((result.x.copy(), [record["train_loss"] for record in result.history]))
        own = torch.cat([one.reshape(-1) for one in module.parameters()]).detach().numpy()
        np.testing.assert_array_equal(own, result.x)
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_a_run_of_scaffold_resumes_to_the_same_bits(tmp_path):
    def run(rounds, **where):
        problem = fedzo.TorchProblem(network(), loss, data())
        algorithm = BASELINES["scaffold"]
        return fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, seed=2, **where).last

    run(3, run_dir=tmp_path / "run")
    np.testing.assert_array_equal(run(6, run_dir=tmp_path / "run", resume=True), run(6))


def test_a_loss_without_a_gradient_says_so():
    """Labels that are compared have no gradient; FedZO needs none."""

    def errors(module, batch):
        return (module(batch[0]).argmax(1) != batch[1]).double()

    problem = fedzo.TorchProblem(network(), errors, data())
    with fails("no-gradient"):
        fedzo.minimize(problem, algorithm=fedzo.FedAvg(), rounds=1)
