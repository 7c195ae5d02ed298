"""Our methods and others at equal queries, on problems that nobody tuned them on.

    python benchmarks/compare.py [--set development|held-back|new] [--seeds 5] [--out DIR]
    python benchmarks/compare.py --bbob 11 12 [--dims 10 40] [--suite bbob-noisy]

Others minimise the federated mean, and each of their calls counts once for every device. Nothing
is set but the budget: the start's scale is all that anybody is told; the second table is of methods
whose best number was looked for on the problem itself. ``nevergrad`` and ``optuna`` take part where
they are installed; BBOB needs ``coco-experiment``. Every run is a line of a file in DIR: what is
there is not run again, so the work can be done in parts.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedzo
from comparing import bbob
from comparing.methods import METHODS, TUNED, methods
from comparing.problems import Problem, development, held_back, new_instances
from comparing.scores import STEPS, Record, as_table, ends, lowest, plot

warnings.filterwarnings("ignore")
SETS = {"development": development, "held-back": held_back, "new": new_instances}


class Kept:
    """Records in a file, a line each, found again by some of their keys."""

    def __init__(self, path: Path, *keys: str) -> None:
        self.path, self.keys = path, keys
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.records: dict[tuple[Any, ...], Record] = {}
        for record in map(json.loads, lines):
            self.records[tuple(record[key] for key in keys)] = record

    def get(self, make: Callable[[], Record], *at: Any) -> Record:
        """Return a record, made and written if it is not there."""
        if at not in self.records:
            record = dict(zip(self.keys, at, strict=True)) | make()
            self.records[at] = record
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(*at, record.get("start", ""), record.get("end", ""), flush=True)
        return self.records[at]


def run(method: Callable[[Problem, int], Any], problem: Problem, seed: int) -> Record:
    """Run a method on a problem; return where it has come to, on the way and at the end."""
    start = problem.true(problem.x0)
    try:
        trail, note = method(problem, seed), ""
    except fedzo.errors.FedzoError as error:
        trail, note = [], f"{type(error).__name__}: {error}"
    found = [lowest(trail, step, start) for step in np.linspace(0, problem.queries, STEPS)]
    return {"start": start, "end": found[-1], "values": found, "note": note}


def untuned(name: str, seeds: int, out: Path, only: list[str]) -> Iterator[Record]:
    """Yield the records of all methods on all problems of a set."""
    kept = Kept(out / f"{name}.jsonl", "problem", "seed", "method")
    taking_part = {n: m for n, m in methods().items() if not only or n in only}
    for seed in range(seeds):
        for at, like in enumerate(SETS[name](seed)):
            for method, (function, largest) in taking_part.items():
                if like.x0.size <= largest:
                    # Made anew, so that everybody has the same noise.
                    yield kept.get(
                        lambda f=function, s=seed, k=at: run(f, SETS[name](s)[k], s),
                        like.name,
                        seed,
                        method,
                    )


def tuned(name: str, seeds: int, out: Path) -> Iterator[Record]:
    """Yield the records of the methods with the number that is best for each problem."""
    kept = Kept(out / f"{name}-tuned.jsonl", "problem", "seed", "method", "number")
    for method, numbers in TUNED.items():
        for at, like in enumerate(SETS[name](0)):
            every = {
                number: [
                    kept.get(
                        lambda f=function, s=seed, k=at: run(f, SETS[name](s)[k], s),
                        like.name,
                        seed,
                        method,
                        number,
                    )
                    for seed in range(seeds)
                ]
                for number, function in numbers.items()
            }
            yield from min(every.values(), key=lambda rs: np.median([r["end"] for r in rs]))


def main() -> None:
    """Run one comparison, or what is missing of it, and print it as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=SETS, default="held-back")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("compare"), help="folder of the runs")
    parser.add_argument("--only", nargs="+", default=[], choices=METHODS, metavar="METHOD")
    parser.add_argument("--tuned", action="store_true", help="the tuned methods, too")
    parser.add_argument("--bbob", type=int, nargs="+", metavar="INSTANCE")
    parser.add_argument("--suite", choices=("bbob", "bbob-noisy"), default="bbob")
    parser.add_argument("--functions", type=int, nargs="+", help="of the suite; all by default")
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 40])
    arguments = parser.parse_args()
    out: Path = arguments.out
    if arguments.bbob:
        kept = Kept(out / f"{arguments.suite}.jsonl", "function", "dim", "instance", "method")
        functions = arguments.functions or bbob.FUNCTIONS[arguments.suite]
        table = bbob.table(arguments.suite, arguments.bbob, arguments.dims, functions, kept.get)
        print(table)
        (out / f"{arguments.suite}.md").write_text(table + "\n")
        return
    records = list(untuned(arguments.set, arguments.seeds, out, arguments.only))
    table = ends(records) if arguments.set == "new" else as_table(records)
    if arguments.tuned:
        best = [r for r in records if r["method"] == "fedzo (plain call)"]
        best += tuned(arguments.set, arguments.seeds, out)
        for record in best[len(records) :]:
            record["method"] += ", tuned"
        table += "\n\n" + as_table(best)
    print(table)
    (out / f"{arguments.set}.md").write_text(table + "\n")
    plot(records, out / f"{arguments.set}.png")


if __name__ == "__main__":
    main()
