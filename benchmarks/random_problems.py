"""The plain call on random problems, with nothing set but the budget: none may end worse.

    python benchmarks/random_problems.py [FIRST] [LAST] [--out FILE]

Of 200 problems, or of those from FIRST to before LAST, a line each: 1 to 2,000 numbers, 1 to 50
devices that differ, a condition up to 10^6, x and f in units from 10^-6 to 10^6, values with noise
of up to 30 % of the fall from the start to the minimum, in two problems of three. Everything is
judged by the exact mean. In FILE, what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedzo

Array = Any
SHAPES = ("quadratic", "bounded", "quartic", "valley", "edges", "waves", "classes")


@dataclass
class RandomProblem:
    """A function of x and a device, and what is known of it."""

    name: str
    exact: Callable[[Array, int], float]
    x0: Array
    goal: Array  # near the minimum, or at it
    devices: int
    queries: int
    noise: float
    draws: np.random.Generator

    def fun(self, x: Array, device: int) -> float:
        """Return what the plain call is told."""
        value = self.exact(x, device)
        return value + self.noise * float(self.draws.normal()) if self.noise else value

    def mean(self, x: Array) -> float:
        """Return the exact mean over the devices."""
        return float(np.mean([self.exact(x, i) for i in range(self.devices)]))


def make(seed: int) -> RandomProblem:
    """Return the problem of this seed."""
    draws = np.random.default_rng([20_000, seed])
    dim, devices = round(10 ** draws.uniform(0, math.log10(2000))), int(draws.integers(1, 51))
    units_x, units_f = 10.0 ** draws.uniform(-6, 6, 2)
    shape = SHAPES[seed % len(SHAPES)]
    curves = 10.0 ** -np.sort(draws.uniform(0, draws.uniform(0, 6), dim))
    curves /= curves[0]
    mirror = draws.normal(size=dim)
    mirror /= np.linalg.norm(mirror)
    shifts = draws.uniform(0, 1) * draws.normal(size=(devices, dim))  # what devices differ by
    shifts -= shifts.mean(axis=0)
    offset = draws.normal() * (draws.random() < 0.5)
    of = shaped(shape, curves, draws)

    def turned(z: Array) -> Array:  # a reflection: no coordinate is one of the function's own
        return z - 2 * float(mirror @ z) * mirror

    centre = draws.normal(size=dim) if draws.random() < 0.5 else np.full(dim, 3.0)
    away = draws.normal(size=dim) * (1 if shape in ("valley", "classes") else 3)
    start = np.zeros(dim) if draws.random() < 0.3 else centre + away
    size = abs(of(turned(start - centre)) - of(np.zeros(dim))) or 1.0

    def exact(x: Array, device: int) -> float:
        return units_f * (offset + of(turned(x / units_x - centre) - shifts[device]) / size)

    part = draws.uniform(0, 0.3) * (draws.random() < 2 / 3)
    queries = int(min(10 ** draws.uniform(1, 2) * (dim + devices), 30_000))
    name = f"{shape}, d = {dim}, N = {devices}, noise {part:.0%}, {queries} queries"
    name += f", units {units_x:.0e} and {units_f:.0e}" + ", from zero" * (not start.any())
    return RandomProblem(
        name, exact, start * units_x, centre * units_x, devices, queries, part * units_f, draws
    )


def shaped(shape: str, curves: Array, draws: np.random.Generator) -> Callable[[Array], float]:
    """Return a function of z whose minimum is at zero, or near it."""
    plain: dict[str, Callable[[Array], float]] = {
        "quadratic": lambda z: float(0.5 * curves @ z**2),
        "bounded": lambda z: math.log1p(0.5 * float(curves @ z**2)),
        "quartic": lambda z: float(curves @ (z**2 + z**4)),
        "valley": lambda z: float(np.sum(30 * (z[1:] - z[:-1] ** 2) ** 2) + z @ z),
        "edges": lambda z: float(curves @ np.abs(z)),
        "waves": lambda z: float(np.sum(z**2 + 3 - 3 * np.cos(4 * z))),
    }
    if shape in plain:
        return plain[shape]
    data = draws.normal(size=(100, curves.size)) * np.sqrt(curves)

    def classes(z: Array) -> float:
        margins = data @ z
        return float(np.mean(np.logaddexp(0, margins) - 0.5 * margins))

    return classes


def solve(seed: int) -> dict[str, Any]:
    """Run the plain call on one problem; return how it went."""
    problem, began = make(seed), time.process_time()
    record: dict[str, Any] = {"seed": seed, "problem": problem.name}
    try:
        result = fedzo.minimize(
            problem.fun,
            problem.x0,
            devices=problem.devices,
            max_queries=problem.queries,
            seed=seed,
            workers=1,
        )
    except Exception as error:  # whatever it is, it must not be
        return record | {"fault": f"{type(error).__name__}: {error}"}
    start, end = problem.mean(problem.x0), problem.mean(result.x)
    lowest = min(problem.mean(problem.goal), end)
    left = (end - lowest) / (start - lowest) if start > lowest else 0.0
    fault = "worse than the start" if end > start else ""
    if result.nfev > problem.queries:
        fault = "more queries than allowed"
    return record | {
        "fault": fault,
        "left": left,
        "noise": bool(problem.noise),
        "success": result.success,
        "message": result.message,
        "asked": result.nfev / problem.queries,
        "seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Run what is missing, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("last", type=int, nargs="?", default=200)
    parser.add_argument("--out", type=Path, default=Path("compare/random.jsonl"))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    kept = {record["seed"]: record for record in map(json.loads, lines)}
    for seed in range(arguments.first, arguments.last):
        if seed not in kept:
            kept[seed] = solve(seed)
            with arguments.out.open("a") as file:
                file.write(json.dumps(kept[seed]) + "\n")
        record = kept[seed]
        told = record["fault"] or f"{record['left']:.1e} left, {record['message']}"
        print(seed, record["problem"], told, sep=": ", flush=True)
    records = [kept[seed] for seed in range(arguments.first, arguments.last)]
    print(f"{sum(bool(r['fault']) for r in records)} of {len(records)} ended worse or in an error")
    for noisy in (False, True):
        shares = [r["left"] for r in records if r.get("noise") is noisy]
        if shares:
            middle, most = np.median(shares), np.quantile(shares, 0.9)
            with_noise = "with noise" if noisy else "without noise"
            print(
                f"{with_noise}: of the fall {middle:.1e} is left in the median, {most:.1e} in 90 %"
            )


if __name__ == "__main__":
    main()
