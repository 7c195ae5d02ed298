"""The real data: its values, and where it is found."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedzo import data
from fedzo.data import registry
from fedzo.data.images import FASHION_MNIST as WHOLE
from fedzo.data.images import FASHION_MNIST_MINI as MINI
from fedzo.errors import DataUnavailable
from raising import rejects


def test_mini_is_balanced_and_in_bytes() -> None:
    mini = data.load("fashion-mnist-mini")
    assert mini.name == "fashion-mnist-mini"
    assert np.bincount(mini.train_labels).tolist() == [400] * 10
    assert np.bincount(mini.test_labels).tolist() == [100] * 10
    assert mini.train_inputs.dtype == mini.test_inputs.dtype == np.uint8
    assert mini.train_labels.dtype == mini.test_labels.dtype == np.int64
    assert (mini.train_inputs.min(), mini.train_inputs.max()) == (0, 255)
    # The first images of the official order are these things.
    named = [mini.classes[label] for label in mini.train_labels[:4]]
    assert named == ["Ankle boot", "T-shirt/top", "T-shirt/top", "Dress"]
    assert MINI.files[0].size < 4e6


@pytest.fixture(scope="module")
def whole() -> data.Dataset:
    folder = WHOLE.installed[0]
    if not folder.is_dir():
        pytest.skip(f"needs the Debian package dataset-fashion-mnist in {folder}")
    return data.load("fashion-mnist", folder)


def test_mini_is_the_first_of_each_class(whole: data.Dataset) -> None:
    mini = data.load("fashion-mnist-mini")
    for inputs, labels, all_inputs, all_labels, each in (
        (mini.train_inputs, mini.train_labels, whole.train_inputs, whole.train_labels, 400),
        (mini.test_inputs, mini.test_labels, whole.test_inputs, whole.test_labels, 100),
    ):
        seen: list[int] = [0] * 10
        chosen = []
        for index, label in enumerate(all_labels.tolist()):
            seen[label] += 1
            if seen[label] <= each:
                chosen.append(index)
        assert np.array_equal(inputs, all_inputs[chosen])
        assert np.array_equal(labels, all_labels[chosen])


def test_whole_is_fashion_mnist(whole: data.Dataset) -> None:
    assert whole.name == "fashion-mnist"
    assert whole.train_inputs.shape == (60_000, 784)
    assert whole.test_inputs.shape == (10_000, 784)
    assert np.bincount(whole.train_labels).tolist() == [6_000] * 10
    assert np.bincount(whole.test_labels).tolist() == [1_000] * 10
    # The mean and deviation of a pixel that the literature normalises with.
    assert round(float(whole.train_inputs.mean()) / 255, 4) == 0.2860
    assert round(float(whole.train_inputs.std()) / 255, 4) == 0.3530
    assert whole.train_labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert whole.test_labels[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]


def test_decompressed_files_do_too(debian: Path, tmp_path: Path, whole: data.Dataset) -> None:
    for file in WHOLE.files:
        with (
            gzip.open(debian / f"{file.name}.gz") as packed,
            (tmp_path / file.name).open("wb") as f,
        ):
            shutil.copyfileobj(packed, f)
    plain = data.load("fashion-mnist", tmp_path)
    assert np.array_equal(plain.train_inputs, whole.train_inputs)
    assert np.array_equal(plain.test_labels, whole.test_labels)


def test_download_of_the_real_files(
    debian: Path,
    cache: Path,
    serve_folder: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(registry.IMAGES, "fashion-mnist", replace(WHOLE, installed=()))
    monkeypatch.setenv("FEDZO_FASHION_MNIST_URL", serve_folder(debian))
    assert data.catalogue()[1] == ("fashion-mnist", WHOLE.about, None)
    folder = data.get("fashion-mnist")
    assert folder == cache / "fashion-mnist"
    assert sorted(p.name for p in folder.iterdir()) == sorted(f.name for f in WHOLE.files)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert said[0].endswith("/train-images-idx3-ubyte.gz")
    assert data.catalogue()[1].folder == folder
    assert data.get("fashion-mnist") == folder
    assert capsys.readouterr().err == ""  # it was there


def test_message_where_it_cannot_be_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Path("/nowhere/fashion-mnist")
    monkeypatch.setitem(registry.IMAGES, "fashion-mnist", replace(WHOLE, installed=(nowhere,)))
    monkeypatch.setenv("FEDZO_FASHION_MNIST_URL", "http://127.0.0.1:9")  # nobody listens
    with pytest.raises(DataUnavailable) as caught:
        data.load("fashion-mnist")
    first, *tried, last, apt, own, mini = str(caught.value).splitlines()
    assert first == "fashion-mnist could not be found or downloaded; tried:"
    assert tried[0] == f"  {cache}/fashion-mnist: No such file or directory"
    assert tried[1] == "  /nowhere/fashion-mnist: No such file or directory"
    assert tried[2].startswith("  http://127.0.0.1:9/train-images-idx3-ubyte.gz: ")
    assert "refused" in tried[2]
    assert len(tried) == 3
    assert last == "what to do:"
    assert "apt install dataset-fashion-mnist" in apt
    assert "--set problem.data_dir=FOLDER" in own
    assert "--set problem.data=fashion-mnist-mini" in mini


def test_mini_is_where_the_catalogue_says() -> None:
    name, about, folder = data.catalogue()[0]
    assert (name, about) == ("fashion-mnist-mini", MINI.about)
    assert folder == Path(data.__file__).parent / "files" == data.get(name)


def test_mini_missing_from_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.IMAGES, MINI.name, replace(MINI, installed=(tmp_path,)))
    with pytest.raises(DataUnavailable) as caught:
        data.load("fashion-mnist-mini")
    assert MINI.files[0].name in str(caught.value)
    assert MINI.advice[0] in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "more"),
    [(data.load, ()), (data.get, ("movie-snippets", "imdb", "smollm2-135m", "minilm-l6"))],
)
def test_unknown_name(ask: Any, more: tuple[str, ...]) -> None:
    with rejects("data") as caught:
        ask("fashion_mnist")
    for name in (*data.names(), *more):
        assert repr(name) in caught.value.allowed
