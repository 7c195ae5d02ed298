"""The picture of a split says what the split is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread

from fedzo.data import partition
from fedzo.plots.figures import _table, _title, draw_partition

LABELS = np.array([0, 0, 1, 2, 2, 2, 0])
PARTS = [np.array([0, 2]), np.array([1, 6]), np.array([3, 4, 5])]


def test_table_counts_classes_by_device() -> None:
    assert _table(LABELS, PARTS, "abcd").tolist() == [[1, 2, 0], [1, 0, 0], [0, 0, 3], [0, 0, 0]]


def test_title_tells_sizes_and_classes() -> None:
    assert _title(_table(LABELS, PARTS, "abcd")) == (
        "7 samples on 3 devices\n"
        "2 to 3 samples per device, median 2  |  1 to 2 classes per device, median 1"
    )


def test_cells_are_as_dark_as_their_counts(tmp_path: Path) -> None:
    """Two devices, two classes: the cells of 0, 1 and 9 samples are white, pale and dark."""
    labels = np.repeat([0, 1], [10, 9])
    draw_partition(labels, [np.arange(9), np.arange(9, 19)], ["a", "b"], tmp_path / "split.png")
    pixels = imread(tmp_path / "split.png")[:, :, :3]

    def area(shade: float) -> int:
        colour = colormaps["Blues"](shade)[:3]
        return np.count_nonzero(np.all(np.abs(pixels - colour) < 2 / 255, axis=-1))

    # Two cells are dark and one is pale; the colour bar adds a little to each.
    assert area(0.15) > 30_000
    assert area(1.0) == pytest.approx(2 * area(0.15), rel=0.05)


@pytest.mark.parametrize("devices", [1, 10, 50, 1_000])
def test_any_number_of_devices_can_be_drawn(tmp_path: Path, devices: int) -> None:
    labels = np.arange(4_000) % 10
    parts = partition(labels, devices, "dirichlet")
    draw_partition(labels, parts, [f"class {i}" for i in range(10)], tmp_path / "split.png")
    assert imread(tmp_path / "split.png").shape == (810, 1650, 4)
