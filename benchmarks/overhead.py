"""CPU time per query of a plain call, without the function's own, beside SciPy's L-BFGS-B.

python benchmarks/overhead.py [DIMENSION ...]

Both minimise the same quadratic with the same budget, in turns; the least of three runs each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

import fedzo

Function = Callable[[NDArray[Any]], float]
BUDGETS = {10: 2_000, 100: 10_000, 10_000: 50_000}
REPEATS = 3


def main() -> None:
    print("     d  queries  function     fedzo  L-BFGS-B  ratio   (us per query)")
    with threadpool_limits(1):
        for dim in map(int, sys.argv[1:] or BUDGETS):
            report(dim, BUDGETS.get(dim, 20 * dim))


def report(dim: int, budget: int) -> None:
    weights = np.logspace(0, 2, dim)

    def fun(x: NDArray[Any]) -> float:
        return float((weights * (x - 1) ** 2).sum())

    fedzo.minimize(fun, np.zeros(dim), max_queries=200)  # loads and compiles
    one = per_query(lambda: len([fun(weights) for _ in range(1000)]))
    pairs = [
        (per_query(lambda: ours(fun, dim, budget)), per_query(lambda: scipys(fun, dim, budget)))
        for _ in range(REPEATS)
    ]
    mine, other = (min(times) - one for times in zip(*pairs, strict=True))
    print(
        f"{dim:6} {budget:8,} {one:9.1f} {mine:9.1f} {other:9.1f} {mine / other:6.1f}", flush=True
    )


def per_query(run: Callable[[], int]) -> float:
    """Return microseconds of CPU time per query of a run that returns their number."""
    began = time.process_time()
    queries = run()
    return 1e6 * (time.process_time() - began) / queries


def ours(fun: Function, dim: int, budget: int) -> int:
    return fedzo.minimize(fun, np.zeros(dim), max_queries=budget).queries


def scipys(fun: Function, dim: int, budget: int) -> int:
    options = {"maxfun": budget, "maxiter": budget, "ftol": 0.0, "gtol": 0.0}
    return int(minimize(fun, np.zeros(dim), method="L-BFGS-B", options=options).nfev)


if __name__ == "__main__":
    main()
