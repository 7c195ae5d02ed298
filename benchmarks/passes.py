"""How long it takes to draw and add a direction, against adding one that is stored.

    python benchmarks/passes.py [--numbers 23000000]

Prints, for each kind of direction, the time of a pass in nanoseconds a number and as a multiple
of adding a stored float32 vector (torch, all cores): in place, from a base into other memory as a
perturbation is, and a row of twenty at once as an update is. The bars are 1.5 for ±1 and 4 for
normals. A machine that is busy with other work tells nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from fedzo.core.random import Draws, Stream
from fedzo.core.streams import Combination, scales

BARS = {"rademacher": 1.5, "gaussian": 4.0}


def shortest(work: Callable[[], object], repeats: int = 7) -> float:
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=23_000_000)
    numbers = parser.parse_args().numbers
    at = Draws(seed=0, stream=Stream.DIRECTIONS)
    x, other = np.zeros((2, numbers), np.float32)
    stored, target = torch.ones(numbers), torch.from_numpy(x)
    floor = shortest(lambda: target.add_(stored, alpha=0.5))
    per_number = 1e9 / numbers
    print(f"{'':32} ns a number   of a stored one")
    print(f"{'stored':32} {floor * per_number:11.3f} {1:15.2f}")
    for kind, bar in BARS.items():
        one = Combination.of(kind, numbers, at, np.array([0.5]))
        many = Combination.of(kind, numbers, at, np.full(20, 0.5))
        for name, seconds in (
            (f"{kind}, in place", shortest(lambda step=one: step.add_to(x))),
            (f"{kind}, into scratch", shortest(lambda step=one: step.add_to(other, 0, x))),
            (f"{kind}, a row of 20", shortest(lambda step=many: step.add_to(x), 1) / 20),
        ):
            ratio = seconds / floor
            print(f"{name:32} {seconds * per_number:11.3f} {ratio:15.2f}   (bar {bar})")
    norm = shortest(lambda: scales("sphere", 1, numbers, at), 3)
    print(f"{'a normal row, its norm only':32} {norm * per_number:11.3f} {norm / floor:15.2f}")


if __name__ == "__main__":
    main()
