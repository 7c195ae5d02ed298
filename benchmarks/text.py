"""SmolLM2 across eight devices by forward passes only: what was tried, at equal queries.

    python benchmarks/text.py [METHOD ...] [--seeds 5] [--passes 640] [--out FILE]

The problem is that of ``fedzo run text``: eight devices with unlike shares of the labels, and a
test set of 1,500 snippets of reviews. Each method has the same number of forward passes of 16
texts (640 are 10,240 queries). Its rate is the best of a few by the accuracy on the validation
texts, with seed 0, and so is the round whose model is taken; test texts choose nothing. Printed
are the test accuracies over the seeds, and that of the model as it came. Results are appended to
FILE, a line each, and found there again. Needs the extra text, and an hour for all of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fedzo
from fedzo.algorithms import server
from fedzo.algorithms.server import ServerStep
from fedzo.config.experiment import Experiment

Settings = dict[str, Any]
MEAN: Callable[[float], ServerStep] = lambda rate: server.Mean()  # noqa: E731

# name: rates to choose from, the server step of a rate, and what differs in the algorithm
METHODS: dict[str, tuple[tuple[float, ...], Callable[[float], ServerStep], Settings]] = {
    "adam": ((0.01, 0.02, 0.04), lambda rate: server.Adam(rate=rate), {}),
    "normalised": ((1.0, 2.0, 4.0), lambda rate: server.Normalised(rate=rate), {}),
    "momentum": ((0.0005, 0.001, 0.002), lambda rate: server.Momentum(), {}),
    "mean": ((0.002, 0.005, 0.01), MEAN, {}),
    "adam, shared": (
        (0.01, 0.02, 0.04),
        lambda rate: server.Adam(rate=rate),
        {"shared_directions": True},
    ),
    "adam, b2 = 4": ((0.01, 0.02, 0.04), lambda rate: server.Adam(rate=rate), {"directions": 4}),
    "adam, 10 mu": ((0.01, 0.02, 0.04), lambda rate: server.Adam(rate=rate), {"smoothing": 1.2}),
}
if hasattr(server, "HiSo"):
    METHODS["hiso"] = ((0.002, 0.005, 0.01), lambda rate: server.HiSo(), {})


def train(problem: fedzo.TorchProblem, name: str, rate: float, seed: int, passes: int) -> Settings:
    """Return the record of the round that the validation texts choose."""
    _, make, changes = METHODS[name]
    settings = {"directions": 1, "smoothing": 0.12, **changes}
    if make is MEAN or name in ("momentum", "hiso"):
        settings["learning_rate"] = rate
    rounds = passes // (problem.devices * 2 * settings["directions"])
    algorithm = fedzo.FedZO(
        **settings,
        local_steps=1,
        batch_size=16,
        direction_kind="gaussian",
        difference="central",
        server=make(rate),
    )
    result = fedzo.minimize(
        problem,
        START[0],
        algorithm=algorithm,
        uplink=fedzo.Seeds(),
        rounds=rounds,
        seed=seed,
        evaluate_every=max(1, rounds // 4),
    )
    chosen = next(line for line in result.history if line["round"] == result.best.round)
    return {
        "start": result.history[0]["test_accuracy"],
        "validation": chosen["validation_accuracy"],
        "test": chosen["test_accuracy"],
        "round": chosen["round"],
        "last": result.history[-1]["test_accuracy"],
    }


START: list[np.ndarray] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=640)
    parser.add_argument("--out", type=Path, help="where results are kept")
    parser.add_argument("--set", action="append", default=[], help="as for fedzo run text")
    given = parser.parse_args()
    known: dict[str, Mapping[str, float]] = {}
    if given.out and given.out.exists():
        known = dict(json.loads(line) for line in given.out.read_text().splitlines())
    problem: Any = Experiment.load("text", given.set).problem()
    START.append(problem.initial())

    def found(*case: Any) -> Mapping[str, float]:
        key = json.dumps(case)
        if key not in known:
            known[key] = train(problem, *case)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps([key, known[key]]) + "\n")
        return known[key]

    print(f"{'':16} {'rate':>8} {'test accuracy, mean (least to most)':>38} {'last round':>12}")
    for name in given.methods:
        rates = METHODS[name][0]
        rate = max(rates, key=lambda rate: found(name, rate, 0, given.passes)["validation"])
        results = [found(name, rate, seed, given.passes) for seed in range(given.seeds)]
        test = 100 * np.array([result["test"] for result in results])
        last = 100 * np.mean([result["last"] for result in results])
        span = f"{test.mean():.1f} ({test.min():.1f} to {test.max():.1f})"
        print(f"{name:16} {rate:8g} {span:>38} {last:12.1f}", flush=True)
        print(f"{'as it came':16} {'':8} {100 * results[0]['start']:>38.1f}", flush=True)


if __name__ == "__main__":
    main()
