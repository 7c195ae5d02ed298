"""What parties may bring to an attack, and what is refused before a query is asked."""

import numpy as np
import pytest

from fedzo.models import FunctionModel
from fedzo.problems.attack import Attack, attack
from raising import rejects

ROWS = np.linspace(0.1, 0.9, 24).reshape(4, 6)
IMAGES = ROWS.reshape(4, 2, 3)


def refuse(batch):
    raise AssertionError("the model was asked")


@pytest.mark.parametrize(
    ("inputs", "labels", "key"),
    [
        ([], [], "inputs"),
        (None, [0], "inputs"),
        ([ROWS, ROWS[:0]], [0, 0], "inputs[1]"),
        ([ROWS, ROWS[:, :5]], [0, 0], "inputs[1]"),
        ([[[0.5] * 6, [0.5] * 5]], [0], "inputs[0]"),
        ([ROWS[0]], [0], "inputs[0]"),
        ([np.full((2, 6), "a")], [0], "inputs"),
        ([ROWS], None, "labels"),
        ([ROWS, ROWS], [0], "labels"),
        # As many in all as there are inputs, but not for each device:
        ([ROWS[:1], ROWS[1:]], [[0, 0, 0], [0]], "labels[0]"),
        ([ROWS], [np.eye(4, dtype=int)], "labels[0]"),
        ([ROWS], [[[0], [0, 1]]], "labels[0]"),
        ([ROWS], ["deer"], "labels"),
        ([ROWS], [-1], "labels"),
    ],
)
def test_what_cannot_be_is_refused_at_once(inputs, labels, key):
    with rejects(key):
        Attack(FunctionModel(refuse, input_shape=(6,)), inputs, labels)


@pytest.mark.parametrize(
    ("held_out", "key"),
    [
        (ROWS, "held_out"),
        ((ROWS[:, :5], 0), "inputs held out"),
        ((ROWS, [0, 0]), "labels held out"),
    ],
)
def test_what_cannot_be_held_out(held_out, key):
    with rejects(key):
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
    ("settings", "key"),
    [
        ({"model_kind": "onyx"}, "model_kind"),
        ({"model_options": {"outputs": "x"}}, "model_options.outputs"),
        ({"max_queries": 0}, "max_queries"),
        ({"model_options": {"max_queries": 0}}, "model_options.max_queries"),
        ({"max_queries": 600, "model_options": {"max_queries": 700}}, "max_queries"),
        ({"max_queries": 499}, "max_queries"),
        ({"model": "http://h"}, "model"),
    ],
)
def test_settings_are_complained_of_by_their_keys(settings, key):
    pytest.importorskip("onnxruntime")
    with rejects(key):
        attack(**settings)


def test_flat_images_are_noticed_and_other_rows_are_not():
    from fedzo import data
    from fedzo.problems.attack.inputs import hidden_image

    rng = np.random.default_rng(0)
    clothes = data.load("fashion-mnist-mini").train_inputs[:60].reshape(60, -1) / 255
    deer = data.load("cifar10-deer-mini").train_inputs[:60].reshape(60, 3, 32, 32) / 255
    assert hidden_image(clothes) == (28, 28)
    assert hidden_image(deer.reshape(60, -1)) == (3, 32, 32)
    assert hidden_image(np.moveaxis(deer, 1, -1).reshape(60, -1)) == (32, 32, 3)
    assert hidden_image(clothes[:, rng.permutation(784)]) is None
    assert hidden_image(rng.uniform(size=(60, 100))) is None
