"""One random linear classifier of 3x4 inputs and 5 classes, in every form."""

import numpy as np
import pytest
from serving import running

SHAPE, CLASSES = (3, 4), 5


class Linear:
    """The classifier, and what it must answer, in float64."""

    def __init__(self):
        random = np.random.default_rng(7)
        self.weights = random.normal(size=(12, CLASSES)).astype(np.float32)
        self.bias = random.normal(size=CLASSES).astype(np.float32)
        self.inputs = random.random((11, *SHAPE)).astype(np.float32)

    def logits(self, inputs):
        rows = np.asarray(inputs, np.float64).reshape(len(inputs), -1)
        return rows @ self.weights.astype(np.float64) + self.bias

    def probabilities(self, inputs):
        powers = np.exp(self.logits(inputs))
        return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture(scope="session")
def linear():
    return Linear()


@pytest.fixture(scope="session")
def write_onnx(linear, tmp_path_factory):
    """Return what writes the classifier as an ONNX file of some types, shapes and endings."""
    onnx = pytest.importorskip("onnx")

    def write(batch="n", kind="float", inner="3, 4", ending="", outputs="y"):
        dtype = {"float": np.float32, "double": np.float64, "float16": np.float16}.get(
            kind, np.float32
        )
        declared = ", ".join(f"{kind}[{batch}, {CLASSES}] {name}" for name in outputs.split())
        text = f"""<ir_version: 8, opset_import: ["": 17]>
            classifier ({kind}[{batch}, {inner}] x) => ({declared})
            {{ flat = Flatten <axis = 1> (x)  y = Gemm (flat, w, b)  {ending} }}"""
        model = onnx.parser.parse_model(text)
        for name, array in (("w", linear.weights), ("b", linear.bias)):
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(dtype), name))
        path = tmp_path_factory.mktemp("onnx") / "linear.onnx"
        onnx.save(model, path)
        return path

    return write


@pytest.fixture(scope="session")
def weights_file(linear, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "linear.npz"
    np.savez(path, weights=linear.weights, bias=linear.bias)
    return path


@pytest.fixture(scope="session")
def process(weights_file):
    with running(weights_file) as server:
        yield server


@pytest.fixture
def server(process):
    process.plan()
    yield process
    process.plan()  # lets go of what hangs
