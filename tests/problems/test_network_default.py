"""A module is trained by the plain call, with threads and interrupts that leave no trace."""

import signal

import numpy as np
import pytest

import fedzo
from fedzo.algorithms.server import optimizers
from fedzo.core.updates import DirectionSum
from fedzo.problems import network, network_points
from fedzo.problems.network_points import ThreadChoice
from fedzo.server import Adam, Normalised

torch = pytest.importorskip("torch")


def loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def module_and_data(devices=4, dtype=torch.float32):
    """Three classes that a small network separates."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(1))
    labels = inputs[:, :3].argmax(1)
    data = [(inputs[i::devices].to(dtype), labels[i::devices]) for i in range(devices)]
    return module.to(dtype), data


def right(module, data):
    with torch.inference_mode():
        return np.mean([(module(x).argmax(1) == y).float().mean().item() for x, y in data])


@pytest.mark.parametrize("devices", [1, 4, 25])
def test_the_plain_call_learns(devices):
    module, data = module_and_data(devices)
    before = right(module, data)
    result = fedzo.minimize(fedzo.TorchProblem(module, loss, data), rounds=40)
    assert result.success
    assert before < 0.5
    assert right(module, data) > 0.8
    assert result.queries < 100_000


@pytest.mark.parametrize("server", [Adam("auto"), Adam(0.03), Normalised(0.3)])
@pytest.mark.parametrize("kind", ["rademacher", "sphere"])
def test_in_place_and_with_a_copy_are_one_run(server, kind):
    found = []
    for in_place in (False, True):
        module, data = module_and_data()
        problem = fedzo.TorchProblem(module, loss, data, in_place=in_place)
        algorithm = fedzo.FedZO(
            local_steps=1, directions=4, smoothing=0.05, direction_kind=kind, server=server
        )
        found.append(fedzo.minimize(problem, algorithm=algorithm, rounds=12).last.copy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("server", [Adam("auto"), Adam(0.03)])
def test_an_interrupt_in_a_server_step_leaves_the_step_whole(server, monkeypatch):
    """SIGINT while parts are applied: the run ends after that round, with its model in place."""
    apply_parts, seen = optimizers.ServerOptimizer.apply_parts, []

    def interrupted(self, t, state, x, update, out, start=0):
        if t == 3 and len(out) > 1:
            signal.raise_signal(signal.SIGINT)
            seen.append(t)
        apply_parts(self, t, state, x, update, out, start)

    def run(rounds):
        module, data = module_and_data()
        problem = fedzo.TorchProblem(module, loss, data, in_place=True)
        algorithm = fedzo.FedZO(local_steps=1, directions=4, smoothing=0.05, server=server)
        return fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, evaluate_every=1)

    whole = run(4)
    monkeypatch.setattr(optimizers.ServerOptimizer, "apply_parts", interrupted)
    ended = run(20)
    assert seen == [3]
    assert ended.status.name == "INTERRUPTED"
    assert ended.nit == 4
    assert np.array_equal(ended.last, whole.last)


def test_dense_probes_in_place_leave_the_model():
    """learning_rate = "auto" evaluates points as arrays; x is the memory of the module."""
    module, data = module_and_data()
    problem = fedzo.TorchProblem(module, loss, data, in_place=True)
    before = problem.initial().copy()
    points = np.stack([before + 1, before - 1])
    problem.values(points, problem.batch(0, 4, fedzo.random.Draws(0, fedzo.random.Stream.BATCHES)))
    assert np.array_equal(problem.initial(), before)


def test_threads_are_chosen_by_time_and_restored(monkeypatch):
    """On a clock of the test's own: a pass takes 1 second, or 9 with the slow number of threads."""
    clock, used = [0.0], []
    monkeypatch.setattr(network_points.time, "perf_counter", lambda: clock[0])

    def values(slow):
        used.append(torch.get_num_threads())
        clock[0] += 9 if used[-1] == slow else 1
        return np.zeros(2)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        choice = ThreadChoice()
        for _ in range(60):
            choice.run(2, lambda: values(slow=3))
            assert torch.get_num_threads() == 3
        assert used[:2] == [3, 1]  # both ways, to compare the bits
        assert set(used[8:]) == {1}
        for _ in range(300):  # other programs have ended
            choice.run(2, lambda: values(slow=1))
        assert used[-100:].count(3) >= 98  # the other number is checked now and then
    finally:
        torch.set_num_threads(before)


