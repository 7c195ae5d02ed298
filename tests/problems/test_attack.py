"""The attack loss and what is told of it, against the paper's formula written out."""

import json

import numpy as np
import pytest

import fedzo
from driving import steps_of
from fedzo.core.engine import LocalEngine, drive
from fedzo.core.random import Draws, Stream
from fedzo.errors import ModelError
from fedzo.models import FunctionModel
from fedzo.problems.attack import Attack, attack
from fedzo.runs import Status
from fedzo.runs.auto import _Probe, choose
from fedzo.uplinks.base import RunSetting
from fedzo.variables.perturbation import Perturbation
from raising import rejects

RNG = np.random.default_rng(11)
SHAPE, CLASSES = (3, 4, 4), 5
WEIGHTS = RNG.normal(size=(48, CLASSES))
INPUTS = [RNG.uniform(0.1, 0.9, size=(n, *SHAPE)) for n in (3, 1, 6)]
HELD_OUT = RNG.uniform(0.1, 0.9, size=(4, *SHAPE))


def logits(batch):
    return (batch.reshape(len(batch), -1).astype(np.float64) - 0.5) @ WEIGHTS


def softmax(z):
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


ANSWERS = {
    "logits": logits,
    "probabilities": lambda batch: softmax(logits(batch)),
    "log-probabilities": lambda batch: np.log(softmax(logits(batch))),
}
LABELS = [logits(part).argmax(axis=1) for part in INPUTS]


def problem(outputs="logits", max_queries=None, held_out=True, **options):
    model = FunctionModel(
        ANSWERS[outputs], outputs=outputs, input_shape=SHAPE, max_queries=max_queries
    )
    outside = (HELD_OUT, logits(HELD_OUT).argmax(axis=1)) if held_out else None
    return Attack(model, INPUTS, LABELS, held_out=outside, **options)


def moved(inputs, x):
    z = inputs.reshape(len(inputs), -1) - 0.5
    return np.tanh(np.arctanh(2 * z) + x) / 2


def psi(inputs, labels, x, c=1.0, margin="logits"):
    """The paper's attack loss of each input."""
    after = moved(inputs, x)
    phi = logits(after + 0.5)
    phi = softmax(phi) if margin == "confidences" else phi
    margins = []
    for row, y in zip(phi, labels, strict=True):
        margins.append(row[y] - max(row[j] for j in range(CLASSES) if j != y))
    before = inputs.reshape(len(inputs), -1) - 0.5
    return np.maximum(margins, 0) + c * np.sum((after - before) ** 2, axis=1)


@pytest.mark.parametrize("margin", ["logits", "confidences"])
@pytest.mark.parametrize("outputs", list(ANSWERS))
def test_values_are_the_papers_loss_whatever_the_model_answers(outputs, margin):
    attack = problem(outputs, c=0.7, margin=margin)
    points = RNG.normal(scale=0.4, size=(3, 48)).astype(np.float32)
    batch = attack.batch(2, 8, Draws(0, Stream.BATCHES, device=2))
    own = batch - 4  # device 2 comes after 3 + 1 inputs
    assert own.min() >= 0
    assert own.max() <= 5
    expected = [
        psi(INPUTS[2][own], LABELS[2][own], x.astype(np.float64), 0.7, margin) for x in points
    ]
    # pixels are float32: a few 1e-7 each, through weights whose squares sum to about 48
    np.testing.assert_allclose(attack.values(points, batch), expected, atol=2e-5)
    assert attack.model.queries == 3 * 8


@pytest.mark.parametrize(("target", "margin"), [(None, 0.5), (0, 2.0)])
def test_a_margin_is_the_lead_of_the_right_class_or_that_over_the_target(target, margin):
    model = FunctionModel(logits, outputs="logits", input_shape=SHAPE)
    attack = Attack(model, INPUTS[:1], [1], target=target)
    scores = np.array([[1.0, 3.0, 2.5]])
    np.testing.assert_array_equal(attack.margins(scores, np.array([1])), [margin])


