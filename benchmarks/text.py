"""SmolLM2 across eight devices by forward passes only: what was tried, at equal queries.

    python benchmarks/text.py [METHOD ...] [--seeds 5] [--passes 640] [--out FILE]

The problem is that of ``fedzo run text``: eight devices with unlike shares of the labels, and a
test set of 1,500 snippets of reviews. Each method has the same number of forward passes of 16
texts (640 are 10,240 queries). Its rate is the best of a few by the accuracy on the validation
texts, with seed 0, and so is the round whose model is taken; test texts choose nothing. Printed
are the test accuracies over the seeds, and that of the model as it came. Results are appended to
FILE, a line each, and found there again. Needs the extra text, peft for ``lora``, and about 45
seconds of a core for each run of 640 passes.

``lora`` trains adapters of rank 4 on the queries and values of attention in place of the norms.
``mezo, tidied`` (all texts in one place) and ``decomfl`` are those of ``benchmarks/mezo.py``.
``adam by gradients`` is the first-order reference: Adam on all texts in one place, where a forward
and a backward pass count as three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

import fedzo
from fedzo.config.experiment import Experiment, parse_overrides
from fedzo.problems import TextProblem
from fedzo.server import Adam, Mean, Momentum, Normalised, ServerOptimizer
from mezo import METHODS as FIELD
from results import Kept, percent

Settings = dict[str, Any]
Best = tuple[np.ndarray, float, int]  # a model, its accuracy on the validation texts, its step
BATCH, EVALUATIONS = 16, 4


class Method(NamedTuple):
    """Rates to choose from, what a rate is of, and what differs from FedZO's settings here."""

    rates: tuple[float, ...]
    server: Callable[[float], ServerOptimizer]
    changes: Mapping[str, Any] = MappingProxyType({})
    of_devices: bool = False  # whether the rate is the devices' own, rather than the server's


def adam(rate: float) -> ServerOptimizer:
    return Adam(learning_rate=rate)


METHODS = {
    "adam": Method((0.01, 0.025), adam),
    "adam, shared directions": Method((0.01, 0.025), adam, {"shared_directions": True}),
    "adam, shared directions, b1 = 1": Method(
        (0.005, 0.01), adam, {"shared_directions": True, "batch_size": 1}
    ),
    "adam, b2 = 4": Method((0.01, 0.025), adam, {"directions": 4}),
    "adam, mu x 10": Method((0.01, 0.025), adam, {"smoothing": 1.2}),
    "lora, adam": Method((0.002, 0.005), adam),
    "normalised": Method((1.0, 2.5), lambda rate: Normalised(learning_rate=rate)),
    "momentum": Method((0.0003, 0.001), lambda rate: Momentum(), of_devices=True),
    "mean": Method((0.003, 0.01), lambda rate: Mean(), of_devices=True),
    "mean, shared directions": Method(
        (0.003, 0.01), lambda rate: Mean(), {"shared_directions": True}, of_devices=True
    ),
}
GRADIENTS = "adam by gradients"
FIELD_RATES = {"mezo, tidied": (3e-4, 1e-3, 3e-3), "decomfl": (1e-3, 3e-3, 1e-2)}
RATES = {
    **{name: method.rates for name, method in METHODS.items()},
    **FIELD_RATES,
    GRADIENTS: (0.003, 0.01),
}


class Bench:
    """The problem, made when it is first needed: it takes a while."""

    def __init__(self, changes: list[str]) -> None:
        self._changes = changes

    @lru_cache(maxsize=1)  # noqa: B019 - there is one bench
    def problem(self, lora: bool) -> tuple[TextProblem, np.ndarray]:
        """Return the problem and its start, with adapters to be trained or the norms."""
        made: Any = Experiment.load("text", parse_overrides(self._changes)).problem()
        if lora:
            import peft

            torch.manual_seed(0)
            config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
            peft.inject_adapter_in_model(config, made.module)
            made = TextProblem(made.upper, made.texts, made.others, "*lora_*")
        made.reported = ("validation",)
        return made, made.initial()

    def run(self, name: str, rate: float, seed: int, passes: int) -> Settings:
        """Return the accuracies of the round that the validation texts choose."""
        problem, start = self.problem(name.startswith("lora"))
        if name == GRADIENTS:
            chosen, accuracy, at = by_gradients(problem, start, rate, seed, passes)
        elif name in FIELD_RATES:
            chosen, accuracy, at = by_field(problem, start, name, rate, seed, passes)
        else:
            chosen, accuracy, at = by_fedzo(problem, start, METHODS[name], rate, seed, passes)
        test = problem.accuracy("test", chosen)
        return {"validation": accuracy, "test": test, "round": at, "cpu": time.process_time()}

    def as_it_came(self) -> Settings:
        problem, start = self.problem(lora=False)
        return {name: problem.accuracy(name, start) for name in ("validation", "test")}


