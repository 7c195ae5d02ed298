"""Random victims: whatever they answer, budgets are exact and the best evaluated is kept."""

import warnings

import numpy as np
import pytest

import fedzo
from fedzo.errors import FedzoWarning, Halted
from fedzo.models import FunctionModel

COUNT, SHAPES = 60, [(8, 8), (64,), (4, 4, 4), (16, 16)]


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def victim(kind, dim, rng):
    """Return a function of a batch, the kind of its answers, and the number of classes."""
    weights, thresholds = rng.normal(size=(dim, 3)), rng.uniform(0.3, 0.7, size=9)
    asked, leaves = rng.integers(dim, size=9), rng.normal(size=(9, 3))

    def linear(batch):
        return 4 * batch.reshape(len(batch), -1) @ weights

    def tree(batch):
        return (batch.reshape(len(batch), -1)[:, asked] > thresholds) @ leaves

    return {
        "linear": (linear, "logits"),
        "tree": (tree, "logits"),
        "labels of a tree": (lambda batch: tree(batch).argmax(axis=1), "labels"),
        "labels": (lambda batch: linear(batch).argmax(axis=1), "labels"),
        "rounded": (lambda batch: softmax(linear(batch)).round(1), "probabilities"),
        "constant": (lambda batch: np.tile([0.2, 0.5, 0.3], (len(batch), 1)), "probabilities"),
        "two classes": (lambda batch: linear(batch)[:, :2], "logits"),
    }[kind]


def labels_of(answers):
    return answers if answers.ndim == 1 else answers.argmax(axis=1)


KINDS = ["linear", "tree", "labels of a tree", "labels", "rounded", "constant", "two classes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 2, 7, 29, 50, 300, 1_500, None])
def test_the_best_of_what_was_evaluated_is_returned_and_no_query_is_too_many(kind, budget):
    seed = sum(map(ord, kind)) + (budget or 0)
    rng, counted = np.random.default_rng(seed), []
    shape = SHAPES[seed % len(SHAPES)]
    ask, outputs = victim(kind, int(np.prod(shape)), rng)
    images = rng.integers(0, 256, size=(COUNT, *shape)) / 255
    labels = labels_of(ask(images))

    def counting(batch):
        counted.append(len(batch))
        return ask(batch)

    classes = 3 if outputs == "labels" else None
    model = FunctionModel(counting, outputs, classes=classes, max_queries=budget)
    attack = fedzo.UniversalAttack(model, eps=0.1, seed=seed, **({} if budget else {"rounds": 4}))
    parts = np.array_split(np.arange(COUNT), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedzoWarning)  # the smallest budgets find nothing
        attack.fit([images[part] for part in parts], [labels[part] for part in parts])
    assert sum(counted) == attack.queries <= (budget or np.inf)
    history = attack.result.history
    if not history:
        return
    rates = {record["round"]: record["attack_success"] for record in history}
    assert rates[attack.result.best.round] == max(rates.values())
    if len(attack.result.algorithm.server.shape) and budget is None:  # all images are evaluated
        found = np.mean(labels_of(ask(attack.apply(images))) != labels)
        assert found == pytest.approx(max(rates.values()))
        assert attack.result.success == (found > rates[0])


def test_a_target_that_the_model_does_not_have_is_named():
    images = np.random.default_rng(0).uniform(size=(9, 16))
    attack = fedzo.UniversalAttack(FunctionModel(lambda batch: batch[:, :3]), eps=0.1, target=3)
    with pytest.raises(Halted) as caught:  # known only after the first answer
        attack.fit([images], 0)
    assert "target" in str(caught.value)
