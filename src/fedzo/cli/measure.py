"""Measure this machine: the kernels, a round against its lower bound, how the cost grows.

Times are medians over repeats. Actions that are compared alternate in one process, so that other
load on the machine affects all of them.
"""

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from fedzo import data
from fedzo.algorithms import FedZO
from fedzo.core.directions import DirectionBuffer
from fedzo.core.engine import LocalEngine, drive
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Losses, Replies
from fedzo.core.types import Array
from fedzo.problems import Softmax, softmax
from fedzo.problems.attack import attack
from fedzo.uplinks import AirComp, Ideal, Seeds
from fedzo.uplinks.base import RunSetting

PAPER = FedZO(
    learning_rate=0.001,
    smoothing=0.001,
    batch_size=25,
    directions=20,
    local_steps=5,
    participants=20,
)


class Synthetic(Objective):
    """f_i(x) = 1/2 |x - c_i|^2 with c_i computed on demand: memory does not grow with N."""

    def __init__(self, dim: int, devices: int) -> None:
        self.dim, self.devices = dim, devices

    def initial(self) -> Array:
        """Start at zero, in single precision."""
        return np.zeros(self.dim, np.float32)

    def batch(self, device: int, size: int, draws: Draws) -> float:
        """Return the device's centre, the same number in all coordinates."""
        return device / self.devices

    def values(self, points: Array, batch: float) -> Array:
        """Return the loss at each point, (k, 1)."""
        return np.asarray(0.5 * np.sum((points - batch) ** 2, axis=1, keepdims=True))

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: float
    ) -> Array:
        """Expand the square: two products with the directions, no points."""
        away = x - np.float32(batch)
        linear = (directions @ away)[rows]
        square = np.einsum("nd,nd->n", directions, directions)[rows]
        values = 0.5 * away @ away + steps * linear + 0.5 * steps**2 * square
        return np.asarray(values[:, None])

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x), for many devices at once."""
        centres = devices / self.devices
        return np.asarray(
            0.5 * (float(x @ x) - 2 * centres * float(x.sum()) + self.dim * centres**2)
        )


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
    """Print all measurements."""
    problem = paper_problem()
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        kernels = _kernels(problem, 5 if quick else 60)
    seconds = _round(problem, kernels, 5 if quick else 40)
    _uplinks(problem, seconds, 3 if quick else 20)
    _attack(1 if quick else 5)
    _growth(3 if quick else 15)
    _memory([100, 10_000] if quick else [100, 10_000, 1_000_000])


def _kernels(problem: Softmax, repeats: int) -> dict[str, float]:
    """Time the parts of a device's step, on one thread."""
    count, dim = PAPER.directions, problem.dim
    buffer = DirectionBuffer("sphere", count, dim, np.float32)
    draws = Draws(0, Stream.DIRECTIONS)
    numpy_rows, generator = np.empty((count, dim), np.float32), np.random.default_rng(0)
    batch = problem.batch(0, PAPER.batch_size, Draws(0, Stream.BATCHES))
    width = problem.features + 1
    tall, wide = buffer.rows.reshape(-1, width), batch.inputs.T
    logits = np.empty((len(tall), PAPER.batch_size), np.float32)
    left, right = np.ones((2, 1024, 1024), np.float32)
    x, delta, weights = problem.initial(), problem.initial(), np.zeros(count)
    buffer.draw(draws)
    times = medians(
        {
            "directions": lambda: buffer.draw(draws),
            "numpy": lambda: generator.standard_normal(out=numpy_rows, dtype=np.float32),
            "batch": lambda: problem.batch(0, PAPER.batch_size, Draws(0, Stream.BATCHES)),
            "whole step": lambda: PAPER.estimator.step(
                problem, x, PAPER.batch_size, buffer, draws, 1e-3, delta, x
            ),
            "product": lambda: np.matmul(tall, wide, out=logits),
            "update": lambda: buffer.advance(weights, delta, x),
            "large product": lambda: left @ right,
        },
        repeats,
        burst=5,
    )
    numbers = count * dim
    print(f"one device step, one thread (b1={PAPER.batch_size}, b2={count}, d={dim})")
    for key, name in (
        ("directions", "directions with their norms"),
        ("numpy", "NumPy's standard_normal float32"),
    ):
        each = times[key] / numbers * 1e9
        print(f"  {name:<31} {times[key] * 1e6:8.1f} us  {each:.2f} ns each")
    print(f"  directions against NumPy        {times['numpy'] / times['directions']:8.1f} x")
    for name in ("batch", "product", "update", "whole step"):
        print(f"  {name:<31} {times[name] * 1e6:8.1f} us")
    rate = 2 * 1024**3 / times["large product"]
    print(f"  BLAS, 1024 x 1024 float32       {rate / 1e9:8.1f} GFlop/s")
    return {"seconds_a_normal": times["directions"] / numbers, "flops": rate}