def by_fedzo(
    problem: TextProblem, start: np.ndarray, method: Method, rate: float, seed: int, passes: int
) -> Best:
    settings = {"directions": 1, "batch_size": BATCH, "smoothing": 1e-3 * problem.dim**0.5}
    settings |= method.changes
    if method.of_devices:
        settings["learning_rate"] = rate
    texts = problem.devices * 2 * settings["directions"] * settings["batch_size"]
    rounds = passes * BATCH // texts
    algorithm = fedzo.FedZO(
        **settings,
        local_steps=1,
        direction_kind="gaussian",
        difference="central",
        server=method.server(rate),
    )
    result = fedzo.minimize(
        problem,
        start.copy(),
        algorithm=algorithm,
        uplink=fedzo.Seeds(),
        rounds=rounds,
        seed=seed,
        evaluate_every=max(1, rounds // EVALUATIONS),
    )
    chosen = next(line for line in result.history if line["round"] == result.best.round)
    return result.x, chosen["validation_accuracy"], chosen["round"]


class Pooled:
    """Texts of several devices at once, and the best model so far by the validation texts."""

    def __init__(self, problem: TextProblem, start: np.ndarray, seed: int, steps: int) -> None:
        problem.place(start)
        self.problem, self.draw, self.steps = problem, np.random.default_rng(seed), steps
        self.best: Best = (start, problem.accuracy("validation", start), 0)

    def batch(self, devices: Sequence[int], texts: int) -> Any:
        """Return texts of these devices, each with the same weight."""
        items = [item for device in devices for item in self.problem.data[device].items]
        which = self.draw.integers(len(items), size=texts)
        return self.problem.data[0].collate([items[i] for i in which])

    def loss(self, batch: Any) -> torch.Tensor:
        return self.problem.loss(self.problem.module, batch).mean()

    def judge(self, step: int) -> None:
        """Keep the model if it is the best, at as many steps as fedzo evaluates."""
        if step % (self.steps // EVALUATIONS) == 0:
            with torch.no_grad():
                x = self.problem.initial()
                accuracy = self.problem.accuracy("validation", x)
            self.best = max(self.best, (x, accuracy, step), key=lambda one: one[1])


def by_field(
    problem: TextProblem, start: np.ndarray, name: str, rate: float, seed: int, passes: int
) -> Best:
    parameters = [piece.tensor for piece in problem.pieces]
    # DeComFL's devices take the same direction: the mean of their slopes is that of their losses.
    groups = (
        [[i] for i in range(problem.devices)] if name == "decomfl" else [range(problem.devices)]
    )
    pooled = Pooled(problem, start, seed, passes // (2 * len(groups)))
    for step in range(1, pooled.steps + 1):
        batches = [pooled.batch(group, BATCH) for group in groups]

        @torch.inference_mode()
        def value(batches: list[Any] = batches) -> float:
            return float(np.mean([pooled.loss(batch).item() for batch in batches]))

        with torch.no_grad():
            FIELD[name](parameters, value, seed * 10**6 + step, rate)
        pooled.judge(step)
    return pooled.best


def by_gradients(
    problem: TextProblem, start: np.ndarray, rate: float, seed: int, passes: int
) -> Best:
    pooled = Pooled(problem, start, seed, passes // 3)
    parameters = [piece.tensor.requires_grad_(True) for piece in problem.pieces]
    optimiser = torch.optim.Adam(parameters, rate)
    for step in range(1, pooled.steps + 1):
        optimiser.zero_grad()
        pooled.loss(pooled.batch(range(problem.devices), BATCH)).backward()
        optimiser.step()
        pooled.judge(step)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return pooled.best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=640)
    parser.add_argument("--out", type=Path, help="where results are kept")
    parser.add_argument("--set", action="append", default=[], help="as for fedzo run text")
    given = parser.parse_args()
    for name in given.methods:
        if name not in RATES:
            parser.error(f"{name!r} is not one of {', '.join(RATES)}")
    bench = Bench(given.set)
    found = Kept(
        lambda name, *case: bench.run(name, *case) if case else bench.as_it_came(), given.out
    )
    print(f"{'':24} {'rate':>6} {'validation, seed 0':>20} {'test accuracy':>24}")
    came = found("as it came")
    print(f"{'as it came':24} {'':6} {100 * came['validation']:20.1f} {100 * came['test']:24.1f}")
    for name in given.methods:
        rates = RATES[name]
        tried = {rate: found(name, rate, 0, given.passes)["validation"] for rate in rates}
        rate = max(rates, key=lambda rate: tried[rate])
        span = percent(
            [found(name, rate, seed, given.passes)["test"] for seed in range(given.seeds)]
        )
        print(f"{name:24} {rate:6g} {100 * tried[rate]:20.1f} {span:>24}", flush=True)


if __name__ == "__main__":
    main()
