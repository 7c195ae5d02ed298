"""Pictures for print: curves of runs, and the data of each device.

Curves differ in colour, marker and stroke.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.files import writing
from fedzo.core.style import COLOURS, LEGEND, dress
from fedzo.errors import InvalidValue, UsageError, nearest, one_of
from fedzo.plots.series import Runs, axes_of_runs, covered, metrics

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ROW = 3  # panels side by side
MANY = 5  # curves whose legend would hide them


def draw_curves(
    runs: Runs,
    out: str | os.PathLike[str],
    x: str = "round",
    y: Sequence[str] | None = None,
    log_x: bool = False,
    log_y: bool | None = None,
) -> None:
    """Draw one curve per label: the mean over its seeds, with a band from least to greatest.

    Parameters
    ----------
    runs
        The history of each seed, by label; a history is the records of a ``history.jsonl``.
    out
        The file to write; its ending gives the format.
    x, y
        Keys of the records for the axes. By default ``y`` is the loss and the well-known metrics
        that the runs have.
    log_x, log_y
        Whether the axes are logarithmic; by default y is if it spans decades.

    Examples
    --------
    >>> import tempfile
    >>> history = [{"round": t, "train_loss": 0.5**t, "queries": 20 * t} for t in range(5)]
    >>> path = Path(tempfile.mkdtemp(), "loss.svg")
    >>> draw_curves({"a run": [history]}, path, x="queries", log_y=True)
    >>> "queries, all devices" in path.read_text()
    True
    """
    check_keys(runs, x, y)
    labelled = {_with_seeds(label, len(seeds)): seeds for label, seeds in runs.items()}
    axes = axes_of_runs(labelled, x, y, log_x)
    if not any(panel["series"] for panel in axes):
        raise UsageError("there is no finite number to draw", code="nothing-to-draw")
    if log_y is not None:
        axes = [panel | {"log_y": log_y} for panel in axes]
    draw(axes, Path(out))


def check_keys(runs: Runs, x: str, y: Sequence[str] | None = None) -> None:
    """Raise InvalidValue unless some run has these keys.

    >>> check_keys({"a": [[{"round": 0, "train_loss": 1.0}]]}, "round", ["train_los"])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: y = 'train_los': must be ... (did you mean 'train_loss'?)
    """
    keys = metrics(runs)
    for axis, key in (("x", x), *(("y", key) for key in y or ())):
        if key not in keys:
            raise InvalidValue(axis, key, one_of(keys) + nearest(key, keys))


def draw_partition(
    labels: NDArray[np.int64],
    parts: Sequence[NDArray[np.int64]],
    classes: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Draw how many samples of each class every device has.

    Parameters
    ----------
    labels
        The class of each sample, an index into ``classes``, shape (n_samples,).
    parts
        The indices of each device's samples, from :func:`fedzo.data.partition`.
    classes
        The classes' names.
    path
        The file to write; its ending gives the format, such as ``.png``.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "split.png")
    >>> draw_partition(np.array([0, 0, 1]), [np.array([0]), np.array([1, 2])], ["a", "b"], path)
    >>> path.exists()
    True
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    table = _table(labels, parts, classes)
    devices = len(parts)
    figure = Figure(figsize=(11, 2.4 + 0.3 * len(classes)), dpi=150, layout="constrained")
    sizes, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.35 * len(classes)])
    figure.suptitle(_title(table), fontsize=11)

    sizes.stairs(table.sum(axis=0), np.arange(devices + 1) - 0.5, fill=True, color="0.6")
    sizes.set_ylabel("samples")
    sizes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    sizes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))

    # One hue from pale to dark suits colour-blind readers; white means no samples.
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1.0, 256)))
    shown = np.ma.masked_equal(table, 0)
    image = heat.imshow(shown, cmap=blues, vmin=1, aspect="auto", interpolation="nearest")
    heat.set_yticks(range(len(classes)), classes)
    heat.set_xlabel("device")
    heat.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    if devices <= 60:  # grid lines would hide narrower cells
        heat.set_xticks(np.arange(devices + 1) - 0.5, minor=True)
        heat.set_yticks(np.arange(len(classes) + 1) - 0.5, minor=True)
        heat.grid(which="minor", color="0.85", linewidth=0.6)
        for axes in (sizes, heat):
            axes.tick_params(which="minor", length=0)
    figure.colorbar(
        image, ax=[sizes, heat], label="samples of the class (white: none)", format="{x:,.0f}"
    )
    figure.savefig(path)


def draw(axes: Sequence[Mapping[str, Any]], *out: Path, title: str = "", caption: str = "") -> None:
    """Draw axes made by :func:`fedzo.plots.series.axes`; the ending of a file gives its format."""
    from matplotlib.figure import Figure

    columns = min(ROW, len(axes))
    rows = -(-len(axes) // columns)
    size = (5.2 * columns, 3.6 * rows + (1.0 if title or caption else 0.0))
    picture = Figure(figsize=size, dpi=150, layout="constrained")
    heading = textwrap.fill(title, 50 * columns)
    labels = [[curve["label"] for curve in panel["series"]] for panel in axes]
    shared = all(each == labels[0] for each in labels)
    spots = list(picture.subplots(rows, columns, squeeze=False).flat)
    for empty in spots[len(axes) :]:
        empty.remove()
    for spot, panel, names, after in zip(spots, axes, labels, [*labels[1:], None], strict=False):
        for i, (curve, under) in enumerate(zip(panel["series"], covered(panel), strict=True)):
            _draw_curve(spot, curve, i, under)
        for axis in ("x", "y"):
            _scale(spot, axis, panel[f"log_{axis}"])
        dress(spot, panel["title"], panel["x"], panel["y"])
        if not shared and any(names) and names != after:
            aside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            spot.legend(**LEGEND, **(aside if len(panel["series"]) > MANY else {}))
    if shared and (title or _need_legend(axes[0])):  # one legend for all panels, outside them
        curves = spots[0].get_legend_handles_labels()
        inches = 0.6 + 0.062 * max(map(len, curves[1]))  # of the longest entry
        fit = max(1, min(3 * columns, int(size[0] / inches)))
        lines = max(1, -(-len(curves[0]) // fit))
        wide = max(1, -(-len(curves[0]) // lines))
        place: Any = "outside upper center"
        legend = picture.legend(*curves, loc=place, ncols=wide, title=heading, **LEGEND)
        legend.get_title().set(fontsize=12, multialignment="center")
    elif heading:
        picture.suptitle(heading, fontsize=12)
    narrow = textwrap.fill(caption, 75 * columns)
    picture.supxlabel(narrow, fontsize=8, color="0.35")
    for path in out:
        with writing(path) as file:
            picture.savefig(file, format=path.suffix[1:] or "png")


def _need_legend(panel: Mapping[str, Any]) -> bool:
    return len(panel["series"]) > 1 or any(curve["seeds"] > 1 for curve in panel["series"])


def _scale(spot: Any, axis: str, logarithmic: bool) -> None:
    """Set the scale of an axis: thousands as 20k, and few decades with ticks at 1, 2 and 5."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    ticks = getattr(spot, f"{axis}axis")
    if logarithmic:  # masked: a run begins at zero queries or bytes, which a log axis cannot show
        getattr(spot, f"set_{axis}scale")("log", nonpositive="mask")
    elif axis == "x":
        spot.locator_params(axis="x", nbins=7)  # more labels such as 0.0015 would overlap
    low, high = getattr(spot, f"get_{axis}lim")()
    decades = logarithmic and high >= 1000 * low
    if not decades and high > 10_000:
        ticks.set_major_formatter(EngFormatter(sep=""))  # longer labels would overlap
    elif not decades and logarithmic:
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if not decades and logarithmic:
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_minor_formatter(NullFormatter())


