"""What it costs that normals are drawn without fused multiply-add.

    python benchmarks/fused.py [--repeats 40]

Prints how long a softmax round of the paper's setting, and the drawing of its directions, take as
they are and with kernels that may fuse a product and a sum: the medians of the ratios of turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from fedzo.core import directions, random
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps
from fedzo.problems import softmax_regression as softmax
from timing import PAPER, one_round, paper_problem

FUSED = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def fused_kernels() -> tuple[Any, Any]:
    """Return the kernel of normals, and the compiled step with it, where LLVM may fuse."""
    plain = softmax.normals_kernel, softmax.advance_kernel
    softmax.normals_kernel = normals = njit(**FUSED)(random.normals_kernel.py_func)
    softmax.advance_kernel = njit(**FUSED)(directions.advance_kernel.py_func)
    step = njit(**FUSED)(softmax._step.py_func)
    problem = softmax.softmax(devices=2)
    right, softmax._step = softmax._step, step
    LocalSteps(PAPER, problem.initial(), devices=[0]).reply(problem, 0)  # compile it here
    softmax._step, (softmax.normals_kernel, softmax.advance_kernel) = right, plain
    return normals, step


def seconds(action: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    fused_normals, fused_step = fused_kernels()
    plain_step = softmax._step
    rows, squares = np.empty((PAPER.directions, 7850), np.float32), np.empty(PAPER.directions)
    address = Draws(0, Stream.DIRECTIONS).address()
    federation, action = one_round(paper_problem(), PAPER, 1)
    rounds, draws = [], []
    with federation:
        for _ in range(repeats):
            turn = []
            for step, normals in ((plain_step, random.normals_kernel), (fused_step, fused_normals)):
                softmax._step = step
                turn.append((seconds(action), seconds(lambda: normals(rows, squares, address))))  # noqa: B023
            rounds.append(turn[0][0] / turn[1][0])
            draws.append(turn[0][1] / turn[1][1])
    softmax._step = plain_step
    print("CPU time without fused multiply-add, of the time with it")
    print(f"  a softmax round    {statistics.median(rounds):.3f}")
    print(f"  its directions     {statistics.median(draws):.3f}")


if __name__ == "__main__":
    main()
