"""Run what figures show, draw them, and judge what is claimed of them."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedzo._version import __version__
from fedzo.config.jobs import Report, Run, do, missing
from fedzo.core.files import read_json, write_atomic
from fedzo.core.machine import cores
from fedzo.errors import UsageError
from fedzo.paper import FIGURES, caption
from fedzo.paper.claims import Claim, Comparison, Verdict, explain, judge, verdicts
from fedzo.paper.figure import Figure, Scale
from fedzo.paper.picture import axes_of
from fedzo.paper.runs import run_of
from fedzo.plots.figures import draw
from fedzo.plots.series import columns, finals
from fedzo.runs.store import RunFolder


def reproduce(
    figures: Sequence[Figure],
    scale: str,
    out: Path,
    seeds: int | None = None,
    workers: int | None = None,
    report: Report = lambda *_: None,
) -> dict[str, list[dict[str, Any]]]:
    """Do what is missing of the runs behind figures; draw and judge these.

    Parameters
    ----------
    figures
        What to reproduce.
    scale
        ``quick`` or ``paper``.
    out
        Where all files go: ``<figure>.png``, ``.svg`` and ``.json``, ``claims.json``,
        ``claims.md`` and the runs.
    seeds
        How many; by default what the scale has.
    workers
        How many runs at a time; as many as there are cores by default.
    report
        Told the share of the work that is done, and of how many runs how many are.

    Returns
    -------
    dict
        The claims of each figure, judged.
    """
    plans = [plan_of(each, scale, out, seeds) for each in figures]
    RunFolder(out).claim()
    runs = [run for plan in plans for seeds_ in plan.runs.values() for run in seeds_]
    do(runs, workers or cores(), report)
    judged = {plan.figure.name: plan.write() for plan in plans}
    write_claims(out)
    return judged


def seconds_left(
    figures: Sequence[Figure], scale: str, out: Path, seeds: int | None = None
) -> float:
    """Return about how many seconds all of it takes on this machine's cores, if left alone.

    What is done already takes none.
    """
    plans = [plan_of(each, scale, out, seeds) for each in figures]
    runs = missing(run for plan in plans for each in plan.runs.values() for run in each)
    longest = max((run.work for run in runs), default=0.0)
    return max(longest, sum(run.work for run in runs) / cores())


def plan_of(figure: Figure, scale: str, out: Path, seeds: int | None = None) -> Plan:
    """Return what a figure needs at a scale, with so many seeds or as many as the scale has."""
    size = figure.scales[scale]
    return Plan(figure, size if seeds is None else replace(size, seeds=seeds), scale, out)


class Plan:
    """A figure at a scale, with the runs that it needs."""

    def __init__(self, figure: Figure, scale: Scale, scale_name: str, out: Path) -> None:
        self.figure, self.scale, self.scale_name, self.out = figure, scale, scale_name, out
        self.runs: dict[str, list[Run]] = {}
        for curve in figure.curves:
            experiment = curve.experiment(scale)
            self.runs[curve.label] = [run_of(experiment, s, out) for s in range(scale.seeds)]
        tables = figure.tables(scale_name)
        self.title = caption.title(figure.title, tables)
        self.about = f"{figure.about} {caption.settings(tables)}."
        self.caption = self._caption(tables)

    def _caption(self, tables: Mapping[str, Any]) -> str:
        count = self.scale.seeds
        seeds = f"{count} seeds (mean, least and greatest)" if count > 1 else "1 seed"
        less = caption.smaller(tables, self.figure.tables("paper"))
        other = f", which differs from the paper's (in brackets) in {less}" if less else ""
        return f"{self.scale_name} scale{other}; {seeds}, each with a split of its own"

    def write(self) -> list[dict[str, Any]]:
        """Draw it, write all that a report needs, and return its claims, judged."""
        histories = {label: [run.history() for run in runs] for label, runs in self.runs.items()}
        drawn = axes_of(self.figure, histories)
        pictures = [self.out / f"{self.figure.name}.{ending}" for ending in ("png", "svg")]
        draw(drawn, *pictures, title=self.title, caption=self.caption)
        claims = [self._row(claim, claim.measure(histories)) for claim in self.figure.claims]
        folders = {
            label: str(runs[0].folder.parent.relative_to(self.out))
            for label, runs in self.runs.items()
        }
        content = {
            "name": self.figure.name,
            "title": self.title,
            "about": self.about,
            "caption": self.caption,
            "axes": drawn,
            "columns": columns(histories),
            "finals": finals(histories),
            "claims": claims,
            "folders": folders,
            "configs": {label: runs[0].config() for label, runs in self.runs.items()},
            "seconds": round(sum(h[-1]["seconds"] for seeds in histories.values() for h in seeds)),
            "environment": environment(),
        }
        text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
        write_atomic(self.out / f"{self.figure.name}.json", text.encode())
        return claims

    def _row(self, claim: Claim, comparisons: Sequence[Comparison]) -> dict[str, Any]:
        """Return a claim as ``claims.json`` has it."""
        verdict, each = judge(comparisons), verdicts(comparisons)
        reason = "" if verdict == Verdict.HOLDS else claim.reason
        return {
            "name": claim.name,
            "by": claim.by,
            "text": claim.text,
            "verdict": verdict.value,
            "scale": self.scale_name,
            "rounds": self.scale.rounds,
            "seeds": self.scale.seeds,
            "measured": [_measured(c, v) for c, v in zip(comparisons, each, strict=True)],
            "reason": f"{explain(comparisons)} {reason}".strip(),
        }


def _measured(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    return {
        "what": comparison.what,
        "mean": _finite(comparison.interval.mean),
        "low": _finite(comparison.interval.low),
        "high": _finite(comparison.interval.high),
        "claimed": [_finite(comparison.low), _finite(comparison.high)],
        "verdict": verdict.value,
    }


def _finite(number: float) -> float | None:
    return float(f"{number:.6g}") if math.isfinite(number) else None


def environment() -> dict[str, str]:
    """Return what the runs were made with.

    >>> environment()["fedzo"] == __version__
    True
    """
    packages = {name: version(name) for name in ("numpy", "numba", "matplotlib")}
    return {
        "fedzo": __version__,
        "python": platform.python_version(),
        **packages,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(cores()),
        "date": datetime.now(UTC).date().isoformat(),
    }


def figures_in(out: Path) -> list[dict[str, Any]]:
    """Return what has been reproduced in a folder, in the paper's order."""
    found = []
    for name in FIGURES:
        path = out / f"{name}.json"
        if path.exists():
            figure = read_json(path)
            if not _is_figure(figure):
                raise UsageError(f"{path} is damaged: it does not describe a figure")
            found.append(figure)
    return found


