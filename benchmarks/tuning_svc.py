"""Tune a support vector machine on digits across five devices: `fedzo.tune` and Optuna's TPE.

    python benchmarks/tuning_svc.py [--trainings 150] [--seeds 12]

Nothing is set but the budget, in trainings on one device. What each of them ends with is scored
again, by splits that nobody has seen. Printed are the mean error with its standard error, and the
median. Takes about a minute.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import optuna
from sklearn.datasets import load_digits
from sklearn.svm import SVC

import fedzo

DEVICES, FRESH = 5, range(10**6, 10**6 + 4)
SPACE = {"C": fedzo.Float(1e-3, 1e3, log=True), "gamma": fedzo.Float(1e-7, 1.0, log=True)}
DIGITS, LABELS = load_digits(return_X_y=True)
PARTS = np.array_split(np.random.default_rng(0).permutation(len(LABELS)), DEVICES)


def error(params: Mapping[str, Any], device: int, rng: np.random.Generator) -> float:
    """Train on seven tenths of what a device holds; return the error on the rest."""
    own = rng.permutation(PARTS[device])
    train, test = np.split(own, [int(0.7 * len(own))])
    machine = SVC(C=params["C"], gamma=params["gamma"]).fit(DIGITS[train], LABELS[train])
    return 1 - float(machine.score(DIGITS[test], LABELS[test]))


def mean(params: Mapping[str, Any], seeds: Iterable[int]) -> float:
    every = [(device, seed) for device in range(DEVICES) for seed in seeds]
    return statistics.fmean(error(params, i, np.random.default_rng(seed)) for i, seed in every)


def by_fedzo(trainings: int, seed: int) -> Mapping[str, Any]:
    tuned = fedzo.tune(error, SPACE, devices=DEVICES, max_queries=trainings, seed=seed, workers=1)
    return tuned.params


def by_tpe(trainings: int, seed: int) -> Mapping[str, Any]:
    def value(trial: optuna.Trial) -> float:
        params = {name: trial.suggest_float(name, kind.low, kind.high, log=True)
                  for name, kind in SPACE.items()}  # fmt: skip
        return mean(params, [1000 * seed + trial.number])

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(value, n_trials=trainings // DEVICES)
    return study.best_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=12)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name, method in {"fedzo.tune": by_fedzo, "Optuna, TPE": by_tpe}.items():
        errors = [mean(method(given.trainings, seed), FRESH) for seed in range(given.seeds)]
        spread = statistics.stdev(errors) / len(errors) ** 0.5
        middle = statistics.median(errors)
        print(f"{name:12} {statistics.fmean(errors):.4f} ± {spread:.4f}, median {middle:.4f}")


if __name__ == "__main__":
    main()
