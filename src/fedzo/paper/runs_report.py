"""Figures of runs that no figure file speaks of: what each problem's runs have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedzo.core.files import read_toml
from fedzo.plots.series import axes_of_runs, columns, finals
from fedzo.runs.history import read_history
from fedzo.runs.store import RunFolder


def figures_of_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a figure for each problem that runs under a folder are of.

    Folders of ``seed-*`` are one curve, mean and range.
    """
    problems: dict[str, dict[str, list[Path]]] = {}
    for history in sorted(folder.rglob("history.jsonl")):
        run = history.parent
        whole = run.parent if run.name.startswith("seed-") else run
        label = str(whole.relative_to(folder)) if whole != folder else folder.resolve().name
        if next(read_history(history), None) is not None:
            problems.setdefault(_problem(run), {}).setdefault(label, []).append(run)
    return [_figure(problem, runs, folder) for problem, runs in problems.items()]


def _text(run: Path) -> str:
    path = RunFolder(run).config
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _problem(run: Path) -> str:
    path = RunFolder(run).config
    problem = read_toml(path).get("problem") if path.exists() else None
    return str(problem.get("name", "runs")) if isinstance(problem, dict) else "runs"


def _figure(problem: str, runs: dict[str, list[Path]], folder: Path) -> dict[str, Any]:
    histories = {
        label: [list(read_history(RunFolder(path).history)) for path in paths]
        for label, paths in runs.items()
    }
    return {
        "name": problem,
        "title": problem,
        "about": "",
        "caption": "mean and range where there are several seeds",
        "axes": axes_of_runs(histories),
        "columns": columns(histories),
        "finals": finals(histories),
        "claims": [],
        "folders": {label: str(paths[0].relative_to(folder)) for label, paths in runs.items()},
        "configs": {label: _text(paths[0]) for label, paths in runs.items()},
        "seconds": round(sum(h[-1].get("seconds") or 0 for s in histories.values() for h in s)),
        "environment": {},  # runs do not tell theirs
    }
