"""How long it takes to draw and add a direction, against adding one that is stored.

    python benchmarks/passes.py [--numbers 23000000] [--cpu]

Prints, for each kind of direction, the time of a pass in nanoseconds a number and as a multiple
of the same pass with a stored float32 vector (torch, all cores): in place, from a base into other
memory as a perturbation is, and a row of twenty at once as an update is. The bars are 1.5 for ±1
and 4 for normals. A machine that is busy with other work tells nothing; there ``--cpu`` counts the
seconds that cores spent on it, all threads together, instead of those that went by.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fedzo.core.random import Draws, Stream
from fedzo.core.updates import DirectionSum, scales

BARS = {"rademacher": 1.5, "gaussian": 4.0}


clock = time.perf_counter


def shortest(work: Callable[[], object], repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=23_000_000)
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args()
    numbers = given.numbers
    if given.cpu:
        global clock  # noqa: PLW0603
        clock = time.process_time
    at = Draws(seed=0, stream=Stream.DIRECTIONS)
    x, other = np.zeros((2, numbers), np.float32)
    stored, target = torch.ones(numbers), torch.from_numpy(x)
    floor = shortest(lambda: target.add_(stored, alpha=0.5))
    scratch = torch.from_numpy(other)
    apart = shortest(lambda: torch.add(target, stored, alpha=0.5, out=scratch))
    per_number = 1e9 / numbers
    print(f"{'':32} ns a number   of a stored one")
    print(f"{'stored, in place':32} {floor * per_number:11.3f} {1:15.2f}")
    print(f"{'stored, into scratch':32} {apart * per_number:11.3f} {1:15.2f}")
    for kind, bar in BARS.items():
        one = DirectionSum.of(kind, numbers, [at], np.full((1, 1), 0.5, np.float32))
        many = DirectionSum.of(kind, numbers, [at], np.full((1, 20), 0.5, np.float32))
        for name, seconds in (
            (f"{kind}, in place", shortest(lambda step=one: step.add_to(x))),
            (f"{kind}, into scratch", shortest(lambda step=one: step.add_to(other, 0, x))),
            (f"{kind}, a row of 20", shortest(lambda step=many: step.add_to(x), 1) / 20),
        ):
            ratio = seconds / (apart if "scratch" in name else floor)
            print(f"{name:32} {seconds * per_number:11.3f} {ratio:15.2f}   (bar {bar})")
    norm = shortest(lambda: scales("sphere", 1, numbers, at), 3)
    print(f"{'a normal row, its norm only':32} {norm * per_number:11.3f} {norm / floor:15.2f}")


if __name__ == "__main__":
    main()
