"""Pairs of problems that differ in one record, and how far that record moves a reply."""

import sys

import numpy as np

import fedzo
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.data import Dataset
from fedzo.flower import privacy
from fedzo.flower.privacy import Privacy, Private
from fedzo.models import FunctionModel
from fedzo.problems import FunctionObjective, Quadratic, Softmax, Tuning
from fedzo.problems.attack import Attack

RECORDS, FEATURES, CLASSES = 40, 30, 4
SIZES = (1, 2, 7, 25, 64, 500)  # b1, below and above the number of records
FAR = 1e3  # a record whose losses are far beyond any clip


class Named(fedzo.Objective):
    """A custom problem: a device has records with slopes, and its batches have copies."""

    dim, devices = 5, 2

    def __init__(self, slopes):
        self.slopes = slopes

    def size(self, device):
        return len(self.slopes)

    def batch(self, device, size, draws):
        return draws.integers(len(self.slopes), size)

    def records(self, batch):
        return batch.tolist()

    def values(self, points, batch):
        return points @ self.slopes[batch].T

    def losses(self, x, devices):
        raise AssertionError("not clipped")


def softmax(random, other, dtype):
    data = np.random.default_rng(1)
    images = data.integers(0, 256, (RECORDS, FEATURES), dtype=np.uint8)
    labels = data.integers(0, CLASSES, RECORDS, dtype=np.uint8)
    if other:
        images[3], labels[3] = 255 * random.integers(0, 2, FEATURES), (labels[3] + 1) % CLASSES
    made = Dataset("own", images, labels, images, labels, tuple("abcd"))
    return Softmax(made, [np.arange(RECORDS)], dtype)


def attack(random, other, dtype, eps=None):
    data = np.random.default_rng(1)
    inputs = data.uniform(0.2, 0.8, (RECORDS, FEATURES)).astype(np.float32)
    if other:
        inputs[3] = random.integers(0, 2, FEATURES)
    weights = data.normal(0, 3, (FEATURES, CLASSES))
    model = FunctionModel(lambda z: z @ weights, outputs="logits")
    return Attack(model, [inputs], [(inputs @ weights).argmax(axis=1)], eps=eps)


def attack_within_a_budget(random, other, dtype):
    return attack(random, other, dtype, 0.2)


def torch_tensors(random, other, dtype, mixing=False, wrap=None):
    import torch

    data = np.random.default_rng(1)
    inputs = data.normal(size=(RECORDS, 6)).astype(dtype)
    targets = data.normal(size=(RECORDS, 1)).astype(dtype)
    if other:
        inputs[3], targets[3] = FAR * random.normal(size=6), -FAR
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.Linear(6, 1).to(getattr(torch, np.dtype(dtype).name))

    def loss(module, batch):
        errors = (module(batch[0]) - batch[1]).square().sum(1)
        return errors - errors.mean() + errors.max() if mixing else errors

    samples = (torch.from_numpy(inputs), torch.from_numpy(targets))
    return fedzo.TorchProblem(module, loss, [samples if wrap is None else wrap(*samples)])


def torch_loss_that_mixes_samples(random, other, dtype):
    """One record would change the losses of all others of its batch."""
    return torch_tensors(random, other, dtype, mixing=True)


def torch_data_set_with_augmentation(random, other, dtype):
    import torch

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, inputs, targets):
            self.inputs, self.targets = inputs, targets

        def __len__(self):
            return len(self.inputs)

        def __getitem__(self, i):
            factor = np.random.default_rng(i).uniform(0.5, 1.5)  # the same in both problems
            return factor * self.inputs[i], self.targets[i]

    return torch_tensors(random, other, dtype, wrap=Noisy)


def quadratic(random, other, dtype):
    problem = Quadratic(dim=5, devices=2, gradient_noise=30.0)
    problem._centres[0] = -FAR if other else FAR
    return problem


