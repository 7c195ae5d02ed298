"""What testers use in place of fedzo for one perturbation for many images, at equal queries.

Each method is a function of (ask, images, labels, eps, rng): ``ask`` takes a batch of images and
returns logits until its budget is spent, ``images`` are rows in [0, 1]. It yields perturbations,
of which the last one that was reached counts: they have no rule to choose one.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import BudgetSpent

Array = NDArray[Any]
Ask = Callable[[Array], Array]

SHAPE = (3, 32, 32)
SUBSET = 50  # images on which a random search compares two perturbations


def margins(scores: Array, labels: Array) -> Array:
    """Return by how much the right class leads, and 0 where it does not."""
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    return np.maximum(scores[rows, labels] - others.max(axis=1), 0)


def random_signs(ask: Ask, images: Array, labels: Array, eps: float, rng: Any) -> Iterator[Array]:
    """Take ±ε at random: what noise alone does."""
    yield eps * rng.choice([-1.0, 1.0], images.shape[1])


def nes(ask: Ask, images: Array, labels: Array, eps: float, rng: Any) -> Iterator[Array]:
    """Follow the signs of a gradient by natural evolution strategies (Ilyas et al., 2018).

    Antithetic pairs of Gaussian directions, a random image for each pair, momentum as in the
    authors' code. The numbers are a tester's first choice: nobody has tuned them.
    """
    sigma, step, pairs, beta = NES
    delta, momentum = np.zeros(images.shape[1]), np.zeros(images.shape[1])
    while True:
        noise = rng.normal(size=(pairs, len(delta)))
        chosen = rng.integers(len(images), size=pairs)
        moved = np.concatenate([delta + sigma * noise, delta - sigma * noise])
        which = np.tile(chosen, 2)
        losses = margins(ask((images[which] + moved).clip(0, 1)), labels[which])
        slope = (losses[:pairs] - losses[pairs:]) @ noise
        momentum = beta * momentum + slope
        delta = (delta - step * np.sign(momentum)).clip(-eps, eps)
        yield delta


NES = (0.03, 1 / 255, 50, 0.9)  # σ, step, pairs, momentum


def square(ask: Ask, images: Array, labels: Array, eps: float, rng: Any) -> Iterator[Array]:
    """Paint squares of ±ε and keep those that help (after Andriushchenko et al., 2020).

    Begins with stripes; a square's side shrinks from a third of the image to a pixel. Whether one
    helps is seen on the same images each time.
    """
    chosen = rng.permutation(len(images))[:SUBSET]
    images, labels = images[chosen], labels[chosen]
    colours, height, width = SHAPE
    delta = np.broadcast_to(eps * rng.choice([-1.0, 1.0], (colours, 1, width)), SHAPE).copy()
    lowest = _loss(ask, images, labels, delta)
    yield delta.reshape(-1)
    for t in range(10_000):
        side = max(1, round(height / 3 * 0.5 ** (t / 200)))
        row, column = rng.integers(height - side + 1), rng.integers(width - side + 1)
        tried = delta.copy()
        area = (slice(None), slice(row, row + side), slice(column, column + side))
        tried[area] = eps * rng.choice([-1.0, 1.0], (colours, 1, 1))
        loss = _loss(ask, images, labels, tried)
        if loss < lowest:
            delta, lowest = tried, loss
        yield delta.reshape(-1)


def simba(ask: Ask, images: Array, labels: Array, eps: float, rng: Any) -> Iterator[Array]:
    """Set one number after another to ±ε and keep what helps (after Guo et al., 2019)."""
    chosen = rng.permutation(len(images))[:SUBSET]
    images, labels = images[chosen], labels[chosen]
    delta = np.zeros(images.shape[1])
    lowest = _loss(ask, images, labels, delta)
    yield delta
    while True:
        for at in rng.permutation(len(delta)):
            for sign in (-eps, eps):
                tried = delta.copy()
                tried[at] = sign
                loss = _loss(ask, images, labels, tried)
                if loss < lowest:
                    delta, lowest = tried, loss
                    yield delta
                    break


def art_universal(ask: Ask, images: Array, labels: Array, eps: float, rng: Any) -> Iterator[Array]:
    """Run UniversalPerturbation of the Adversarial Robustness Toolbox with its SimBA inside."""
    from art.attacks.evasion import UniversalPerturbation
    from art.estimators.classification import BlackBoxClassifierNeuralNetwork

    def probabilities(batch: Array) -> Array:
        scores = ask(batch.reshape(len(batch), -1))
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    seed = int(rng.integers(2**31))
    random.seed(seed)  # ART draws from both
    np.random.seed(seed)  # noqa: NPY002
    victim = BlackBoxClassifierNeuralNetwork(
        probabilities, SHAPE, 10, clip_values=(0.0, 1.0), channels_first=True
    )
    attack = UniversalPerturbation(
        victim,
        attacker="simba",
        attacker_params={"max_iter": 100, "epsilon": eps, "verbose": False},
        delta=0.01,
        max_iter=1000,
        eps=eps,
        norm=np.inf,
        batch_size=64,
        verbose=False,
    )
    try:
        attack.generate(images.reshape(-1, *SHAPE).astype(np.float32), labels)
        yield np.ravel(attack.noise)
    except BudgetSpent as error:
        # It does not give away what it has so far: that is in its frame.
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        noise = next(f.f_locals["noise"] for f in frames if "noise" in f.f_locals)
        yield np.ravel(noise)


def _loss(ask: Ask, images: Array, labels: Array, delta: Array) -> float:
    moved = (images + delta.reshape(1, -1)).clip(0, 1)
    return float(margins(ask(moved), labels).mean())


METHODS = {
    "random ±ε": random_signs,
    "NES, sign steps": nes,
    "square-like search": square,
    "SimBA, universal": simba,
    "ART UniversalPerturbation": art_universal,
}