def test_losses_and_metrics_are_those_of_all_inputs_of_all_devices():
    attack = problem(c=0.3)
    x = RNG.normal(scale=0.6, size=48).astype(np.float32)
    losses = attack.losses(x, np.arange(3))
    expected = [psi(i, y, x, 0.3).mean() for i, y in zip(INPUTS, LABELS, strict=True)]
    np.testing.assert_allclose(losses, expected, atol=2e-5)
    told = attack.metrics(x)
    every, labels = np.concatenate(INPUTS), np.concatenate(LABELS)
    fooled = logits(moved(every, x) + 0.5).argmax(axis=1) != labels
    assert 0 < fooled.mean() < 1
    assert told["attack_success"] == fooled.mean()
    outside = logits(moved(HELD_OUT, x) + 0.5).argmax(axis=1) != logits(HELD_OUT).argmax(axis=1)
    assert told["heldout_success"] == outside.mean()
    change = moved(every, x) - (every.reshape(10, -1) - 0.5)
    l2, linf = np.linalg.norm(change, axis=1), np.abs(change).max(axis=1)
    for name, value in (("l2", l2), ("linf", linf)):
        assert told[f"distortion_{name}_mean"] == pytest.approx(value.mean(), rel=1e-5)
        assert told[f"distortion_{name}_max"] == pytest.approx(value.max(), rel=1e-5)
    # the metrics cost the held-out inputs only: the others had just been looked at
    assert attack.model.queries == 10 + 4 == attack.evaluation_cost
    attack.metrics(x + 1)
    assert attack.model.queries == 14 + 14


def test_success_is_zero_where_the_model_was_right_and_nothing_was_done():
    told = problem().metrics(np.zeros(48, np.float32))
    assert told["attack_success"] == told["heldout_success"] == told["distortion_l2_max"] == 0


OPTIONS = {
    "algorithm": fedzo.FedZO(learning_rate=0.02, batch_size=4, directions=5, local_steps=3),
    "evaluate_every": 2,
    "checkpoint_every": 1,
}


def test_every_query_is_counted_at_the_model_and_in_the_result():
    attack = problem()
    result = fedzo.minimize(attack, rounds=3, **OPTIONS)
    assert result.queries == 3 * 3 * 3 * 4 * 6  # rounds, devices, steps, b1, b2 + 1
    assert result.queries + result.evaluation_queries == attack.model.queries


@pytest.mark.parametrize("budget", [1, 13, 14, 15, 500, 1000])
def test_a_budget_ends_a_run_with_the_best_perturbation_saved(budget, tmp_path):
    """Each query is of use: what is not enough for an evaluation, 14 queries, is not spent."""
    attack = problem(max_queries=budget)
    result = fedzo.minimize(attack, rounds=20, run_dir=tmp_path, **OPTIONS)
    # 10: the devices' own. Of 500 the last two are fewer than the four answers at x of a step.
    spent = {1: 0, 13: 10, 14: 14, 15: 14, 500: 498}.get(budget, budget)
    assert attack.model.queries == spent
    # a run without a whole round has nothing to show
    assert result.status is (Status.STOPPED if result.nit else Status.STALLED)
    assert result.queries + result.evaluation_queries == spent
    saved = fedzo.Perturbation.load(tmp_path / "perturbation.npz")
    assert saved.noise.shape == SHAPE
    assert saved.noise.tobytes() == result.best.x.tobytes()
    lines = (tmp_path / "history.jsonl").read_text().splitlines() if budget >= 14 else []
    losses = [json.loads(line)["train_loss"] for line in lines]
    assert result.best.fun == min(losses) if losses else np.isnan(result.best.fun)
    assert (tmp_path / "images.png").stat().st_size > 1000


def test_asking_together_changes_no_bit_of_the_papers_form():
    """What each device answers is what it answers alone, of a model that takes rows one by one."""

    def by_rows(batch):
        rows = batch.reshape(len(batch), -1)
        return np.stack([(rows * rows[:, k : k + 1]).sum(axis=1) for k in range(3)], axis=1)

    model = FunctionModel(by_rows, outputs="logits", input_shape=SHAPE)
    parts = np.array_split(RNG.uniform(0.1, 0.9, size=(12, *SHAPE)), 3)
    attack = Attack(model, parts, [np.zeros(len(part), int) for part in parts])
    x = RNG.normal(size=attack.dim).astype(np.float32)
    work = steps_of(OPTIONS["algorithm"], x, round=3, seed=0)
    with LocalEngine(attack, seed=0) as federation:
        together = [update.delta.tobytes() for update in federation.ask(work.only(range(3)))]
    assert together == [work.reply(attack, device).delta.tobytes() for device in range(3)]


def test_a_resumed_attack_is_the_same_to_the_bit(tmp_path):
    whole = fedzo.minimize(problem(), rounds=6, **OPTIONS)
    fedzo.minimize(problem(), rounds=3, run_dir=tmp_path, **OPTIONS)
    again = fedzo.minimize(problem(), rounds=6, run_dir=tmp_path, resume=True, **OPTIONS)
    assert again.x.tobytes() == whole.x.tobytes()
    assert again.best.x.tobytes() == whole.best.x.tobytes()


def test_the_attack_lowers_the_loss_and_fools_the_model():
    model = FunctionModel(logits, outputs="logits", input_shape=SHAPE)
    inputs = RNG.uniform(0.1, 0.9, size=(200, *SHAPE))
    of_one = inputs[logits(inputs).argmax(axis=1) == 2]
    parties = np.array_split(of_one, 3)
    attack = Attack(model, parties, [np.full(len(part), 2) for part in parties])
    result = fedzo.minimize(attack, rounds=40, **OPTIONS)
    first, last = result.history[0], result.history[-1]
    assert last["train_loss"] < first["train_loss"] / 2
    assert last["attack_success"] > 0.5


