"""What is kept of frozen layers, and several points in one run, change nothing but the time."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedzo
from driving import local
from fedzo.core.random import Draws, Stream
from raising import fails, rejects

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Counted(torch.nn.Linear):
    """A layer that counts the samples it was run on."""

    seen = 0

    def forward(self, inputs):
        self.seen += len(inputs)
        return super().forward(inputs)


class Skips(torch.nn.Module):
    """Two frozen branches that meet in a trained head, the input besides them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = Counted(4, 6), torch.nn.Sequential(Counted(4, 6), torch.nn.Tanh())
        self.norm, self.head = torch.nn.LayerNorm(6), torch.nn.Linear(6, 3)
        self.last = Counted(3, 3)

    def forward(self, inputs):
        hidden = self.norm(self.left(inputs).relu() + self.right(inputs) + inputs.sum(1)[:, None])
        return self.last(self.head(hidden))


def loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def data(devices=2, samples=12):
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(samples, 4, generator=g).double(), torch.randint(3, (samples,), generator=g))
        for _ in range(devices)
    ]


def train(module, rounds=4, **settings):
    problem = fedzo.TorchProblem(module, loss, data(), trainable="head", **settings)
    algorithm = fedzo.FedZO(learning_rate=0.1, directions=5, local_steps=2, batch_size=6)
    return problem, fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, evaluate_every=2)


@pytest.mark.parametrize(
    "settings",
    [
        {"frozen_memory": 10**6},
        {"frozen_memory": 500},
        {"batched_memory": 10**6},
        {"batched_memory": 1500},
        {"frozen_memory": 10**6, "batched_memory": 10**6},
        {"frozen_memory": 10**6, "in_place": True},
    ],
    ids=str,
)
def test_the_run_is_the_same(settings):
    """In float64 the runs agree to the rounding of sums in another order."""
    _, plain = train(Skips().double())
    module = Skips().double()
    problem, result = train(module, **settings)
    np.testing.assert_allclose(result.x, plain.x, rtol=1e-9, atol=1e-12)
    assert result.queries == plain.queries
    if problem._frozen is not None:
        assert problem._frozen.used <= settings["frozen_memory"]
    assert "forward" not in vars(module.left)  # the module is left as it was


def test_frozen_layers_are_run_once_for_each_sample():
    module = Skips().double()
    problem, _ = train(module, frozen_memory=10**6)
    assert problem._frozen.layers == [module.left, module.right, module.norm]
    watching = 12 + 2  # a batch, and a sample to compare with, alone and inside another layer
    assert max(module.left.seen, module.right[0].seen) <= 2 * 12 + watching
    assert module.last.seen > 200
    assert problem._frozen.used == 2 * 12 * 3 * 6 * 8  # devices, samples, layers, width, bytes


def test_of_a_chain_only_the_end_is_kept():
    torch.manual_seed(0)
    layers = [Counted(4, 6), torch.nn.Tanh(), Counted(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)]
    module = torch.nn.Sequential(*layers).double()
    problem = fedzo.TorchProblem(module, loss, data(), trainable="4", frozen_memory=10**6)
    first = problem.losses(problem.initial(), np.arange(2))
    assert problem._frozen.layers == [module[3]]
    assert problem._frozen.skipped == [module[0], module[1], module[2]]
    assert problem._frozen.used == 2 * 12 * 5 * 8
    seen = module[0].seen
    assert np.array_equal(problem.losses(problem.initial(), np.arange(2)), first)
    assert module[0].seen == seen


def test_other_samples_have_other_outputs():
    """The same index at two devices: what is kept belongs to a device's sample."""
    kept = fedzo.TorchProblem(Skips().double(), loss, data(), trainable="head", frozen_memory=10**6)
    plain = fedzo.TorchProblem(Skips().double(), loss, data(), trainable="head")
    for _ in range(2):
        found = kept.losses(kept.initial(), np.arange(2))
        np.testing.assert_allclose(found, plain.losses(plain.initial(), np.arange(2)), rtol=1e-12)


def test_a_layer_that_mixes_samples_is_not_kept():
    class Mixing(Counted):
        def forward(self, inputs):
            return super().forward(inputs - inputs.mean(0))

    module = Skips().double()
    module.left = Mixing(4, 6).double()
    problem, result = train(module, frozen_memory=10**6)
    assert module.left not in (*problem._frozen.layers, *problem._frozen.skipped)
    assert module.right in problem._frozen.layers
    assert np.isfinite(result.fun)


class Pair(NamedTuple):
    left: Any
    right: Any


class Named(OrderedDict):
    """An output by name and by number, as Hugging Face's models have it."""

    def __init__(self, **parts):
        super().__init__(parts)

    def __getitem__(self, key):
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


@pytest.mark.parametrize("make", [Pair, Named, lambda left, right: [left, (right,)]])
def test_outputs_keep_their_type(make):
    class Two(torch.nn.Linear):
        def forward(self, inputs):
            out = super().forward(inputs)
            return make(left=out, right=-out)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.two, self.head = Two(4, 5), torch.nn.Linear(5, 3)

        def forward(self, inputs):
            return self.head(self.two(inputs)[0])

    module = Whole().double()
    problem = fedzo.TorchProblem(module, loss, data(), "head", frozen_memory=10**6)
    plain = fedzo.TorchProblem(module, loss, data(), "head")
    for _ in range(2):
        found = problem.losses(problem.initial(), np.arange(2))
    np.testing.assert_allclose(found, plain.losses(plain.initial(), np.arange(2)), rtol=1e-12)
    assert problem._frozen.layers == [module.two]


def test_nothing_to_keep_is_said():
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).double()
    problem = fedzo.TorchProblem(module, loss, data(), frozen_memory=10**6)
    with fails("nothing-frozen"):
        problem.losses(problem.initial(), np.arange(1))


def test_a_limit_of_memory_sets_how_many_points_there_are_in_a_run():
    """A point takes its 21 numbers twice, and 6 samples x 30 outputs of layers: 1776 bytes."""
    for limit, points in ((10**6, 563), (4000, 2), (1, 1)):
        problem = fedzo.TorchProblem(
            Skips().double(), loss, data(), trainable="head", batched_memory=limit
        )
        algorithm = fedzo.FedZO(directions=4, batch_size=6)
        local(algorithm, problem, 0, problem.initial(), Draws(0, Stream.DIRECTIONS))
        assert problem._batched.at_once == points


def test_what_cannot_be_batched_is_said():
    def by_value(module, batch):
        losses = loss(module, batch)
        return losses if losses.sum() > 0 else -losses

    problem = fedzo.TorchProblem(Skips().double(), by_value, data(), batched_memory=10**6)
    algorithm = fedzo.FedZO(directions=4, batch_size=6)
    with fails("not-batchable"):
        local(algorithm, problem, 0, problem.initial(), Draws(0, Stream.DIRECTIONS))


@pytest.mark.parametrize(
    "settings", [{"frozen_memory": -1}, {"batched_memory": 10, "in_place": True}]
)
def test_impossible_settings_are_refused(settings):
    with rejects(next(iter(settings))):
        fedzo.TorchProblem(Skips().double(), loss, data(), **settings)
