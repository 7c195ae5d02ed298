"""The methods of the comparison: ours, and those of other libraries on the federated mean."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import fedzo
from comparing.problems import Problem
from comparing.scores import lowest
from fedzo.server import Adam

Array = Any
Trail = list[tuple[int, float]]  # how many queries, and the mean at what was best then


class Ended(Exception):  # noqa: N818 - reads as what it says
    """The budget of a method is spent."""


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
        fun = getattr(problem, "call", problem.noisy)
        if fun != problem.noisy:
            more["on_failure"] = "leave_out"
        result = fedzo.minimize(
            fun,
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


def fedzo_adam(problem: Problem, rate: float = 0.03) -> Any:
    """Return FedZO with Adam at the server, and one rate for all problems."""
    return fedzo.FedZO(
        learning_rate=1.0,
        smoothing=0.3 if problem.noise else 1e-3,
        directions=min(20, problem.x0.size),
        direction_kind="orthogonal",
        difference="central",
        local_steps=1,
        batch_size=1,
        server=Adam(learning_rate=rate),
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

        moved = replace(problem, x0=np.log10(problem.x0) if log else problem.x0)
        with suppress(Ended):
            run(mean, moved, seed)
        return trail

    return method


def cma_es(mean: Any, problem: Problem, seed: int, width: float = 1.0) -> None:
    """CMA-ES of cmaes, again when it has converged."""
    import cmaes

    dim, sigma = problem.x0.size, width * _width(problem)
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


def cobyqa(mean: Any, problem: Problem, seed: int) -> None:
    """COBYQA of SciPy; its first radius is that of the others."""
    from scipy.optimize import minimize

    options = {"initial_tr_radius": _width(problem), "maxfev": 10**6, "maxiter": 10**6}
    minimize(mean, problem.x0, method="COBYQA", bounds=problem.bounds, options=options)


def pycma(mean: Any, problem: Problem, seed: int) -> None:
    """CMA-ES of pycma, with its handling of bounds; restarts with twice the population."""
    import cma

    options: dict[str, Any] = {"verbose": -9, "seed": seed + 1}
    if problem.bounds is not None:
        options["bounds"] = np.array(problem.bounds).T.tolist()
    size = None
    start = np.append(problem.x0, [0.0] * (problem.x0.size == 1))
    while True:
        more = {} if size is None else {"popsize": size}
        if problem.x0.size > 200:
            more["CMA_diagonal"] = True
        run = cma.CMAEvolutionStrategy(start, _width(problem), options | more)
        while not run.stop():
            points = run.ask()
            run.tell(points, [mean(x[: problem.x0.size]) for x in points])
        size, options["seed"] = 2 * run.popsize, options["seed"] + 1000


def bobyqa(mean: Any, problem: Problem, seed: int) -> None:
    """Py-BOBYQA; told of noise where there is any."""
    import pybobyqa

    box = None if problem.bounds is None else tuple(np.array(problem.bounds, float).T)
    np.random.seed(seed)  # noqa: NPY002 - which it draws from
    width = _width(problem)
    if box is not None:
        width = min(width, 0.49 * float(np.min(box[1] - box[0])))
    pybobyqa.solve(
        mean,
        problem.x0,
        bounds=box,
        rhobeg=width,
        maxfun=10**6,
        do_logging=False,
        objfun_has_noise=problem.noise > 0,
        seek_global_minimum=False,
    )


def evolution(mean: Any, problem: Problem, seed: int) -> None:
    """Differential evolution of SciPy, in the bounds or in a box around the start."""
    from scipy.optimize import differential_evolution

    reach = 5 * _width(problem)
    box = problem.bounds or [(x - reach, x + reach) for x in problem.x0]
    differential_evolution(mean, box, x0=problem.x0, maxiter=10**6, rng=seed, tol=0)


def ngopt(mean: Any, problem: Problem, seed: int) -> None:
    """NGOpt of nevergrad."""
    import nevergrad
    from nevergrad.optimization import metamodel

    # It takes arrays of one number for numbers, which NumPy has stopped to do by itself.
    metamodel.float = lambda number: float(np.asarray(number).item())
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


PLAIN = "fedzo (plain call)"
METHODS: dict[str, tuple[Callable[[Problem, int], Trail], int]] = {  # and up to which dimension
    "fedzo (plain call)": (ours(None), 10**9),
    "fedzo: cma": (ours(lambda problem: fedzo.CMA()), 10**9),
    "fedzo: lbfgs": (ours(lambda problem: fedzo.LBFGS()), 10**9),
    "fedzo: FedZO, auto": (ours(plain_fedzo), 10**9),
    "fedzo: FedZO, Adam": (ours(fedzo_adam), 10**9),
    "CMA-ES": (others(cma_es), 10**9),
    "pycma": (others(pycma), 10**9),
    "COBYQA": (others(cobyqa), 60),
    "Py-BOBYQA": (others(bobyqa), 60),
    "L-BFGS-B": (others(scipy_method("L-BFGS-B")), 10**9),
    "Nelder-Mead": (others(scipy_method("Nelder-Mead")), 200),
    "differential evolution": (others(evolution), 200),
    "NGOpt": (others(ngopt), 200),
    "TPE": (others(tpe), 4),
    "random": (others(at_random), 10**9),
}
TUNED: dict[str, dict[float, Callable[[Problem, int], Trail]]] = {  # the best number counts
    "fedzo: FedZO, Adam": {
        rate: ours(partial(fedzo_adam, rate=rate)) for rate in (0.003, 0.01, 0.03, 0.1, 0.3)
    },
    "CMA-ES": {width: others(partial(cma_es, width=width)) for width in (0.03, 0.1, 0.3, 1.0, 3.0)},
}
NEEDS = {
    "pycma": "cma",
    "Py-BOBYQA": "pybobyqa",
    "NGOpt": "nevergrad",
    "TPE": "optuna",
    "CMA-ES": "cmaes",
}


def methods() -> dict[str, tuple[Callable[[Problem, int], Trail], int]]:
    """Return the methods whose libraries are installed."""
    there = importlib.util.find_spec
    return {name: m for name, m in METHODS.items() if name not in NEEDS or there(NEEDS[name])}


def rivals_of(names: Sequence[str]) -> list[str]:
    """Return those of some methods whose libraries are installed."""
    return [name for name in names if name in methods()]


def run_method(name: str, problem: Problem, seed: int) -> dict[str, Any]:
    """Return where a method begins, where it is at a quarter and half of the queries, and ends."""
    start, note = problem.true(problem.x0), ""
    try:
        trail = METHODS[name][0](problem, seed)
    except Exception as error:  # an error of a method is a result, too
        trail, note = [], f"{type(error).__name__}: {error}"[:200]
    found = [lowest(trail, share * problem.queries, start) for share in (0.25, 0.5, 1.0)]
    return {"start": start, "quarter": found[0], "half": found[1], "end": found[2], "note": note}
