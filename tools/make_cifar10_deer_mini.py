"""Make the small part of CIFAR-10 in the source tree: deer that the shipped classifier recognises.

    python tools/make_cifar10_deer_mini.py src/fedzo/models/files/cifar10-resnet8.onnx

The first 400 training and the first 100 test deer that the classifier gets right, in the
original order. Prints the file's size and checksum before compression, which
``fedzo/data/files/registry.toml`` must list. Needs onnxruntime.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fedzo import data
from fedzo.data.images import CIFAR10_DEER_MINI, DEER

MOST_BYTES = 2_000_000


def first_right(
    victim: onnxruntime.InferenceSession,
    inputs: NDArray[np.uint8],
    labels: NDArray[np.int64],
    count: int,
) -> NDArray[np.uint8]:
    """Return the first deer that the classifier gets right."""
    deer = inputs[labels == DEER]
    images = deer.reshape(-1, 3, 32, 32).astype(np.float32) / 255
    batches = np.array_split(images, max(len(images) // 500, 1))
    logits = np.concatenate([victim.run(["logits"], {"images": batch})[0] for batch in batches])
    right = np.flatnonzero(logits.argmax(axis=1) == DEER)
    if len(right) < count:
        raise SystemExit(f"the classifier gets only {len(right)} deer of {len(deer)} right")
    return deer[right[:count]]


def main() -> None:
    """Write the file into the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("victim", type=Path, help="an ONNX file: images in [0, 1] to logits")
    parser.add_argument(
        "--out", type=Path, default=CIFAR10_DEER_MINI.installed[0], help="the folder to fill"
    )
    arguments = parser.parse_args()

    victim = onnxruntime.InferenceSession(arguments.victim, providers=["CPUExecutionProvider"])
    whole = data.load("cifar10")
    parts = (
        first_right(victim, whole.train_inputs, whole.train_labels, 400),
        first_right(victim, whole.test_inputs, whole.test_labels, 100),
    )
    file = CIFAR10_DEER_MINI.files[0].name
    content = b"".join(part.tobytes() for part in parts)
    packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
    if len(packed) > MOST_BYTES:
        raise SystemExit(f"{file}.xz: {len(packed):,} bytes are too many to ship")
    (arguments.out / f"{file}.xz").write_bytes(packed)
    print(f"{file}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
