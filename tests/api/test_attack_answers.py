"""Victims that tell little: labels only, scores rounded to few digits; and budgets cut short."""

import json
import warnings

import numpy as np
import pytest

import fedzo
from fedzo.models import FunctionModel
from fedzo.problems.attack import Attack
from raising import rejects

RNG = np.random.default_rng(1)
SHAPE, EPS = (4, 4, 3), 16 / 255
WEIGHTS = RNG.normal(size=(48, 3))
IMAGES = RNG.integers(60, 196, size=(150, *SHAPE)) / 255


def logits(batch):
    return 4 * batch.reshape(len(batch), -1) @ WEIGHTS


def probabilities(batch):
    powers = np.exp(logits(batch) - logits(batch).max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


LABELS = logits(IMAGES).argmax(axis=1)
OWN = IMAGES[np.bincount(LABELS).argmax() == LABELS]
LABEL = int(np.bincount(LABELS).argmax())
DEVICES = np.array_split(OWN, 3)


def noise_alone():
    """Return how often ±ε at random succeeds."""
    signs = RNG.choice([-1, 1], size=(20, 1, *SHAPE))
    moved = np.concatenate((OWN + EPS * signs).clip(0, 1))
    return np.mean(logits(moved).argmax(axis=1) != LABEL)


def test_a_victim_that_answers_labels_only_is_fooled_more_often_than_by_noise():
    model = FunctionModel(
        lambda batch: logits(batch).argmax(axis=1), "labels", classes=3, max_queries=20_000
    )
    attack = fedzo.UniversalAttack(model, eps=EPS).fit(DEVICES, LABEL)
    assert attack.queries <= 20_000
    judge = fedzo.UniversalAttack(FunctionModel(logits), eps=EPS)
    judge._perturbation = attack.perturbation
    assert judge.success_rate(OWN, LABEL) > noise_alone() + 0.2


def test_a_victim_that_answers_rounded_scores_is_fooled_more_often_than_by_noise():
    model = FunctionModel(
        lambda batch: probabilities(batch).round(2), "probabilities", max_queries=20_000
    )
    attack = fedzo.UniversalAttack(model, eps=EPS).fit(DEVICES, LABEL)
    judge = fedzo.UniversalAttack(FunctionModel(logits), eps=EPS)
    judge._perturbation = attack.perturbation
    assert judge.success_rate(OWN, LABEL) > noise_alone() + 0.2


@pytest.mark.parametrize(("digits", "total"), [(1, 0.7), (2, 0.98), (3, 1.001)])
def test_probabilities_that_rounding_keeps_from_summing_to_one_are_taken(digits, total):
    row = np.full(7, 1 / 7).round(digits)
    scores = FunctionModel(lambda batch: np.tile(row, (len(batch), 1)), "probabilities")(OWN)
    assert np.allclose(scores.sum(axis=1), total)


@pytest.mark.parametrize("row", [(0.97, 0.01), (0.333, 0.333), (1.0, 1.0)])
def test_what_rounding_does_not_explain_is_refused(row):
    model = FunctionModel(lambda batch: np.tile(row, (len(batch), 1)), "probabilities")
    with pytest.raises(fedzo.errors.ModelError):
        model(OWN)


@pytest.mark.parametrize(
    "answer",
    [
        logits,
        lambda batch: np.full(len(batch), 3),  # of 0, 1, 2
        lambda batch: np.full(len(batch), 0.5),
        lambda batch: np.full(len(batch), "cat"),
    ],
)
def test_answers_that_are_not_labels_are_rejected(answer):
    with pytest.raises(fedzo.errors.ModelError):
        FunctionModel(answer, "labels", classes=3)(OWN)


def test_labels_need_the_number_of_classes():
    with rejects("classes"):
        FunctionModel(logits, "labels")


def test_a_round_that_the_budget_cuts_short_is_used_and_evaluated():
    """Two steps of 2 (1 + 5) queries a device; the last model is evaluated."""
    few = OWN[:39]  # so few that no evaluation leaves any out
    algorithm = fedzo.FedZO(smoothing=1.0, batch_size=2, directions=5, local_steps=2)
    whole_round = 3 * 2 * 2 * (1 + 5)
    ends = []
    for more in (0, 7, 37, whole_round - 1):
        model = FunctionModel(logits, max_queries=3 * len(few) + whole_round + more)
        problem = Attack(model, np.array_split(few, 3), [LABEL] * 3, eps=EPS)
        result = fedzo.minimize(problem, algorithm=algorithm, rounds=5, evaluate_every=1)
        ends.append((result.nit, result.history[-1]["round"], model.max_queries - model.queries))
    assert ends == [(1, 1, len(few)), (2, 2, 0), (2, 2, 1), (2, 2, 0)]  # 1: not enough for a step


def test_cutting_short_does_not_depend_on_the_workers():
    def run(workers):
        model = FunctionModel(logits, max_queries=1_111)
        attack = fedzo.UniversalAttack(model, eps=EPS, workers=workers)
        return attack.fit(DEVICES, LABEL).noise.tobytes(), attack.queries

    assert run(1) == run(4)
    assert run(2)[1] <= 1_111


def test_devices_ask_in_one_batch():
    sizes = []

    def counted(batch):
        sizes.append(len(batch))
        return logits(batch)

    algorithm = fedzo.FedZO(
        learning_rate=1.0, smoothing=1.0, batch_size=2, directions=20, local_steps=2
    )
    steps = {"algorithm": algorithm, "evaluate_every": 1}
    fedzo.UniversalAttack(FunctionModel(counted), eps=EPS, rounds=3, **steps).fit(DEVICES, LABEL)
    assert sizes == [len(OWN), *[3 * 2 * 21, 3 * 2 * 21, len(OWN)] * 3]
    sizes.clear()
    fedzo.UniversalAttack(FunctionModel(counted), eps=EPS, rounds=3).fit(DEVICES, LABEL)
    # Nine starts on 30 inputs, three on 60, and ten perturbations on four inputs of each device.
    assert sizes == [len(OWN), 9 * 30, 3 * 60, len(OWN), 10 * 3 * 4, len(OWN)]


def test_the_report_holds_what_a_tester_hands_in(tmp_path):
    other = FunctionModel(lambda batch: logits(batch)[:, ::-1])  # takes everything for another
    labels = logits(IMAGES).argmax(axis=1)
    halves = np.array_split(IMAGES[:100], 2), np.array_split(labels[:100], 2)
    attack = fedzo.UniversalAttack(
        FunctionModel(logits, max_queries=6_000), eps=EPS, run_dir=tmp_path, transfer_to=other
    ).fit(*halves, held_out=(IMAGES[100:], labels[100:]))
    told = json.loads((tmp_path / "attack.json").read_text())
    after = logits(attack.apply(IMAGES[100:])).argmax(axis=1)
    assert told["success"] == np.mean(after != labels[100:])
    assert told["queries"] == attack.queries <= 6_000
    assert np.trace(told["confusion"]["before"]) == 50
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (labels[100:], after), 1)
    assert told["confusion"]["after"] == expected.tolist()
    assert sum(row["inputs"] for row in told["by_class"].values()) == 50
    rates = [row["success"] for row in told["success_by_eps"]]
    assert [round(255 * row["eps"]) for row in told["success_by_eps"]] == [4, 8, 12, 16]
    for eps, rate in zip((4, 8, 12), rates, strict=False):
        moved = attack.project(eps / 255).apply(IMAGES[100:])
        assert rate == np.mean(logits(moved).argmax(axis=1) != labels[100:])
    assert rates[-1] == told["success"]
    assert told["success_by_queries"][-1]["queries"] <= told["queries"]
    assert told["distortion"]["linf_max"] <= EPS * (1 + 1e-6)
    right = logits(IMAGES[100:])[:, ::-1].argmax(axis=1) == labels[100:]
    assert told["transfer"]["inputs"] == right.sum()
    wrong = after[(labels[100:] == 0) & (after != 0)]
    if len(wrong):
        assert f"most often {np.bincount(wrong).argmax()}" in (tmp_path / "attack.html").read_text()


