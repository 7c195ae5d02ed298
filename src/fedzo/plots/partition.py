"""A picture of who has what."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def draw_partition(
    labels: NDArray[np.int64],
    parts: Sequence[NDArray[np.int64]],
    classes: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Draw how many samples of which class each device has, and write the picture to a file.

    Parameters
    ----------
    labels
        Each sample's class, an index into ``classes``.
    parts
        Each device's samples, as :func:`fedzo.data.partition` returns them.
    classes
        The classes' names.
    path
        Where to write to; its ending says the format, such as ``.png``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
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

    # One hue, from pale to dark, reads the same to all eyes; it starts off white, which is none.
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1.0, 256)))
    shown = np.ma.masked_equal(table, 0)
    image = heat.imshow(shown, cmap=blues, vmin=1, aspect="auto", interpolation="nearest")
    heat.set_yticks(range(len(classes)), classes)
    heat.set_xlabel("device")
    heat.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    if devices <= 60:  # beyond, the lines would hide what they part
        heat.set_xticks(np.arange(devices + 1) - 0.5, minor=True)
        heat.set_yticks(np.arange(len(classes) + 1) - 0.5, minor=True)
        heat.grid(which="minor", color="0.85", linewidth=0.6)
        for axes in (sizes, heat):
            axes.tick_params(which="minor", length=0)
    figure.colorbar(
        image, ax=[sizes, heat], label="samples of the class (white: none)", format="{x:,.0f}"
    )
    figure.savefig(path)


def _table(
    labels: NDArray[np.int64], parts: Sequence[NDArray[np.int64]], classes: Sequence[str]
) -> NDArray[np.int64]:
    """Count the samples of each class (row) on each device (column)."""
    return np.stack([np.bincount(labels[part], minlength=len(classes)) for part in parts], axis=1)


def _title(table: NDArray[np.int64]) -> str:
    def spread(what: str, numbers: NDArray[np.int64]) -> str:
        low, middle, high = numbers.min(), np.median(numbers), numbers.max()
        return f"{what} a device: {low:,} to {high:,}, median {middle:,g}"

    return (
        f"{table.sum():,} samples on {table.shape[1]:,} devices\n"
        f"{spread('samples', table.sum(axis=0))}"
        f"  |  {spread('classes', np.count_nonzero(table, axis=0))}"
    )
