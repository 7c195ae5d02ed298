"""Everything that is sent comes out as it went in, and nothing else is let in."""

import io
import json
import pickle
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from driving import steps_of
from fedzo import DZOPA, ZOSGD, FedAvg, FedZO
from fedzo.core.tasks import Evaluate, LocalSteps, Slopes, Update
from fedzo.flower import InProcessGrid, make_client_app, protocol
from fedzo.flower.errors import Malformed, Rejected
from fedzo.flower.protocol import object_sizes
from fedzo.flower.simulation import travelled
from fedzo.problems import Quadratic
from fedzo.runs.registry import ALGORITHMS
from raising import fails

PROBLEM = Quadratic(dim=6, devices=4, gradient_noise=0.3)
X = np.linspace(-1, 1, 6)
NUMBERS = {"smoothing": 0.01, "directions": 3, "direction_kind": "orthogonal"}
FEDZO = FedZO(**NUMBERS, difference="central", batch_size=5, local_steps=2, weighting="size")
WORK = steps_of(FEDZO, X, round=3, seed=7)
WORKS = [
    WORK,
    steps_of(ZOSGD(**NUMBERS, batch_size=5), X, round=3, seed=2**64 - 1),
    steps_of(FedAvg(learning_rate=0.1, local_steps=2), X.astype(np.float32), round=3, seed=7),
    steps_of(FedAvg(learning_rate=0.1, participants=2), X, round=3, seed=7),
    steps_of(DZOPA(**NUMBERS), np.outer(np.arange(4), X), round=3, seed=7),
    Evaluate(np.stack([X, 2 * X]), batch_size=3, weighting="size", round=3, seed=7, index=2),
    Slopes(X, np.full(6, 0.1), central=True, turn=1, batch_size=2, round=3, seed=7),
]


@pytest.fixture(autouse=True)
def _identity():
    InProcessGrid(make_client_app(lambda context: PROBLEM), nodes=1)  # so that messages can be made


def sent(content):
    """Return a content as it arrives at the other end."""
    return travelled(Message(content, 1, protocol.TRAIN)).content


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_work_does_the_same_at_the_other_end(work):
    content = sent(protocol.task(protocol.pack(work.only([1, 2])), [1, 2], True))
    there, devices, coefficients = protocol.read_task(content, ALGORITHMS)
    if isinstance(work, LocalSteps):
        assert there.algorithm == work.algorithm
    assert (devices, coefficients, there.round, there.seed) == ([1, 2], True, 3, work.seed)
    for device in devices:
        here, found = work.reply(PROBLEM, device), there.reply(PROBLEM, device)
        assert np.array_equal(here.delta, found.delta)
        assert here.delta.dtype == found.delta.dtype
        assert np.array_equal(here.values, found.values)
        assert here[2:4] == found[2:4]


def altered(**changes):
    """Return a task with fields of its records changed; None takes one out."""
    content = protocol.task(protocol.pack(WORK), [0], False)
    plain = {**content["task"], **changes}
    content["task"] = ConfigRecord({k: v for k, v in plain.items() if v is not None})
    return sent(content)


def algorithm(**changes):
    """Return the text of an algorithm with some of its fields changed."""
    return json.dumps({**json.loads(protocol.describe_algorithm(FEDZO)), **changes})


@contextmanager
def malformed(key):
    """Expect a message to be rejected because of this record or field."""
    with pytest.raises(Malformed) as caught:
        yield
    assert caught.value.key == key, str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        algorithm(name="Popen"),
        algorithm(name="os:abort"),
        algorithm(name=["fedzo"]),
        algorithm(command="rm"),
        algorithm(server="adam"),
        algorithm(smoothing=-1.0),
        algorithm(directions="3"),
        "7",
        "[" * 9_999,
        " " * 10_000 + algorithm(),
    ],
)
def test_algorithm_that_is_not_allowed(text):
    with fails("unknown-algorithm", Rejected):
        protocol.read_task(altered(algorithm=text), ALGORITHMS)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"algorithm": None}, "batch_size"),
        ({"learning_rate": None}, "learning_rate"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"index": 64}, "index"),
        ({"seed": 7}, "seed"),
        ({"seed": "-7"}, "seed"),
        ({"seed": str(2**64)}, "seed"),
        ({"seed": "\u0663"}, "seed"),
        ({"seed": None}, "seed"),
        ({"round": 1.5}, "round"),
        ({"round": -1}, "round"),
        ({"command": "rm"}, "command"),
        ({"devices": ["0"]}, "devices"),
        ({"devices": None}, "devices"),
        ({"coefficients": 1}, "coefficients"),
    ],
)
def test_malformed_task(changes, key):
    with malformed(key):
        protocol.read_task(altered(**changes), ALGORITHMS)


