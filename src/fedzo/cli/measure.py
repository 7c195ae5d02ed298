"""Measure this machine: a round of the paper's softmax experiment.

Times are medians over repeats. Actions that are compared alternate in one process, so that other
load on the machine affects all of them.
"""

import statistics
import time
from collections.abc import Callable, Mapping

from fedzo import data
from fedzo.algorithms import FedZO
from fedzo.core.engine import LocalEngine, drive
from fedzo.core.objective import Objective
from fedzo.problems import Softmax, softmax
from fedzo.uplinks import Ideal
from fedzo.uplinks.base import RunSetting

PAPER = FedZO(learning_rate=0.001, smoothing=0.001, directions=20, participants=20)


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
    """Print the time of a round, and the queries per second."""
    problem = paper_problem()
    engine, action = one_round(problem, PAPER, None)
    with engine:
        seconds = medians({"round": action}, 5 if quick else 40)["round"]
    steps = PAPER.local_steps * (PAPER.participants or 0)
    queries = steps * PAPER.batch_size * (PAPER.directions + 1)
    print(f"a round of softmax regression, {problem.data.name}, {engine.workers} workers")
    print(f"  time       {seconds * 1e3:12,.2f} ms")
    print(f"  queries    {queries / seconds:12,.0f} per second, of d = {problem.dim:,} numbers")