def test_threads_are_not_chosen_if_they_change_bits():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        choice, used = ThreadChoice(), []

        def values():
            used.append(torch.get_num_threads())
            return np.array([1.0 + 1e-16 * used[-1]])

        found = [float(choice.run(1, lambda: values() * used[-1])[0]) for _ in range(30)]
        assert len(set(found)) == 1
        assert used[2:] == [2] * 29
    finally:
        torch.set_num_threads(before)


class Experts(torch.nn.Module):
    """Two layers, of which a batch uses the one that its first number selects."""

    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        return self.experts[int(x[0, 0] > 0)](x)


@pytest.mark.parametrize("make", [lambda: module_and_data()[0], Experts], ids=["plain", "experts"])
def test_large_modules_are_trained_in_place_by_themselves(make, monkeypatch):
    """The same run as with a copy, also if a batch does not use every parameter."""
    found = []
    for large in (1, 10**9):
        monkeypatch.setattr(network, "LARGE", large)
        torch.manual_seed(0)
        problem = fedzo.TorchProblem(make(), loss, module_and_data()[1])
        assert problem.in_place == (large == 1)
        algorithm = fedzo.FedZO(local_steps=1, directions=4, smoothing=0.05, server=Adam("auto"))
        found.append(fedzo.minimize(problem, algorithm=algorithm, rounds=12).last.copy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_place", [False, True])
def test_half_precision_learns_with_small_steps(in_place):
    """Perturbations of a tenth of bfloat16's unit at 1: to the nearest they would mostly vanish."""
    module, data = module_and_data(dtype=torch.bfloat16)
    problem = fedzo.TorchProblem(module, loss, data, in_place=in_place)
    before = right(module, data)
    fedzo.minimize(problem, rounds=12)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}
    assert right(module, data) > before + 0.1


def test_half_precision_in_place_and_with_a_copy_are_one_run():
    found = []
    for in_place in (False, True):
        module, data = module_and_data(dtype=torch.bfloat16)
        problem = fedzo.TorchProblem(module, loss, data, in_place=in_place)
        algorithm = fedzo.FedZO(local_steps=2, directions=4, smoothing=0.05, server=Adam(0.01))
        found.append(fedzo.minimize(problem, algorithm=algorithm, rounds=6).last.copy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_the_slope_of_a_half_precision_module_is_right_on_average():
    """A linear loss, weights between 1 and 1.5, steps of a tenth of a unit: the mean is exact.

    Each number is within 4.5 standard errors of its mean over 600 estimates. To the nearest, a
    weight moves in a tenth of all cases only by where it lies, and its slope is 0 or far too large.
    """
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.copy_(1 + torch.rand(1, 64) / 2)
    slope = torch.linspace(-1, 1, 64)[None]
    problem = fedzo.TorchProblem(
        module, lambda module, batch: (module.weight.double() * slope.double()).sum(1), [(slope,)]
    )
    x, length = problem.initial(), 0.1 * 2.0**-7
    found = []
    for t in range(600):
        at = fedzo.random.Draws(0, fedzo.random.Stream.DIRECTIONS, round=t)
        step = DirectionSum.of("rademacher", 64, [at], np.array([[length]], np.float32))
        low, high = problem.values_streamed(x, None, [None, step], problem.take(0, np.arange(1)))
        found.append((high - low)[0] * np.asarray(step) / length**2)
    mean = np.mean(found, axis=0)
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(mean - slope[0].numpy()) < 4.5 * error).all()
    assert np.corrcoef(mean, slope[0].numpy())[0, 1] > 0.5
