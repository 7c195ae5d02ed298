"""Our methods and others at equal queries, on problems that nobody tuned them on.

    python benchmarks/compare.py [--set development|held-back] [--seeds 5] [--out DIR]
    python benchmarks/compare.py --bbob 6 7 [--dims 10 40]          # needs coco-experiment

Others minimise the federated mean, and each of their calls counts once for every device. Nothing
is set but the budget: the start's scale is all that anybody is told. ``nevergrad`` and ``optuna``
take part where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fedzo
from fedzo.algorithms.server import Adam

Array = Any
warnings.filterwarnings("ignore")


class Ended(Exception):  # noqa: N818 - reads as what it says
    """The budget of a method is spent."""


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


# ------------------------------------------------------------------------------------- problems


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


def development(seed: int) -> list[Problem]:
    """Return the problems that the defaults were chosen on."""
    return [
        Problem("quadratic", *quadratic(20, 1e3, 3, seed), 3, 6_000),
        Problem("valley", *valley(50, 5, seed), 5, 20_000),
        Problem("valley, noisy", *valley(50, 5, seed), 5, 20_000, noise=0.5),
        Problem("logistic", *logistic(50, 10, seed), 10, 20_000),
        Problem("logistic, many", *logistic(1000, 10, seed), 10, 40_000),
    ]


def held_back(seed: int) -> list[Problem]:
    """Return the problems of the table, which nothing was chosen on."""
    seed += 1000
    far = quadratic(10, 1e2, 2, seed + 7)
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
        Problem("many numbers", *quadratic(800, 1e3, 10, seed + 11), 10, 60_000),
    ]


# -------------------------------------------------------------------------------------- methods

Trail = list[tuple[int, float]]  # how many queries, and the mean at what was best then


def ours(algorithm: Any) -> Callable[[Problem, int], Trail]:
    """Return a method of this package: the plain call, with an algorithm or without."""

    def method(problem: Problem, seed: int) -> Trail:
        trail: Trail = []

        def watch(progress: Any) -> None:
            trail.append((progress.queries, problem.true(progress.x)))

        more: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm(problem)}
        if algorithm is not None:
            more["rounds"] = 1_000_000
        if problem.bounds is not None:
            more["bounds"] = problem.bounds
        result = fedzo.minimize(
            problem.noisy,
            problem.x0,
            devices=problem.devices,
            max_queries=problem.queries,
            scale=problem.scale,
            seed=seed,
            workers=1,
            callback=watch,
            **more,
        )
        return [*trail, (problem.queries, problem.true(result.x))]

    return method


def plain_fedzo(problem: Problem) -> Any:
    """Return FedZO with everything measured and as many directions as help."""
    return fedzo.FedZO(
        learning_rate="auto",
        smoothing="auto",
        directions=min(20, problem.x0.size),
        direction_kind="orthogonal",
        local_steps=1,
        batch_size=1,
    )


def fedzo_adam(problem: Problem) -> Any:
    """Return FedZO with Adam at the server, and one rate for all problems."""
    return fedzo.FedZO(
        learning_rate=1.0,
        smoothing=0.3 if problem.noise else 1e-3,
        directions=min(20, problem.x0.size),
        direction_kind="orthogonal",
        difference="central",
        local_steps=1,
        batch_size=1,
        server=Adam(rate=0.03),
    )


def others(run: Callable[[Callable[[Array], float], Problem, int], Any]) -> Any:
    """Return a method that minimises the mean, inside the bounds and on the scale of a problem."""

    def method(problem: Problem, seed: int) -> Trail:
        trail: Trail = []
        best, asked = np.inf, 0
        log = problem.scale == "log"

        def decode(u: Array) -> Array:
            x = 10.0 ** np.asarray(u) if log else np.asarray(u, float)
            return x if problem.bounds is None else np.clip(x, *np.array(problem.bounds).T)

        def mean(u: Array) -> float:
            nonlocal best, asked
            if asked + problem.devices > problem.queries:
                raise Ended
            asked += problem.devices
            x = decode(u)
            value = float(np.mean([problem.noisy(x, i) for i in range(problem.devices)]))
            if value < best:
                best = value
                trail.append((asked, problem.true(x)))
            return value

        moved = Problem(**{**vars(problem), "x0": np.log10(problem.x0) if log else problem.x0})
        with suppress(Ended):
            run(mean, moved, seed)
        return trail

    return method


def cma_es(mean: Any, problem: Problem, seed: int) -> None:
    """CMA-ES of cmaes, again when it has converged."""
    import cmaes

    dim, sigma = problem.x0.size, _width(problem)
    start = np.append(problem.x0, [0.0] * (dim == 1))
    kind: Any = cmaes.SepCMA if dim > 200 else cmaes.CMA
    while True:
        run = kind(mean=start.copy(), sigma=sigma, seed=seed)
        seed += 1000
        while not run.should_stop():
            asked = [run.ask() for _ in range(run.population_size)]
            run.tell([(x, mean(x[:dim])) for x in asked])


def scipy_method(name: str) -> Any:
    """Return one of scipy.optimize.minimize's methods, again from near its end."""

    def run(mean: Any, problem: Problem, seed: int) -> None:
        from scipy.optimize import minimize

        draws, x = np.random.default_rng(seed), problem.x0
        while True:
            limits = {"maxiter": 10**9, "maxfev" if name == "Nelder-Mead" else "maxfun": 10**9}
            minimize(mean, x, method=name, bounds=problem.bounds, options=limits)
            x = problem.x0 + _width(problem) * draws.normal(size=problem.x0.size)
            if problem.bounds is not None:
                x = np.clip(x, *np.array(problem.bounds).T)

    return run


