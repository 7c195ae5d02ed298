"""Measure this machine: a round of the paper's softmax experiment."""

import statistics
import time
from collections.abc import Callable

from fedzo import data
from fedzo.algorithms import FedZO
from fedzo.core.engine import LocalEngine, drive
from fedzo.problems import Softmax, softmax
from fedzo.uplinks import Ideal
from fedzo.uplinks.base import RunSetting

PAPER = FedZO(learning_rate=0.001, smoothing=0.001, directions=20, participants=20)


def run_benchmarks(quick: bool = False) -> None:
    """Print the median time of a round, and the queries per second."""
    problem = paper_problem()
    with LocalEngine(problem, 0) as engine:
        action, times = round_of(PAPER, engine), []
        for _ in range(6 if quick else 41):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])  # the first one compiles and loads
    steps = PAPER.local_steps * (PAPER.participants or 0)
    queries = steps * PAPER.batch_size * (PAPER.directions + 1)
    print(f"a round of softmax regression, {problem.data.name}, {engine.workers} workers")
    print(f"  time       {seconds * 1e3:12,.2f} ms")
    print(f"  queries    {queries / seconds:12,.0f} per second, of d = {problem.dim:,} numbers")


def paper_problem() -> Softmax:
    """Return the softmax problem of the paper, on the whole data set if it is in the cache."""
    here = {entry.name: entry.folder for entry in data.catalogue()}
    return softmax("fashion-mnist" if here["fashion-mnist"] else "fashion-mnist-mini")


def round_of(algorithm: FedZO, engine: LocalEngine) -> Callable[[], object]:
    """Return an action that does one round on an engine."""
    setting = RunSetting(engine, Ideal())
    state = algorithm.init(engine.objective.initial(), setting)
    return lambda: drive(algorithm.round(0, state, setting), engine)
