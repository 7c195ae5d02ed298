"""The protocol: what is asked, what is sent, and what is made of the answers."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serving import answer

from fedzo.errors import BudgetSpent
from fedzo.models import HttpModel
from raising import fails, rejects

TOKEN = "Bearer s3cret-token"


def logits(data, shape, **changes):
    return {
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": shape, "data": data} | changes]
    }


def sized(size):
    """Return an answer in bytes that says how many they are."""
    parameters = {"binary_data_size": size}
    return logits([], [2, 5], parameters=parameters)


def test_shape_names_and_type_are_asked_once(server, linear):
    model = HttpModel(server.url, "linear")
    for _ in range(3):
        model(linear.inputs)
    assert model.input_shape == (3, 4)
    assert server.counts()["metadata"] == 1


def test_nothing_is_asked_when_all_is_given(server, linear):
    model = HttpModel(
        f"{server.url}/", "linear",
        input_name="x", input_shape=[3, 4], datatype="FP32", output_name="logits",
    )  # fmt: skip
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert server.counts()["metadata"] == 0


@pytest.mark.parametrize("binary", [False, True])
def test_doubles_travel_whole(binary, server, linear):
    """Rows of 12 doubles give the very numbers that the same sum gives here, to rounding."""
    inputs = np.random.default_rng(1).random((7, 12))
    scores = HttpModel(server.url, "double", binary=binary)(inputs)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, linear.logits(inputs), rtol=1e-14)


def test_bytes_travel_where_the_service_announces_it(server, linear):
    for url, binary, as_bytes in (
        (server.url, None, 1),
        (server.url, False, 0),
        (f"{server.url}/unannounced", None, 0),
        (f"{server.url}/unannounced", True, 1),
    ):
        server.plan()
        model = HttpModel(url, "linear", binary=binary)
        np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
        assert server.counts()["binary"] == as_bytes


def test_half_precision_travels_as_bytes_only(server, linear):
    with rejects("datatype"):
        HttpModel(server.url, "half", binary=False)
    inputs = linear.inputs.astype(np.float16)
    scores = HttpModel(server.url, "half")(inputs.reshape(11, 12))
    np.testing.assert_allclose(scores, linear.logits(inputs), atol=5e-6)


@pytest.mark.parametrize("binary", [False, True])
def test_one_of_several_outputs_is_chosen_by_name(binary, server, linear):
    with rejects("output_name"):
        HttpModel(server.url, "both")
    model = HttpModel(
        server.url, "both", "probabilities", output_name="probabilities", binary=binary
    )
    np.testing.assert_allclose(
        model(linear.inputs), linear.probabilities(linear.inputs), rtol=0, atol=1e-6
    )


def test_bytes_of_other_outputs_are_passed_over(server, linear):
    """The wanted output comes second, behind one of another size."""
    first, second = np.zeros(4, "<f8"), np.array([[2.0, 32.0]], "<f4")  # ASCII, as bytes
    outputs = [
        {"name": name, "datatype": datatype, "shape": array.shape}
        | {"parameters": {"binary_data_size": array.nbytes}}
        for name, datatype, array in (("label", "FP64", first), ("logits", "FP32", second))
    ]
    head = json.dumps({"outputs": outputs})
    body = head + (first.tobytes() + second.tobytes()).decode("ascii")
    server.plan(answer(body, **{"Inference-Header-Content-Length": str(len(head))}))
    model = HttpModel(server.url, "linear", binary=True)
    np.testing.assert_array_equal(model(linear.inputs[:1]), second)


def test_a_service_that_describes_nothing(server, linear):
    with fails("inputs"):
        HttpModel(server.url, "bare")
    model = HttpModel(server.url, "bare", input_name="x", datatype="FP32", input_shape=(3, 4))
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)


def test_descriptions_that_do_not_fit(server):
    with fails("inputs"):
        HttpModel(server.url, "two")
    with rejects("datatype"):
        HttpModel(server.url, "bytes", binary=False)
    with rejects("input_name"):
        HttpModel(server.url, "two", input_name="z")
    assert HttpModel(server.url, "two", input_name="y").input_shape == (3,)
    for model in ("odd", "huge", "wide", "endless"):
        with fails("description"):
            HttpModel(server.url, model)
    with rejects("datatype") as caught:
        HttpModel(server.url, "control")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    with rejects("input_shape"):
        HttpModel(server.url, "linear", input_shape=(4, 3))


def test_a_fixed_batch_is_filled_up_but_not_counted(server, linear):
    model = HttpModel(server.url, "fixed")
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert model.queries == 11
    assert model.sent == server.counts()["rows"] == 12


def test_a_version_is_a_part_of_the_address(server, linear):
    model = HttpModel(server.url, "linear", version="7")
    model(linear.inputs)
    assert model.name == f"{server.url}/v2/models/linear/versions/7"
    with fails("http-404"):
        HttpModel(server.url, "linear", version="8")


def test_a_model_that_is_not_there_and_a_strange_name(server):
    with fails("http-404"):
        HttpModel(server.url, "nobody")
    with fails("http-404") as caught:
        HttpModel(server.url, "a/b?")
    assert caught.value.model.endswith("/v2/models/a%2Fb%3F")
    with rejects("model"):
        HttpModel(server.url, "")


def test_the_token_opens_and_is_never_shown(server, linear):
    model = HttpModel(server.url, "guarded", headers={"Authorization": TOKEN})
    np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert "s3cret" not in repr(model)
    wrong = {"Authorization": "Bearer wr0ng-token"}
    with fails("http-401") as caught:
        HttpModel(server.url, "guarded", headers=wrong)
    assert "wr0ng" not in repr(caught.value)
    server.plan(answer({"error": "bad s3cret-token given"}))
    with fails("model-error") as caught:
        model(linear.inputs)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("<html>busy</html>", "not-json"),
        ("", "not-json"),
        ("[1, 2]", "not-json"),
        ({"error": "out of\nmemory"}, "model-error"),
        ({"model_name": "m"}, "protocol"),
        ({"outputs": []}, "outputs"),
        ({"outputs": None}, "protocol"),
        ({"outputs": [{"name": "other"}]}, "outputs"),
        (logits([1.0] * 10, [2, 5]) | {"outputs": [{"name": "logits"}]}, "protocol"),
        (logits([1.0] * 10, [2, 6]), "protocol"),
        (logits([1.0] * 15, [3, 5]), "shape"),
        (logits([1.0] * 10, [10]), "shape"),
        (logits([1.0] * 9 + [math.nan], [2, 5]), "not-finite"),
        (logits([1.0] * 9 + [math.inf], [2, 5]), "not-finite"),
        (logits([1.0] * 9 + [None], [2, 5]), "dtype"),
        (logits(["1.0"] * 10, [2, 5]), "dtype"),
        (logits([[1.0], [1.0, 2.0]], [2, 5]), "protocol"),
        ("[" * 100_000, "not-json"),
        ('{"error": ' + "[" * 100_000, "not-json"),
        ("9" * 5_000, "not-json"),
        (logits([1.0] * 10, [math.inf, 5]), "protocol"),
        (logits([1.0] * 10, [10**30, 5]), "protocol"),
        (sized(math.inf), "protocol"),
        (sized(-8), "protocol"),
        (sized("all"), "protocol"),
        (sized(10**30), "protocol"),
        ({"error": "\x1b]0;owned\x07\x1b[2J\u202egnp.exe"}, "model-error"),
        ({"outputs": [{"name": "\x1b[2J"}]}, "outputs"),
        (logits([1] * 10, [2, 5], datatype="\x1b[2J"), "dtype"),
        ({"error": "x" * 100_000}, "model-error"),
        (logits([1] * 10, [2, 5], datatype="INT64"), "dtype"),
    ],
)
def test_rubbish_is_told_and_not_asked_again(body, code, server, linear):
    model = HttpModel(server.url, "linear")
    server.plan(answer(body))
    with fails(code) as caught:
        model(linear.inputs[:2])
    assert str(caught.value).startswith(f"{server.url}/v2/models/linear: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    assert server.counts()["requests"] == 1


def test_nested_data_are_as_good_as_flat(server, linear):
    server.plan(answer(logits([[1, 2.5], [3, 4]], [2, 2])))
    scores = HttpModel(server.url, "linear")(linear.inputs[:2])
    np.testing.assert_array_equal(scores, np.array([[1, 2.5], [3, 4]], np.float32))


def test_inputs_that_json_cannot_carry(server):
    model = HttpModel(server.url, "linear", binary=False)
    with rejects("inputs"):
        model(np.full((1, 12), np.nan))
    assert server.counts()["requests"] == 0


def test_exactly_the_budget_reaches_the_server(server, linear):
    model = HttpModel(server.url, "linear", max_queries=25, max_batch=4)
    model(linear.inputs)
    model(linear.inputs)
    with pytest.raises(BudgetSpent):
        model(linear.inputs)
    counts = server.counts()
    assert sorted(counts["sizes"]) == [3, 3, 3, 4, 4, 4, 4]  # several are under way
    assert counts["rows"] == model.queries == model.sent == 25


def test_threads_together_reach_the_server_with_exactly_the_budget(server, linear):
    """Over at most one connection for each of the four, if each asks one thing at a time."""
    model = HttpModel(server.url, "linear", max_queries=150, max_batch=5, in_flight=1)
    server.plan()

    def ask(_):
        try:
            return model(linear.inputs)
        except BudgetSpent:
            return None

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask, range(40)))
    for scores in answers:
        if scores is not None:
            np.testing.assert_allclose(scores, linear.logits(linear.inputs), atol=5e-6)
    counts = server.counts()
    assert counts["rows"] == model.queries == 150
    assert counts["connections"] <= 4 + 1  # and the one that asks for the counts


def test_a_retried_batch_counts_once_but_is_sent_twice(server, linear):
    model = HttpModel(server.url, "linear", max_queries=22, backoff=1e-3)
    server.plan({"kind": "cut"}, None, {"kind": "hang up"}, None)
    for _ in range(2):
        np.testing.assert_allclose(model(linear.inputs), linear.logits(linear.inputs), atol=5e-6)
    assert model.queries == 22
    assert model.sent == server.counts()["rows"] == 44
