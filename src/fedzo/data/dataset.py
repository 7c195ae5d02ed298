"""What a data set is once it is in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images, as they were published: bytes, not scaled.

    Attributes
    ----------
    name
        What :func:`fedzo.data.load` knows it by.
    train_inputs, test_inputs
        One flattened image a row, bytes 0 to 255; of a colour image first all of its red, then
        green, then blue.
    train_labels, test_labels
        Each image's class, an index into ``classes``.
    classes
        The classes' names.
    """

    name: str
    train_inputs: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: tuple[str, ...]
