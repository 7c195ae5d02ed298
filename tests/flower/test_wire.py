"""Everything that is sent comes out as it went in, and nothing else is let in."""

import dataclasses
import io
import json
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from driving import steps_of
from fedzo import DZOPA, ZOSGD, FedAvg, FedZO
from fedzo.algorithms import ALGORITHMS
from fedzo.core.tasks import Evaluate, LocalSteps, Slopes, Update
from fedzo.flower import InProcessGrid, make_client_app, wire
from fedzo.flower.grid import travelled
from fedzo.flower.reasons import Refused
from fedzo.flower.schema import Malformed
from fedzo.flower.traffic import sizes
from fedzo.problems import Quadratic

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
    return travelled(Message(content, 1, wire.TRAIN)).content


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_work_does_the_same_at_the_other_end(work):
    content = sent(wire.task(wire.pack(work.only([1, 2])), [1, 2], True))
    there, devices, coefficients = wire.read_task(content, ALGORITHMS)
    if isinstance(work, LocalSteps):
        assert there.algorithm == work.algorithm
    assert (devices, coefficients, there.round, there.seed) == ([1, 2], True, 3, work.seed)
    for device in devices:
        here, found = work.reply(PROBLEM, device), there.reply(PROBLEM, device)
        assert np.array_equal(here.delta, found.delta)
        assert here.delta.dtype == found.delta.dtype
        assert here[2:4] == found[2:4]
        assert np.array_equal(here.values, found.values)


def altered(**changes):
    """Return a task with fields of its records changed; None takes one out."""
    content = wire.task(wire.pack(WORK), [0], False)
    plain = {**content["task"], **changes}
    content["task"] = ConfigRecord({k: v for k, v in plain.items() if v is not None})
    return sent(content)


def algorithm(**changes):
    """Return the text of an algorithm with some of its fields changed."""
    return json.dumps({**json.loads(wire.describe_algorithm(FEDZO)), **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": algorithm(name="Popen")}, "names no algorithm that is known here"),
        ({"algorithm": algorithm(name="os:abort")}, "names no algorithm that is known here"),
        ({"algorithm": algorithm(name=["fedzo"])}, "names no algorithm that is known here"),
        ({"algorithm": algorithm(command="rm")}, "names no algorithm that is known here"),
        ({"algorithm": algorithm(server="adam")}, "names no algorithm that is known here"),
        ({"algorithm": algorithm(smoothing=-1.0)}, "names no algorithm that is known here"),
        ({"algorithm": algorithm(directions="3")}, "names no algorithm that is known here"),
        ({"algorithm": "7"}, "names no algorithm that is known here"),
        ({"algorithm": "[" * 9_999}, "names no algorithm that is known here"),
        ({"algorithm": " " * 10_000 + algorithm()}, "names no algorithm that is known here"),
        ({"algorithm": None}, "has no 'batch_size'"),
        ({"learning_rate": None}, "has no 'learning_rate'"),
        ({"learning_rate": -1.0}, "the learning rate is not"),
        ({"index": 64}, "the index is not a whole number of 6 bits"),
        ({"seed": 7}, "'seed' is '7', not of the type <class 'str'>"),
        ({"seed": "-7"}, "the seed is not a whole number of 64 bits"),
        ({"seed": str(2**64)}, "the seed is not a whole number of 64 bits"),
        ({"seed": "\u0663"}, "the seed is not a whole number of 64 bits"),
        ({"seed": None}, "has no 'seed'"),
        ({"round": 1.5}, "'round' is '1.5'"),
        ({"round": -1}, "the round is not a whole number of 26 bits"),
        ({"command": "rm"}, "has unknown fields"),
        ({"devices": ["0"]}, "'devices' is"),
        ({"devices": None}, "has no 'devices'"),
        ({"coefficients": 1}, "'coefficients' is '1'"),
    ],
)
def test_malformed_task(changes, reason):
    with pytest.raises((Malformed, Refused), match=reason):
        wire.read_task(altered(**changes), ALGORITHMS)


def test_rows_are_those_of_the_devices_that_are_asked():
    work = WORKS[4]
    for devices in ([1], [1, 2, 3]):
        content = wire.task(wire.pack(work.only([1, 2])), devices, False)
        with pytest.raises(Malformed, match="is not that of"):
            wire.read_task(sent(content), ALGORITHMS)
    work = dataclasses.replace(WORK, rows={"control": np.ones((2, 6))})
    with pytest.raises(Malformed, match="rows are not those of"):
        wire.read_task(sent(wire.task(wire.pack(work), [0], False)), ALGORITHMS)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("something was unpickled",))


def of_objects():
    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], object), allow_pickle=True)
    return Array("object", (1,), "numpy.ndarray", buffer.getvalue())


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (of_objects(), "cannot be read"),
        (Array("float64", (6,), "numpy.ndarray", pickle.dumps(Trap())), "cannot be read"),
        (Array("float64", (6,), "numpy.ndarray", b"\x93NUMPY\x01"), "cannot be read"),
        (Array(np.arange(6)), "is of type int64"),
        (Array(np.array(["x"])), "is of type <U1"),
    ],
)
def test_array_of_anything_but_floats(array, reason):
    content = wire.task(wire.pack(WORK), [0], False)
    content["arrays"] = ArrayRecord({"x": array})
    with pytest.raises(Malformed, match=reason):
        wire.read_task(sent(content), ALGORITHMS)