@pytest.mark.parametrize(
    "change", [{"c": -1.0}, {"c": "1"}, {"c": np.inf}, {"margin": "logit"}, {"margin": None}]
)
def test_bad_settings_are_refused(change):
    with rejects(*change):
        problem(**change)


def test_bad_labels_and_inputs_are_refused():
    model = FunctionModel(logits, outputs="logits", input_shape=SHAPE)
    with rejects("labels"):
        Attack(model, INPUTS, LABELS[:2])
    with rejects("labels[0]"):
        Attack(model, INPUTS, [[0], [0], [0]])
    with rejects("labels"):
        Attack(model, INPUTS[:1], [[0.5, 1.0, 2.0]])
    with rejects("inputs"):
        Attack(model, [255 * INPUTS[0]], LABELS[:1])
    wrong = Attack(model, INPUTS[:1], [[0, 1, 5]])
    with rejects("labels"):
        wrong.losses(np.zeros(48, np.float32), np.arange(1))


def test_a_model_that_answers_rubbish_ends_the_run_with_its_name():
    model = FunctionModel(lambda batch: logits(batch) * np.nan, input_shape=SHAPE)
    with pytest.raises(ModelError, match="not finite"):
        fedzo.minimize(Attack(model, INPUTS, LABELS), rounds=1, **OPTIONS)


def test_a_model_that_fails_later_ends_the_run_in_order_and_leaves_the_best(tmp_path):
    answered = []

    def dies(batch):
        answered.append(len(batch))
        return logits(batch) * (np.nan if len(answered) > 30 else 1)

    attack = Attack(FunctionModel(dies, input_shape=SHAPE), INPUTS, LABELS)
    options = OPTIONS | {"workers": 1, "evaluate_every": 1}
    result = fedzo.minimize(attack, rounds=40, run_dir=tmp_path, **options)
    assert result.status == Status.HALTED
    assert "not finite" in result.message
    assert isinstance(attack.victim.failure, ModelError)
    assert result.best.round > 0
    saved = Perturbation.load(tmp_path / "perturbation.npz")
    assert saved.noise.ravel().tobytes() == result.best.x.tobytes()


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("c", "longer"), [(1e4, False), (0.0, True)])
def test_auto_goes_far_enough_in_a_round_whatever_the_units_of_the_scores(unit, c, longer):
    """By 0.02 a number in the root of the mean square; farther where the loss falls farther."""
    weights = np.random.default_rng(9).normal(size=(48, 3))
    inputs = [np.random.default_rng(i).uniform(0.3, 0.7, (6, 48)) for i in range(4)]
    labels = [(part @ weights).argmax(axis=1) for part in inputs]
    model = FunctionModel(lambda batch: unit * batch @ weights, outputs="logits")
    algorithm = fedzo.FedZO(learning_rate="auto", batch_size=6, directions=40, local_steps=3)
    with LocalEngine(Attack(model, inputs, labels, c=unit * c), seed=0) as federation:
        x0 = np.zeros(48)
        setting, attack = RunSetting(federation, fedzo.Ideal()), federation.objective
        found = drive(choose(algorithm, setting, attack, x0, rounds=10), federation)
        rate, probe = found.algorithm.learning_rate, _Probe(algorithm, setting, x0)
        drive(probe.measure(), federation)
        length = np.linalg.norm(probe.direction)
    least = 0.02 * np.sqrt(48)
    assert rate * length > 2 * least if longer else rate * length == pytest.approx(least)


def test_the_form_of_the_paper_keeps_its_digits():
    """Two rounds of ``fedzo run attack``, recorded before attacks within eps had a halving."""
    pytest.importorskip("onnxruntime")
    settings = {"learning_rate": 0.005, "smoothing": 0.001, "batch_size": 4, "directions": 20}
    algorithm = fedzo.FedZO(**settings, local_steps=20)
    result = fedzo.minimize(attack(), algorithm=algorithm, rounds=2, evaluate_every=1)
    recorded = [
        (4.288806308, 0.0, 0.0, 0),
        (4.239663074, 0.01, 0.3970222305, 16_800),
        (4.019161248, 0.0375, 0.5535651077, 33_600),
    ]
    keys = ("train_loss", "attack_success", "distortion_l2_mean", "queries")
    found = [tuple(record[key] for key in keys) for record in result.history]
    # Another runtime or processor rounds scores elsewhere: 1e-7 of a score over mu = 1e-3.
    np.testing.assert_allclose(found, recorded, rtol=1e-4)
