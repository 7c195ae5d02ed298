"""The problems of the comparison: a set to develop on, and another that is held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any


@dataclass
class Problem:
    """f_i(x) of N devices, exactly and with noise, and what a user would know of it."""

    name: str
    exact: Callable[[Array, int], float]
    x0: Array
    devices: int
    queries: int  # in all
    noise: float = 0.0
    bounds: Sequence[tuple[float, float]] | None = None
    scale: str = "linear"
    draws: Any = field(default_factory=lambda: np.random.default_rng(0))

    def noisy(self, x: Array, device: int) -> float:
        """Return what a method is told."""
        return self.exact(np.asarray(x), device) + self.noise * float(self.draws.normal())

    def true(self, x: Array) -> float:
        """Return the mean that everybody is judged by."""
        return float(np.mean([self.exact(np.asarray(x), i) for i in range(self.devices)]))


def quadratic(dim: int, condition: float, devices: int, seed: int) -> tuple[Any, Array]:
    """Return a rotated quadratic whose devices differ by linear terms, and a start."""
    draws = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(draws.normal(size=(dim, dim)))
    sizes = np.logspace(0, -np.log10(condition), dim)
    centre = draws.normal(size=dim)
    tilts = 0.3 * draws.normal(size=(devices, dim)) * sizes
    tilts -= tilts.mean(axis=0)

    def exact(x: Array, device: int) -> float:
        z = basis @ (x - centre)
        return float(0.5 * sizes @ z**2 + tilts[device] @ z)

    return exact, np.zeros(dim)


def valley(dim: int, devices: int, seed: int) -> tuple[Any, Array]:
    """Return Rosenbrock's function with another goal for each device."""
    goals = 1 + 0.1 * np.random.default_rng(seed).normal(size=(devices, dim - 1))

    def exact(x: Array, device: int) -> float:
        bend = 100 * (x[1:] - x[:-1] ** 2) ** 2
        return float(np.sum(bend + (goals[device] - x[:-1]) ** 2))

    return exact, np.full(dim, -1.0)


def logistic(dim: int, devices: int, seed: int, samples: int = 100) -> tuple[Any, Array]:
    """Return logistic regression with a little ridge, other data at each device."""
    draws = np.random.default_rng(seed)
    weights = draws.normal(size=dim)
    data = draws.normal(size=(devices, samples, dim)) / np.sqrt(dim) * 3
    data += 0.3 * draws.normal(size=(devices, 1, dim)) / np.sqrt(dim)
    data *= np.sign(data @ weights + 0.3 * draws.normal(size=(devices, samples)))[..., None]

    def exact(x: Array, device: int) -> float:
        return float(np.logaddexp(0, -data[device] @ x).mean() + 1e-4 * x @ x)

    return exact, np.zeros(dim)


def waves(dim: int, devices: int, seed: int) -> tuple[Any, Array]:
    """Return Rastrigin's function, shifted for each device a little."""
    draws = np.random.default_rng(seed)
    centre, x0 = draws.uniform(-2, 2, dim), draws.uniform(-4, 4, dim)
    shifts = 0.05 * draws.normal(size=(devices, dim))

    def exact(x: Array, device: int) -> float:
        z = x - centre - shifts[device]
        return float(np.sum(z**2 + 10 - 10 * np.cos(2 * np.pi * z)))

    return exact, x0


def decay(devices: int, seed: int) -> tuple[Any, Array]:
    """Return the fit of two exponential decays whose rates and amplitudes lie decades apart."""
    draws = np.random.default_rng(seed)
    goal = 10.0 ** draws.uniform([1.5, -1.5, -3.5, -0.5], [2.5, -0.5, -2.5, 0.5])
    times = np.logspace(-1, 4, 40)

    def curve(x: Array) -> Array:
        return x[0] * np.exp(-x[2] * times) + x[1] * np.exp(-x[3] * times)

    measured = curve(goal) * (1 + 0.01 * draws.normal(size=(devices, 40)))

    def exact(x: Array, device: int) -> float:
        return float(np.mean(((curve(x) - measured[device]) / (1e-3 + measured[device])) ** 2))

    return exact, np.array([10.0, 1.0, 1e-2, 1e-1])


