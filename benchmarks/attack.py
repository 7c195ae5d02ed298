"""One perturbation within a budget: fedzo's and others' at equal queries and equal ε.

    python benchmarks/attack.py                        # ours, on the deer and the network that ship
    python benchmarks/attack.py --compare [--seeds 3]  # all methods, several victims: a table
    python benchmarks/attack.py --compare --quick      # a small table, in minutes
    python benchmarks/attack.py --throughput           # against the victim's own best
    python benchmarks/attack.py --throughput --victim quick  # against one of 25,000 a second

The images that a victim gets right are on ten devices; success is on test images that it gets
right, which nobody has, in 8 bits. The budget is for all queries of an attack, its evaluations
included; telling which images a victim gets right is not counted.

``--compare`` first chooses the settings of every other method for each victim, from ``GRIDS``, with
seed 0. Success is then measured on one half of the test images; the table reports the other half.
It keeps each result in a file of its own in ``--out`` and resumes where it was stopped. Its victims
are those of ``attack_victims.py``, most of them trained on the spot; others are what
``python tools/train_victim.py plain --out victims`` writes, by ``--against plain``. fedzo runs with
its defaults; the page says how they were chosen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedzo
from attack_methods import GRIDS, METHODS, Task
from attack_throughput import measure, quick
from attack_victims import OTHERS, SHIPPED, Victim, victim
from fedzo import models
from fedzo.errors import BudgetSpent, FedzoWarning

Array = NDArray[Any]
Settings = dict[str, Any]

DEVICES, OURS = 10, "fedzo"
SLOW = "ART UniversalPerturbation"  # ten times the time of the others: by --methods only
VICTIMS = (SHIPPED, *OTHERS)
QUICK = (SHIPPED, "digits-mlp", "digits-svc")  # needs neither torch nor CIFAR-10


def ours(model: models.Model, against: Victim, norm: str, seed: int) -> Array:
    """Return the perturbation that UniversalAttack finds with its own settings."""
    order = np.random.default_rng(0).permutation(len(against.labels))  # each device: all classes
    parts = np.array_split(order, DEVICES)
    attack = fedzo.UniversalAttack(model, eps=against.eps, norm=norm, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedzoWarning)  # no success is a result, too
        attack.fit([against.train[part] for part in parts], [against.labels[p] for p in parts])
    return attack.noise.reshape(-1)


def theirs(
    model: models.Model, against: Victim, method: str, seed: int, settings: Settings
) -> Array:
    """Return what another method has when the queries are spent."""
    images = against.train
    delta, rows = np.zeros(images[0].size), images.reshape(len(images), -1)

    def ask(batch: Array) -> Array:
        return model(batch.astype(np.float32))

    rng = np.random.default_rng(seed)
    task = Task(ask, rows, against.labels, images.shape[1:], against.eps, model.max_queries, rng)
    try:
        for delta in METHODS[method](task, **settings):  # noqa: B007  # the last one counts
            pass
    except BudgetSpent:
        pass
    return delta


def fooled(against: Victim, delta: Array) -> Array:
    """Return which test images in 8 bits are taken for something else under a perturbation."""
    levels = np.rint(against.test * 255).reshape(len(against.test), -1)
    moved = (levels + np.rint(delta.astype(np.float64) * 255)).clip(0, 255) / 255
    predictions = against.make()(moved.astype(np.float32)).argmax(axis=1)
    return np.asarray(predictions != against.answers)


def run(
    options: argparse.Namespace, name: str, method: str, seed: int, settings: Settings | None = None
) -> dict[str, Any]:
    """Return what comes of one attack, from its file if it was made before."""
    settings = settings or {}
    words = f"{name} {options.label} {method} {options.norm} {options.max_queries} {seed}"
    words += "".join(f" {key} {value:.3g}" for key, value in settings.items())
    file = "-".join("".join(c if c.isalnum() or c == "." else " " for c in words).split())
    path = options.out / f"{file}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    against, began = victim(name, options.victims, options.label), time.process_time()
    if options.eps is not None:
        against = against._replace(eps=options.eps / 255)
    model = against.make(max_queries=options.max_queries)
    if method == OURS:
        delta = ours(model, against, options.norm, seed)
    else:
        delta = theirs(model, against, method, seed, settings)
    found = fooled(against, delta)
    outcome = {
        "success": float(found.mean()),
        "reported": float(found[::2].mean()),
        "choosing": float(found[1::2].mean()),
        "queries": model.queries,
        "largest": float(np.abs(np.rint(delta.astype(np.float64) * 255)).max()),
        "images": [len(against.labels), len(found)],
        "seconds": time.process_time() - began,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome))
    return outcome


def chosen(options: argparse.Namespace, name: str, method: str) -> Settings:
    """Return the best settings of another method, on test images that no table reports."""
    grid = GRIDS.get(method, [{}])
    if len(grid) == 1:
        return grid[0]
    tried = [(run(options, name, method, 0, one)["choosing"], one) for one in grid]
    return max(tried, key=lambda pair: pair[0])[1]


def interval(rates: list[float], images: int) -> tuple[float, float]:
    """Return the mean rate plus and minus 1.96 standard errors: of the seeds and of the images.

    Seeds share the images, so the error of the images does not shrink with more seeds.
    """
    mean = statistics.mean(rates)
    of_seeds = statistics.variance(rates) / len(rates) if len(rates) > 1 else 0.0
    smoothed = (mean * images + 2) / (images + 4)  # Agresti and Coull: not zero at 0 and 100 %
    half = 1.96 * (of_seeds + smoothed * (1 - smoothed) / images) ** 0.5
    return max(mean - half, 0.0), min(mean + half, 1.0)


def compare(options: argparse.Namespace) -> None:
    """Print a table: for each victim the mean success of each method, with its error."""
    methods = options.methods or [*(each for each in METHODS if each != SLOW), OURS]
    rows: dict[str, list[str]] = {method: [] for method in methods}
    for name, method in itertools.product(options.against, methods):
        settings = chosen(options, name, method)
        outcomes = [run(options, name, method, seed, settings) for seed in range(options.seeds)]
        rates, test = [one["reported"] for one in outcomes], outcomes[0]["images"][1]
        asked = statistics.mean(one["queries"] for one in outcomes)
        low, high = interval(rates, (test + 1) // 2)
        mean = statistics.mean(rates)
        rows[method].append(f"{100 * mean:.0f} ({100 * low:.0f}–{100 * high:.0f})")
        print(f"# {name}, {method} {settings or ''}: {rows[method][-1]}, {asked:,.0f} queries",
              flush=True)  # fmt: skip
    print(f"\n| | {' | '.join(options.against)} |")
    print("| --- |" + " --- |" * len(options.against))
    for method, cells in rows.items():
        print(f"| {method} | {' | '.join(cells)} |")
    seconds = sum(json.loads(file.read_text())["seconds"] for file in options.out.glob("*.json"))
    print(f"\nall attacks in {options.out}: {seconds / 60:.1f} minutes of processor time")


def main() -> None:
    """Read what is wanted, and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--eps", type=float, help="in grey levels; by default the victim's")
    parser.add_argument("--norm", default="inf")
    parser.add_argument("--max-queries", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a small table, in minutes")
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--victims", type=Path, default=Path("victims"))
    parser.add_argument("--against", nargs="*", default=list(VICTIMS), help="victims to compare on")
    parser.add_argument("--methods", nargs="*", choices=[*METHODS, OURS])
    parser.add_argument("--label", choices=["deer", "all"], help="of the images of CIFAR-10")
    parser.add_argument("--victim", default=SHIPPED)
    parser.add_argument("--out", type=Path, default=Path("compare-attack"))
    options = parser.parse_args()
    options.label = options.label or ("all" if options.compare and not options.quick else "deer")
    if options.quick:
        options.seeds, options.against = 1, list(QUICK)
    if options.throughput and options.victim == "quick":
        measure(*quick())
    elif options.throughput:
        against = victim(options.victim, options.victims, "deer")
        measure(against.make(), against.train, int(against.labels[0]))
    elif options.compare:
        compare(options)
    else:
        for seed in range(options.seeds):
            outcome = run(options, options.victim, OURS, seed)
            print(f"seed {seed}: {outcome['success']:.0%} of {outcome['images'][1]}; "
                  f"{outcome['queries']:,} queries, largest change {outcome['largest']:g}/255",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