def _is_figure(figure: Any) -> bool:
    """Return whether this has what the report and the table of claims rely on."""
    if not isinstance(figure, dict):
        return False
    folders, claims = figure.get("folders"), figure.get("claims")
    return (
        isinstance(figure.get("name"), str)
        and isinstance(folders, dict)
        and all(isinstance(folder, str) for folder in folders.values())
        and isinstance(claims, list)
        and all(isinstance(claim, dict) and claim.keys() >= _CLAIM for claim in claims)
    )


def write_claims(out: Path) -> None:
    """Write ``claims.json`` and ``claims.md`` from the figures in a folder."""
    found = figures_in(out)
    claims = {each["name"]: each["claims"] for each in found}
    write_atomic(out / "claims.json", json.dumps(claims, ensure_ascii=False, indent=1).encode())
    write_atomic(out / "claims.md", markdown(found).encode())


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the claims as a table for a document.

    Examples
    --------
    >>> measured = {"what": "speed-up", "mean": 2.0, "low": 1.9, "high": 2.1}
    >>> claim = {"text": "Faster.", "by": "paper", "verdict": "holds", "seeds": 3, "reason": ""}
    >>> print(markdown([{"name": "fig3", "claims": [claim | {"measured": [measured]}]}]))
    | figure | claim | measured, mean [95 % interval] | seeds | verdict |
    | --- | --- | --- | --- | --- |
    | fig3 | Faster. | speed-up: 2 [1.9, 2.1] | 3 | **holds** |
    """
    rows = [(each["name"], *cells(claim)) for each in found for claim in each["claims"]]
    return table(("figure", *HEADINGS), rows)


_CLAIM = {"text", "by", "measured", "seeds", "verdict", "reason"}  # the keys of a judged claim
HEADINGS = ("claim", "measured, mean [95 % interval]", "seeds", "verdict")


def cells(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a judged claim as a row under ``HEADINGS``."""
    own = "" if claim["by"] == "paper" else " (ours)"
    measured = "<br>".join(f"{m['what']}: {words(m)}" for m in claim["measured"])
    verdict = f"**{claim['verdict']}** {claim['reason']}".strip()
    return claim["text"] + own, measured, str(claim["seeds"]), verdict


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def words(measured: Mapping[str, Any]) -> str:
    """Return a mean and its interval.

    >>> words({"mean": 2.0, "low": None, "high": None})
    '2 [one seed: no interval]'
    """
    if measured["mean"] is None:
        return "not finite (never reached, or diverged)"
    within = "one seed: no interval"
    if measured["low"] is not None:
        within = f"{measured['low']:.4g}, {measured['high']:.4g}"
    return f"{measured['mean']:.4g} [{within}]"
