"""What testers use in place of fedzo for one perturbation for many images, at equal queries.

Each method is a function of (ask, images, labels, eps, budget, rng) and of settings: ``ask`` takes
a batch of images and returns logits until ``budget`` queries are spent, ``images`` are rows in
[0, 1]. It yields perturbations, and the last one that was reached counts.

``GRIDS`` has settings around the defaults: ``python benchmarks/attack.py --compare`` chooses among
them, on images that it does not report.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.waves import Waves, plane_waves
from fedzo.errors import BudgetSpent

Array = NDArray[Any]
Ask = Callable[[Array], Array]

SHAPE = (3, 32, 32)
# After which share of its iterations the squares of Andriushchenko et al. (2020) are halved.
HALVED_AT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def margins(scores: Array, labels: Array, hinge: bool = True) -> Array:
    """Return by how much the right class leads; with a hinge 0 where it does not."""
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    lead = scores[rows, labels] - others.max(axis=1)
    return np.maximum(lead, 0) if hinge else lead


def random_signs(
    ask: Ask, images: Array, labels: Array, eps: float, budget: int, rng: Any
) -> Iterator[Array]:
    """Draw ±ε at random and keep what fools most of the images: what noise alone does."""
    most = -1.0
    while True:
        delta = eps * rng.choice([-1.0, 1.0], images.shape[1])
        fooled = np.mean(ask((images + delta).clip(0, 1)).argmax(axis=1) != labels)
        if fooled > most:
            most = float(fooled)
            yield delta


def nes(
    ask: Ask,
    images: Array,
    labels: Array,
    eps: float,
    budget: int,
    rng: Any,
    sigma: float = 0.03,
    step: float = 2 / 255,
    pairs: int = 200,
    beta: float = 0.9,
    hinge: bool = True,
) -> Iterator[Array]:
    """Follow the signs of a gradient by natural evolution strategies (Ilyas et al., 2018).

    Antithetic pairs of Gaussian directions, a random image for each pair, momentum as in the
    authors' code, and a step that falls linearly to a tenth.
    """
    delta, momentum = np.zeros(images.shape[1]), np.zeros(images.shape[1])
    iterations = max(budget // (2 * pairs), 1)
    for t in range(iterations):
        noise = rng.standard_normal((pairs, len(delta)), np.float32)
        chosen = rng.integers(len(images), size=pairs)
        moved = np.concatenate([delta + sigma * noise, delta - sigma * noise])
        which = np.tile(chosen, 2)
        losses = margins(ask((images[which] + moved).clip(0, 1)), labels[which], hinge)
        slope = (losses[:pairs] - losses[pairs:]) @ noise
        momentum = beta * momentum + slope
        length = step * (1 - 0.9 * t / iterations)
        delta = (delta - length * np.sign(momentum)).clip(-eps, eps)
        yield delta


def square(
    ask: Ask,
    images: Array,
    labels: Array,
    eps: float,
    budget: int,
    rng: Any,
    subset: int = 50,
    share: float = 0.3,
    hinge: bool = True,
) -> Iterator[Array]:
    """Paint squares of ±ε and keep those that help (after Andriushchenko et al., 2020).

    Begins with stripes; a square first covers ``share`` of the image and is halved by the
    authors' schedule. Whether one helps is seen on the same images each time.
    """
    chosen = rng.permutation(len(images))[:subset]
    images, labels = images[chosen], labels[chosen]
    colours, height, width = SHAPE
    delta = np.broadcast_to(eps * rng.choice([-1.0, 1.0], (colours, 1, width)), SHAPE).copy()
    lowest = _loss(ask, images, labels, delta, hinge)
    yield delta.reshape(-1)
    iterations = max(budget // len(images), 1)
    for t in range(iterations):
        halvings = sum(t >= at * iterations for at in HALVED_AT)
        side = max(1, round((share / 2**halvings * height * width) ** 0.5))
        row, column = rng.integers(height - side + 1), rng.integers(width - side + 1)
        tried = delta.copy()
        area = (slice(None), slice(row, row + side), slice(column, column + side))
        tried[area] = eps * rng.choice([-1.0, 1.0], (colours, 1, 1))
        loss = _loss(ask, images, labels, tried, hinge)
        if loss < lowest:
            delta, lowest = tried, loss
        yield delta.reshape(-1)


def simba(
    ask: Ask,
    images: Array,
    labels: Array,
    eps: float,
    budget: int,
    rng: Any,
    subset: int = 50,
    waves: int = 0,
    hinge: bool = True,
) -> Iterator[Array]:
    """Add one pattern after another, or take it away, and keep what helps (Guo et al., 2019).

    A pattern is a number of the image at ±ε; with ``waves`` one of so many lowest cosines along
    each side of a colour, as high as ε.
    """
    chosen = rng.permutation(len(images))[:subset]
    images, labels = images[chosen], labels[chosen]
    delta = np.zeros(images.shape[1])
    lowest = _loss(ask, images, labels, delta, hinge)
    yield delta
    count = SHAPE[0] * waves**2 if waves else len(delta)
    while True:
        for at in rng.permutation(count):
            pattern = _wave(int(at), waves) if waves else np.eye(1, len(delta), int(at))[0]
            for sign in (-eps, eps):
                tried = (delta + sign * pattern).clip(-eps, eps)
                loss = _loss(ask, images, labels, tried, hinge)
                if loss < lowest:
                    delta, lowest = tried, loss
                    yield delta
                    break


def single_waves(
    ask: Ask,
    images: Array,
    labels: Array,
    eps: float,
    budget: int,
    rng: Any,
    subset: int = 30,
    divisions: int = 8,
) -> Iterator[Array]:
    """Try single Fourier waves of ±ε and keep what fools most (after Tsuzuku and Sato, 2019).

    Each wave is tried on some images, and the best twenty on all of them.
    """
    waves = eps * np.sign(Waves(SHAPE).images(plane_waves(SHAPE, divisions)))
    some = rng.permutation(len(images))[:subset]
    losses = [_loss(ask, images[some], labels[some], wave, False) for wave in waves]
    most = -1.0
    for at in np.argsort(losses)[:20]:
        moved = (images + waves[at]).clip(0, 1)
        fooled = float(np.mean(ask(moved).argmax(axis=1) != labels))
        if fooled > most:
            most = fooled
            yield waves[at]


def art_universal(
    ask: Ask,
    images: Array,
    labels: Array,
    eps: float,
    budget: int,
    rng: Any,
    step: float = 0.2,
    iterations: int = 100,
) -> Iterator[Array]:
    """Run UniversalPerturbation of the Adversarial Robustness Toolbox with its SimBA inside.

    Of its attackers that is the only one that needs no gradients.
    """
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
        attacker_params={"max_iter": iterations, "epsilon": step, "verbose": False},
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


def _loss(ask: Ask, images: Array, labels: Array, delta: Array, hinge: bool) -> float:
    moved = (images + delta.reshape(1, -1)).clip(0, 1)
    return float(margins(ask(moved), labels, hinge).mean())


def _wave(number: int, waves: int) -> Array:
    """Return a product of cosines in one colour, 1 at most."""
    height, width = SHAPE[1:]
    colour, rest = divmod(number, waves**2)
    along = [
        np.cos(np.pi / size * (np.arange(size) + 0.5) * frequency)
        for size, frequency in zip((height, width), divmod(rest, waves), strict=True)
    ]
    pattern = np.zeros(SHAPE)
    pattern[colour] = np.outer(*along)
    return pattern.reshape(-1)


METHODS: dict[str, Callable[..., Iterator[Array]]] = {
    "random ±ε, the best": random_signs,
    "NES, sign steps": nes,
    "square-like search": square,
    "SimBA, universal": simba,
    "single waves, the best": single_waves,
    "ART UniversalPerturbation": art_universal,
}
GRIDS: dict[str, list[dict[str, Any]]] = {
    "NES, sign steps": [
        *({"pairs": pairs} for pairs in (50, 100, 200, 400)),
        {"hinge": False},
        *({"sigma": sigma} for sigma in (0.1, 0.01, 0.001)),
        *({"step": step / 255} for step in (0.5, 1, 2, 4)),
        {"beta": 0.0},
    ],
    "square-like search": [
        *({"share": share} for share in (0.05, 0.3, 0.8)),
        *({"subset": subset} for subset in (20, 100)),
        {"hinge": False},
    ],
    "SimBA, universal": [
        *({"waves": waves} for waves in (0, 6, 12)),
        *({"waves": 6, "subset": subset} for subset in (20, 100)),
    ],
    "ART UniversalPerturbation": [
        {"step": step, "iterations": iterations}
        for step in (8 / 255, 0.2)
        for iterations in (100, 1000)
    ],
}
