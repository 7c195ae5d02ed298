"""Pictures of several axes, for print: curves told apart by colour, by marker and by stroke."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedzo.core.files import write_atomic
from fedzo.plots.series import covered
from fedzo.plots.style import COLOURS, MARKERS

ROW = 3  # panels side by side
MANY = 5  # curves whose legend would hide them
LEGEND: Mapping[str, Any] = {"frameon": False, "fontsize": 8, "handlelength": 3.2}


def draw(axes: Sequence[Mapping[str, Any]], *out: Path, title: str = "", caption: str = "") -> None:
    """Draw axes as :func:`fedzo.plots.series.axes` makes them; a file's ending says its format."""
    from matplotlib.figure import Figure

    columns = min(ROW, len(axes))
    rows = -(-len(axes) // columns)
    size = (5.2 * columns, 3.6 * rows + (1.0 if title or caption else 0.0))
    picture = Figure(figsize=size, dpi=150, layout="constrained")
    heading = textwrap.fill(title, 50 * columns)
    shared = all(_labels(panel) == _labels(axes[0]) for panel in axes)
    spots = list(picture.subplots(rows, columns, squeeze=False).flat)
    for empty in spots[len(axes) :]:
        empty.remove()
    for spot, panel, after in zip(spots, axes, [*axes[1:], None], strict=False):
        for i, (curve, under) in enumerate(zip(panel["series"], covered(panel), strict=True)):
            _draw_curve(spot, curve, i, under)
        if "names" in panel:
            _name_points(spot, panel["names"])
        for axis in ("x", "y"):
            if panel[f"log_{axis}"]:
                _make_logarithmic(spot, axis)
        spot.set(xlabel=panel["x"], ylabel=panel["y"])
        spot.set_title(panel["title"], fontsize=10)
        spot.grid(color="0.9")
        spot.set_axisbelow(True)  # lines over bands would look like gaps
        spot.spines[["top", "right"]].set_visible(False)
        if not shared and any(_labels(panel)) and not _same_labels(panel, after):
            aside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            spot.legend(**LEGEND, **(aside if len(panel["series"]) > MANY else {}))
    if shared and (title or _need_legend(axes[0])):  # one for all, where it hides no curve
        curves = spots[0].get_legend_handles_labels()
        lines = max(1, -(-len(curves[0]) // (3 * columns)))
        wide = max(1, -(-len(curves[0]) // lines))
        place: Any = "outside upper center"
        legend = picture.legend(*curves, loc=place, ncols=wide, title=heading, **LEGEND)
        legend.get_title().set(fontsize=12, multialignment="center")
    elif heading:
        picture.suptitle(heading, fontsize=12)
    narrow = textwrap.fill(caption, 75 * columns)
    picture.supxlabel(narrow, fontsize=8, color="0.35")
    for path in out:
        content = io.BytesIO()
        picture.savefig(content, format=path.suffix[1:] or "png")
        write_atomic(path, content.getvalue())


def _name_points(spot: Any, names: Sequence[str]) -> None:
    """Write names at 0, 1, 2 ... of the x axis; between them there is nothing to join."""
    for line in spot.lines:
        line.set_linestyle("none")
    spot.set_xticks(range(len(names)), names, fontsize=8)
    spot.margins(x=0.1)


def _labels(panel: Mapping[str, Any]) -> list[str]:
    return [curve["label"] for curve in panel["series"]]


def _same_labels(panel: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and _labels(panel) == _labels(other)


def _need_legend(panel: Mapping[str, Any]) -> bool:
    return len(panel["series"]) > 1 or any(curve["seeds"] > 1 for curve in panel["series"])


def _make_logarithmic(spot: Any, axis: str) -> None:
    """Set a log scale; where it has few decades, with numbers at 2 and 5 too, written plainly."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    # Masked: a run begins at zero queries or bytes, which a log axis has no place for.
    getattr(spot, f"set_{axis}scale")("log", nonpositive="mask")
    low, high = getattr(spot, f"get_{axis}lim")()
    if high < 1000 * low:
        ticks = getattr(spot, f"{axis}axis")
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        thousands = EngFormatter(sep="")  # 20k: longer words would run into each other
        plain = FuncFormatter(lambda value, _: f"{value:g}")
        ticks.set_major_formatter(thousands if high > 10_000 else plain)
        ticks.set_minor_formatter(NullFormatter())


def _draw_curve(spot: Any, curve: Mapping[str, Any], place: int, under: int) -> None:
    """Draw a curve: wide and pale where others lie on it, markers where theirs are not."""
    colour = COLOURS[curve["colour"] % len(COLOURS)]
    step = max(1, len(curve["x"]) // 8)
    spot.plot(
        curve["x"],
        curve["mean"],
        linestyle="--" if curve["dashed"] else "-",
        color=colour,
        alpha=0.45 if under else 1.0,
        marker=MARKERS[curve["colour"] % len(MARKERS)],
        markevery=(place % step, step),
        markersize=4.5 + 2.4 * under,
        markerfacecolor="white" if curve["dashed"] else colour,
        linewidth=1.6 + 2.4 * under,
        label=curve["label"],
    )
    if curve["seeds"] > 1:
        spot.fill_between(
            curve["x"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
        )
