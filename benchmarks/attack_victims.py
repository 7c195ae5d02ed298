"""The victims of ``benchmarks/attack.py``, with images that they get right."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo import data, models
from fedzo.problems.attack.inputs import gets_right

Array = NDArray[Any]

SHIPPED = "resnet8"
SEED = 2207  # of the victims that are trained here: no setting of fedzo was chosen on them
OF_EACH_CLASS = (40, 100)  # images of a class for the devices, and to measure success on


class Victim(NamedTuple):
    """A model, and images that it gets right: what the devices have, and what nobody has."""

    make: Callable[..., models.Model]  # of a budget
    eps: float
    train: Array
    labels: Array
    test: Array
    answers: Array


@lru_cache(maxsize=1)
def victim(name: str, folder: Path, label: str = "all") -> Victim:
    """Return a victim by its name."""
    if name in OTHERS:
        return OTHERS[name]()
    file = "cifar10-resnet8" if name == SHIPPED else str(folder / f"cifar10-{name}.onnx")
    known = data.load("cifar10-deer-mini" if label == "deer" else "cifar10")
    parts = (known.train_inputs, known.train_labels), (known.test_inputs, known.test_labels)

    def make(**options: Any) -> models.Model:
        return models.load(file, **options)

    if label == "deer":
        found = [gets_right(make(), *part) for part in parts]
    else:
        found = [_balanced(make(), *part, n) for part, n in zip(parts, OF_EACH_CLASS, strict=True)]
    (train, labels), (test, answers) = found
    shape = (-1, 3, 32, 32)
    return Victim(make, 8 / 255, train.reshape(shape), labels, test.reshape(shape), answers)


def _balanced(model: models.Model, images: Array, labels: Array, count: int) -> tuple[Array, Array]:
    """Return so many images of each class that a model gets right."""
    some = np.concatenate([np.flatnonzero(labels == c)[: 2 * count] for c in range(10)])
    right, of = gets_right(model, images[some], labels[some])
    kept = np.concatenate([np.flatnonzero(of == c)[:count] for c in range(10)])
    return right[kept], of[kept]


def convolutions(name: str, shape: tuple[int, ...], trained: int, eps: float) -> Victim:
    """Return two convolutions, trained on the first images of a data set."""
    import torch
    from torch import nn

    known = data.load(name)
    images, tests = (x.reshape(-1, *shape) for x in (known.train_inputs, known.test_inputs))
    grey, side = len(shape) == 2, (shape[-1] - 3) // 2 + 1
    torch.manual_seed(SEED)
    network = nn.Sequential(
        nn.Unflatten(1, (1, shape[0])) if grey else nn.Identity(),
        *(nn.Conv2d(1 if grey else 3, 24, 3, 2), nn.GELU(), nn.Conv2d(24, 48, 3, 2), nn.GELU()),
        *(nn.Flatten(), nn.Linear(48 * ((side - 3) // 2 + 1) ** 2, 10)),
    )
    x = torch.from_numpy(images[:trained].astype(np.float32) / 255)
    y = torch.from_numpy(known.train_labels[:trained].astype(np.int64))
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(30_000 // trained):
        for part in torch.randperm(len(x)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[part]), y[part]).backward()
            optimiser.step()

    def make(**options: Any) -> models.Model:
        return models.TorchModel(network, input_shape=shape, **options)

    own = _balanced(make(), images[trained:], known.train_labels[trained:], OF_EACH_CLASS[0])
    others = _balanced(make(), tests, known.test_labels, OF_EACH_CLASS[1])
    return Victim(make, eps, *own, *others)


def digits(estimator: Any, outputs: str, eps: float) -> Victim:
    """Return a classifier of scikit-learn's digits, 8 x 8, trained on 800 of them."""
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(rows))
    rows, labels = rows[order] / 16, labels[order]
    estimator.fit(rows[:800], labels[:800])

    def make(**options: Any) -> models.Model:
        return models.SklearnModel(estimator, outputs, input_shape=(8, 8), **options)

    right = np.flatnonzero(estimator.predict(rows[800:]) == labels[800:]) + 800
    images = rows.reshape(-1, 8, 8).astype(np.float32)
    own, others = right[:300], right[300:]
    return Victim(make, eps, images[own], labels[own], images[others], labels[others])


def _mlp() -> Victim:
    from sklearn.neural_network import MLPClassifier

    network = MLPClassifier((50,), max_iter=400, random_state=SEED)
    return digits(network, "probabilities", 0.15)


def _forest() -> Victim:
    from sklearn.ensemble import RandomForestClassifier

    return digits(RandomForestClassifier(30, random_state=SEED), "labels", 0.15)


def _svc() -> Victim:
    from sklearn.svm import SVC

    return digits(SVC(), "labels", 0.2)


OTHERS: dict[str, Callable[[], Victim]] = {
    "colours": lambda: convolutions("cifar10", (3, 32, 32), 10_000, 8 / 255),
    "clothes": lambda: convolutions("fashion-mnist-mini", (28, 28), 3_000, 16 / 255),
    "digits-mlp": _mlp,
    "digits-forest": _forest,
    "digits-svc": _svc,
}