@pytest.mark.parametrize("kind", ["forest", "svc", "rounded"])
@pytest.mark.parametrize("flat", [True, False])
def test_models_that_answer_little_are_fooled_more_often_than_by_the_best_of_random_signs(
    kind, flat
):
    """At equal queries, with each seed; and never below the winner of the halving."""
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    digits, labels = load_digits(return_X_y=True)
    digits = digits / 16
    makers = {
        "forest": RandomForestClassifier(20, random_state=1),
        "svc": SVC(),
        "rounded": MLPClassifier((20,), max_iter=60, random_state=1),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 60 steps are enough here
        fitted = makers[kind].fit(digits[:900], labels[:900])
    right = np.flatnonzero(fitted.predict(digits[900:]) == labels[900:])[:300] + 900
    inputs, answers, budget, eps = digits[right], labels[right], 6_000, 0.2

    def ask(batch):
        rows = batch.reshape(len(batch), -1)
        return fitted.predict_proba(rows).round(2) if kind == "rounded" else fitted.predict(rows)

    def fooled(delta):
        scores = ask((inputs + delta).clip(0, 1))
        return np.mean((scores.argmax(axis=1) if scores.ndim == 2 else scores) != answers)

    outputs, classes = ("probabilities", None) if kind == "rounded" else ("labels", 10)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tried = [fooled(eps * rng.choice([-1, 1], 64)) for _ in range(budget // 300)]
        model = FunctionModel(ask, outputs, classes=classes, max_queries=budget)
        shaped = inputs if flat else inputs.reshape(-1, 8, 8)
        parts = np.array_split(rng.permutation(300), 3)
        attack = fedzo.UniversalAttack(model, eps=eps, seed=seed)
        attack.fit([shaped[part] for part in parts], [answers[part] for part in parts])
        winner = attack.result.history[1]["attack_success"]
        rate = fooled(attack.noise.reshape(-1))
        assert rate >= winner - 1e-9
        assert rate > max(tried), seed


@pytest.mark.parametrize("devices", [1, 3, 5, 7, 10])
@pytest.mark.parametrize("budget", [700, 1_000, 1_933, 3_001])
def test_the_halving_ends_within_its_queries(devices, budget):
    """Also where a stage has samples left over after each device has the same number of them."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(256, 3))
    images = rng.integers(0, 256, size=(90, 16, 16)) / 255
    model = FunctionModel(lambda z: z.reshape(len(z), -1) @ weights, max_queries=budget)
    labels = (images.reshape(90, -1) @ weights).argmax(axis=1)
    parts = np.array_split(np.arange(90), devices)
    attack = fedzo.UniversalAttack(model, eps=0.2, seed=1)
    attack.fit([images[part] for part in parts], [labels[part] for part in parts])
    assert attack.noise.any()
    assert attack.queries <= budget
    assert attack.result.nit >= attack.result.algorithm.server.first_step > 0