def test_rows_are_those_of_the_devices_that_are_asked():
    work = WORKS[4]
    for devices in ([1], [1, 2, 3]):
        content = protocol.task(protocol.pack(work.only([1, 2])), devices, False)
        with malformed("x"):
            protocol.read_task(sent(content), ALGORITHMS)
    work = replace(WORK, rows={"control": np.ones((2, 6))})
    with malformed("row control"):
        protocol.read_task(sent(protocol.task(protocol.pack(work), [0], False)), ALGORITHMS)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2**32}, "batch_size"),
        ({"weighting": "mine"}, "weighting"),
        ({"turn": -1}, "turn"),
        ({"command": "rm"}, "command"),
    ],
)
def test_malformed_slopes(change, key):
    content = protocol.task(protocol.pack(WORKS[-1]), [0], False)
    content["task"] = ConfigRecord({**content["task"], **change})
    with malformed(key):
        protocol.read_task(sent(content), ALGORITHMS)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("something was unpickled",))


def of_objects():
    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], object), allow_pickle=True)
    return Array("object", (1,), "numpy.ndarray", buffer.getvalue())


@pytest.mark.parametrize(
    "array",
    [
        of_objects(),
        Array("float64", (6,), "numpy.ndarray", pickle.dumps(Trap())),
        Array("float64", (6,), "numpy.ndarray", b"\x93NUMPY\x01"),
        Array(np.arange(6)),
        Array(np.array(["x"])),
    ],
)
def test_array_of_anything_but_floats(array):
    content = protocol.task(protocol.pack(WORK), [0], False)
    content["arrays"] = ArrayRecord({"x": array})
    with malformed("x"):
        protocol.read_task(sent(content), ALGORITHMS)


def test_missing_parts():
    with malformed("task"):
        protocol.read_task(RecordDict(), ALGORITHMS)
    content = protocol.task(protocol.pack(WORK), [0], False)
    del content["arrays"]
    with malformed("arrays"):
        protocol.read_task(content, ALGORITHMS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("coefficients", [True, False])
def test_answer(dtype, coefficients):
    rng = np.random.default_rng(0)
    updates = tuple(
        Update(i, rng.normal(size=6).astype(dtype), i + 0.5, 10 * i, rng.normal(size=(2, 3)))
        for i in (1, 3)
    )
    updates = tuple(u._replace(coefficients=u.coefficients.astype(dtype)) for u in updates)
    told = protocol.Answer(4, updates, {2: "OSError: no disk"})
    found = protocol.read_answer(sent(protocol.answer(told, coefficients)), asked=3)
    assert (found.round, found.failures) == (4, {2: "OSError: no disk"})
    for update, same in zip(updates, found.updates, strict=True):
        which = "coefficients" if coefficients else "delta"
        assert np.array_equal(getattr(update, which), getattr(same, which))
        assert getattr(same, which).dtype == dtype
        assert update[2:4] == same[2:4]
        assert update.device == same.device


def test_answer_of_nobody():
    nobody = protocol.Answer(0, (), {1: "no"})
    found = protocol.read_answer(sent(protocol.answer(nobody, True)), asked=1)
    assert found == (0, (), {1: "no"})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"weights": [1.0]}, "weights"),
        ({"reasons": ["why"]}, "reasons"),
        ({"coefficients": b"\0" * 23}, "coefficients"),
        ({"coefficients": b"\0" * 20}, "coefficients"),
        ({"coefficients": b""}, "arrays"),
        ({"steps": 0}, "coefficients"),
        ({"steps": -1}, "coefficients"),
        ({"dtype": "object"}, "dtype"),
        ({"queries": ["many", "more"]}, "queries"),
        ({"devices": [1, 1]}, "devices"),
        ({"failed": [2], "reasons": ["no"]}, "devices"),
        ({"devices": [1, 2, 3, 4]}, "devices"),
        ({"reasons": ["no"] * 10**5}, "reasons"),
        ({"devices": 7}, "devices"),
        ({"command": "rm"}, "command"),
    ],
)
def test_malformed_answer(changes, key):
    one = Update(1, X, 1.0, 5, np.ones((2, 3), np.float32))
    content = protocol.answer(protocol.Answer(0, (one, one._replace(device=2)), {}), True)
    content["answer"] = ConfigRecord({**content["answer"], **changes})
    with malformed(key):
        protocol.read_answer(content, asked=3)


