"""Compare `fedzo.tune` with random search and Optuna's TPE, at an equal number of trainings.

    python benchmarks/tuning.py               the table of docs/black-box.md (--only: some rows)
    python benchmarks/tuning.py --defaults    the settings that the default was chosen from

All tune the shipped example, `fedzo run tuning`. For random search and TPE a trial is one training
on each device, and its value the mean over devices: N queries. For fedzo the evaluations
count as well. What each of them ends with is scored again, by seeds that nobody has seen.
"""

import argparse
import statistics
from dataclasses import replace

import numpy as np
import optuna
from threadpoolctl import threadpool_limits

import fedzo
from fedzo.api.tune import TUNER
from fedzo.problems.hyperparameters import SPACE, tuning

DEVICES, FRESH_SEEDS = 10, 5
PROBLEM = tuning(devices=DEVICES)


def federated_mean(params, seeds):
    scores = [
        min(PROBLEM.function(params, device, np.random.default_rng(seed)), PROBLEM.worst)
        for device in range(DEVICES)
        for seed in seeds
    ]
    return statistics.fmean(scores)


def final_score(params):
    return federated_mean(params, [(1 << 40) + k for k in range(FRESH_SEEDS)])


BAD_START = {"learning_rate": 3e-3, "momentum": 0.1, "regularisation": 0.3}


def by_fedzo(queries, seed, algorithm=TUNER, evaluate_every=3, start=None):
    more = {} if evaluate_every is None else {"evaluate_every": evaluate_every}
    return fedzo.tune(
        PROBLEM.function,
        SPACE,
        devices=DEVICES,
        max_queries=queries,
        worst=PROBLEM.worst,
        algorithm=algorithm,
        seed=seed,
        start=start,
        workers=1,
        **more,
    ).params


def by_optuna(queries, seed, sampler):
    trials = queries // DEVICES

    def value(trial):
        params = {
            name: trial.suggest_float(name, kind.low, kind.high, log=kind.log)
            for name, kind in SPACE.items()
        }
        return federated_mean(params, [1000 * seed + trial.number])

    study = optuna.create_study(sampler=sampler(seed=seed))
    study.optimize(value, n_trials=trials)
    return study.best_params


METHODS = {
    'method="auto"': lambda q, s: by_fedzo(q, s, algorithm=None, evaluate_every=None),
    'method="fedzo"': by_fedzo,
    'method="fedzo", from a bad start': lambda q, s: by_fedzo(q, s, start=BAD_START),
    "random search": lambda q, s: by_optuna(q, s, optuna.samplers.RandomSampler),
    "Optuna, TPE": lambda q, s: by_optuna(q, s, optuna.samplers.TPESampler),
}


def row(name, cells):
    print("| " + " | ".join([name, *cells]) + " |", flush=True)


def cell(scores):
    return f"{statistics.fmean(scores):.3f} ± {statistics.stdev(scores):.3f}"


def compare(budgets, seeds, only):
    start = {name: kind.at(0.5) for name, kind in SPACE.items()}
    print(
        f"Score of the start: {final_score(start):.3f}; of the bad: {final_score(BAD_START):.3f}\n"
    )
    row("trainings in all", [str(b) for b in budgets])
    row("---", ["---"] * len(budgets))
    for name, method in METHODS.items():
        if only and name not in only:
            continue
        row(name, [cell([final_score(method(b, s)) for s in range(seeds)]) for b in budgets])


def defaults(budget, seeds):
    row("settings", ["score"])
    row("---", ["---"])
    three = {"directions": 3, "direction_kind": "orthogonal"}
    for change in [
        {},
        {"smoothing": "auto"},
        *({"learning_rate": rate} for rate in (0.1, 0.2, 0.3, 0.5)),
        {"smoothing": 0.1},
        {"smoothing": 0.2},
        {"smoothing": 0.5},
        {"difference": "forward"},
        {"batch_size": 2},
        three,
        {**three, "difference": "forward"},
        {"local_steps": 2},
        {"participants": 5},
    ]:
        algorithm = replace(TUNER, **change)
        scores = [final_score(by_fedzo(budget, s, algorithm)) for s in range(seeds)]
        row(", ".join(f"{k} = {v}" for k, v in change.items()) or "the default", [cell(scores)])
    for every in (1, 2, 5):
        scores = [final_score(by_fedzo(budget, s, evaluate_every=every)) for s in range(seeds)]
        row(f"evaluate_every = {every}", [cell(scores)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], choices=METHODS, metavar="METHOD")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with threadpool_limits(1):
        if arguments.defaults:
            defaults(400, arguments.seeds)
        else:
            compare((100, 200, 400, 800), arguments.seeds, arguments.only)
