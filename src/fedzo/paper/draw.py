"""The picture of a figure, for print: told apart by colour, by marker and by stroke."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedzo.folder import replace
from fedzo.plot import COLOURS

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEGEND: Mapping[str, Any] = {"frameon": False, "fontsize": 8, "handlelength": 3.2}


def draw(axes: Sequence[Mapping[str, Any]], title: str, caption: str, out: Path) -> None:
    """Draw axes as :mod:`fedzo.paper.picture` has them to ``out``'s .png and .svg."""
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
        replace(out.with_suffix(f".{ending}"), content.getvalue())


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
