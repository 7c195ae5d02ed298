"""One perturbation within a budget: fedzo's and others' at equal queries and equal ε.

    python benchmarks/attack.py                        # ours, on the deer and the network that ship
    python benchmarks/attack.py --compare [--seeds 5]  # all methods, several victims: a table
    python benchmarks/attack.py --compare --quick      # a small table, in minutes
    python benchmarks/attack.py --answers              # victims that tell little, and a target
    python benchmarks/attack.py --throughput           # against the victim's own best

The images that a victim gets right are on ten devices; success is on test images that it gets
right, which nobody has, in 8 bits. The budget is for all queries of an attack, its evaluations
included; telling which images a victim gets right is not counted.

``--compare`` first chooses the settings of every other method for each victim and label, from
``GRIDS``, with seed 0. Success is then measured on the second half of the test images; the table
reports the first half only. It keeps each result in a file of its own in ``--out`` and resumes
where it was stopped. Its victims are the ResNet-8 that ships and those that
``python tools/train_victim.py resnet20 --out victims`` (and ``plain``, ``mixer``, ``carlini``)
writes. fedzo runs with its defaults; the page says how they were chosen.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fedzo
from attack_methods import GRIDS, METHODS
from attack_throughput import measure
from fedzo import data, models
from fedzo.errors import BudgetSpent
from fedzo.problems.attack.inputs import gets_right

Array = NDArray[Any]
Settings = dict[str, Any]

DEVICES, OURS = 10, "fedzo"
SHIPPED = "resnet8"
OF_EACH_CLASS = (40, 100)  # images of a class for the devices, and to measure success on: "all"


class Images(NamedTuple):
    """What the devices have, and what nobody has."""

    train: Array
    labels: Array
    test: Array
    answers: Array


def victim(name: str, folder: Path, **options: Any) -> models.Model:
    """Return the network that ships, or one that was trained into a folder."""
    file = "cifar10-resnet8" if name == SHIPPED else str(folder / f"cifar10-{name}.onnx")
    return models.load(file, **options)


def images_of(judge: models.Model, label: str) -> Images:
    """Return images that a victim gets right: the deer that ship, or some of each class."""
    if label == "deer":
        known = data.load("cifar10-deer-mini")
        parts = [(known.train_inputs, known.train_labels), (known.test_inputs, known.test_labels)]
        found = [gets_right(judge, *part) for part in parts]
    else:
        known = data.load("cifar10")
        parts = [(known.train_inputs, known.train_labels), (known.test_inputs, known.test_labels)]
        found = []
        for (inputs, labels), count in zip(parts, OF_EACH_CLASS, strict=True):
            some = np.concatenate([np.flatnonzero(labels == c)[: 2 * count] for c in range(10)])
            right, of = gets_right(judge, inputs[some], labels[some])
            kept = np.concatenate([np.flatnonzero(of == c)[:count] for c in range(10)])
            found.append((right[kept], of[kept]))
    return Images(*found[0], *found[1])


def ours(
    model: models.Model, images: Images, eps: float, norm: str, seed: int, target: int | None = None
) -> Array:
    """Return the perturbation that UniversalAttack finds with its own settings."""
    order = np.random.default_rng(0).permutation(len(images.labels))  # each device has all classes
    parts = np.array_split(order, DEVICES)
    attack = fedzo.UniversalAttack(model, eps=eps, norm=norm, target=target, seed=seed)
    attack.fit([images.train[part] for part in parts], [images.labels[part] for part in parts])
    return attack.noise.reshape(-1)


def theirs(
    model: models.Model, images: Images, eps: float, method: str, seed: int, settings: Settings
) -> Array:
    """Return what another method has when the queries are spent."""
    rng, delta = np.random.default_rng(seed), np.zeros(images.train[0].size)
    rows = images.train.reshape(len(images.train), -1)

    def ask(batch: Array) -> Array:
        return model(batch.astype(np.float32))

    budget = model.max_queries
    found = METHODS[method](ask, rows, images.labels, eps, budget, rng, **settings)
    try:
        for delta in found:  # noqa: B007  # the last one counts
            pass
    except BudgetSpent:
        pass
    return delta


def half_of(images: Images, which: Array) -> Images:
    """Return the images with some of the test images only."""
    return images._replace(test=images.test[which], answers=images.answers[which])


def success(judge: models.Model, images: Images, delta: Array, target: int | None = None) -> float:
    """Return how often images in 8 bits under a perturbation are taken for something else."""
    levels = np.rint(images.test * 255).reshape(len(images.test), -1)
    moved = (levels + np.rint(delta.astype(np.float64) * 255)).clip(0, 255) / 255
    taken_for = judge.predict(moved.astype(np.float32))
    return float(np.mean(taken_for != images.answers if target is None else taken_for == target))


def run(
    options: argparse.Namespace,
    name: str,
    label: str,
    method: str,
    seed: int,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Return what comes of one attack, from its file if it was made before."""
    eps, budget, settings = options.eps / 255, options.max_queries, settings or {}
    words = f"{name} {label} {method} {options.norm} {options.eps:g} {budget} {seed}"
    words += "".join(f" {key} {value:.3g}" for key, value in settings.items())
    file = "-".join("".join(c if c.isalnum() or c == "." else " " for c in words).split())
    path = options.out / f"{file}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    judge = victim(name, options.victims)
    images = images_of(judge, label)
    model = victim(name, options.victims, max_queries=budget)
    if method == OURS:
        delta = ours(model, images, eps, options.norm, seed)
    else:
        delta = theirs(model, images, eps, method, seed, settings)
    every = np.arange(len(images.answers))
    outcome = {
        "success": success(judge, images, delta),
        "reported": success(judge, half_of(images, every % 2 == 0), delta),
        "choosing": success(judge, half_of(images, every % 2 == 1), delta),
        "queries": model.queries,
        "largest": float(np.abs(np.rint(delta.astype(np.float64) * 255)).max()),
        "images": [len(images.labels), len(images.answers)],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome))
    return outcome