def _round(problem: Softmax, kernels: Mapping[str, float], repeats: int) -> float:
    """Time a round of the paper's setting against a lower bound."""
    engine, action = one_round(problem, PAPER, None)
    with engine:
        seconds = medians({"round": action}, repeats)["round"]
    steps = PAPER.local_steps * (PAPER.participants or 0)
    numbers = PAPER.directions * problem.dim
    flops = 2 * PAPER.batch_size * numbers
    floor = steps * (numbers * kernels["seconds_a_normal"] + flops / kernels["flops"])
    floor /= engine.workers
    setting = (
        f"{problem.data.name}, N={problem.devices}, M={PAPER.participants}, H={PAPER.local_steps}"
    )
    print(f"\none round ({setting}, {engine.workers} workers)")
    print(f"  round                           {seconds * 1e3:8.2f} ms")
    print(f"  floor: normals + product        {floor * 1e3:8.2f} ms")
    print(f"  floor / round                   {100 * floor / seconds:8.0f} %")
    return seconds


def _uplinks(problem: Softmax, round_seconds: float, repeats: int) -> None:
    """Time the aggregation of a round's updates by each uplink, and their reconstruction."""
    x, seed = problem.initial(), 0
    rate, devices = float(PAPER.learning_rate), range(PAPER.participants or 0)
    task = LocalSteps(PAPER, x, rate, seed=seed, devices=devices)
    with LocalEngine(problem, seed, None) as engine:
        updates = list(engine.ask(task))

        def rebuild_all() -> None:
            for update in updates:
                task.rebuild(update)

        setting = RunSetting(engine, Ideal())
        uplinks = {"ideal": Ideal(), "aircomp": AirComp(), "seeds": Seeds()}
        actions: dict[str, Callable[[], object]] = {
            name: lambda uplink=uplink: uplink.aggregate(0, Replies(updates), setting)  # type: ignore[misc]
            for name, uplink in uplinks.items()
        }
        times = medians({**actions, "rebuild": rebuild_all}, repeats)
    print("\nwhat the server does with a round's updates, one thread")
    for name in uplinks:
        share = 100 * times[name] / round_seconds
        print(f"  {name:<31} {times[name] * 1e3:8.2f} ms   {share:.1f} % of the round")
    print(f"  a remote server's rebuilding    {times['rebuild'] * 1e3:8.2f} ms")


def _attack(repeats: int) -> None:
    """Time a round of an attack, alternately with the model alone on as many images."""
    problem = attack(devices=10)
    algorithm = FedZO(batch_size=25, directions=20, local_steps=2)
    images = 10 * 2 * 25 * 21
    inputs = np.resize(problem.own.rows, (images, problem.dim))
    engine, action = one_round(problem, algorithm, None)
    with engine:
        actions = {"round": action, "model": lambda: problem.model(inputs)}
        times = medians(actions, repeats)
    print(f"\nan attack's round (cifar10-resnet8, N=10, H=2, {images:,} queries)")
    print(f"  round                           {times['round'] * 1e3:8.1f} ms")
    print(f"  the model alone, as many images {times['model'] * 1e3:8.1f} ms")
    print(f"  model alone / round             {100 * times['model'] / times['round']:8.0f} %")


def _growth(repeats: int) -> None:
    """Print how a round's time grows: the slope of log time against log of each parameter."""
    print("\nhow a round's time grows: one parameter varies from d=2000, M=10, H=5, b2=20")
    rows = {
        "devices N": ("devices", (100, 1000, 10_000, 100_000)),
        "participants M": ("participants", (10, 20, 40, 80)),
        "local steps H": ("local_steps", (5, 10, 20, 40)),
        "directions b2": ("directions", (20, 40, 80, 160)),
        "dimension d": ("dim", (2000, 8000, 32_000, 128_000)),
    }
    for name, (key, values) in rows.items():
        seconds = []
        for value in values:
            sizes: dict[str, Any] = {"participants": 10, "local_steps": 5, "directions": 20}
            sizes |= {"dim": 2000, "devices": 1000, key: value}
            objective = Synthetic(sizes.pop("dim"), sizes.pop("devices"))
            engine, action = one_round(objective, FedZO(**sizes), None)
            with engine:
                seconds.append(medians({"round": action}, repeats)["round"])
        slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
        times = "  ".join(f"{v:,}: {s * 1e3:.1f} ms" for v, s in zip(values, seconds, strict=True))
        print(f"  {name:<16} slope {slope:5.2f}   {times}")


def _memory(device_counts: Sequence[int]) -> None:
    """Print the peak memory of a process that runs a few rounds with N devices."""
    print("\npeak memory of a run, synthetic objective, d=10,000, M=20")
    for devices in device_counts:
        child = subprocess.run(
            [sys.executable, "-m", "fedzo.cli.measure", str(devices)],
            check=True,
            capture_output=True,
            text=True,
        )
        print(f"  N = {devices:>9,}   {float(child.stdout):8.0f} MB")


def _peak_memory(devices: int) -> float:
    """Run three rounds and an evaluation; return this process's peak memory in MB."""
    engine, action = one_round(Synthetic(10_000, devices), PAPER, 2)
    with engine:
        for _ in range(3):
            action()
        mean = engine.ask(Losses(np.zeros(10_000, np.float32))).losses.mean()
    assert math.isfinite(mean)
    # Not getrusage's ru_maxrss, which a child begins with its parent's.
    status = Path("/proc/self/status").read_text()
    return int(next(s for s in status.splitlines() if s.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    print(_peak_memory(int(sys.argv[1])))
