"""The deer that ship, and the tool that picks them."""

from __future__ import annotations

import hashlib
import lzma
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_cifar10 import NOBODY

import fedzo
from fedzo import data
from fedzo.data import registry
from fedzo.data.images import CIFAR10_DEER_MINI, DEER
from fedzo.errors import DataUnavailable

TOOLS = Path(__file__).parents[2] / "tools"
VICTIM = Path(fedzo.__file__).parent / "models" / "files" / "cifar10-resnet8.onnx"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("onnxruntime", reason="the tool asks an ONNX classifier")
    monkeypatch.syspath_prepend(TOOLS)
    import make_cifar10_deer_mini

    return make_cifar10_deer_mini


def test_mini_is_deer_in_bytes() -> None:
    mini = data.load("cifar10-deer-mini")
    assert mini.name == "cifar10-deer-mini"
    assert mini.classes[4] == "deer"
    assert mini.train_labels.tolist() == [4] * 400
    assert mini.test_labels.tolist() == [4] * 100
    assert mini.train_inputs.shape == (400, 3072)
    assert mini.test_inputs.shape == (100, 3072)
    assert mini.train_inputs.dtype == mini.test_inputs.dtype == np.uint8
    assert mini.train_labels.dtype == mini.test_labels.dtype == np.int64
    assert CIFAR10_DEER_MINI.files[0].size < 2e6


def test_mini_is_a_part_of_the_whole_in_its_order(real_cifar10: data.Dataset) -> None:
    mini, whole = data.load("cifar10-deer-mini"), real_cifar10
    for inputs, all_inputs, all_labels in (
        (mini.train_inputs, whole.train_inputs, whole.train_labels),
        (mini.test_inputs, whole.test_inputs, whole.test_labels),
    ):
        deer = iter(image.tobytes() for image in all_inputs[all_labels == 4])
        assert all(image.tobytes() in deer for image in inputs)  # each after the one before


def test_mini_is_the_first_that_the_classifier_gets_right(
    real_cifar10: data.Dataset, tool: Any
) -> None:
    import onnxruntime

    victim = onnxruntime.InferenceSession(VICTIM, providers=["CPUExecutionProvider"])
    mini, whole = data.load("cifar10-deer-mini"), real_cifar10
    train = tool.first_right(victim, whole.train_inputs, whole.train_labels, 400)
    test = tool.first_right(victim, whole.test_inputs, whole.test_labels, 100)
    assert np.array_equal(mini.train_inputs, train)
    assert np.array_equal(mini.test_inputs, test)


def test_an_installed_package_extracts_the_mini_from_the_whole(
    cache: Path, tmp_path: Path, cifar10_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini = data.load("cifar10-deer-mini")
    monkeypatch.setitem(
        registry.IMAGES, mini.name, replace(CIFAR10_DEER_MINI, installed=(tmp_path,))
    )
    cache.mkdir()
    (cache / "cifar10").symlink_to(cifar10_folder)
    again = data.load(mini.name)
    assert np.array_equal(again.train_inputs, mini.train_inputs)
    assert np.array_equal(again.test_inputs, mini.test_inputs)
    assert [file.name for file in data.get(mini.name).iterdir()] == ["cifar10-deer-mini.bin"]


def test_without_mini_and_whole_the_message_names_the_whole(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = replace(CIFAR10_DEER_MINI, installed=(tmp_path,))
    monkeypatch.setitem(registry.IMAGES, missing.name, missing)
    monkeypatch.setenv("FEDZO_CIFAR10_URL", NOBODY)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DataUnavailable) as caught:
        data.load(missing.name)
    lines = str(caught.value).splitlines()
    assert lines[0] == "cifar10-deer-mini could not be found or downloaded; tried:"
    assert any("cifar10 could not be found" in line for line in lines)
    assert "fedzo data get cifar10" in lines[-1]
    assert not (cache / missing.name / missing.files[0].name).exists()


# ---- the tool, with a classifier that calls deer what is more red than blue


@pytest.fixture
def red_is_deer(tmp_path: Path) -> Path:
    onnx = pytest.importorskip("onnx", reason="the classifier is made here")
    weights = np.zeros((3072, 10), np.float32)
    weights[:1024, DEER], weights[2048:, DEER] = 1, -1
    bias = np.zeros(10, np.float32)
    bias[DEER] = -0.5 / 255  # so that rounding does not decide where both are equal
    images, logits = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("images", ["batch", 3, 32, 32]), ("logits", ["batch", 10]))
    )
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Flatten", ["images"], ["flat"]),
            onnx.helper.make_node("Gemm", ["flat", "weights", "bias"], ["logits"]),
        ],
        "red_is_deer",
        [images],
        [logits],
        [
            onnx.numpy_helper.from_array(weights, "weights"),
            onnx.numpy_helper.from_array(bias, "bias"),
        ],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), tmp_path / "red")
    return tmp_path / "red"


def made_up(count: int) -> data.Dataset:
    rng = np.random.default_rng(count)
    inputs = rng.integers(0, 256, (count, 3072), np.uint8)
    labels = rng.integers(0, 10, count)
    return data.Dataset("made-up", inputs, labels, inputs[::-1], labels[::-1], ())


def run(tool: Any, victim: Path, whole: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the tool; it writes beside the classifier."""
    monkeypatch.setattr(data, "load", lambda name: whole)
    monkeypatch.setattr(sys, "argv", ["tool", str(victim), "--out", str(victim.parent)])
    tool.main()
    return victim.parent / "cifar10-deer-mini.bin.xz"


def test_tool_picks_the_first_that_are_right(
    tool: Any,
    red_is_deer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = made_up(12_000)  # of which 1,200 are deer, and half of them more red than blue
    path = run(tool, red_is_deer, whole, monkeypatch)
    content = lzma.decompress(path.read_bytes())
    checksum = hashlib.sha256(content).hexdigest()
    assert capsys.readouterr().out == f"{path.stem}: {len(content):,} bytes, SHA-256 {checksum}\n"

    def expected(inputs: Any, labels: Any, count: int) -> list[bytes]:
        redder = inputs[:, :1024].sum(axis=1, dtype=int) > inputs[:, 2048:].sum(axis=1, dtype=int)
        return [image.tobytes() for image in inputs[redder & (labels == 4)][:count]]

    images = expected(whole.train_inputs, whole.train_labels, 400)
    images += expected(whole.test_inputs, whole.test_labels, 100)
    assert content == b"".join(images)
    packed = path.read_bytes()
    assert run(tool, red_is_deer, whole, monkeypatch).read_bytes() == packed


def test_tool_refuses_a_classifier_that_knows_no_deer(
    tool: Any, red_is_deer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        run(tool, red_is_deer, made_up(2_000), monkeypatch)
    assert not list(red_is_deer.parent.glob("cifar10-deer-mini*"))
