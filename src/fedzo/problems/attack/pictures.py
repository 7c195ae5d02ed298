"""Draw an attack: the report's figure, and images before and after a perturbation."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedzo.core.files import write_atomic
from fedzo.core.style import COLOURS, LEGEND, dress, frame
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.variables.perturbation import LEVELS, Perturbation

_ACROSS = 6  # images per row
_COLUMNS = 12  # classes of a confusion matrix whose counts are written as numbers
_DARK = 0.6  # of the largest count: numbers on darker cells are white
_ROWS = ("original", "change", "adversarial")
_LEFT_OF: dict[str, Any] = {"va": "center", "ha": "right"}
_RIGHT, _FOOLED = COLOURS[:2]


def draw_images(
    clean: tuple[Array, Array, Array | None],
    adversarial: tuple[Array, Array, Array | None],
    perturbation: Perturbation,
    classes: Sequence[str] | None,
    out: Path,
) -> None:
    """Draw some images before and after, and the magnified change.

    Parameters
    ----------
    clean, adversarial
        Images in the input range, their labels, and the predictions of the model.
    perturbation
        The perturbation, for its input range.
    classes
        The names of the labels.
    out
        The PNG file.
    """
    from matplotlib.figure import Figure

    low, high = perturbation.input_range
    before, after = ((images[0] - low) / (high - low) for images in (clean, adversarial))
    change = after - before
    largest = float(np.abs(change).max())
    factor = _rounded_down(0.5 / largest) if largest else 1.0
    rows = (before, 0.5 + factor * change, after)
    captions = _captions(clean, classes), None, _captions(adversarial, classes)
    count = len(before)
    blocks = -(-count // _ACROSS)
    figure = Figure(figsize=(1.25 * _ACROSS + 0.5, 4.1 * blocks), dpi=150, layout="constrained")
    grid = figure.subplots(3 * blocks, _ACROSS, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for i in range(count):
        block, column = divmod(i, _ACROSS)
        for row, (images, names) in enumerate(zip(rows, captions, strict=True)):
            axes = grid[3 * block + row, column]
            axes.axis("on")
            axes.imshow(picture_of(images[i]), cmap="gray", vmin=0, vmax=1)
            frame(axes)
            if names is not None:
                text, colour = names[i]
                axes.set_title(text, color=colour, size=8, y=-0.22)
            if column == 0:
                name = f"change ×{factor:g}" if row == 1 else _ROWS[row]
                axes.text(
                    -0.08, 0.5, name, size=8, rotation=90, **_LEFT_OF, transform=axes.transAxes
                )
    _save(figure, out)


def _captions(
    images: tuple[Array, Array, Array | None], classes: Sequence[str] | None
) -> list[tuple[str, str]]:
    _, labels, predictions = images
    if predictions is None:
        return [("not asked", "0.5")] * len(labels)
    names = [str(p) if classes is None else classes[p] for p in predictions]
    return [
        (name, _RIGHT if prediction == label else _FOOLED)
        for name, prediction, label in zip(names, predictions, labels, strict=True)
    ]


def picture_of(image: Array) -> Array:
    """Return an image for matplotlib: colours on the last axis, grey without that axis."""
    if image.ndim == 3 and image.shape[0] in (1, 3):
        image = np.moveaxis(image, 0, -1)
    return np.clip(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image, 0, 1)


def _rounded_down(number: float) -> float:
    """Round a number down to one significant digit.

    >>> _rounded_down(37.5), _rounded_down(0.09)
    (30.0, 0.09)
    """
    scale = 10 ** np.floor(np.log10(number))
    return float(np.floor(number / scale + 1e-9) * scale)


def _save(figure: Any, out: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(out, picture.getvalue())


def draw_report(report: Mapping[str, Any], perturbation: Perturbation, out: Path) -> None:
    """Draw the figure of a report: curves above, classes and confusions below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 9.0), dpi=150, layout="constrained")
    figure.suptitle(textwrap.fill(report["summary"], 80), size=10)
    spots = figure.subplots(3, 2).flat
    _draw_queries(spots[0], report["success_by_queries"])
    _draw_budgets(spots[1], report["success_by_eps"], report["norm"])
    _draw_perturbation(spots[2], perturbation)
    _draw_classes(spots[3], report["by_class"])
    for axes, when in zip(spots[4:], ("before", "after"), strict=True):
        _draw_confusion(axes, report["confusion"], when, figure)
    _save(figure, out)


def _draw_queries(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    names = {"own": "the devices' inputs", "held_out": "inputs held out"}
    for (key, name), colour in zip(names.items(), COLOURS, strict=False):
        points = [(row["queries"], row[key]) for row in rows if row[key] is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=name, color=colour)
    dress(axes, "Success against queries", "queries, evaluations included", "share fooled")
    axes.set_ylim(0, 1.02)
    if axes.lines:
        axes.legend(**LEGEND)


def _draw_budgets(axes: Any, rows: Sequence[Mapping[str, Any]], norm: str | None) -> None:
    points = [(row["eps"], row["success"]) for row in rows if row["success"] is not None]
    if points:
        eps, success = np.array([(0.0, 0.0), *points]).T
        scale = 1 if norm == "l2" else LEVELS
        axes.plot(scale * eps, success, marker="o", ms=3, color=COLOURS[0])
    unit = "L2, units of the range" if norm == "l2" else f"L∞, of {LEVELS} levels"
    dress(axes, "Success against ε", unit, "share fooled")
    axes.set_ylim(0, 1.02)


def _draw_perturbation(axes: Any, perturbation: Perturbation) -> None:
    noise = perturbation.noise
    largest = float(np.abs(noise).max()) or 1.0
    if not is_image(noise.shape):
        axes.plot(noise.reshape(-1), lw=0.7, color=COLOURS[0])
        dress(axes, "The perturbation", "input number", "change")
        return
    axes.imshow(picture_of(0.5 + noise / (2 * largest)), cmap="gray", vmin=0, vmax=1)
    frame(axes)
    axes.set_title("The perturbation", fontsize=10)
    axes.set_xlabel(f"grey is no change; the largest is {largest:.3g} of the range", fontsize=8)


def _draw_classes(axes: Any, by_class: Mapping[str, Any]) -> None:
    names = list(by_class)
    rates = [by_class[name]["success"] or 0.0 for name in names]
    axes.barh(names, rates, color=COLOURS[0])
    axes.invert_yaxis()
    dress(axes, "Success by class", "share fooled")
    axes.set_xlim(0, 1)


def _draw_confusion(axes: Any, confusion: Mapping[str, Any], when: str, figure: Any) -> None:
    dress(axes, f"Predictions {when} the attack", "predicted", "true", grid=False)
    if confusion[when] is None:
        axes.axis("off")
        return
    table = np.array(confusion[when])
    known = [confusion[each] for each in ("before", "after") if confusion[each] is not None]
    rows = np.flatnonzero(np.sum(known, axis=(0, 2)))
    table, classes = table[rows], confusion["classes"]
    drawn = axes.imshow(table, cmap="Blues", aspect="auto", vmin=0)
    axes.set_yticks(range(len(rows)), [classes[row] for row in rows], size=7)
    if len(classes) > _COLUMNS:
        figure.colorbar(drawn, ax=axes)
        return
    axes.set_xticks(range(len(classes)), classes, size=7, rotation=60)
    for (row, column), count in np.ndenumerate(table):
        dark = count > _DARK * table.max()
        axes.text(column, row, count, size=6, ha="center", va="center", color="w" if dark else "k")