def evolution(mean: Any, problem: Problem, seed: int) -> None:
    """Differential evolution of SciPy, in the bounds or in a box around the start."""
    from scipy.optimize import differential_evolution

    reach = 5 * _width(problem)
    box = problem.bounds or [(x - reach, x + reach) for x in problem.x0]
    differential_evolution(mean, box, x0=problem.x0, maxiter=10**6, rng=seed, tol=0)


def ngopt(mean: Any, problem: Problem, seed: int) -> None:
    """NGOpt of nevergrad."""
    import nevergrad

    space = nevergrad.p.Array(init=problem.x0)
    space.random_state.seed(seed)
    optimiser = nevergrad.optimizers.NGOpt(space, budget=problem.queries // problem.devices)
    optimiser.minimize(mean)


def tpe(mean: Any, problem: Problem, seed: int) -> None:
    """TPE of Optuna, in the bounds or in a box around the start."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    reach = 5 * _width(problem)
    box = problem.bounds or [(x - reach, x + reach) for x in problem.x0]
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.enqueue_trial({f"x{j}": x for j, x in enumerate(problem.x0)})
    study.optimize(
        lambda trial: mean([trial.suggest_float(f"x{j}", *pair) for j, pair in enumerate(box)]),
        n_trials=problem.queries,
    )


def at_random(mean: Any, problem: Problem, seed: int) -> None:
    """Uniform points in the bounds, or normal ones around the start."""
    draws = np.random.default_rng(seed)
    mean(problem.x0)
    while True:
        if problem.bounds is None:
            mean(problem.x0 + _width(problem) * draws.normal(size=problem.x0.size))
        else:
            mean(draws.uniform(*np.array(problem.bounds).T))


def _width(problem: Problem) -> float:
    """Return the spread to begin with: a fifth of the bounds, or the start's size, or 1."""
    if problem.bounds is not None:
        return float(np.mean(np.diff(np.array(problem.bounds)))) / 5
    return float(np.sqrt(np.mean(problem.x0**2))) or 1.0


METHODS: dict[str, tuple[Callable[[Problem, int], Trail], int]] = {  # and up to which dimension
    "fedzo (plain call)": (ours(None), 10**9),
    "fedzo: cma": (ours(lambda problem: fedzo.CMA()), 10**9),
    "fedzo: lbfgs": (ours(lambda problem: fedzo.LBFGS()), 10**9),
    "fedzo: FedZO, auto": (ours(plain_fedzo), 10**9),
    "fedzo: FedZO, Adam": (ours(fedzo_adam), 10**9),
    "CMA-ES": (others(cma_es), 10**9),
    "L-BFGS-B": (others(scipy_method("L-BFGS-B")), 10**9),
    "Nelder-Mead": (others(scipy_method("Nelder-Mead")), 200),
    "differential evolution": (others(evolution), 200),
    "NGOpt": (others(ngopt), 200),
    "TPE": (others(tpe), 4),
    "random": (others(at_random), 10**9),
}
NEEDS = {"NGOpt": "nevergrad", "TPE": "optuna", "CMA-ES": "cmaes"}


def methods() -> dict[str, tuple[Callable[[Problem, int], Trail], int]]:
    """Return the methods whose libraries are installed."""
    there = importlib.util.find_spec
    return {name: m for name, m in METHODS.items() if name not in NEEDS or there(NEEDS[name])}


# --------------------------------------------------------------------------------------- scores


def lowest(trail: Trail, queries: float, start: float) -> float:
    """Return what a method has to show after so many queries: the start, if nothing."""
    seen = [value for asked, value in trail if asked <= queries and np.isfinite(value)]
    return seen[-1] if seen else start


def compare(
    make: Callable[[int], list[Problem]], seeds: int, without: Sequence[str]
) -> list[dict[str, Any]]:
    """Run all methods on all problems; return a record of each run."""
    records = []
    taking_part = {name: m for name, m in methods().items() if name not in without}
    for seed in range(seeds):
        for at, like in enumerate(make(seed)):
            start = like.true(like.x0)
            for name, (method, largest) in taking_part.items():
                if like.x0.size > largest:
                    continue
                problem = make(seed)[at]  # the same noise for everybody
                try:
                    trail = method(problem, seed)
                except fedzo.errors.FedzoError as error:
                    trail, note = [], f"{type(error).__name__}: {error}"
                else:
                    note = ""
                steps = np.linspace(0, problem.queries, 41)
                found = [lowest(trail, s, start) for s in steps]
                record = {"problem": problem.name, "seed": seed, "method": name, "start": start}
                records.append(record | {"values": found, "note": note})
                print(
                    f"{problem.name:18} {seed} {name:24} {start:12.5g} {found[-1]:12.5g} {note}",
                    flush=True,
                )
    return records


def gaps(records: list[dict[str, Any]], step: int = -1) -> dict[str, dict[str, list[float]]]:
    """Return (f - f_best) / (f_0 - f_best) of each method on each problem, for each seed."""
    table: dict[str, dict[str, list[float]]] = {}
    for record in records:
        same = [
            r for r in records if (r["problem"], r["seed"]) == (record["problem"], record["seed"])
        ]
        best = min(r["values"][-1] for r in same)
        gap = (record["values"][step] - best) / max(record["start"] - best, 1e-300)
        row = table.setdefault(record["problem"], {})
        row.setdefault(record["method"], []).append(float(gap))
    return table


def as_table(records: list[dict[str, Any]]) -> str:
    """Return medians over the seeds as Markdown: what share of the best fall was left to go."""
    table = gaps(records)
    names = [name for name in METHODS if any(name in row for row in table.values())]
    lines = ["| method | " + " | ".join(table) + " |", "| --- |" + " ---: |" * len(table)]
    for name in names:
        cells = [f"{np.median(row[name]):.1e}" if name in row else "" for row in table.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def profiles(records: list[dict[str, Any]], tolerance: float) -> dict[str, list[float]]:
    """Return data profiles (Moré & Wild 2009) over the share of the budget.

    That is the share of runs that have come within ``tolerance`` of the best fall of f.
    """
    curves: dict[str, list[float]] = {}
    for step in range(41):
        solved: dict[str, list[bool]] = {}
        for row in gaps(records, step).values():
            for name, values in row.items():
                solved.setdefault(name, []).extend(gap <= tolerance for gap in values)
        for name, flags in solved.items():
            curves.setdefault(name, []).append(float(np.mean(flags)))
    return curves


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the data profiles for two tolerances."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, tolerance in zip(axes, (1e-1, 1e-3), strict=True):
        for name, curve in profiles(records, tolerance).items():
            style = "-" if name.startswith("fedzo") else "--"
            axis.plot(np.linspace(0, 1, 41), curve, style, label=name)
        axis.set(title=f"within {tolerance:g} of the best fall", xlabel="share of the queries")
    axes[0].set_ylabel("share of the runs")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=110, bbox_inches="tight")


# ----------------------------------------------------------------------------------------- BBOB


def bbob(instances: Sequence[int], dims: Sequence[int], per_dim: int = 200) -> str:
    """Run the plain call on BBOB on one device, from 0 or from a random start, by turns."""
    import cocoex

    lines = [
        "| d | instance | within 1 % | not within: function (share of the fall that is left) |"
    ]
    lines.append("| --- | --- | ---: | --- |")
    for dim in dims:
        for instance in instances:
            missed = {}
            for function in range(1, 25):
                f = cocoex.BareProblem("bbob", function, dim, instance)
                uniform = np.random.default_rng(1000 + instance).uniform(-4, 4, dim)
                x0 = uniform if instance % 2 else np.zeros(dim)
                problem = Problem("bbob", lambda x, i, f=f: float(f(x)), x0, 1, per_dim * dim)
                start = problem.true(x0)
                ends = [
                    lowest(METHODS[name][0](problem, 1), np.inf, start)
                    for name in ("fedzo (plain call)", "CMA-ES", "L-BFGS-B")
                ]
                best = min(ends[1:])
                gap = (ends[0] - best) / max(start - best, 1e-300)
                if gap > 0.01:
                    missed[function] = gap
            missing = ", ".join(f"f{n} ({gap:.2f})" for n, gap in missed.items())
            lines.append(f"| {dim} | {instance} | {24 - len(missed)} of 24 | {missing} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Run one comparison, and print it as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=("development", "held-back"), default="held-back")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for runs.json, table.md and profiles.png")
    parser.add_argument("--without", nargs="+", default=[], choices=METHODS, metavar="METHOD")
    parser.add_argument("--bbob", type=int, nargs="+", metavar="INSTANCE")
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 40])
    arguments = parser.parse_args()
    if arguments.bbob:
        print(bbob(arguments.bbob, arguments.dims))
        return
    make = development if arguments.set == "development" else held_back
    records = compare(make, arguments.seeds, arguments.without)
    table = as_table(records)
    print(table)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "runs.json").write_text(json.dumps(records))
        (arguments.out / "table.md").write_text(table + "\n")
        plot(records, arguments.out / "profiles.png")


if __name__ == "__main__":
    main()