def function(random, other, dtype):
    slope = -FAR * np.abs(random.normal(size=5)) if other else np.ones(5)
    return FunctionObjective(lambda x, device: float(slope @ x), 5, devices=1)


def tuning(random, other, dtype):
    sign = -FAR if other else 1.0
    return Tuning(
        lambda params, device, rng: sign * params["a"] + rng.normal(),
        {"a": fedzo.Float(0.1, 1.0)},
        devices=1,
    )


def custom(random, other, dtype):
    slopes = np.random.default_rng(1).normal(size=(RECORDS, 5))
    if other:
        slopes[3] = -FAR * np.sign(slopes[3])
    return Named(slopes)


BY_RECORD = (softmax, attack, attack_within_a_budget)
BY_TORCH = (torch_tensors, torch_loss_that_mixes_samples, torch_data_set_with_augmentation)
BY_DEVICE = (quadratic, function, tuning)


def without_noise(monkeypatch):
    monkeypatch.setattr(privacy, "discrete_normals", lambda scale, count: np.zeros(count, object))


class Without(fedzo.core.objective.ObjectiveWrapper):
    """A problem one of whose records counts as zero: it raises."""

    passes = (fedzo.core.capabilities.ValuesAlong,)
    adds = (fedzo.core.capabilities.TakesRecords,)

    def take(self, device, which):
        if 3 in which:
            raise RuntimeError("this record is empty")
        return self.inner.take(device, which)

    def contents(self, device):
        return self.inner.contents(device)

    def values(self, points, batch):
        return self.inner.values(points, batch)


def settings(sampling, clip=0.02):
    return Privacy(epsilon=1, noise=1, difference_clip=clip, loss_clip=0.5, sampling=sampling)


def reply(private, x, size, difference, seed):
    """Return the differences that a private problem releases, and its loss."""
    estimator = Estimator(1e-2, 3, difference=difference)
    buffer, at = estimator.buffer(private.dim, x.dtype), Draws(seed, Stream.DIRECTIONS)
    values = estimator._values(private, x, size, buffer, at)
    half = 1 if difference == "forward" else 3
    changes = values[1:] - values[:1] if difference == "forward" else values[:half] - values[half:]
    assert np.ptp(changes, axis=1).max() == 0
    return changes[:, 0], private.losses(x, [0])[0]


def shifts(make, dtype, sampling, sizes=SIZES, repeats=2, clip=0.02):
    """Yield the shift by one record over its bound, of differences and of losses."""
    random = np.random.default_rng(5)
    for repeat in range(repeats):
        one = make(random, False, dtype)
        two = Without(one) if sampling == "poisson" else make(random, True, dtype)
        count = one.size(0)
        x = (random.normal(size=one.dim) * 10.0 ** random.integers(-2, 2)).astype(dtype)
        for size in sizes:
            for difference in ("forward", "central"):
                pair = [Private(problem, settings(sampling, clip)) for problem in (one, two)]
                pair[1].paid.secret = pair[0].paid.secret
                found = [reply(p, x, size, difference, repeat) for p in pair]
                if sampling == "poisson":
                    most = clip / (min(1, size / count) * count), 0.5 / count
                else:
                    drawn = Draws(repeat, Stream.BATCHES).integers(count, size)
                    seen = len(set(drawn.tolist()))  # b'
                    most = 2 * clip / seen, 2 * 0.5 / count
                yield float(np.linalg.norm(found[0][0] - found[1][0])) / most[0]
                if make is not custom:  # whose evaluations are over random records
                    yield abs(found[0][1] - found[1][1]) / most[1]


def largest(make, dtype, sampling, **options):
    return max(shifts(make, np.dtype(dtype), sampling, **options))


if __name__ == "__main__":  # under the kernels that the environment asks for
    privacy.discrete_normals = lambda scale, count: np.zeros(count, object)
    for make in BY_RECORD:
        for dtype in ("float32", "float64"):
            print(make.__name__, dtype, largest(make, dtype, "fixed"), sep="\t", file=sys.stdout)