def test_hello():
    told = protocol.Hello("1.0", "f" * 16, "c" * 16, 6, 4, (1, 3), (10, 20), ("size",), 0)
    assert protocol.read_hello(sent(protocol.hello(told))) == told
    for key, value in (
        ("held", (1, 4)),
        ("held", (-1, 1)),
        ("sizes", (1,)),
        ("sizes", (1, -1)),
        ("dim", 0),
        ("held", (1, 1)),
        ("cost", -1),
    ):
        with malformed(key):
            protocol.read_hello(sent(protocol.hello(replace(told, **{key: value}))))


def losses(found, failures=None, metrics=None):
    """Return the reply to an evaluation, as it arrives."""
    updates = (Update(i, np.empty(0), 1, 0, values=np.array([f])) for i, f in found.items())
    told = protocol.Answer(0, tuple(updates), failures or {})
    return sent(protocol.answer(told, False, metrics=metrics or {}))


def test_losses():
    content = losses({1: 0.5, 2: np.nan}, {3: "no"}, {"accuracy": 0.25})
    found, metrics = protocol.read_losses(content, asked=3)
    assert (found[1], found[3], metrics) == (0.5, "no", {"accuracy": 0.25})
    assert np.isnan(found[2])
    with malformed("devices"):
        protocol.read_losses(content, asked=1)


@pytest.mark.parametrize("values", [np.zeros(2), np.zeros(0)], ids=["two numbers", "none"])
def test_loss_that_is_not_one_number(values):
    told = protocol.Answer(0, (Update(0, np.empty(0), 1, 0, values=values),), {})
    with pytest.raises(Malformed):
        protocol.read_losses(sent(protocol.answer(told, False)), asked=1)


def test_metrics_that_the_history_can_keep():
    told = {"top 1": 0.5, "nan": np.nan, "inf": np.inf, "red\x1b[31m": 1.0, "x" * 65: 1.0}
    _, metrics = protocol.read_losses(losses({0: 1.0}, {}, told), asked=1)
    assert metrics == {"top 1": 0.5}
    many = {f"m{i}": 1.0 for i in range(1000)}
    _, metrics = protocol.read_losses(losses({0: 1.0}, {}, many), asked=1)
    assert len(metrics) == 64


def npy(shape):
    """Return the head of an array's file that promises more than it has."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return head.getvalue()


def archive():
    content = io.BytesIO()
    np.savez(content, x=X)
    return content.getvalue()


@pytest.mark.parametrize(
    "data",
    [npy((10**13,)), npy((6,)), archive(), pickle.dumps(X), b""],
    ids=["vast", "cut off", "archive", "pickle", "empty"],
)
def test_bytes_that_are_no_array(data):
    array = Array(dtype="float64", shape=(6,), stype="numpy.ndarray", data=data)
    with malformed("x"):
        protocol.read_vector(RecordDict({"arrays": ArrayRecord({"x": array})}))


def read_model(content):
    return protocol.read_task(sent(content), ALGORITHMS, protocol.EVALUATE)


def test_model():
    task, devices, metrics = read_model(protocol.model(X.astype(np.float32), [2], True))
    assert np.array_equal(task.x, X.astype(np.float32))
    assert (devices, metrics, task.x.dtype) == ([2], True, np.float32)
    with malformed("x"):
        read_model(protocol.model(np.array([np.nan]), [2]))
    with malformed("coefficients"):  # an evaluation is no task
        protocol.read_task(sent(protocol.model(X, [2])), ALGORITHMS)
    with malformed("metrics"):
        read_model(protocol.task(protocol.pack(WORK), [2], True))


def test_size_is_that_of_all_objects():
    message = Message(protocol.model(np.zeros(1000), [0]), 1, protocol.EVALUATE)
    assert 8128 < sum(object_sizes(message)) < 8128 + 1500  # NumPy's header is 128 bytes
