"""Whatever a model, a service or a node sends: an error of ours that names it, or an answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedzo.errors import FedzoError, ModelError
from fedzo.models import FunctionModel
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
    from fedzo.algorithms import ALGORITHMS
    from fedzo.flower import wire

    content = flower.RecordDict({name: flower.ConfigRecord(plain)})
    content["arrays"] = wire.vector(np.zeros(3))
    if name != "task":
        content["task"] = flower.ConfigRecord({"devices": [0], "coefficients": short})
    readers = (
        lambda: wire.read_answer(content, short, 3),
        lambda: wire.read_losses(content, 3),
        lambda: wire.read_hello(content),
        lambda: wire.read_task(content, ALGORITHMS),
        lambda: wire.read_model(content),
    )
    for reader in readers:
        try:
            reader()
        except FedzoError:
            continue
