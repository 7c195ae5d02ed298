"""What is made of the runs: shares of the best fall, a table, and data profiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Record = dict[str, Any]
STEPS = 41  # at which a run's value is kept, from no query to all of them


def lowest(trail: list[tuple[int, float]], queries: float, start: float) -> float:
    """Return what a method has to show after so many queries: the start, if nothing."""
    seen = [value for asked, value in trail if asked <= queries and np.isfinite(value)]
    return seen[-1] if seen else start


def gaps(records: Sequence[Record], step: int = -1) -> dict[str, dict[str, list[float]]]:
    """Return (f - f_best) / (f_0 - f_best) of each method on each problem, for each seed."""
    best: dict[tuple[str, int], float] = {}
    for record in records:
        key = record["problem"], record["seed"]
        best[key] = min(best.get(key, np.inf), record["values"][-1])
    table: dict[str, dict[str, list[float]]] = {}
    for record in records:
        least = best[record["problem"], record["seed"]]
        gap = (record["values"][step] - least) / max(record["start"] - least, 1e-300)
        row = table.setdefault(record["problem"], {})
        row.setdefault(record["method"], []).append(float(gap))
    return table


def as_table(records: Sequence[Record]) -> str:
    """Return medians over the seeds as Markdown: what share of the best fall was left to go."""
    table = gaps(records)
    names = list(dict.fromkeys(record["method"] for record in records))
    lines = ["| problem | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    for problem, row in table.items():
        medians = {name: float(np.median(row[name])) for name in names if name in row}
        least = min(medians.values())
        cells = []
        for name in names:
            told = f"{medians[name]:.1e}" if name in medians else ""
            cells.append(f"**{told}**" if told and medians[name] == least else told)
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ends(records: Sequence[Record]) -> str:
    """Return medians over the seeds as Markdown: the mean that a method ends with."""
    names = list(dict.fromkeys(record["method"] for record in records))
    lines = ["| problem | start | " + " | ".join(names) + " |"]
    lines.append("| --- |" + " ---: |" * (1 + len(names)))
    for problem in dict.fromkeys(record["problem"] for record in records):
        rows = [record for record in records if record["problem"] == problem]
        cells = [f"{np.median([record['start'] for record in rows]):.4g}"]
        for name in names:
            found = [record["end"] for record in rows if record["method"] == name]
            cells.append(f"{np.median(found):.4g}" if found else "")
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def profiles(records: Sequence[Record], tolerance: float) -> dict[str, list[float]]:
    """Return data profiles (Moré & Wild 2009) over the share of the budget.

    That is the share of runs that have come within ``tolerance`` of the best fall of f. A method
    that was not run on a problem, for its dimension, has not solved it.
    """
    runs = len({(record["problem"], record["seed"]) for record in records})
    curves: dict[str, list[float]] = {}
    for step in range(STEPS):
        solved: dict[str, int] = {}
        for row in gaps(records, step).values():
            for name, values in row.items():
                solved[name] = solved.get(name, 0) + sum(gap <= tolerance for gap in values)
        for name, count in solved.items():
            curves.setdefault(name, []).append(count / runs)
    return curves


def plot(records: Sequence[Record], path: Path) -> None:
    """Draw the data profiles for two tolerances."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, tolerance in zip(axes, (1e-1, 1e-3), strict=True):
        for name, curve in profiles(records, tolerance).items():
            plain = name == "fedzo (plain call)"
            style = "-" if name.startswith("fedzo") else "--"
            width = 3 if plain else 1.2
            axis.plot(np.linspace(0, 1, STEPS), curve, style, label=name, linewidth=width)
        axis.set(title=f"within {tolerance:g} of the best fall", xlabel="share of the queries")
        axis.set_ylim(0, 1)
    axes[0].set_ylabel("share of the runs")
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=110, bbox_inches="tight")
