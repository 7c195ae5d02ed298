"""What testers use in place of fedzo for one perturbation for many images, at equal queries.

Each method is a function of a :class:`Task` and of settings. It yields perturbations, and the last
one that was reached when the queries were spent counts.

``GRIDS`` has settings around the defaults: ``python benchmarks/attack.py --compare`` chooses among
them, on images that it does not report.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.waves import plane_waves
from fedzo.errors import BudgetSpent

Array = NDArray[Any]

# After which share of its iterations the squares of Andriushchenko et al. (2020) are halved.
HALVED_AT = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


class Task(NamedTuple):
    """What a method gets."""

    ask: Callable[[Array], Array]  # rows in [0, 1] to scores, until the budget is spent
    images: Array  # (n, d), rows in [0, 1]
    labels: Array
    shape: tuple[int, ...]  # of an image: grey, or planes first
    eps: float
    budget: int
    rng: Any

    def some(self, subset: int) -> Task:
        """Return the task with some of its images, chosen at random."""
        chosen = self.rng.permutation(len(self.images))[:subset]
        return self._replace(images=self.images[chosen], labels=self.labels[chosen])

    def loss(self, delta: Array, hinge: bool = True) -> float:
        """Return the mean margin under a perturbation, which takes a query per image."""
        moved = (self.images + delta.reshape(1, -1)).clip(0, 1)
        return float(margins(self.ask(moved), self.labels, hinge).mean())

    def fooled(self, delta: Array) -> float:
        """Return the share of the images that a perturbation fools."""
        moved = (self.images + delta.reshape(1, -1)).clip(0, 1)
        return float(np.mean(self.ask(moved).argmax(axis=1) != self.labels))


def margins(scores: Array, labels: Array, hinge: bool = True) -> Array:
    """Return by how much the right class leads; with a hinge 0 where it does not."""
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    lead = scores[rows, labels] - others.max(axis=1)
    return np.maximum(lead, 0) if hinge else lead


def random_signs(task: Task) -> Iterator[Array]:
    """Draw ±ε at random and keep what fools most of the images: what noise alone does."""
    most = -1.0
    while True:
        delta = task.eps * task.rng.choice([-1.0, 1.0], task.images.shape[1])
        fooled = task.fooled(delta)
        if fooled > most:
            most = fooled
            yield delta


def nes(
    task: Task,
    sigma: float = 1.0,
    step: float = 0.25,
    pairs: int = 200,
    beta: float = 0.9,
    hinge: bool = True,
) -> Iterator[Array]:
    """Follow the signs of a gradient by natural evolution strategies (Ilyas et al., 2018).

    Antithetic pairs of Gaussian directions, a random image for each pair, momentum as in the
    authors' code, and a step that falls linearly to a tenth. σ and steps are in units of ε.
    """
    _, images, labels, _, eps, budget, rng = task
    delta, momentum = np.zeros(images.shape[1]), np.zeros(images.shape[1])
    iterations = max(budget // (2 * pairs), 1)
    for t in range(iterations):
        noise = rng.standard_normal((pairs, len(delta)), np.float32)
        chosen = rng.integers(len(images), size=pairs)
        moved = np.concatenate([delta + sigma * eps * noise, delta - sigma * eps * noise])
        which = np.tile(chosen, 2)
        losses = margins(task.ask((images[which] + moved).clip(0, 1)), labels[which], hinge)
        slope = (losses[:pairs] - losses[pairs:]) @ noise
        momentum = beta * momentum + slope
        length = step * eps * (1 - 0.9 * t / iterations)
        delta = (delta - length * np.sign(momentum)).clip(-eps, eps)
        yield delta


def square(task: Task, subset: int = 50, share: float = 0.3, hinge: bool = True) -> Iterator[Array]:
    """Paint squares of ±ε and keep those that help (after Andriushchenko et al., 2020).

    Begins with stripes; a square first covers ``share`` of the image and is halved by the
    authors' schedule. Whether one helps is seen on the same images each time.
    """
    task = task.some(subset)
    eps, rng = task.eps, task.rng
    shape = task.shape if len(task.shape) == 3 else (1, *task.shape)
    colours, height, width = shape
    delta = np.broadcast_to(eps * rng.choice([-1.0, 1.0], (colours, 1, width)), shape).copy()
    lowest = task.loss(delta, hinge)
    yield delta.reshape(-1)
    iterations = max(task.budget // len(task.images), 1)
    for t in range(iterations):
        halvings = sum(t >= at * iterations for at in HALVED_AT)
        side = max(1, round((share / 2**halvings * height * width) ** 0.5))
        row, column = rng.integers(height - side + 1), rng.integers(width - side + 1)
        tried = delta.copy()
        area = (slice(None), slice(row, row + side), slice(column, column + side))
        tried[area] = eps * rng.choice([-1.0, 1.0], (colours, 1, 1))
        loss = task.loss(tried, hinge)
        if loss < lowest:
            delta, lowest = tried, loss
        yield delta.reshape(-1)


def simba(task: Task, subset: int = 50, waves: int = 0, hinge: bool = True) -> Iterator[Array]:
    """Add one pattern after another, or take it away, and keep what helps (Guo et al., 2019).

    A pattern is a number of the image at ±ε; with ``waves`` one of so many lowest cosines along
    each side of a colour, as high as ε.
    """
    task = task.some(subset)
    eps, delta = task.eps, np.zeros(task.images.shape[1])
    lowest = task.loss(delta, hinge)
    yield delta
    colours = task.shape[0] if len(task.shape) == 3 else 1
    count = colours * waves**2 if waves else len(delta)
    while True:
        for at in task.rng.permutation(count):
            pattern = _wave(int(at), waves, task.shape) if waves else np.eye(1, len(delta), at)[0]
            for sign in (-eps, eps):
                tried = (delta + sign * pattern).clip(-eps, eps)
                loss = task.loss(tried, hinge)
                if loss < lowest:
                    delta, lowest = tried, loss
                    yield delta
                    break


def single_waves(task: Task, divisions: int = 8) -> Iterator[Array]:
    """Try single Fourier waves of ±ε and keep what fools most (after Tsuzuku and Sato, 2019).

    Half of the queries try each wave on some images, and the others the best on all of them.
    """
    waves = task.eps * np.sign(plane_waves(task.shape, divisions))
    some = task.some(max(task.budget // (2 * len(waves)), 1))
    losses = [some.loss(wave, hinge=False) for wave in waves]
    most = -1.0
    for at in np.argsort(losses):
        fooled = task.fooled(waves[at])
        if fooled > most:
            most = fooled
            yield waves[at]


def art_universal(task: Task, step: float = 0.2, iterations: int = 100) -> Iterator[Array]:
    """Run UniversalPerturbation of the Adversarial Robustness Toolbox with its SimBA inside.

    Of its attackers that is the only one that needs no gradients.
    """
    from art.attacks.evasion import UniversalPerturbation
    from art.estimators.classification import BlackBoxClassifierNeuralNetwork

    def probabilities(batch: Array) -> Array:
        scores = task.ask(batch.reshape(len(batch), -1))
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    shape = task.shape if len(task.shape) == 3 else (1, *task.shape)
    seed = int(task.rng.integers(2**31))
    random.seed(seed)  # ART draws from both
    np.random.seed(seed)  # noqa: NPY002
    victim = BlackBoxClassifierNeuralNetwork(
        probabilities, shape, 10, clip_values=(0.0, 1.0), channels_first=True
    )
    attack = UniversalPerturbation(
        victim,
        attacker="simba",
        attacker_params={"max_iter": iterations, "epsilon": step, "verbose": False},
        delta=0.01,
        max_iter=1000,
        eps=task.eps,
        norm=np.inf,
        batch_size=64,
        verbose=False,
    )
    try:
        attack.generate(task.images.reshape(-1, *shape).astype(np.float32), task.labels)
        yield np.ravel(attack.noise)
    except BudgetSpent as error:
        # It does not give away what it has so far: that is in its frame.
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        noise = next(f.f_locals["noise"] for f in frames if "noise" in f.f_locals)
        yield np.ravel(noise)


def _wave(number: int, waves: int, shape: tuple[int, ...]) -> Array:
    """Return a product of cosines in one colour, 1 at most."""
    height, width = shape[-2:]
    colour, rest = divmod(number, waves**2)
    along = [
        np.cos(np.pi / size * (np.arange(size) + 0.5) * frequency)
        for size, frequency in zip((height, width), divmod(rest, waves), strict=True)
    ]
    pattern = np.zeros(shape if len(shape) == 3 else (1, *shape))
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
        {},
        {"pairs": 50},
        {"pairs": 50, "step": 0.5},
        {"pairs": 100, "step": 0.5},
        {"pairs": 50, "sigma": 3.0},
        {"pairs": 50, "hinge": False},
    ],
    "square-like search": [{}, {"share": 0.8}, {"share": 0.05}, {"subset": 20}, {"subset": 100}],
    "SimBA, universal": [{}, {"waves": 6}, {"waves": 6, "subset": 20}],
    "single waves, the best": [{}, {"divisions": 4}],
    "ART UniversalPerturbation": [{}, {"step": 8 / 255}],
}
