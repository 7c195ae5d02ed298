"""Fashion-MNIST (Xiao, Rasul & Vollgraf, 2017, arXiv:1708.07747), whole and as a taste.

28 x 28 grey images of ten kinds of clothing: 60,000 to train on and 10,000 to test with. The
taste, ``fashion-mnist-mini``, ships with fedzo: of each class the first 400 training and the
first 100 test images, in the original order (``tools/make_fashion_mnist_mini.py``).
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedzo.data.dataset import Dataset
from fedzo.data.fetching import Source
from fedzo.data.origins import WebFolder
from fedzo.data.reading import File

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def _images(idx: bytes) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.frombuffer(idx, np.uint8, offset=16)  # after four numbers
    return pixels.reshape(-1, 784).copy()  # writable


def _labels(idx: bytes) -> NDArray[np.int64]:
    return np.frombuffer(idx, np.uint8, offset=8).astype(np.int64)  # after two numbers


def _decode(
    train_images: bytes, train_labels: bytes, test_images: bytes, test_labels: bytes
) -> Dataset:
    return Dataset(
        WHOLE.name,
        _images(train_images),
        _labels(train_labels),
        _images(test_images),
        _labels(test_labels),
        CLASSES,
    )


def _decode_mini(npz: bytes) -> Dataset:
    with np.load(io.BytesIO(npz)) as arrays:
        return Dataset(
            MINI.name,
            arrays["train_inputs"],
            arrays["train_labels"].astype(np.int64),
            arrays["test_inputs"],
            arrays["test_labels"].astype(np.int64),
            CLASSES,
        )


MINI = Source(
    name="fashion-mnist-mini",
    about="a taste of Fashion-MNIST that ships with fedzo: 4,000 + 1,000 images of 10 classes",
    files=(
        File(
            "fashion-mnist-mini.npz",
            2_197_901,
            "daf62aefd934a2a263bd61868c2f866e51d4f52f89f57b1d450544ef93336200",
        ),
    ),
    decode=_decode_mini,
    installed=(Path(__file__).parent / "files",),
    advice=("install fedzo again: this data set is a part of it",),
)

WHOLE = Source(
    name="fashion-mnist",
    about="Fashion-MNIST: 60,000 + 10,000 grey 28 x 28 images of 10 kinds of clothing",
    files=(
        File(
            "train-images-idx3-ubyte",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        File(
            "train-labels-idx1-ubyte",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        File(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    decode=_decode,
    installed=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
    origins=(
        WebFolder(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "FEDZO_FASHION_MNIST_URL",
        ),
    ),
    advice=(
        "on Debian and Ubuntu: apt install dataset-fashion-mnist",
        "or put its four files, as they are or with .gz, into a folder and name it:"
        " --set problem.data_dir=FOLDER",
        "or use what ships with fedzo: --set problem.data=fashion-mnist-mini",
    ),
)
