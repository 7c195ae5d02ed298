"""What parties may bring to an attack, and what is refused before a query is asked."""

import numpy as np
import pytest

from fedzo.errors import InvalidValue
from fedzo.models import FunctionModel
from fedzo.problems.attack.named import attack
from fedzo.problems.attack.problem import Attack

ROWS = np.linspace(0.1, 0.9, 24).reshape(4, 6)
IMAGES = ROWS.reshape(4, 2, 3)


def refuse(batch):
    raise AssertionError("the model was asked")


@pytest.mark.parametrize(
    ("inputs", "labels", "told"),
    [
        ([], [], "inputs = 'an empty list'"),
        (None, [0], "inputs = None: must be a list"),
        ([ROWS, ROWS[:0]], [0, 0], r"inputs\[1\] = 'an empty batch'"),
        ([ROWS, ROWS[:, :5]], [0, 0], r"inputs\[1\] = .*\(4, 5\)'.* of shape \(6,\)"),
        ([[[0.5] * 6, [0.5] * 5]], [0], r"inputs\[0\] = 'inputs of different shapes'"),
        ([ROWS[0]], [0], r"inputs\[0\] = 'an array of shape \(6,\)'"),
        ([np.full((2, 6), "a")], [0], "of numbers"),
        ([ROWS], None, "labels = None"),
        ([ROWS, ROWS], [0], "labels = 'a list of 1': must be a list with an entry"),
        # As many in all as there are inputs, but not for each device:
        ([ROWS[:1], ROWS[1:]], [[0, 0, 0], [0]], r"labels\[0\] = .* each of the 1 inputs"),
        ([ROWS], [np.eye(4, dtype=int)], r"labels\[0\] = 'an array of shape \(4, 4\)'"),
        ([ROWS], [[[0], [0, 1]]], r"labels\[0\] = 'lists of different lengths'"),
        ([ROWS], ["deer"], "labels = 'an array of <U4': must be whole numbers"),
        ([ROWS], [-1], "labels = 'from -1 to -1': must be columns of the model's scores, 0 and"),
    ],
)
def test_what_cannot_be_is_refused_at_once(inputs, labels, told):
    with pytest.raises(InvalidValue, match=told):
        Attack(FunctionModel(refuse, input_shape=(6,)), inputs, labels)


@pytest.mark.parametrize(
    ("held_out", "told"),
    [
        (ROWS, "held_out = 'ndarray': must be a pair"),
        ((ROWS[:, :5], 0), r"inputs held out = 'an array of shape \(4, 5\)'"),
        ((ROWS, [0, 0]), "labels held out = .* each of the 4 inputs"),
    ],
)
def test_what_cannot_be_held_out(held_out, told):
    with pytest.raises(InvalidValue, match=told):
        Attack(FunctionModel(refuse), [ROWS], [0], held_out=held_out)


@pytest.mark.parametrize("declared", [None, (6,), (2, 3)])
@pytest.mark.parametrize("given", [ROWS, IMAGES])
def test_a_model_is_given_its_own_shape_and_noise_has_the_images(declared, given):
    """Without a declared shape the model is given what the parties have."""
    shapes = []

    def scores(batch):
        shapes.append(batch.shape[1:])
        return batch.reshape(len(batch), -1)[:, :3]

    problem = Attack(FunctionModel(scores, input_shape=declared), [given], [0])
    problem.losses(np.zeros(6, np.float32), np.arange(1))
    assert shapes == [declared or given.shape[1:]]
    image = (2, 3) if declared == (2, 3) or given is IMAGES else (6,)
    assert problem.perturbation(np.zeros(6, np.float32)).noise.shape == image


def test_one_label_may_stand_for_all():
    model = FunctionModel(lambda batch: batch[:, :3])
    spelt_out = Attack(model, [ROWS, ROWS], [[1] * 4, [2] * 4], held_out=(ROWS, [0] * 4))
    short = Attack(model, [ROWS, ROWS], [1, 2], held_out=(ROWS, 0))
    x = np.linspace(-1, 1, 6).astype(np.float32)
    assert spelt_out.losses(x, np.arange(2)).tolist() == short.losses(x, np.arange(2)).tolist()
    assert spelt_out.metrics(x) == short.metrics(x)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model_kind": "onyx"}, "^model_kind = 'onyx'"),
        ({"model_options": {"outputs": "x"}}, r"^model_options.outputs = 'x'"),
        ({"max_queries": 0}, "^max_queries = 0"),
        ({"model_options": {"max_queries": 0}}, r"^model_options.max_queries = 0"),
        (
            {"max_queries": 600, "model_options": {"max_queries": 700}},
            "^max_queries = 600: must be given once",
        ),
        ({"max_queries": 499}, "^max_queries = 499: must be >= 500: a query for each image"),
        ({"model": "http://h"}, "given with its name at that address"),
    ],
)
def test_settings_are_complained_of_by_their_keys(settings, told):
    pytest.importorskip("onnxruntime")
    with pytest.raises(InvalidValue, match=told):
        attack(**settings)
