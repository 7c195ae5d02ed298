"""The shipped example of tuning: a small classifier's rate, momentum and regularisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import described
from fedzo.core.random import Draws, Stream
from fedzo.data.splits import load_split
from fedzo.problems.tuning.problem import Parallel, Tuning
from fedzo.variables.space import Float

Array = NDArray[Any]

SPACE = {
    "learning_rate": Float(1e-3, 10.0, log=True),
    "momentum": Float(0.0, 0.98),
    "regularisation": Float(1e-6, 1.0, log=True),
}


class Classifier:
    """Softmax regression by SGD, on each device's own images at a quarter of their resolution.

    The score is the mean cross-entropy on the quarter of a device's images that is held out.

    Parameters
    ----------
    images, labels : sequences of arrays
        Each device's own, pixels in [0, 1].
    classes : int
        How many there are.
    epochs, batch_size : int
        How a training goes.
    """

    def __init__(
        self,
        images: list[Array],
        labels: list[Array],
        classes: int,
        epochs: int = 2,
        batch_size: int = 25,
    ) -> None:
        self.images, self.labels, self.classes = images, labels, classes
        self.epochs, self.batch_size = epochs, batch_size

    def __call__(self, params: dict[str, Any], device: int, rng: np.random.Generator) -> float:
        """Train on three quarters of the device's images; return the loss on the last."""
        images, labels = self.images[device], self.labels[device]
        train = 3 * len(labels) // 4
        weights: Array = np.zeros((images.shape[1], self.classes), np.float32)
        speed: Array = np.zeros_like(weights)
        rate, momentum = np.float32(params["learning_rate"]), np.float32(params["momentum"])
        shrink = np.float32(params["regularisation"])
        ones = np.eye(self.classes, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # a wild rate: the score tells
            for _ in range(self.epochs):
                order = rng.permutation(train)
                for start in range(0, train, self.batch_size):
                    some = order[start : start + self.batch_size]
                    inputs = images[some]
                    residual = _softmax(inputs @ weights) - ones[labels[some]]
                    slope = inputs.T @ residual / np.float32(len(some)) + shrink * weights
                    speed = momentum * speed - rate * slope
                    weights += speed
            chances = _softmax(images[train:] @ weights)
            right = chances[np.arange(len(chances)), labels[train:]]
            return float(-np.log(np.maximum(right, np.float32(1e-7))).mean())


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@described
def tuning(
    data: str = "fashion-mnist-mini",
    data_dir: str | None = None,
    devices: int = 10,
    partition: str = "dirichlet",
    shards_per_device: int = 2,
    concentration: float = 0.5,
    evaluation_seeds: int = 1,
    parallel: Parallel = "threads",
    max_queries: int | None = None,
    seed: int = 0,
) -> Tuning:
    """Make the problem: the [problem] table.

    >>> problem = tuning(devices=4)
    >>> problem.dim, problem.evaluation_cost
    (3, 4)
    >>> problem.space.params(problem.initial())
    {'learning_rate': 0.1, 'momentum': 0.49, 'regularisation': 0.001}
    """
    images, parts = load_split(
        data, data_dir, devices, partition, shards_per_device, concentration, seed
    )
    side = round(images.train_inputs.shape[1] ** 0.5)
    inputs, labels = [], []
    for device, part in enumerate(parts):
        # In a random order, so that what is held out is like what is trained on.
        own = part[Draws(seed, Stream.PROBLEM, device=device).permutation(len(part))]
        pixels = images.train_inputs[own].reshape(-1, side // 4, 4, side // 4, 4)
        inputs.append(pixels.mean(axis=(2, 4)).reshape(len(own), -1).astype(np.float32) / 255)
        labels.append(images.train_labels[own])
    classes = len(images.classes)
    return Tuning(
        Classifier(inputs, labels, classes),
        SPACE,
        devices,
        evaluation_seeds=evaluation_seeds,
        worst=float(np.log(classes)),  # what guessing reaches
        parallel=parallel,
        max_queries=max_queries,
        seed=seed,
    )
