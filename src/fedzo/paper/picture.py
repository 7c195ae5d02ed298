"""What is drawn: the numbers of a figure's axes, as ``<figure>.json`` holds them.

Whoever draws, the picture for print or the report that one can hover, draws these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedzo.paper.claims import Runs, final_level
from fedzo.paper.figure import Curve, Figure, Panel, Points
from fedzo.plots.series import axes, labelled_axes, series, series_of
from fedzo.plots.style import name


def axes_of(figure: Figure, runs: Runs) -> list[dict[str, Any]]:
    """Return the axes of a figure with all that is drawn on them, ready for JSON."""
    curves = figure.curves
    return [
        _points(panel, curves, runs) if isinstance(panel, Points) else _panel(panel, curves, runs)
        for panel in figure.panels
    ]


def _panel(panel: Panel, curves: Sequence[Curve], runs: Runs) -> dict[str, Any]:
    shown = [c for c in curves if panel.curves is None or c.label in panel.curves]
    drawn = [series(c.label, runs[c.label], panel.x, panel.y, c.colour, c.dashed) for c in shown]
    drawn += _lines(panel.lines or {}, len(drawn))
    return axes(panel.x, panel.y, drawn, panel.title, panel.log_x)


def _points(panel: Points, curves: Sequence[Curve], runs: Runs) -> dict[str, Any]:
    drawn = []
    for i, (line, at) in enumerate(panel.at.items()):
        shown = [curve.label for curve in curves if curve.label in at]
        seeds = np.array([[final_level(h, panel.y) for h in runs[label]] for label in shown])
        there = np.isfinite(seeds).all(axis=1)  # what diverged came to nothing
        x = np.array([at[label] for label in shown])[there]
        drawn.append(series_of(line, x, seeds[there].T, i, False))
    drawn += _lines(panel.lines or {}, len(drawn))
    return labelled_axes(panel.x, name(panel.y), drawn, panel.title, True, panel.log_y)


def _lines(lines: Mapping[str, Mapping[float, float]], first: int) -> list[dict[str, Any]]:
    """Return what is computed and not run, after so many curves."""
    return [
        series_of(label, np.array(list(line)), np.array([list(line.values())]), first + i, True)
        for i, (label, line) in enumerate(lines.items())
    ]