def test_missing_parts():
    with pytest.raises(Malformed, match="no record 'task'"):
        wire.read_task(RecordDict(), ALGORITHMS)
    content = wire.task(wire.pack(WORK), [0], False)
    del content["arrays"]
    with pytest.raises(Malformed, match="no arrays"):
        wire.read_task(content, ALGORITHMS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("coefficients", [True, False])
def test_answer(dtype, coefficients):
    rng = np.random.default_rng(0)
    updates = tuple(
        Update(i, rng.normal(size=6).astype(dtype), i + 0.5, 10 * i, rng.normal(size=(2, 3)))
        for i in (1, 3)
    )
    updates = tuple(u._replace(coefficients=u.coefficients.astype(dtype)) for u in updates)
    told = wire.Answer(4, updates, {2: "OSError: no disk"})
    found = wire.read_answer(sent(wire.answer(told, coefficients)), asked=3)
    assert (found.round, found.failures) == (4, {2: "OSError: no disk"})
    for update, same in zip(updates, found.updates, strict=True):
        which = "coefficients" if coefficients else "delta"
        assert np.array_equal(getattr(update, which), getattr(same, which))
        assert getattr(same, which).dtype == dtype
        assert update[2:4] == same[2:4]
        assert update.device == same.device


def test_answer_of_nobody():
    nobody = wire.Answer(0, (), {1: "no"})
    found = wire.read_answer(sent(wire.answer(nobody, True)), asked=1)
    assert found == (0, (), {1: "no"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": [1.0]}, "differ in length"),
        ({"reasons": ["why"]}, "differ in length"),
        ({"coefficients": b"\0" * 23}, "multiple of element size|not those"),
        ({"coefficients": b"\0" * 20}, "not those of 2 devices"),
        ({"coefficients": b""}, "not those of 2 devices"),
        ({"steps": 0}, "not those of 2 devices"),
        ({"dtype": "object"}, "not float32 or float64"),
        ({"queries": ["many", "more"]}, "'queries' is"),
        ({"devices": [1, 1]}, "names a device twice"),
        ({"failed": [2], "reasons": ["no"]}, "names a device twice"),
        ({"devices": [1, 2, 3, 4]}, "about more devices than the 3 that were asked"),
        ({"reasons": ["no"] * 10**5}, "about more devices than the 3 that were asked"),
        ({"devices": 7}, "'devices' is '7'"),
    ],
)
def test_malformed_answer(changes, reason):
    one = Update(1, X, 1.0, 5, np.ones((2, 3), np.float32))
    content = wire.answer(wire.Answer(0, (one, one._replace(device=2)), {}), True)
    content["answer"] = ConfigRecord({**content["answer"], **changes})
    with pytest.raises((Malformed, ValueError), match=reason):
        wire.read_answer(content, asked=3)


def test_hello():
    told = wire.Hello("1.0", "f" * 16, "c" * 16, 6, 4, (1, 3), (10, 20), ("size",), 0)
    assert wire.read_hello(sent(wire.hello(told))) == told
    for wrong in (
        told._replace(held=(1, 4)),
        told._replace(held=(-1, 1)),
        told._replace(sizes=(1,)),
        told._replace(sizes=(1, -1)),
        told._replace(dim=0),
        told._replace(held=(1, 1)),
        told._replace(cost=-1),
    ):
        with pytest.raises(Malformed, match="contradicts itself"):
            wire.read_hello(sent(wire.hello(wrong)))


def test_losses():
    content = wire.losses({1: 0.5, 2: np.nan}, {3: "no"}, {"accuracy": 0.25})
    found, failures, metrics = wire.read_losses(sent(content), asked=3)
    assert found[1] == 0.5
    assert np.isnan(found[2])
    assert (failures, metrics) == ({3: "no"}, {"accuracy": 0.25})
    with pytest.raises(Malformed, match="more devices than the 1 that were asked"):
        wire.read_losses(sent(content), asked=1)


def test_metrics_that_the_history_can_keep():
    told = {"top 1": 0.5, "nan": np.nan, "inf": np.inf, "red\x1b[31m": 1.0, "x" * 65: 1.0}
    *_, metrics = wire.read_losses(sent(wire.losses({0: 1.0}, {}, told)), asked=1)
    assert metrics == {"top 1": 0.5}
    many = {f"m{i}": 1.0 for i in range(1000)}
    *_, metrics = wire.read_losses(sent(wire.losses({0: 1.0}, {}, many)), asked=1)
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
    with pytest.raises(Malformed, match="the array 'x'"):
        wire.read_vector(RecordDict({"arrays": ArrayRecord({"x": array})}))


def test_model():
    x, devices, metrics = wire.read_model(sent(wire.model(X.astype(np.float32), [2], True)))
    assert np.array_equal(x, X.astype(np.float32))
    assert (devices, metrics, x.dtype) == ([2], True, np.float32)
    with pytest.raises(Malformed, match="not one of finite numbers"):
        wire.read_model(sent(wire.model(np.array([np.nan]), [2])))


def test_size_is_that_of_all_objects():
    message = Message(wire.model(np.zeros(1000), [0]), 1, wire.EVALUATE)
    assert 8128 < sum(sizes(message)) < 8128 + 1500  # NumPy's header is 128 bytes
