"""What the server does with a round's updates, and a round of an attack beside its model alone."""

from collections.abc import Callable

import numpy as np

from fedzo.algorithms import FedZO
from fedzo.cli.measure import PAPER, medians, one_round
from fedzo.core.engine import LocalEngine
from fedzo.core.tasks import LocalSteps, Replies
from fedzo.problems import Softmax
from fedzo.problems.attack import attack
from fedzo.uplinks import AirComp, Ideal, Seeds
from fedzo.uplinks.base import RunSetting


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
