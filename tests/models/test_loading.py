"""Models by name: those that ship, files, addresses, and the user's own."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fedzo import models
from fedzo.errors import InvalidValue
from fedzo.models import loading
from raising import fails, rejects

OWN = """
import numpy as np
from fedzo.models import FunctionModel

def scores(batch):
    return np.hstack([batch, 2 * batch])

def made(max_queries=None, classes=2):
    return FunctionModel(scores, max_queries=max_queries, input_shape=(classes // 2,))

def module():
    import torch
    return torch.nn.Identity()

def estimator():
    from sklearn.linear_model import LogisticRegression
    return LogisticRegression().fit([[0.0], [1.0]], [0, 1])

nothing = None
"""


@pytest.fixture
def own(tmp_path, monkeypatch, request):
    """A module of the user's beside where the command is given."""
    name = f"own_{request.node.name.partition('[')[0]}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def shelf(tmp_path, monkeypatch, write_onnx):
    """A shelf of shipped models with the linear classifier on it."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "toy-linear.onnx").write_bytes(write_onnx().read_bytes())
    (folder / "toy-linear.json").write_text(json.dumps({"test_accuracy": 0.5}))
    monkeypatch.setattr(loading, "_FILES", folder)


def test_a_model_that_ships_is_found_by_its_name(shelf, linear):
    pytest.importorskip("onnxruntime")
    assert models.shipped() == ("toy-linear",)
    assert models.card("toy-linear") == {"test_accuracy": 0.5}
    model = models.load("toy-linear", max_queries=11)
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert (model.outputs, model.max_queries) == ("logits", 11)
    with rejects("model"):
        models.load("toy-liner")
    with pytest.raises(InvalidValue, match=r"did you mean 'toy-linear'"):
        models.card("toy-liner")


def test_the_classifier_of_cifar10_answers_images():
    pytest.importorskip("onnxruntime")
    model = models.load("cifar10-resnet8")
    scores = model(np.random.default_rng(0).random((3, 3 * 32 * 32)))
    assert (model.input_shape, scores.shape) == ((3, 32, 32), (3, 10))
    assert models.card("cifar10-resnet8")["test_accuracy"] > 0.8
    assert scores.sum(axis=1) != pytest.approx(1)  # logits, not probabilities


def test_a_file(write_onnx, linear):
    pytest.importorskip("onnxruntime")
    model = models.load(str(write_onnx()), max_batch=3)
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert model.max_batch == 3


def test_a_service(server, linear):
    model = models.load(server.url, model="linear", max_queries=11)
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    with rejects("model"):
        models.load(server.url)


def test_the_users_own(own):
    model = models.load(f"{own}:made", max_queries=3, classes=4)
    assert (model.max_queries, model.input_shape) == (3, (2,))
    np.testing.assert_array_equal(model([[0.1, 0.2]]), [[0.1, 0.2, 0.2, 0.4]])
    model = models.load(f"{own}:scores", "function", outputs="logits", max_batch=1)
    np.testing.assert_array_equal(model([[0.1], [0.2]]), [[0.1, 0.2], [0.2, 0.4]])


def test_the_users_own_of_a_library(own):
    pytest.importorskip("sklearn")
    assert models.load(f"{own}:estimator", "sklearn").predict([[0.0], [1.0]]).tolist() == [0, 1]
    pytest.importorskip("torch")
    model = models.load(f"{own}:module", "torch", input_shape=[2])
    assert model([[0.25, 0.5]]).tolist() == [[0.25, 0.5]]


@pytest.mark.parametrize(
    ("spec", "options", "key"),
    [
        ("resnet", {}, "model"),
        ("", {}, "model"),
        (5, {}, "model"),
        ("a.onnx", {"kind": "onyx"}, "kind"),
        ("{own}:nobody", {}, "model"),
        ("no such:thing", {}, "model"),
        ("{own}:nothing", {}, "model"),
    ],
)
def test_what_does_not_exist_is_rejected(spec, options, key, own):
    spec = spec.format(own=own) if isinstance(spec, str) else spec
    with rejects(key):
        models.load(spec, **options)


@pytest.mark.parametrize(
    ("spec", "options", "code"),
    [
        ("nowhere.onnx", {}, "no-file"),
        ("nowhere.onnx", {"thread": 2}, "unknown-option"),
        ("http://h", {"model": "m", "header": {"a": "s3cret"}}, "unknown-option"),
        ("{own}:scores", {}, "factory-arguments"),
        ("{own}:made", {"budgets": 3}, "factory-arguments"),
        ("{own}:module", {}, "not-a-model"),
    ],
)
def test_what_does_not_fit_is_rejected(spec, options, code, own):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("torch")
    with fails(code) as caught:
        models.load(spec.format(own=own), **options)
    assert "s3cret" not in str(caught.value)


def test_names_come_without_the_libraries():
    """Only a model that is made brings its library along."""
    code = (
        "import sys, fedzo.models as models;"
        "[getattr(models, name) for name in models.__all__];"
        "heavy = {'torch', 'onnxruntime', 'sklearn', 'onnx'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_no_attributes():
    with pytest.raises(AttributeError):
        models.Nobody  # noqa: B018
