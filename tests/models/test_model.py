"""What all kinds of models have in common."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedzo.errors import BudgetSpent
from fedzo.models import FunctionModel, HttpModel, OnnxModel, SklearnModel, TorchModel
from raising import fails, rejects

KINDS = ["function", "onnx", "torch", "sklearn", "http", "http-binary"]


@pytest.fixture
def make(request, linear):
    """Return what makes the linear classifier as one kind of model, and the rows it was asked."""

    def make(kind, **common):
        common.setdefault("input_shape", (3, 4))
        if kind == "function":
            return FunctionModel(
                lambda x: x.reshape(len(x), -1) @ linear.weights + linear.bias, **common
            )
        if kind == "onnx":
            pytest.importorskip("onnxruntime")
            return OnnxModel(request.getfixturevalue("write_onnx")(), **common)
        if kind == "torch":
            return TorchModel(torch_linear(linear), **common)
        if kind == "sklearn":
            return SklearnModel(sklearn_linear(linear), **common)
        url = request.getfixturevalue("server").url
        return HttpModel(url, "linear", binary=kind == "http-binary", **common)

    return make


def torch_linear(linear):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(12, 5)
    layer.weight.data = torch.tensor(linear.weights.T)
    layer.bias.data = torch.tensor(linear.bias)
    return torch.nn.Sequential(torch.nn.Flatten(), layer)


def sklearn_linear(linear):
    """Fitted to anything, then given the weights: what is tested is what it answers."""
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(max_iter=1000).fit(np.eye(12), np.arange(12) % 5)
    fitted.coef_ = linear.weights.T.astype(np.float64)
    fitted.intercept_ = linear.bias.astype(np.float64)
    return fitted


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_scores(kind, make, linear):
    """Logits of size 5 in float32: an error of 1e-6 is a few units of the last place."""
    model = make(kind)
    rows = linear.inputs.reshape(11, -1)
    for inputs in (linear.inputs, rows, rows.astype(np.float64), rows[::-1][::-1], rows.tolist()):
        np.testing.assert_allclose(
            model.probabilities(inputs), linear.probabilities(linear.inputs), rtol=0, atol=1e-6
        )
        differences = np.diff(model.log_scores_of(model(inputs)), axis=1)
        expected = np.diff(linear.logits(linear.inputs), axis=1)
        np.testing.assert_allclose(differences, expected, rtol=0, atol=5e-6)
    assert model.predict(rows).tolist() == linear.logits(rows).argmax(axis=1).tolist()
    assert model.queries == (2 * 5 + 1) * 11
    assert model.classes == 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_batch", [None, 4])
def test_every_kind_answers_its_budget_to_the_query(kind, max_batch, make, linear):
    model = make(kind, max_queries=25, max_batch=max_batch)
    for _ in range(2):
        model(linear.inputs)
    with pytest.raises(BudgetSpent):
        model(linear.inputs)
    with pytest.raises(BudgetSpent):
        model(linear.inputs[:1])
    assert model.queries == model.max_queries == 25


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_splits_into_pieces_in_order(kind, make, linear):
    whole, split = make(kind), make(kind, max_batch=3)
    np.testing.assert_allclose(split(linear.inputs), whole(linear.inputs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_answers_threads_alike_and_keeps_their_budget(kind, make, linear):
    model = make(kind, max_queries=100)
    expected = model.probabilities_of(model(linear.inputs))

    def ask(_):
        try:
            return model.probabilities(linear.inputs)
        except BudgetSpent:
            return None

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(20)))
    given = [answer for answer in answers if answer is not None]
    assert len(given) == 8  # 8 more batches of 11 fit in 100, the ninth only in part
    for answer in given:
        np.testing.assert_array_equal(answer, expected)
    assert model.queries == 100


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_leaves_its_inputs_alone(kind, make, linear):
    inputs = linear.inputs.copy()
    inputs.flags.writeable = False
    make(kind)(inputs)
    np.testing.assert_array_equal(inputs, linear.inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 11), (12,), (3, 4), (2, 4, 3), (0, 12), (2, 1, 3, 4), ()])
def test_a_wrong_size_is_refused_before_any_query(kind, shape, make):
    model = make(kind)
    with rejects("inputs"):
        model(np.zeros(shape))
    assert model.queries == 0


def answering(scores, outputs="logits", **common):
    return FunctionModel(lambda batch: scores, outputs, **common)


@pytest.mark.parametrize(
    ("scores", "outputs", "code"),
    [
        ([[1.0, 2.0]], "logits", "shape"),
        ([1.0, 2.0], "logits", "shape"),
        ([[1.0], [2.0]], "logits", "shape"),
        ([[1.0, 2.0], [1.0]], "logits", "shape"),
        ([[1, 2], [3, 4]], "logits", "dtype"),
        ([["a", "b"], ["c", "d"]], "logits", "dtype"),
        ([[1.0, 2.0], [math.nan, 4.0]], "logits", "not-finite"),
        ([[1.0, 2.0], [3.0, -math.inf]], "logits", "not-finite"),
        ([[0.0, -1.0], [0.0, math.nan]], "log-probabilities", "not-finite"),
        ([[0.0, math.inf], [0.0, 0.0]], "log-probabilities", "not-finite"),
        ([[0.5, 0.5], [1.5, -0.5]], "probabilities", "not-probabilities"),
        ([[0.5, 0.5], [0.5, 0.502]], "probabilities", "not-probabilities"),
        ([[5.0, -3.0], [800.0, 0.0]], "log-probabilities", "not-probabilities"),
        ([[-1.0, -1.0], [-1.0, -1.0]], "log-probabilities", "not-probabilities"),
    ],
)
def test_answers_that_cannot_be_scores_are_told(scores, outputs, code):
    def classifier(batch):
        return scores

    with fails(code) as caught:
        FunctionModel(classifier, outputs)(np.zeros((2, 3)))
    assert caught.value.model == "classifier"


def test_probabilities_may_be_rounded():
    scores = [[0.3333, 0.3333, 0.3333], [0.0, 1.0005, 0.0]]
    np.testing.assert_array_equal(answering(scores, "probabilities")(np.zeros((2, 1))), scores)


def test_the_number_of_classes_may_not_change():
    model = FunctionModel(lambda batch: np.zeros((len(batch), 1 + len(batch))), max_batch=2)
    with fails("classes-changed"):
        model(np.zeros((3, 1)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_probabilities_have_finite_log_scores(dtype):
    lowest = np.log(np.finfo(dtype).tiny)
    chances = np.array([[0.25, 0.75, 0.0]], dtype)
    np.testing.assert_allclose(
        answering(chances, "probabilities").log_scores_of(chances),
        [[math.log(0.25), math.log(0.75), lowest]],
        rtol=1e-6,
    )
    with np.errstate(divide="ignore"):
        logs = np.log(chances)
    model = answering(logs, "log-probabilities")
    np.testing.assert_allclose(
        model.log_scores_of(model(np.zeros((1, 1)))),
        [[math.log(0.25), math.log(0.75), lowest]],
        rtol=1e-6,
    )
    np.testing.assert_allclose(model.probabilities(np.zeros((1, 1))), chances, rtol=1e-6)
    assert model.log_scores_of(logs).dtype == dtype


def test_log_probabilities_far_below_the_floor_stay_apart():
    logs = np.array([[0.0, -200.0, -300.0]], np.float32)
    model = answering(logs, "log-probabilities")
    scores = model.log_scores_of(model(np.zeros((1, 1))))
    np.testing.assert_array_equal(scores, logs)


def test_the_softmax_of_large_logits_does_not_overflow():
    chances = answering([[1000.0, 1000.0, 0.0]]).probabilities(np.zeros((1, 1)))
    np.testing.assert_allclose(chances, [[0.5, 0.5, 0.0]])


def test_half_precision_becomes_single():
    scores = answering(np.array([[0.5, 0.25]], np.float16))(np.zeros((1, 1)))
    assert scores.dtype == np.float32
    assert scores.tolist() == [[0.5, 0.25]]


def test_a_batch_that_fails_stays_counted_but_not_what_follows():
    def broken(batch):
        raise RuntimeError("out of order")

    model = FunctionModel(broken, max_batch=2)
    with pytest.raises(RuntimeError, match="out of order"):  # passed on
        model(np.zeros((9, 1)))
    assert model.queries == 2


def test_exactly_the_budget_reaches_the_model_itself():
    seen = []
    model = FunctionModel(
        lambda batch: seen.append(len(batch)) or np.zeros((len(batch), 2)),
        max_queries=10,
        max_batch=4,
    )
    with pytest.raises(BudgetSpent):
        model(np.zeros((12, 1)))
    assert seen == [4, 4, 2]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("outputs", "label"),
        ("input_range", (1.0, 0.0)),
        ("input_range", (0.0, math.inf)),
        ("input_range", (0.0, math.nan)),
        ("input_range", (0.0,)),
        ("input_range", 1.0),
        ("input_range", ("a", "b")),
        ("input_shape", (3, 0)),
        ("input_shape", ()),
        ("input_shape", (2.0,)),
        ("input_shape", (True,)),
        ("input_shape", 3),
        ("input_shape", "33"),
        ("max_queries", 0),
        ("max_batch", 0),
        ("max_batch", 1.5),
    ],
)
def test_settings_that_cannot_be(key, value):
    with rejects(key):
        FunctionModel(lambda batch: batch, **{key: value})


def test_bytes_are_refused_where_the_range_is_from_zero_to_one():
    model = answering([[0.0, 1.0]])
    with rejects("inputs"):
        model(np.array([[0, 255]], np.uint8))
    with rejects("inputs"):
        model([["a", "b"]])
    model(np.array([[0, 1]], np.uint8))
    answering([[0.0, 1.0]], input_range=[0, 255])(np.array([[0, 255]], np.uint8))
    assert model.queries == 1


def test_a_large_batch_is_shared_in_parts_of_the_same_size():
    sizes = []

    def answer(batch):
        sizes.append(len(batch))
        return np.zeros((len(batch), 2))

    model = FunctionModel(answer, max_batch=128)
    model.in_flight = 2
    assert len(model(np.zeros((300, 3)))) == 300
    assert sizes == [75] * 4
