"""Services that speak JSON of their own, and functions that call one: real servers and retries."""

import json
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import fedzo
from fedzo.errors import ModelError
from fedzo.models import FunctionModel, HttpModel, load
from raising import rejects

WEIGHTS = np.random.default_rng(0).normal(size=(6, 3))
INPUTS = np.random.default_rng(1).uniform(size=(5, 2, 3))


@contextmanager
def serving(answer, fails=()):
    """Serve ``answer(content)`` as JSON; ``fails`` are the first responses: (status, headers)."""
    planned, asked = list(fails), []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(content)
            status, headers = planned.pop(0) if planned else (200, {})
            body = json.dumps(answer(content) if status == 200 else {"error": "busy"}).encode()
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/classify", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def logits(images):
    return (np.reshape(images, (-1, 6)) @ WEIGHTS).tolist()


def test_a_template_and_a_path():
    def answer(content):
        assert content["top"] == 3
        return {"result": [{"scores": logits(content["data"]["images"])}]}

    with serving(answer) as (url, asked):
        model = HttpModel(
            url,
            request={"data": {"images": "$inputs"}, "top": 3},
            parse="result.0.scores",
            input_shape=(2, 3),
            max_queries=8,
        )
        np.testing.assert_allclose(model(INPUTS), INPUTS.reshape(5, 6) @ WEIGHTS)
        assert model.queries == model.sent == 5
        assert len(asked) == 1
        with pytest.raises(fedzo.errors.BudgetSpent):
            model(INPUTS)
        assert model.sent == 8  # exactly the budget reaches the service


def test_one_input_per_request_several_in_flight():
    with serving(lambda content: {"p": logits(content["image"])[0]}) as (url, asked):
        options = {"request": {"image": "$input"}, "parse": "p", "in_flight": 3}
        model = load(url, input_shape=[2, 3], **options)
        np.testing.assert_allclose(model(INPUTS), INPUTS.reshape(5, 6) @ WEIGHTS)
        assert len(asked) == 5


def test_a_service_that_answers_one_label_per_request():
    with serving(lambda content: {"label": int(np.argmax(logits(content["x"])))}) as (url, _):
        options = {"request": {"x": "$input"}, "parse": "label", "outputs": "labels", "classes": 3}
        model = HttpModel(url, input_shape=(2, 3), **options)
        assert model.predict(INPUTS).tolist() == np.argmax(logits(INPUTS), axis=1).tolist()


@pytest.mark.parametrize(
    "answer", [0.3, None, "cat", {"a": 1}, [1, 2, 3], [[1, 2]] * 2, [[1, 2], [1]], [[1.0]] * 5]
)
@pytest.mark.parametrize("word", ["$input", "$inputs"])
def test_answers_of_another_shape_are_errors_of_the_model(answer, word):
    if (answer, word) == ([1, 2, 3], "$input"):
        return  # three scores of a single input
    with serving(lambda content: answer) as (url, _):
        model = HttpModel(url, request={"x": word}, input_shape=(2, 3), retries=0)
        with pytest.raises(ModelError):
            model(INPUTS)


def test_functions_both_ways_and_labels():
    with serving(lambda content: [f"class {np.argmax(row)}" for row in logits(content)]) as (
        url,
        _,
    ):
        model = HttpModel(
            url,
            request=lambda batch: batch.reshape(-1, 6),  # an array becomes lists
            parse=lambda names: [int(name.split()[1]) for name in names],
            outputs="labels",
            classes=3,
            input_shape=(2, 3),
        )
        assert model.predict(INPUTS).tolist() == np.argmax(logits(INPUTS), axis=1).tolist()


def test_rate_limits_are_waited_for():
    fails = [(429, {"Retry-After": 0}), (503, {})]
    with serving(lambda content: logits(content["inputs"]), fails) as (url, asked):
        model = HttpModel(url, request={"inputs": "$inputs"}, backoff=0.01, input_shape=(2, 3))
        assert model(INPUTS).shape == (5, 3)
        assert (model.queries, model.sent, len(asked)) == (5, 15, 3)


@pytest.mark.parametrize("parse", ["scores.7", "nothing", lambda answer: answer["absent"]])
def test_an_answer_that_parse_does_not_fit_is_told(parse):
    with serving(lambda content: {"scores": [1, 2]}) as (url, _):
        model = HttpModel(url, parse=parse, input_shape=(2, 3))
        with pytest.raises(ModelError) as caught:
            model(INPUTS)
        assert caught.value.code == "protocol"


def test_what_cannot_be_sent_is_rejected_before_anything_is_asked():
    with rejects("request"):
        HttpModel("http://127.0.0.1:1", request={"inputs": "here"})
    with rejects("model"):
        HttpModel("http://127.0.0.1:1")
    with rejects("parse"):
        HttpModel("http://127.0.0.1:1", request={"inputs": "$inputs"}, parse=3)


def test_one_503_does_not_end_the_run_of_a_function():
    fails = [(200, {})] * 3 + [(503, {"Retry-After": 0}), (429, {})] + [(200, {})] * 2 + [(500, {})]
    with serving(logits, fails) as (url, asked):

        def ask(batch):
            body = json.dumps(batch.tolist()).encode()
            with urllib.request.urlopen(urllib.request.Request(url, body)) as reply:
                return np.array(json.load(reply))

        model = FunctionModel(ask, input_shape=(2, 3), max_queries=900, backoff=0.01)
        labels = np.argmax(logits(INPUTS), axis=1)
        usual = int(np.bincount(labels).argmax())
        attack = fedzo.UniversalAttack(model, eps=0.3, rounds=6)
        attack.fit([INPUTS[labels == usual]], usual)
        assert sum(len(content) for content in asked) > attack.queries  # what failed is sent again


def test_what_is_not_a_failure_of_the_connection_is_not_repeated():
    calls = []

    def wrong(batch):
        calls.append(len(batch))
        raise KeyError("weights")

    with pytest.raises(Exception, match="weights"):
        FunctionModel(wrong)(INPUTS)
    assert len(calls) == 1

    class Refused(Exception):  # noqa: N818 - as of requests and httpx
        class response:  # noqa: N801
            status_code = 403
            headers = {}  # noqa: RUF012

    def refused(batch):
        calls.append(len(batch))
        raise Refused

    with pytest.raises(Exception):  # noqa: B017, PT011 - the user's own
        FunctionModel(refused)(INPUTS)
    assert len(calls) == 2