def reactions(devices: int, seed: int) -> tuple[Any, Array]:
    """Return the fit of A -> B -> C and a fading background: six numbers from 10^-6 to 10^5."""
    draws = np.random.default_rng(seed)
    usual = np.array([1e5, 1e-1, 1e-3, 1e-6, 1e-2, 1e-2])
    goal = usual * 10 ** draws.uniform(-0.5, 0.5, 6)
    times = np.logspace(-1, 4, 40)

    def curves(x: Array) -> Array:
        amount, first, second, gain, ground, fading = x
        apart = second - first if second != first else 1e-12 * first
        between = amount * first / apart * (np.exp(-first * times) - np.exp(-second * times))
        seen = gain * between + ground * np.exp(-fading * times)
        return np.concatenate([amount * np.exp(-first * times) + 1e-3 * amount, seen])

    measured = curves(goal) * (1 + 0.02 * draws.normal(size=(devices, 80)))

    def exact(x: Array, device: int) -> float:
        off = np.log(np.maximum(curves(x), 1e-300)) - np.log(measured[device])
        return float(np.mean(off**2))

    return exact, usual * 10 ** draws.uniform(-1, 1, 6)


def ridge(devices: int, seed: int) -> tuple[Any, Array]:
    """Return the validation error of a regression by the logarithms of three penalties."""
    draws = np.random.default_rng(seed)
    sizes, noise = np.repeat([3.0, 0.5, 0.0], 10), 1.0
    weights = draws.normal(size=30) * sizes
    x = draws.normal(size=(devices, 80, 30))
    y = x @ weights + noise * draws.normal(size=(devices, 80))

    def exact(u: Array, device: int) -> float:
        penalties = np.diag(np.repeat(10.0 ** np.clip(u, -9, 9), 10))
        train, test = x[device, :40], x[device, 40:]
        fitted = np.linalg.solve(train.T @ train + penalties, train.T @ y[device, :40])
        return float(np.mean((test @ fitted - y[device, 40:]) ** 2))

    return exact, np.zeros(3)


def branin(devices: int, seed: int) -> tuple[Any, Array]:
    """Return Branin's function, which has three minima in its box."""
    draws = np.random.default_rng(seed)
    shifts = 0.2 * draws.normal(size=devices)

    def exact(x: Array, device: int) -> float:
        bend = x[1] - 5.1 * x[0] ** 2 / (4 * np.pi**2) + 5 * x[0] / np.pi - 6
        wave = 10 * (1 - 1 / (8 * np.pi)) * np.cos(x[0])
        return float(bend**2 + wave + 10 + shifts[device] * x[0])

    return exact, draws.uniform([-4, 1], [9, 14])


def counts(dim: int, devices: int, seed: int) -> tuple[Any, Array]:
    """Return Poisson regression of counts; each device has inputs around its own centre."""
    draws = np.random.default_rng(seed)
    weights = draws.normal(size=dim) / np.sqrt(dim)
    data = draws.normal(size=(devices, 60, dim)) + draws.normal(size=(devices, 1, dim))
    data /= 2
    seen = draws.poisson(np.exp(np.clip(data @ weights + 1, -5, 3)))

    def exact(x: Array, device: int) -> float:
        z = np.clip(data[device] @ x, -50, 50)
        return float(np.mean(np.exp(z) - seen[device] * z) + 1e-3 * x @ x)

    return exact, np.zeros(dim)


def network(devices: int, seed: int) -> tuple[Any, Array]:
    """Return the fit of a network of eight neurons, 57 weights, to a function of five numbers."""
    draws = np.random.default_rng(seed)
    data = draws.normal(size=(devices, 50, 5)) + 0.5 * draws.normal(size=(devices, 1, 5))
    goal = np.sin(data[..., 0]) + data[..., 1] * data[..., 2] / 2

    def exact(x: Array, device: int) -> float:
        hidden = np.tanh(data[device] @ x[:40].reshape(5, 8) + x[40:48])
        return float(np.mean((hidden @ x[48:56] + x[56] - goal[device]) ** 2))

    return exact, 0.3 * draws.normal(size=57)


def prey(devices: int, seed: int) -> tuple[Any, Array]:
    """Return the fit of Lotka's and Volterra's four rates to measured predators and prey."""
    draws = np.random.default_rng(seed)

    def course(rates: Array) -> Array:
        alive, seen = np.array([10.0, 5.0]), []
        for step in range(400):
            met = alive[0] * alive[1]
            change = [rates[0] * alive[0] - rates[1] * met, rates[2] * met - rates[3] * alive[1]]
            alive = np.clip(alive + 0.02 * np.array(change), 1e-9, 1e6)
            if step % 10 == 9:
                seen.extend(alive)
        return np.log(np.array(seen))

    goal = course(np.array([1.1, 0.4, 0.1, 0.4]) * np.exp(0.2 * draws.normal(size=4)))
    measured = [goal + 0.05 * draws.normal(size=80) for _ in range(devices)]

    def exact(x: Array, device: int) -> float:
        return float(np.mean((course(np.abs(x)) - measured[device]) ** 2))

    return exact, np.array([0.7, 0.7, 0.2, 0.2])


