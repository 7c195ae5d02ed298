"""The tester's library call, through every way to reach a model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedzo
from fedzo.errors import BudgetSpent, FedzoWarning, ModelError
from fedzo.models import FunctionModel, HttpModel, OnnxModel, TorchModel
from raising import fails, rejects

EXAMPLES = Path(__file__).parents[2] / "examples"
RNG = np.random.default_rng(3)
WEIGHTS = RNG.normal(size=(20, 3))
INPUTS = RNG.uniform(0.05, 0.95, size=(90, 20))
CHOICES = (INPUTS @ WEIGHTS).argmax(axis=1)
OWN = INPUTS[CHOICES == 1]
PARTIES = np.array_split(OWN, 3)
ALGORITHM = fedzo.FedZO(learning_rate=0.02, batch_size=5, directions=5, local_steps=4)
OPTIONS = {"algorithm": ALGORITHM, "rounds": 12, "evaluate_every": 3}


def model(max_queries=None):
    return FunctionModel(lambda batch: batch @ WEIGHTS, input_shape=(20,), max_queries=max_queries)


def test_what_a_tester_gets_back(tmp_path):
    attack = fedzo.UniversalAttack(model(), **OPTIONS).fit(PARTIES, 1)
    spent = attack.queries
    assert spent == attack.result.queries + attack.result.evaluation_queries
    assert attack.noise.shape == (20,)
    adversarial = attack.apply(OWN)
    expected = np.tanh(np.arctanh(2 * OWN - 1) + attack.noise) / 2 + 0.5
    np.testing.assert_allclose(adversarial, expected, atol=1e-6)
    fooled = (adversarial @ WEIGHTS).argmax(axis=1) != 1
    assert attack.success_rate(OWN, 1) == fooled.mean() > 0.5
    assert attack.queries == spent + len(OWN)
    change = np.linalg.norm(expected - OWN, axis=1)
    assert attack.distortion.l2_mean == pytest.approx(change.mean(), rel=1e-5)

    attack.save(tmp_path / "noise.npz")
    again = fedzo.UniversalAttack(model()).load(tmp_path / "noise.npz")
    assert again.apply(OWN).tobytes() == adversarial.tobytes()
    assert again.success_rate(OWN, 1) == fooled.mean()


def test_labels_of_each_party_and_inputs_held_out():
    labels = [np.full(len(part), 1) for part in PARTIES]
    held_out = (INPUTS[CHOICES == 2], CHOICES[CHOICES == 2])
    one = fedzo.UniversalAttack(model(), **OPTIONS).fit(PARTIES, labels, held_out=held_out)
    other = fedzo.UniversalAttack(model(), **OPTIONS).fit(PARTIES, 1)
    assert one.noise.tobytes() == other.noise.tobytes()
    best = next(r for r in one.result.history if r["round"] == one.result.best.round)
    assert best["heldout_success"] == one.success_rate(*held_out)


def test_a_budget_is_kept_and_the_best_so_far_is_what_one_gets():
    attack = fedzo.UniversalAttack(model(max_queries=2000), **OPTIONS).fit(PARTIES, 1)
    assert attack.queries == 2000
    assert attack.noise.any()
    with pytest.raises(BudgetSpent):
        attack.success_rate(OWN, 1)


@pytest.mark.parametrize("budget", [1, 1000])
def test_a_budget_that_ends_while_the_rate_is_measured_ends_as_any_other(budget):
    attack = fedzo.UniversalAttack(model(budget))
    with pytest.warns(FedzoWarning):
        attack.fit(PARTIES, 1)
    result = attack.result
    assert not result.success
    assert attack.queries == result.queries + result.evaluation_queries
    assert attack.queries == (budget if budget > 1 else 0)
    spent = f"the budget of {budget:,} queries is spent before the end of the first round"
    assert result.message.startswith(spent)
    assert not attack.noise.any()


def test_a_model_that_fails_later_is_told_of_and_the_best_so_far_is_kept():
    asked = []

    def dies(batch):
        asked.append(len(batch))
        return batch @ WEIGHTS * (np.nan if len(asked) > 20 else 1)

    attack = fedzo.UniversalAttack(FunctionModel(dies), **OPTIONS | {"workers": 1})
    with pytest.raises(ModelError) as caught:
        attack.fit(PARTIES, 1)
    assert "best perturbation so far is available" in caught.value.__notes__[0]
    assert attack.result.best.round > 0
    assert attack.noise.any()


@pytest.mark.parametrize("what", ["noise", "distortion", "result"])
def test_before_there_is_a_perturbation(what, tmp_path):
    with fails("not-fitted"):
        getattr(fedzo.UniversalAttack(model()), what)


def test_a_saved_one_is_taken_by_models_of_the_same_inputs_only(tmp_path):
    path = tmp_path / "noise.npz"
    fedzo.Perturbation(np.ones(20, np.float32)).save(path)
    attack = fedzo.UniversalAttack(model()).load(path)
    with fails("not-fitted"):
        attack.distortion  # noqa: B018 - asking is the test
    assert attack.perturbation.distortion(OWN).l2_max > 0
    others = {"input_shape": (21,)}, {"input_shape": (20,), "input_range": (0, 255)}
    for other in others:
        with rejects("perturbation"):
            fedzo.UniversalAttack(FunctionModel(len, **other)).load(path)


@pytest.mark.parametrize("labels", [[1, 1], np.ones((len(OWN), 1), int), "one", 1.0, 3, None])
def test_success_is_not_told_of_labels_that_cannot_be(labels, tmp_path):
    fedzo.Perturbation(np.ones(20, np.float32)).save(tmp_path / "noise.npz")
    attack = fedzo.UniversalAttack(model()).load(tmp_path / "noise.npz")
    with rejects("labels"):
        attack.success_rate(OWN, labels)


def test_a_bare_function_must_say_what_it_answers():
    with fails("unknown-outputs"):
        fedzo.UniversalAttack(lambda batch: batch @ WEIGHTS)


@pytest.mark.parametrize("names", [(0, 1, 2), (1, 2, 3), ("cat", "deer", "ship")])
def test_models_of_libraries_are_taken_as_they_are_with_their_own_labels(names):
    linear_model = pytest.importorskip("sklearn.linear_model")
    fitted = linear_model.LogisticRegression().fit(INPUTS, np.array(names)[CHOICES])
    attack = fedzo.UniversalAttack(fitted, **OPTIONS).fit(PARTIES, names[1])
    errors = fitted.predict(attack.apply(OWN)) != names[1]
    assert attack.success_rate(OWN, names[1]) == errors.mean() > 0.5
    with rejects("labels"):
        attack.success_rate(OWN, 7)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A small convolutional network as a torch module, and as an ONNX file."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, bias=False),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 6, bias=False),
    )
    kernel, matrix = (p.detach().numpy() for p in module.parameters())
    helper, tensors = onnx.helper, (kernel, np.ascontiguousarray(matrix.T))
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "kernel"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Flatten", ["b"], ["c"]),
            helper.make_node("MatMul", ["c", "matrix"], ["logits"]),
        ],
        "network",
        [helper.make_tensor_value_info("images", 1, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", 1, ["n", 6])],
        [
            onnx.numpy_helper.from_array(a, n)
            for a, n in zip(tensors, ("kernel", "matrix"), strict=True)
        ],
    )
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("network") / "network.onnx"
    onnx.save(file, path)
    return module, path


@pytest.mark.slow
def test_onnx_torch_and_http_take_the_same_way(network):
    """One attack, three ways to the model: rounding apart, one trajectory."""
    module, path = network
    images = RNG.uniform(size=(40, 3, 8, 8)).astype(np.float32)
    server = subprocess.Popen(
        [sys.executable, EXAMPLES / "serve_onnx.py", path], stdout=subprocess.PIPE, text=True
    )
    try:
        url = server.stdout.readline().strip()
        ways = {
            "onnx": OnnxModel(path),
            "torch": TorchModel(module),  # the parties' images tell the shape
            "http": HttpModel(url, "network", max_batch=16),
        }
        labels = ways["onnx"].predict(images)
        parties = [images[:15], images[15:]], [labels[:15], labels[15:]]
        found = {n: fedzo.UniversalAttack(m, **OPTIONS).fit(*parties) for n, m in ways.items()}
    finally:
        server.terminate()
        server.wait(10)
        server.stdout.close()
    reference = found["onnx"]
    losses = [record["train_loss"] for record in reference.result.history]
    assert losses[-1] < losses[0]
    for other in (found["torch"], found["http"]):
        # Scores differ by some 1e-7; over a difference of mu = 1e-3 that is 1e-4 of a slope.
        np.testing.assert_allclose(other.result.x, reference.result.x, atol=2e-3)
        told = [record["train_loss"] for record in other.result.history]
        np.testing.assert_allclose(told, losses, rtol=1e-3)
    assert found["http"].queries == found["onnx"].queries - 40  # the predictions above
