"""What is drawn: the numbers of a figure's axes, as ``<figure>.json`` holds them.

Whoever draws, the picture for print or the report that one can hover, draws these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.paper.claims import History, Runs, settled
from fedzo.paper.figure import Curve, Figure, Panel, Points

Array = NDArray[Any]

_NAMES = {
    "round": "communication round",
    "train_loss": "training loss, all devices",
    "test_accuracy": "test accuracy",
    "attack_success": "attack success rate",
    "heldout_success": "success on images held out",
    "distortion_l2_mean": "mean distortion, L2",
    "queries": "queries, all devices",
    "uplink_bytes": "bytes sent up, all devices",
    "channel_uses": "channel uses",
    "optimality_gap": "f(x) - f*",
    "gradient_norm_squared": "|∇f(x)|²",
}


def axes_of(figure: Figure, runs: Runs) -> list[dict[str, Any]]:
    """Return the axes of a figure with all that is drawn on them, ready for JSON."""
    curves = figure.curves
    return [
        _points(panel, curves, runs) if isinstance(panel, Points) else _panel(panel, curves, runs)
        for panel in figure.panels
    ]


def axes(
    x: str, y: str, series: Sequence[Mapping[str, Any]], title: str = "", log: str = ""
) -> dict[str, Any]:
    """Return one pair of axes; ``log`` names those that are logarithmic."""
    return {
        "title": title,
        "x": _NAMES.get(x, x.replace("_", " ")),
        "y": _NAMES.get(y, y.replace("_", " ")),
        "log_x": "x" in log,
        "log_y": "y" in log,
        "series": list(series),
    }


def series(
    label: str, histories: Sequence[History], x: str, y: str, colour: int, dashed: bool = False
) -> dict[str, Any]:
    """Return a curve over the rounds that all seeds have: mean, least and greatest of them.

    Examples
    --------
    >>> seeds = [[{"round": 0, "train_loss": 2.0}], [{"round": 0, "train_loss": 4.0}]]
    >>> drawn = series("H = 5", seeds, "round", "train_loss", colour=0)
    >>> drawn["x"], drawn["mean"], drawn["low"], drawn["high"]
    ([0.0], [3.0], [2.0], [4.0])
    """
    tables = [
        {r["round"]: (r[x], r[y]) for r in history if x in r and math.isfinite(r.get(y, math.nan))}
        for history in histories
    ]
    rounds = sorted(set.intersection(*(set(table) for table in tables)))
    points = np.array([[table[t] for t in rounds] for table in tables]).reshape(len(tables), -1, 2)
    return _series(label, points[..., 0].mean(axis=0), points[..., 1], colour, dashed)


def _series(label: str, x: Array, seeds: Array, colour: int, dashed: bool) -> dict[str, Any]:
    """Return a curve from its values, (seeds, points)."""
    drawn = {"x": x, "mean": seeds.mean(axis=0), "low": seeds.min(axis=0)}
    drawn["high"] = seeds.max(axis=0)
    numbers = {key: [float(f"{v:.7g}") for v in values] for key, values in drawn.items()}
    return {"label": label, "colour": colour, "dashed": dashed, "seeds": len(seeds), **numbers}


def _panel(panel: Panel, curves: Sequence[Curve], runs: Runs) -> dict[str, Any]:
    shown = [c for c in curves if panel.curves is None or c.label in panel.curves]
    drawn = [series(c.label, runs[c.label], panel.x, panel.y, c.colour, c.dashed) for c in shown]
    drawn += _lines(panel.lines or {}, len(drawn))
    log = "x" * panel.log_x + "y" * panel.log_y
    return axes(panel.x, panel.y, drawn, panel.title, log)


def _points(panel: Points, curves: Sequence[Curve], runs: Runs) -> dict[str, Any]:
    shown = [curve.label for curve in curves if curve.label in panel.at]
    seeds = np.array([[settled(h, panel.y) for h in runs[label]] for label in shown])
    there = np.isfinite(seeds).all(axis=1)  # what diverged came to nothing
    x = np.array([panel.at[label] for label in shown])[there]
    drawn = [_series("measured", x, seeds[there].T, 0, False), *_lines(panel.lines or {}, 1)]
    return axes(panel.x, panel.y, drawn, panel.title, "xy")


def _lines(lines: Mapping[str, Mapping[float, float]], first: int) -> list[dict[str, Any]]:
    """Return what is computed and not run, after so many curves."""
    return [
        _series(label, np.array(list(line)), np.array([list(line.values())]), first + i, True)
        for i, (label, line) in enumerate(lines.items())
    ]
