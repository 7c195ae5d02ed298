"""What the benchmarks share: medians over repeats, and a round of the paper's softmax experiment.

Actions that are compared alternate in one process, so that other load on the machine affects all
of them.
"""

import statistics
import time
from collections.abc import Callable, Mapping

from fedzo.algorithms import FedZO
from fedzo.cli.bench import paper_algorithm, paper_problem, round_of
from fedzo.core.engine import LocalEngine
from fedzo.core.objective import Objective

__all__ = ["PAPER", "medians", "one_round", "paper_problem"]

PAPER = paper_algorithm()


def medians(
    actions: Mapping[str, Callable[[], object]],
    repeats: int,
    burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds of each action by a clock; the actions alternate.

    An action is called ``burst`` times in a row: if its data should be in the cache, the other
    actions must not evict them before each call.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # compile, load, warm the caches
    for _ in range(repeats):
        for name, action in actions.items():
            for _ in range(burst):
                began = clock()
                action()
                seconds[name].append(clock() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


def one_round(
    objective: Objective, algorithm: FedZO, workers: int | None
) -> tuple[LocalEngine, Callable[[], object]]:
    """Return an engine (to be entered) and an action that does one round on it."""
    engine = LocalEngine(objective, 0, workers)
    return engine, round_of(algorithm, engine)
