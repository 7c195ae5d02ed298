"""What bad devices do to a federation, by how its server puts updates together.

python benchmarks/robust.py [--rounds 30] [--bad 2 4 6] [--partition shards iid]

Softmax regression over 20 devices on ten nodes of the in-process grid, so that everything goes
through the messages of a real federation. With ``shards`` the devices differ: each has two shards
of Fashion-MNIST, sorted by class. With ``iid`` they are alike. The first devices are bad:

sign flip     sends -Δ
huge          sends Δ times 1e30, which float32 just holds: 1e100 would be left out as not finite
noise         sends normal numbers, ten times as long as Δ
own optimum   pulls to a point of its own, far away: sends that point - x
ALIE          sends the honest mean minus z honest standard deviations, where z is as large as the
              spread of the honest ones hides (Baruch et al., "A Little Is Enough", NeurIPS 2019)
inner product sends minus half of the honest mean (Xie et al., "Fall of Empires", UAI 2020)
false count   claims 10^9 samples in a mean by size, and flips the sign
false loss    works well, and reports the loss -1e300

The devices of ALIE and of inner product know all honest updates of the round.

The first table has the test accuracy after the last round, as the server would measure it;
"without them" is the mean of the good devices alone, which no rule can be expected to beat. The
second table has the training loss that the history says, and what it is.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from statistics import NormalDist
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
    "Krum": (Robust("krum", trim=0.3), FlowerSettings(), False),
    "multi-Krum": (Robust("krum", trim=0.3, keep=10), FlowerSettings(), False),
    "geometric median": (Robust("geometric_median"), FlowerSettings(), False),
    "coefficients, median": (RobustSeeds("median"), FlowerSettings(), True),
    "coefficients, geometric": (RobustSeeds("geometric_median"), FlowerSettings(), True),
}


def away(x: Array) -> Array:
    """Return the point that a bad device pulls to."""
    return 3 * Draws(1, Stream.PROBLEM).normals(x.size, dtype=x.dtype)


def noise(update: Array, at: Draws) -> Array:
    """Return numbers without a meaning, ten times as long as an update."""
    numbers = at.on(Stream.NOISE).normals(update.size).reshape(update.shape)
    return np.asarray(10 * np.linalg.norm(update) * numbers / np.linalg.norm(numbers), update.dtype)


def little(honest: Array, bad: int) -> Array:
    """Return what ALIE sends: the honest mean minus z honest standard deviations."""
    total = len(honest) + bad
    supporters = total // 2 + 1 - bad  # honest ones that must look worse
    share = (total - bad - supporters) / (total - bad)
    z = NormalDist().inv_cdf(share)
    return np.asarray(honest.mean(axis=0) - z * honest.std(axis=0), honest.dtype)


# What bad devices that know the honest numbers send, given these and the number of bad devices.
COLLUDING: dict[str, Callable[[Array, int], Array]] = {
    "ALIE": little,
    "inner product": lambda honest, bad: np.asarray(-0.5 * honest.mean(axis=0), honest.dtype),
}

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
        self.problem, self.attack, self.bad = problem, attack, bad
        self.seen: tuple[int, bool, Array] = (-1, False, np.empty(0))  # of which round

    def answer(self, message: Message) -> Message | None:
        """Answer as the node does, but for its bad devices."""
        reply, kind = super().answer(message), message.metadata.message_type
        assert reply is not None
        if kind == protocol.TRAIN:
            return Message(self._spoil(message, reply), reply_to=message)
        if kind == protocol.EVALUATE and self.attack == "false loss":
            told = reply.content["answer"]
            assert isinstance(told, ConfigRecord)
            lies = np.array(told["devices"]) < self.bad
            told["values"] = np.where(lies, -1e300, np.frombuffer(told["values"])).tobytes()
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

    def _honest(self, work: LocalSteps, coefficients: bool) -> Array:
        """Return what all honest devices send in this round: M x k numbers."""
        if self.seen[:2] != (work.round, coefficients):
            replies = [work.reply(self.problem, i) for i in range(self.bad, DEVICES)]
            own = [r.coefficients if coefficients else r.delta for r in replies]
            self.seen = (work.round, coefficients, np.stack([np.asarray(v) for v in own]))
        return self.seen[2]

    def _spoiled(self, update: Update, work: LocalSteps) -> Update:
        if self.attack in COLLUDING:
            few = update.coefficients is not None
            sent = COLLUDING[self.attack](self._honest(work, few), self.bad)
            return update._replace(**{"coefficients" if few else "delta": sent})
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
    parser.add_argument("--bad", type=int, nargs="+", default=BAD)
    parser.add_argument("--partition", nargs="+", default=("shards", "iid"))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    assert held_devices({"partition-id": 0, "num-partitions": NODES}, DEVICES) == [0, 1]
    for partition in arguments.partition:
        tables(softmax(devices=DEVICES, partition=partition), arguments.bad, arguments.rounds)


def tables(problem: Softmax, shares: Sequence[int], rounds: int) -> None:
    """Print the tables of a problem."""
    print("\n| bad devices | share | without them | " + " | ".join(RULES) + " |")
    print("| --- | --- | --- |" + " --- |" * len(RULES))
    honest = {bad: without(problem, bad, rounds) for bad in (0, *shares)}
    rows = [("none", "sign flip", 0)]
    names = [name for name in (*ATTACKS, *COLLUDING) if name != "false loss"]
    rows += [(name, name, bad) for name in names for bad in shares]
    for name, attack, bad in rows:
        found = [honest[bad]]
        found += [accuracy(problem, rule, attack, bad, rounds) for rule in RULES]
        cells = " | ".join(f"{value:.3f}" for value in found)
        print(f"| {name} | {bad / DEVICES:.0%} | {cells} |", flush=True)
    print("\n| false losses | the loss | told without a clip | with it (default) |")
    print("| --- | --- | --- | --- |")
    for bad in shares:
        results = [run(problem, rule, "false loss", bad, rounds) for rule in list(RULES)[:2]]
        true = float(problem.losses(results[0].last, np.arange(DEVICES)).mean())
        told = " | ".join(f"{result.history[-1]['train_loss']:.3g}" for result in results)
        print(f"| {bad / DEVICES:.0%} | {true:.3g} | {told} |", flush=True)


if __name__ == "__main__":
    main()
