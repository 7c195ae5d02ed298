"""Whatever a model, a service or a node sends: an error of ours that names it, or an answer."""

import contextlib
import json
import socket
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedzo.errors import FedzoError, ModelError
from fedzo.models import FunctionModel, HttpModel
from fuzz_cases import FUZZ

ODD = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.integers(-5, 5),
    st.lists(st.floats(), max_size=4),
    st.lists(st.lists(st.floats(), max_size=3), max_size=4),
    arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.complex64, np.bool_, "U3", object]),
        arrays.array_shapes(min_dims=0, max_dims=3, max_side=4),
    ),
)


@FUZZ
@given(answer=ODD)
def test_model_outputs(answer):
    model = FunctionModel(lambda batch: answer, outputs="logits", input_shape=(2,))
    try:
        scores = model(np.zeros((3, 2), np.float32))
    except ModelError:
        return
    assert scores.shape[0] == 3
    assert scores.ndim == 2
    assert np.isfinite(scores).all()


NAMES = (
    *("devices", "weights", "queries", "failed", "reasons", "round", "steps", "dtype"),
    *("coefficients", "losses", "values", "dim", "held", "sizes", "offers", "cost"),
    *("algorithm", "seed", "rows"),
)
RECORD = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(
        st.integers(-(2**62), 2**62),
        st.floats(),
        st.text(max_size=10),
        st.binary(max_size=40),
        st.booleans(),
        st.lists(st.integers(-3, 2**40), max_size=4),
        st.lists(st.floats(), max_size=4),
        st.lists(st.text(max_size=4), max_size=4),
    ),
    max_size=8,
)


@FUZZ
@given(plain=RECORD, name=st.sampled_from(["answer", "hello", "task", "work"]), short=st.booleans())
def test_wire_messages(plain, name, short):
    flower = pytest.importorskip("flwr.app", reason="Flower is not installed")
    from fedzo.flower import protocol
    from fedzo.runs.registry import ALGORITHMS

    content = flower.RecordDict({name: flower.ConfigRecord(plain)})
    content["arrays"] = protocol.vector(np.zeros(3))
    if name != "task":
        content["task"] = flower.ConfigRecord({"devices": [0], "coefficients": short})
    readers = (
        lambda: protocol.read_answer(content, 3),
        lambda: protocol.read_losses(content, 3),
        lambda: protocol.read_hello(content),
        lambda: protocol.read_sum_reply(content, [0], 5),
        lambda: protocol.take_sum(content),
        lambda: protocol.read_task(content, ALGORITHMS),
        lambda: protocol.read_task(content, ALGORITHMS, protocol.EVALUATE),
    )
    for reader in readers:
        try:
            reader()
        except FedzoError:
            continue


class Answering:
    """A service on loopback that answers every connection with the same bytes."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.answer = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:  # closed: the tests are over
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(self.answer)


@pytest.fixture(scope="module")
def service():
    answering = Answering()
    yield answering
    answering.socket.close()


KEYS = st.sampled_from(["outputs", "inputs", "name", "shape", "datatype", "data", "id", "error"])
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
).map(lambda value: json.dumps(value).encode())
HEADS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 999999999\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: -5\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n",
        b"HTTP/9.9 what\r\n",
    ]
)


@st.composite
def http_answers(draw):
    """A head, perhaps a length that is not true, and a body; or bytes that are no HTTP at all."""
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(st.binary(max_size=100))
    body = draw(JSON | st.binary(max_size=60))
    length = draw(st.sampled_from([len(body), len(body) + 5, 0, 10**12, -1]))
    return draw(HEADS) + b"Content-Length: %d\r\n\r\n" % length + body


@FUZZ
@given(answer=http_answers())
def test_http_answers(service, answer):
    service.answer = answer
    options = {
        "outputs": "logits",
        "input_shape": (2,),
        "retries": 0,
        "timeout": 5,
        "binary": False,
    }
    complaint, scores = "", np.zeros((3, 1))
    try:
        scores = HttpModel(service.url, "m", **options)(np.zeros((3, 2), np.float32))
    except FedzoError as error:
        complaint = str(error)
    assert complaint.isprintable()
    assert scores.shape[0] == 3
    assert np.isfinite(scores).all()
