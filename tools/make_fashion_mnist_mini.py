"""Make the small part of Fashion-MNIST that ships with fedzo.

Of each class the first 400 training and the first 100 test images, in the original order.
Prints the file's size and checksum before compression, which ``fedzo/data/files/registry.toml``
must list.
"""

from __future__ import annotations

import hashlib
import io
import lzma

import numpy as np
from numpy.typing import NDArray

from fedzo import data
from fedzo.data.images import FASHION_MNIST_MINI as MINI


def first_of_each_class(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the indices of each class's first samples, in their original order."""
    firsts = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(firsts))


def main() -> None:
    """Write the file into the package."""
    whole = data.load("fashion-mnist")
    train = first_of_each_class(whole.train_labels, 400)
    test = first_of_each_class(whole.test_labels, 100)
    npz = io.BytesIO()
    np.savez(  # no time stamps inside: the same data give the same file
        npz,
        train_inputs=whole.train_inputs[train],
        train_labels=whole.train_labels[train].astype(np.uint8),
        test_inputs=whole.test_inputs[test],
        test_labels=whole.test_labels[test].astype(np.uint8),
    )
    file, content = MINI.files[0].name, npz.getvalue()
    packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    (MINI.installed[0] / f"{file}.xz").write_bytes(packed)
    print(f"{file}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
