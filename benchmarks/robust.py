"""What bad devices do to a federation, by how its server puts updates together.

python benchmarks/robust.py [--rounds 30]

Softmax regression over 20 devices (two shards of Fashion-MNIST each) on ten nodes of the in-process
grid, so that everything goes through the messages of a real federation. The first devices are bad:

sign flip     sends -Δ
huge          sends Δ times 1e30, which float32 just holds: 1e100 would be left out as not finite
noise         sends normal numbers, ten times as long as Δ
own optimum   pulls to a point of its own, far away: sends that point - x
false count   claims 10^9 samples in a mean by size, and flips the sign
false loss    works well, and reports the loss -1e300

The first table has the test accuracy after the last round, as the server would measure it; "without
them" is the mean of the good devices alone, which no rule can be expected to beat. The second table
has the training loss that the history says, and what it is.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

import fedzo
from fedzo.core.engine import LocalEngine
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps, Task, Update
from fedzo.flower import FlowerEngine, FlowerSettings, InProcessGrid, make_client_app, protocol
from fedzo.flower.policy import held_devices
from fedzo.problems import Softmax, softmax
from fedzo.runs import Job, Result, RunOptions, run_job
from fedzo.uplinks import Ideal, Robust, RobustSeeds, Uplink

Array = NDArray[Any]
DEVICES, NODES = 20, 10
BAD = (2, 4, 6)  # of them
UNCLIPPED = FlowerSettings(clip=False)

RULES: dict[str, tuple[Uplink, FlowerSettings, bool]] = {  # uplink, settings, shared directions
    "mean": (Ideal(), UNCLIPPED, False),
    "clip (default)": (Ideal(), FlowerSettings(), False),
    "median": (Robust("median"), FlowerSettings(), False),
    "trimmed mean": (Robust("trimmed_mean", trim=0.3), FlowerSettings(), False),
    "coefficients, median": (RobustSeeds("median"), FlowerSettings(), True),
    "coefficients, trimmed": (RobustSeeds("trimmed_mean", trim=0.3), FlowerSettings(), True),
}


def away(x: Array) -> Array:
    """Return the point that a bad device pulls to."""
    return 3 * Draws(1, Stream.PROBLEM).normals(x.size, dtype=x.dtype)


def noise(update: Array, at: Draws) -> Array:
    """Return numbers without a meaning, ten times as long as an update."""
    numbers = at.on(Stream.NOISE).normals(update.size).reshape(update.shape)
    return np.asarray(10 * np.linalg.norm(update) * numbers / np.linalg.norm(numbers), update.dtype)


# What a bad device sends in place of its numbers v, be they an update or coefficients.
ATTACKS: dict[str, Callable[[Array, Array, Draws], Array]] = {
    "sign flip": lambda v, x, at: -v,
    "huge": lambda v, x, at: (v * v.dtype.type(1e30)).astype(v.dtype),
    "noise": lambda v, x, at: noise(v, at),
    "own optimum": lambda v, x, at: away(x) - x if v.shape == x.shape else -100 * v,
    "false count": lambda v, x, at: -v,
    "false loss": lambda v, x, at: v,
}


class BadNodes(InProcessGrid):
    """Nodes of which some devices answer what an attack makes of their answers."""

    def __init__(self, problem: Softmax, attack: str, bad: int) -> None:
        super().__init__(make_client_app(lambda context: problem), NODES)
        self.attack, self.bad = attack, bad

    def answer(self, message: Message) -> Message | None:
        """Answer as the node does, but for its bad devices."""
        reply, kind = super().answer(message), message.metadata.message_type
        assert reply is not None
        if kind == protocol.TRAIN:
            return Message(self._spoil(message, reply), reply_to=message)
        if kind == protocol.EVALUATE and self.attack == "false loss":
            told = reply.content["answer"]
            assert isinstance(told, ConfigRecord)
            told["losses"] = [
                -1e300 if i < self.bad else loss
                for i, loss in zip(told["devices"], told["losses"], strict=True)
            ]
        if kind == protocol.HELLO and self.attack == "false count":
            told = reply.content["hello"]
            assert isinstance(told, ConfigRecord)
            told["sizes"] = [
                10**9 if i < self.bad else size
                for i, size in zip(told["held"], told["sizes"], strict=True)
            ]
        return reply

    def _spoil(self, message: Message, reply: Message) -> Any:
        work, devices, coefficients = protocol.read_task(message.content, KNOWN)
        told = protocol.read_answer(reply.content, len(devices))
        updates = tuple(self._spoiled(u, work) if u.device < self.bad else u for u in told.updates)
        return protocol.answer(told._replace(updates=updates), coefficients)

    def _spoiled(self, update: Update, work: LocalSteps) -> Update:
        change, at = ATTACKS[self.attack], work.draws(update.device)
        if update.coefficients is not None:
            update = update._replace(coefficients=change(update.coefficients, work.x, at))
        else:
            update = update._replace(delta=change(update.delta, work.x, at))
        return update._replace(weight=1e9) if self.attack == "false count" else update


KNOWN = {"fedzo": fedzo.FedZO}


def run(problem: Softmax, rule: str, attack: str, bad: int, rounds: int) -> Result:
    """Return what came of one run."""
    uplink, settings, shared = RULES[rule]
    weighting = "size" if attack == "false count" else "uniform"
    algorithm = fedzo.FedZO(learning_rate=0.003, weighting=weighting, shared_directions=shared)
    engine = FlowerEngine(BadNodes(problem, attack, bad), 0, uplink, settings)
    job = Job(algorithm, uplink, RunOptions(rounds=rounds, evaluate_every=rounds), tables={})
    return run_job(job, engine, problem.initial())


def accuracy(problem: Softmax, rule: str, attack: str, bad: int, rounds: int) -> float:
    """Return the test accuracy after the last round."""
    with np.errstate(all="ignore"):
        x = run(problem, rule, attack, bad, rounds).last
        return float(problem.metrics(x)["test_accuracy"])


class Absent(LocalEngine):
    """All devices in this process, of which the first do not take part."""

    def __init__(self, problem: Softmax, bad: int) -> None:
        super().__init__(problem, seed=0)
        self.bad = bad

    def ask(self, task: Any) -> Any:
        """Ask the good devices only."""
        if isinstance(task, Task):
            task = task.only([i for i in task.devices if i >= self.bad])
        return super().ask(task)


def without(problem: Softmax, bad: int, rounds: int) -> float:
    """Return the test accuracy of a run of the good devices alone."""
    options = RunOptions(rounds=rounds, evaluate_every=rounds)
    job = Job(fedzo.FedZO(learning_rate=0.003), Ideal(), options, tables={})
    x = run_job(job, Absent(problem, bad), problem.initial()).last
    return float(problem.metrics(x)["test_accuracy"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    problem = softmax(devices=DEVICES)
    assert held_devices({"partition-id": 0, "num-partitions": NODES}, DEVICES) == [0, 1]
    print("| bad devices | share | without them | " + " | ".join(RULES) + " |")
    print("| --- | --- | --- |" + " --- |" * len(RULES))
    honest = {bad: without(problem, bad, rounds) for bad in (0, *BAD)}
    rows = [("none", "sign flip", 0)]
    rows += [(name, name, bad) for name in ATTACKS if name != "false loss" for bad in BAD]
    for name, attack, bad in rows:
        found = [honest[bad]]
        found += [accuracy(problem, rule, attack, bad, rounds) for rule in RULES]
        cells = " | ".join(f"{value:.3f}" for value in found)
        print(f"| {name} | {bad / DEVICES:.0%} | {cells} |", flush=True)
    print("\n| false losses | the loss | told without a clip | with it (default) |")
    print("| --- | --- | --- | --- |")
    for bad in BAD:
        results = [run(problem, rule, "false loss", bad, rounds) for rule in list(RULES)[:2]]
        true = float(problem.losses(results[0].last, np.arange(DEVICES)).mean())
        told = " | ".join(f"{result.history[-1]['train_loss']:.3g}" for result in results)
        print(f"| {bad / DEVICES:.0%} | {true:.3g} | {told} |", flush=True)


if __name__ == "__main__":
    main()
