"""BBOB and bbob-noisy on one device: the plain call beside CMA-ES and L-BFGS-B."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from comparing.methods import METHODS
from comparing.problems import Problem

Array = Any
PER_DIMENSION = 200  # queries
JUDGED_BY = 31  # values, of which the median is taken, where they are noisy
RIVALS = ("CMA-ES", "L-BFGS-B")
PLAIN = "fedzo (plain call)"
FUNCTIONS = {"bbob": range(1, 25), "bbob-noisy": range(101, 131)}


class Remembering(Problem):
    """A problem that is judged at the end only: it remembers the best point of a method so far."""

    last: Array = None

    def true(self, x: Array) -> float:
        """Remember the point."""
        self.last = np.array(x)
        return 0.0


def table(
    suite: str,
    instances: Sequence[int],
    dims: Sequence[int],
    functions: Sequence[int],
    get: Callable[..., Any],
) -> str:
    """Return a Markdown table of where the plain call comes within 1 % of the fall of the best."""
    lines = ["| d | instance | within 1 % | others: function (share of the fall that is left) |"]
    lines.append("| --- | --- | ---: | --- |")
    for dim in dims:
        for instance in instances:
            missed, count = {}, len(functions)
            for function in functions:
                ends = {
                    name: get(
                        lambda at=(suite, function, dim, instance), m=name: solve(*at, m),
                        function,
                        dim,
                        instance,
                        name,
                    )
                    for name in (PLAIN, *RIVALS)
                }
                best = min(ends[name]["end"] for name in RIVALS)
                fall = ends[PLAIN]["start"] - best
                gap = (ends[PLAIN]["end"] - best) / max(fall, 1e-300)
                if gap > 0.01:
                    missed[function] = gap
            missing = ", ".join(f"f{n} ({share(gap)})" for n, gap in missed.items())
            within = f"{count - len(missed)} of {count}"
            lines.append(f"| {dim} | {instance} | {within} | {missing} |")
    return "\n".join(lines)


def share(gap: float) -> str:
    """Return a share of the fall in words; under noise a method may end no better than it began."""
    return f"{gap:.2f}" if gap < 1 else "all"


def start(dim: int, instance: int) -> Array:
    """Return 0, as the suite proposes, or for odd instances a random point of the domain."""
    uniform = np.random.default_rng(1000 + instance).uniform(-4, 4, dim)
    return uniform if instance % 2 else np.zeros(dim)


def solve(suite: str, function: int, dim: int, instance: int, method: str) -> dict[str, float]:
    """Run one method on one function; return where it began and where it ended."""
    import cocoex

    which = f"dimensions:{dim} function_indices:{function - FUNCTIONS[suite][0] + 1}"
    f = cocoex.Suite(suite, f"instances:{instance}", which)[0]
    assert f.id_function == function
    x0 = start(dim, instance)

    def value(x: Array, device: int) -> float:
        return float(f(x))

    problem = Remembering(suite, value, x0, 1, PER_DIMENSION * dim)
    METHODS[method][0](problem, 1)
    repeats = JUDGED_BY if suite == "bbob-noisy" else 1

    def judge(x: Array) -> float:
        return float(np.median([value(x, 0) for _ in range(repeats)]))

    return {"start": judge(x0), "end": judge(problem.last)}
