"""Figures of several axes: their numbers, and their picture for print.

Curves are told apart by colour, by marker and by stroke. The report that one can hover draws the
same numbers.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.files import write_atomic
from fedzo.plots.curves import COLOURS

Array = NDArray[Any]

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEGEND: Mapping[str, Any] = {"frameon": False, "fontsize": 8, "handlelength": 3.2}


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
    label: str,
    histories: Sequence[Sequence[Mapping[str, Any]]],
    x: str,
    y: str,
    colour: int,
    dashed: bool = False,
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
    return series_of(label, points[..., 0].mean(axis=0), points[..., 1], colour, dashed)


def series_of(label: str, x: Array, seeds: Array, colour: int, dashed: bool) -> dict[str, Any]:
    """Return a curve from its values, (seeds, points)."""
    drawn = {"x": x, "mean": seeds.mean(axis=0), "low": seeds.min(axis=0)}
    drawn["high"] = seeds.max(axis=0)
    numbers = {key: [float(f"{v:.7g}") for v in values] for key, values in drawn.items()}
    return {"label": label, "colour": colour, "dashed": dashed, "seeds": len(seeds), **numbers}


def draw(axes: Sequence[Mapping[str, Any]], title: str, caption: str, out: Path) -> None:
    """Draw axes as :func:`axes` makes them to ``out``'s .png and .svg."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(5.2 * len(axes), 4.6), dpi=150, layout="constrained")
    heading = textwrap.fill(title, 50 * len(axes))
    shared = all(_labels(panel) == _labels(axes[0]) for panel in axes)
    for spot, panel in zip(picture.subplots(1, len(axes), squeeze=False)[0], axes, strict=True):
        for curve in panel["series"]:
            _draw_curve(spot, curve)
        for axis in ("x", "y"):
            if panel[f"log_{axis}"]:
                _make_logarithmic(spot, axis)
        spot.set(xlabel=panel["x"], ylabel=panel["y"])
        spot.set_title(panel["title"], fontsize=10)
        spot.grid(color="0.9")
        spot.set_axisbelow(True)  # lines over bands would look like gaps
        spot.spines[["top", "right"]].set_visible(False)
        if not shared:
            spot.legend(**LEGEND)
    if shared:  # one for all, under the title, where it hides no curve
        curves = spot.get_legend_handles_labels()
        rows = -(-len(curves[0]) // (3 * len(axes)))
        columns = -(-len(curves[0]) // rows)
        place: Any = "outside upper center"
        legend = picture.legend(*curves, loc=place, ncols=columns, title=heading, **LEGEND)
        legend.get_title().set(fontsize=12, multialignment="center")
    else:
        picture.suptitle(heading, fontsize=12)
    narrow = textwrap.fill(caption, 75 * len(axes))
    picture.supxlabel(narrow, fontsize=8, color="0.35")
    for ending in ("png", "svg"):
        content = io.BytesIO()
        picture.savefig(content, format=ending)
        write_atomic(out.with_suffix(f".{ending}"), content.getvalue())


def _labels(panel: Mapping[str, Any]) -> list[str]:
    return [curve["label"] for curve in panel["series"]]


def _make_logarithmic(spot: Any, axis: str) -> None:
    """Set a log scale; where it has few decades, with numbers at 2 and 5 too, written plainly."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # Masked: a run begins at zero queries or bytes, which a log axis has no place for.
    getattr(spot, f"set_{axis}scale")("log", nonpositive="mask")
    low, high = getattr(spot, f"get_{axis}lim")()
    if high < 1000 * low:
        ticks = getattr(spot, f"{axis}axis")
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ticks.set_minor_formatter(NullFormatter())


def _draw_curve(spot: Any, curve: Mapping[str, Any]) -> None:
    colour = COLOURS[curve["colour"] % len(COLOURS)]
    count = len(curve["x"])
    spot.plot(
        curve["x"],
        curve["mean"],
        linestyle="--" if curve["dashed"] else "-",
        color=colour,
        marker=MARKERS[curve["colour"] % len(MARKERS)],
        markevery=max(1, count // 8),
        markersize=4.5,
        markerfacecolor="white" if curve["dashed"] else colour,
        linewidth=1.6,
        label=curve["label"],
    )
    if curve["seeds"] > 1:
        spot.fill_between(
            curve["x"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
        )
