"""Figures of runs that no figure file speaks of: what each problem's runs have in common."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from fedzo.folder import RunFolder, read_history
from fedzo.paper.picture import axes, series
from fedzo.paper.reproduce import environment
from fedzo.plot import COLOURS

METRICS = ("train_loss", "test_accuracy", "attack_success", "distortion_l2_mean", "optimality_gap")


def figures_of_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a figure for each problem that runs under a folder are of.

    Folders of ``seed-*`` are one curve, mean and range.
    """
    problems: dict[str, dict[str, list[Path]]] = {}
    for history in sorted(folder.rglob("history.jsonl")):
        run = history.parent
        whole = run.parent if run.name.startswith("seed-") else run
        label = str(whole.relative_to(folder)) if whole != folder else folder.resolve().name
        problem = str(_config(run).get("problem", {}).get("name", "runs"))
        if next(read_history(history), None) is not None:
            problems.setdefault(problem, {}).setdefault(label, []).append(run)
    return [_figure(problem, runs, folder) for problem, runs in problems.items()]


def _config(run: Path) -> dict[str, Any]:
    path = RunFolder(run).config
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _figure(problem: str, runs: dict[str, list[Path]], folder: Path) -> dict[str, Any]:
    histories = {
        label: [list(read_history(RunFolder(path).history)) for path in paths]
        for label, paths in runs.items()
    }
    drawn = []
    for key in METRICS:
        curves = [
            series(label, seeds, "round", key, i % len(COLOURS), i >= len(COLOURS))
            for i, (label, seeds) in enumerate(histories.items())
            if all(key in history[0] for history in seeds)
        ]
        if curves:
            drawn.append(axes("round", key, curves, log="y" if key == "optimality_gap" else ""))
    configs = {label: RunFolder(paths[0]).config for label, paths in runs.items()}
    return {
        "name": problem,
        "title": problem,
        "about": "",
        "caption": "mean and range where there are several seeds",
        "axes": drawn,
        "claims": [],
        "folders": {label: str(paths[0].relative_to(folder)) for label, paths in runs.items()},
        "configs": {k: path.read_text() if path.exists() else "" for k, path in configs.items()},
        "seconds": round(sum(h[-1].get("seconds", 0) for s in histories.values() for h in s)),
        "environment": environment(),
    }
