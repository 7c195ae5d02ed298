"""``fedzo bench``: measure this machine.

Prints the time of a round of the paper's softmax experiment, and its queries per second.

Examples::

    fedzo bench --quick
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedzo.cli.common import add_parser

if TYPE_CHECKING:
    from fedzo.algorithms import FedZO
    from fedzo.core.engine import LocalEngine
    from fedzo.problems import Softmax


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "bench", __doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.set_defaults(command=bench)


def bench(arguments: argparse.Namespace) -> int:
    """Print the median time of a round, and the queries per second."""
    from fedzo.core.engine import LocalEngine

    algorithm, problem = paper_algorithm(), paper_problem()
    with LocalEngine(problem, 0) as engine:
        action, times = round_of(algorithm, engine), []
        for _ in range(6 if arguments.quick else 41):
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
    seconds = statistics.median(times[1:])  # the first one compiles and loads
    steps = algorithm.local_steps * (algorithm.participants or 0)
    queries = steps * algorithm.batch_size * (algorithm.directions + 1)
    print(f"a round of softmax regression, {problem.data.name}, {engine.workers} workers")
    print(f"  time       {seconds * 1e3:12,.2f} ms")
    print(f"  queries    {queries / seconds:12,.0f} per second, of d = {problem.dim:,} numbers")
    return 0


def paper_algorithm() -> FedZO:
    """Return the algorithm in the paper's setting."""
    from fedzo.algorithms import FedZO

    return FedZO(learning_rate=0.001, smoothing=0.001, directions=20, participants=20)


def paper_problem() -> Softmax:
    """Return the softmax problem of the paper, on the whole data set if it is in the cache."""
    from fedzo import data
    from fedzo.problems import softmax

    here = {entry.name: entry.folder for entry in data.catalogue()}
    return softmax("fashion-mnist" if here["fashion-mnist"] else "fashion-mnist-mini")


def round_of(algorithm: FedZO, engine: LocalEngine) -> Callable[[], object]:
    """Return an action that does one round on an engine."""
    from fedzo.core.engine import drive
    from fedzo.uplinks import Ideal
    from fedzo.uplinks.base import RunSetting

    setting = RunSetting(engine, Ideal())
    state = algorithm.init(engine.objective.initial(), setting)
    return lambda: drive(algorithm.round(0, state, setting), engine)
