"""Kernels of a device's step, a round, what the server does with it, and a round of an attack."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from threadpoolctl import ThreadpoolController

from fedzo.algorithms import FedZO
from fedzo.core.directions import DirectionBuffer
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Replies
from fedzo.problems import Softmax
from fedzo.problems.attack import attack
from fedzo.uplinks import AirComp, Ideal, Seeds
from fedzo.uplinks.base import RunSetting
from timing import PAPER, medians, one_round


def uplinks(problem: Softmax, round_seconds: float, repeats: int) -> None:
    """Time the aggregation of a round's updates by each uplink, and their reconstruction."""
    devices = range(PAPER.participants or 0)
    task = LocalSteps(PAPER, problem.initial(), float(PAPER.learning_rate), devices=devices)
    with LocalEngine(problem, 0, None) as engine:
        updates = list(engine.ask(task))

        def rebuild_all() -> None:
            for update in updates:
                task.rebuild(update)

        setting = RunSetting(engine, Ideal())
        uplinks = {"ideal": Ideal(), "aircomp": AirComp(), "seeds": Seeds()}
        actions: dict[str, Callable[[], object]] = {
            name: lambda uplink=uplink: uplink.aggregate(0, Replies(updates), setting)
            for name, uplink in uplinks.items()
        }
        times = medians({**actions, "rebuild": rebuild_all}, repeats)
    print("\nwhat the server does with a round's updates, one thread")
    for name in uplinks:
        share = f"{100 * times[name] / round_seconds:.1f} % of the round"
        print(f"  {name:<31} {times[name] * 1e3:8.2f} ms   {share}")
    print(f"  a remote server's rebuilding    {times['rebuild'] * 1e3:8.2f} ms")


def attack_round(repeats: int) -> None:
    """Time a round of an attack, alternately with the model alone on as many images."""
    problem = attack(devices=10)
    algorithm = FedZO(batch_size=25, directions=20, local_steps=2)
    images = 10 * 2 * 25 * 21
    inputs = np.resize(problem.own.rows, (images, problem.dim))
    engine, action = one_round(problem, algorithm, None)
    with engine:
        times = medians({"round": action, "model": lambda: problem.model(inputs)}, repeats)
    print(f"\nan attack's round (cifar10-resnet8, N=10, H=2, {images:,} queries)")
    print(f"  round                           {times['round'] * 1e3:8.1f} ms")
    print(f"  the model alone, as many images {times['model'] * 1e3:8.1f} ms")
    print(f"  model alone / round             {100 * times['model'] / times['round']:8.0f} %")


def kernels_and_round(problem: Softmax, quick: bool) -> None:
    """Print the times of the kernels, and of a round against them."""
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        kernels = _kernels(problem, 5 if quick else 60)
    _round(problem, kernels, 5 if quick else 40)


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
    names = {"directions": "directions with norms", "numpy": "NumPy's standard_normal float32"}
    for key, name in names.items():
        each = times[key] / numbers * 1e9
        print(f"  {name:<31} {times[key] * 1e6:8.1f} us  {each:.2f} ns each")
    print(f"  directions against NumPy        {times['numpy'] / times['directions']:8.1f} x")
    for name in ("batch", "product", "update", "whole step"):
        print(f"  {name:<31} {times[name] * 1e6:8.1f} us")
    rate = 2 * 1024**3 / times["large product"]
    print(f"  BLAS, 1024 x 1024 float32       {rate / 1e9:8.1f} GFlop/s")
    return {"seconds_a_normal": times["directions"] / numbers, "flops": rate}


def _round(problem: Softmax, kernels: Mapping[str, float], repeats: int) -> None:
    """Time a round of the paper's setting against a lower bound."""
    steps = PAPER.local_steps * (PAPER.participants or 0)
    buffer = DirectionBuffer("sphere", PAPER.directions, problem.dim, np.float32)
    batch = problem.batch(0, PAPER.batch_size, Draws(0, Stream.BATCHES))
    tall, wide = buffer.rows.reshape(-1, problem.features + 1), batch.inputs.T

    def floor_of_a_round() -> None:
        for step in range(steps):
            buffer.draw(Draws(0, Stream.DIRECTIONS, step=step))
            np.matmul(tall, wide)

    engine, action = one_round(problem, PAPER, None)
    with engine:
        seconds = medians({"round": action}, repeats)["round"]
        actions = {"round": action, "floor": floor_of_a_round}
        busy = medians(actions, repeats, clock=time.process_time)
    numbers = PAPER.directions * problem.dim
    flops = 2 * PAPER.batch_size * numbers
    each = numbers * kernels["seconds_a_normal"] + flops / kernels["flops"]
    floor = steps * each / engine.workers
    sizes = f"N={problem.devices}, M={PAPER.participants}, H={PAPER.local_steps}"
    print(f"\none round ({problem.data.name}, {sizes}, {engine.workers} workers)")
    print(f"  round                           {seconds * 1e3:8.2f} ms")
    print(f"  floor: normals + product        {floor * 1e3:8.2f} ms")
    print(f"  floor / round                   {100 * floor / seconds:8.0f} %")
    print(f"  floor / round, in CPU time      {100 * busy['floor'] / busy['round']:8.0f} %")