def _draw_curve(spot: Any, curve: Mapping[str, Any], place: int, under: int) -> None:
    """Draw a curve, wide and pale if others cover it, with markers apart from theirs."""
    colour = COLOURS[curve["colour"] % len(COLOURS)]
    under = min(under, 2)  # wider ones would be bars
    step = max(1, len(curve["x"]) // 8)
    spot.plot(
        curve["x"],
        curve["mean"],
        linestyle="--" if curve["dashed"] else "-",
        color=colour,
        alpha=0.45 if under else 1.0,
        marker=MARKERS[curve["colour"] % len(MARKERS)],
        markevery=(place % step, step),
        markersize=4.5 + 1.6 * under,
        markerfacecolor="white" if curve["dashed"] else colour,
        linewidth=1.6 + 1.6 * under,
        label=curve["label"],
    )
    if curve["seeds"] > 1:
        spot.fill_between(
            curve["x"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0
        )


def _with_seeds(label: str, seeds: int) -> str:
    return f"{label}, mean and range of {seeds} seeds" if seeds > 1 else label


def _table(
    labels: NDArray[np.int64], parts: Sequence[NDArray[np.int64]], classes: Sequence[str]
) -> NDArray[np.int64]:
    """Count the samples of each class (row) on each device (column)."""
    return np.stack([np.bincount(labels[part], minlength=len(classes)) for part in parts], axis=1)


def _title(table: NDArray[np.int64]) -> str:
    def spread(what: str, numbers: NDArray[np.int64]) -> str:
        low, middle, high = numbers.min(), np.median(numbers), numbers.max()
        if low == high:
            return f"{low:,} {what} per device"
        return f"{low:,} to {high:,} {what} per device, median {middle:,g}"

    return (
        f"{table.sum():,} samples on {table.shape[1]:,} devices\n"
        f"{spread('samples', table.sum(axis=0))}"
        f"  |  {spread('classes', np.count_nonzero(table, axis=0))}"
    )