def chosen(options: argparse.Namespace, name: str, label: str, method: str) -> Settings:
    """Return the best settings of another method, on test images that no table reports."""
    if method == OURS or method not in GRIDS:
        return {}
    grid = [{}, *GRIDS[method]] if not options.quick else [{}, *GRIDS[method][:2]]
    tried = [(run(options, name, label, method, 0, one)["choosing"], one) for one in grid]
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


def answers(options: argparse.Namespace) -> None:
    """Print what comes of victims that tell little, and of a target, on what ships."""
    judge, eps = victim(SHIPPED, options.victims), options.eps / 255
    images = images_of(judge, "deer")
    limit: Any = {"max_queries": options.max_queries, "input_shape": judge.input_shape}
    bird = data.load("cifar10-deer-mini").classes.index("bird")
    victims = {
        "only the top class": models.FunctionModel(judge.predict, "labels", classes=10, **limit),
        "probabilities of two digits": models.FunctionModel(
            lambda batch: judge.probabilities(batch).round(2), "probabilities", **limit
        ),
        "logits, to be taken for birds": victim(SHIPPED, options.victims, **limit),
    }
    for name, model in victims.items():
        target = bird if "birds" in name else None
        delta = ours(model, images, eps, options.norm, 0, target)
        rate = success(judge, images, delta, target)
        print(f"{name}: {rate:.0%}, {model.queries:,} queries", flush=True)


def compare(options: argparse.Namespace) -> None:
    """Print a table: for each victim and label the mean success of each method, with its error."""
    labels = options.labels or ("deer", "all")
    cases = [(name, label) for name in (SHIPPED, *options.others) for label in labels]
    methods = options.methods or [*METHODS, OURS]
    rows = []
    for method in methods:
        cells = []
        for case in cases:
            settings, rates = chosen(options, *case, method), []
            for seed in range(options.seeds):
                outcome = run(options, *case, method, seed, settings)
                rates.append(outcome["reported"])
                print(f"# {', '.join(case)}, {method} {settings or ''}, seed {seed}: "
                      f"{rates[-1]:.1%} with {outcome['queries']:,} queries",
                      flush=True)  # fmt: skip
            low, high = interval(rates, (outcome["images"][1] + 1) // 2)
            mean = statistics.mean(rates)
            cells.append(f"{100 * mean:.0f} ({100 * low:.0f}–{100 * high:.0f})")
        rows.append(f"| {method} | {' | '.join(cells)} |")
    print(f"\n| | {' | '.join(', '.join(case) for case in cases)} |")
    print("| --- |" + " --- |" * len(cases))
    print("\n".join(rows))


def main() -> None:
    """Read what is wanted, and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--eps", type=float, default=8.0, help="in grey levels")
    parser.add_argument("--norm", default="inf")
    parser.add_argument("--max-queries", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a small table, in minutes")
    parser.add_argument("--answers", action="store_true")
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--victims", type=Path, default=Path("victims"))
    parser.add_argument("--others", nargs="*", default=["resnet20", "plain", "mixer"])
    parser.add_argument("--methods", nargs="*", choices=[*METHODS, OURS])
    parser.add_argument("--labels", nargs="*", choices=["deer", "all"])
    parser.add_argument("--victim", default=SHIPPED)
    parser.add_argument("--out", type=Path, default=Path("compare-attack"))
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.others = min(options.seeds, 2), []
        options.max_queries = min(options.max_queries, 5_000)
        options.labels = options.labels or ["deer", "all"]
        options.methods = options.methods or [m for m in (*METHODS, OURS) if "ART" not in m]
    if options.throughput:
        model = victim(options.victim, options.victims)
        images = images_of(model, "deer")
        measure(model, images.train, int(images.labels[0]))
    elif options.answers:
        answers(options)
    elif options.compare:
        compare(options)
    else:
        for label, seed in itertools.product(options.labels or ["deer"], range(options.seeds)):
            outcome = run(options, options.victim, label, OURS, seed)
            print(f"{label}, seed {seed}: {outcome['success']:.0%} of {outcome['images'][1]}; "
                  f"{outcome['queries']:,} queries, largest change {outcome['largest']:g}/255",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
