"""Measure this machine: the kernels, and a round against its lower bound.

Times are medians over repeats. Actions that are compared alternate in one process, so that other
load on the machine affects all of them.
"""

import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
from threadpoolctl import ThreadpoolController

from fedzo import data
from fedzo.algorithms import FedZO
from fedzo.core.directions import DirectionBuffer
from fedzo.core.engine import LocalEngine, drive
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.problems import Softmax, softmax
from fedzo.uplinks import Ideal
from fedzo.uplinks.base import RunSetting

PAPER = FedZO(
    learning_rate=0.001,
    smoothing=0.001,
    batch_size=25,
    directions=20,
    local_steps=5,
    participants=20,
)


def medians(
    actions: Mapping[str, Callable[[], object]], repeats: int, burst: int = 1
) -> dict[str, float]:
    """Return the median seconds of each action; the actions alternate.

    An action is called ``burst`` times in a row: if its data should be in the cache, the other
    actions must not evict them before each call.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # compile, load, warm the caches
    for _ in range(repeats):
        for name, action in actions.items():
            for _ in range(burst):
                began = time.perf_counter()
                action()
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def one_round(
    objective: Objective, algorithm: FedZO, workers: int | None
) -> tuple[LocalEngine, Callable[[], object]]:
    """Return an engine (to be entered) and an action that does one round on it."""
    engine = LocalEngine(objective, 0, workers)
    setting = RunSetting(engine, Ideal())
    state = algorithm.init(objective.initial(), setting)
    return engine, lambda: drive(algorithm.round(0, state, setting), engine)


def paper_problem() -> Softmax:
    """Return the softmax problem of the paper, on the whole data set if it is in the cache."""
    here = {entry.name: entry.folder for entry in data.catalogue()}
    return softmax("fashion-mnist" if here["fashion-mnist"] else "fashion-mnist-mini")


def run_benchmarks(quick: bool = False) -> None:
    """Print all measurements."""
    problem = paper_problem()
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        kernels = _kernels(problem, 5 if quick else 60)
    _round(problem, kernels, 5 if quick else 40)


def _kernels(problem: Softmax, repeats: int) -> dict[str, float]:
    """Time the parts of a device's step, on one thread."""
    count, dim = PAPER.directions, problem.dim
    buffer = DirectionBuffer("sphere", count, dim, np.float32)
    draws = Draws(0, Stream.DIRECTIONS)
    numpy_rows, generator = np.empty((count, dim), np.float32), np.random.default_rng(0)
    batch = problem.batch(0, PAPER.batch_size, Draws(0, Stream.BATCHES))
    width = problem.features + 1
    tall, wide = buffer.rows.reshape(-1, width), batch.inputs.T
    logits = np.empty((len(tall), PAPER.batch_size), np.float32)
    left, right = np.ones((2, 1024, 1024), np.float32)
    x, delta, weights = problem.initial(), problem.initial(), np.zeros(count)
    buffer.draw(draws)
    times = medians(
        {
            "directions": lambda: buffer.draw(draws),
            "numpy": lambda: generator.standard_normal(out=numpy_rows, dtype=np.float32),
            "batch": lambda: problem.batch(0, PAPER.batch_size, Draws(0, Stream.BATCHES)),
            "whole step": lambda: PAPER.estimator.step(
                problem, x, PAPER.batch_size, buffer, draws, 1e-3, delta, x
            ),
            "product": lambda: np.matmul(tall, wide, out=logits),
            "update": lambda: buffer.advance(weights, delta, x),
            "large product": lambda: left @ right,
        },
        repeats,
        burst=5,
    )
    numbers = count * dim
    print(f"one device step, one thread (b1={PAPER.batch_size}, b2={count}, d={dim})")
    names = {"directions": "directions with norms", "numpy": "NumPy's standard_normal float32"}
    for key, name in names.items():
        each = times[key] / numbers * 1e9
        print(f"  {name:<31} {times[key] * 1e6:8.1f} us  {each:.2f} ns each")
    print(f"  directions against NumPy        {times['numpy'] / times['directions']:8.1f} x")
    for name in ("batch", "product", "update", "whole step"):
        print(f"  {name:<31} {times[name] * 1e6:8.1f} us")
    rate = 2 * 1024**3 / times["large product"]
    print(f"  BLAS, 1024 x 1024 float32       {rate / 1e9:8.1f} GFlop/s")
    return {"seconds_a_normal": times["directions"] / numbers, "flops": rate}


def _round(problem: Softmax, kernels: Mapping[str, float], repeats: int) -> None:
    """Time a round of the paper's setting against a lower bound."""
    engine, action = one_round(problem, PAPER, None)
    with engine:
        seconds = medians({"round": action}, repeats)["round"]
    steps = PAPER.local_steps * (PAPER.participants or 0)
    numbers = PAPER.directions * problem.dim
    flops = 2 * PAPER.batch_size * numbers
    each = numbers * kernels["seconds_a_normal"] + flops / kernels["flops"]
    floor = steps * each / engine.workers
    sizes = f"N={problem.devices}, M={PAPER.participants}, H={PAPER.local_steps}"
    print(f"\none round ({problem.data.name}, {sizes}, {engine.workers} workers)")
    print(f"  round                           {seconds * 1e3:8.2f} ms")
    print(f"  floor: normals + product        {floor * 1e3:8.2f} ms")
    print(f"  floor / round                   {100 * floor / seconds:8.0f} %")
