"""ONNX files of all types and shapes."""

import sys

import numpy as np
import pytest

from fedzo.errors import MissingExtra
from fedzo.models import OnnxModel
from raising import fails, rejects

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("kind", "atol"), [("float", 5e-6), ("double", 1e-13), ("float16", 2e-2)])
def test_inputs_are_cast_to_the_type_of_the_file(kind, atol, write_onnx, linear):
    inputs = np.random.default_rng(2).random((4, 12))
    model = OnnxModel(write_onnx(kind=kind))
    np.testing.assert_allclose(model(inputs), linear.logits(inputs), rtol=0, atol=atol)
    assert (model.input_shape, model.classes) == ((3, 4), 5)


@pytest.mark.parametrize("batch", [1, 4, 11, 16])
@pytest.mark.parametrize("max_batch", [None, 3])
def test_a_fixed_batch_is_filled_up_but_not_counted(batch, max_batch, write_onnx, linear):
    model = OnnxModel(write_onnx(batch=batch), max_batch=max_batch)
    scores = model(linear.inputs)
    np.testing.assert_allclose(scores, linear.logits(linear.inputs), rtol=0, atol=5e-6)
    assert model.queries == 11


def test_a_shape_that_the_file_leaves_open(write_onnx, linear):
    path = write_onnx(inner="h, 4")
    for model in (OnnxModel(path), OnnxModel(path, input_shape=(3, 4))):
        np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    with rejects("input_shape"):
        OnnxModel(path, input_shape=(3, 5))
    with fails("run-failed"):
        OnnxModel(path)(np.zeros((2, 5, 4)))


def test_one_of_several_outputs_is_chosen_by_name(write_onnx, linear):
    path = write_onnx(ending="p = Softmax (y)", outputs="y p")
    with rejects("output_name"):
        OnnxModel(path)
    with rejects("output_name"):
        OnnxModel(path, output_name="q")
    model = OnnxModel(path, "probabilities", output_name="p")
    np.testing.assert_allclose(
        model(linear.inputs), linear.probabilities(linear.inputs), rtol=0, atol=1e-6
    )


def test_files_that_do_not_fit(tmp_path, write_onnx):
    def saved(text):
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), path)
        return path

    path = tmp_path / "odd.onnx"
    two = saved("odd (float[n, 2] a, float[n, 2] b) => (float[n, 2] y) {y = Add(a, b)}")
    with fails("inputs"):
        OnnxModel(two)
    whole = saved("odd (uint8[n, 2] x) => (float[n, 2] y) {y = Cast<to=1>(x)}")
    with fails("dtype"):
        OnnxModel(whole)
    flat = saved("odd (float[n] x) => (float[n] y) {y = Neg(x)}")
    with fails("input-axes"):
        OnnxModel(flat)
    labels = saved("odd (float[n, 2] x) => (int64[n, 2] y) {y = Cast<to=7>(x)}")
    with fails("dtype"):
        OnnxModel(labels)(np.zeros((1, 2)))
    path.write_bytes(b"not a model")
    with fails("not-onnx"):
        OnnxModel(path)
    with fails("no-file"):
        OnnxModel(tmp_path / "nowhere.onnx")
    with rejects("threads"):
        OnnxModel(write_onnx(), threads=0)


def test_a_batch_that_fits_is_not_copied(write_onnx, linear, monkeypatch):
    model = OnnxModel(write_onnx())
    fed = []

    class Watched:
        def run(self, names, feed):
            fed.extend(feed.values())
            return [np.zeros((11, 5), np.float32)]

    monkeypatch.setattr(model, "_session", Watched())
    model(linear.inputs.reshape(11, -1))
    assert np.shares_memory(fed[0], linear.inputs)


def test_without_onnxruntime_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"fedzo\[attack\]"):
        OnnxModel("any.onnx")
