"""Draw images before and after a perturbation."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedzo.core.files import write_atomic
from fedzo.core.style import COLOURS, frame
from fedzo.core.types import Array
from fedzo.variables.perturbation import Perturbation

_ACROSS = 6  # images per row
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomic(out, picture.getvalue())


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