def camel(devices: int, seed: int) -> tuple[Any, Array]:
    """Return the six-hump camel, which has six minima in its box."""
    draws = np.random.default_rng(seed)
    shifts = 0.05 * draws.normal(size=devices)

    def exact(x: Array, device: int) -> float:
        first = (4 - 2.1 * x[0] ** 2 + x[0] ** 4 / 3) * x[0] ** 2
        second = x[0] * x[1] + 4 * (x[1] ** 2 - 1) * x[1] ** 2
        return float(first + second + shifts[device] * x[0])

    return exact, draws.uniform([-2.7, -1.8], [2.7, 1.8])


def development(seed: int) -> list[Problem]:
    """Return the problems that the defaults were chosen on."""
    return [
        Problem("quadratic", *quadratic(20, 1e3, 3, seed), 3, 6_000),
        Problem("valley", *valley(50, 5, seed), 5, 20_000),
        Problem("valley, noisy", *valley(50, 5, seed), 5, 20_000, noise=0.5),
        Problem("logistic", *logistic(50, 10, seed), 10, 20_000),
        Problem("logistic, d = 1,000", *logistic(1000, 10, seed), 10, 40_000),
        Problem("the same, noisy", *logistic(1000, 10, seed), 10, 40_000, noise=0.01),
        Problem("logistic, d = 200", *logistic(200, 10, seed + 9000), 10, 8_000),
        Problem("counts", *counts(30, 8, seed), 8, 6_000),
        Problem("network", *network(6, seed), 6, 20_000),
        Problem("predators and prey", *prey(5, seed), 5, 1_500),
        Problem("camel, bounded", *camel(3, seed), 3, 600, bounds=[(-3, 3), (-2, 2)]),
    ]


def new_instances(seed: int) -> list[Problem]:
    """Return problems of the kinds that the defaults were chosen on, and two more, all new."""
    seed += 5000
    many = logistic(1000, 10, seed + 1)
    return [
        Problem("valley, d = 50", *valley(50, 5, seed), 5, 20_000),
        Problem("the same, noise 0.5", *valley(50, 5, seed), 5, 20_000, noise=0.5),
        Problem("logistic, d = 1,000", *many, 10, 40_000),
        Problem("the same, noise 0.01", *many, 10, 40_000, noise=0.01),
        Problem("reactions, d = 6", *reactions(6, seed + 2), 6, 3_000, scale="log"),
        Problem("quadratic, d = 3", *quadratic(3, 10.0, 3, seed + 3), 3, 700),
    ]


def held_back(seed: int) -> list[Problem]:
    """Return the problems of the table, which nothing was chosen on."""
    seed += 1000
    far = quadratic(10, 1e2, 2, seed + 7)
    many = logistic(1200, 8, seed + 12, samples=60)
    return [
        Problem("ill-conditioned", *quadratic(30, 1e6, 4, seed), 4, 24_000),
        Problem("noisy quadratic", *quadratic(12, 1e2, 6, seed + 1), 6, 14_400, noise=1.0),
        Problem("valley", *valley(24, 8, seed + 2), 8, 38_400),
        Problem("valley, noisy", *valley(30, 4, seed + 3), 4, 24_000, noise=1.0),
        Problem("heterogeneous", *logistic(100, 20, seed + 4, samples=30), 20, 60_000),
        Problem("waves", *waves(10, 2, seed + 5), 2, 8_000),
        Problem("Branin, bounded", *branin(3, seed + 6), 3, 600, bounds=[(-5, 10), (0, 15)]),
        Problem("bounded", far[0], far[1] + 0.1, 2, 4_000, bounds=[(-0.5, 0.5)] * 10),
        Problem("over decades", *decay(6, seed + 8), 6, 3_000, scale="log"),
        Problem("tuning", *ridge(5, seed + 9), 5, 500),
        Problem("one number", *quadratic(1, 1.0, 3, seed + 10), 3, 300),
        Problem("d = 800", *quadratic(800, 1e3, 10, seed + 11), 10, 40_000),
        Problem("d = 1,200", *many, 8, 36_000),
        Problem("d = 1,200, noisy", *many, 8, 36_000, noise=0.02),
    ]
