"""Attacks within a budget of the field, targeted and not, on a linear model."""

import warnings

import numpy as np
import pytest

import fedzo
from fedzo.core.waves import plane_waves
from fedzo.errors import FedzoWarning
from fedzo.models import FunctionModel
from fedzo.problems.attack import Attack, attack
from fedzo.runs import Status
from raising import rejects

RNG = np.random.default_rng(8)
SHAPE, EPS = (3, 4, 4), 8 / 255
WEIGHTS = RNG.normal(size=(48, 4))
IMAGES = RNG.integers(0, 256, size=(60, *SHAPE)) / 255


def logits(batch):
    return 3 * (np.asarray(batch, np.float64).reshape(len(batch), -1) - 0.5) @ WEIGHTS


LABELS = logits(IMAGES).argmax(axis=1)
OWN = IMAGES[LABELS == 0]
DEVICES = np.array_split(OWN, 3)


def model(max_queries=None):
    return FunctionModel(logits, input_shape=SHAPE, max_queries=max_queries)


@pytest.mark.parametrize("norm", ["inf", "l2"])
def test_values_are_the_hinge_of_the_clipped_sum(norm):
    problem = Attack(model(), [OWN], [0], eps=0.1, norm=norm)
    points = RNG.normal(size=(2, 48))
    values = problem.values(points.astype(np.float32), np.array([1, 0]))
    u = points / np.sqrt(48)
    lengths = np.sqrt(1 + np.sum(u**2, axis=1, keepdims=True))
    deltas = 0.1 * np.tanh(points) if norm == "inf" else 0.1 * u / lengths
    for delta, told in zip(deltas, values, strict=True):
        scores = logits(np.clip(OWN[[1, 0]].reshape(2, -1) + delta, 0, 1))
        hinge = np.maximum(scores[:, 0] - scores[:, 1:].max(axis=1), 0)
        # Candidates are compared by ψ / (1 + ψ). Pixels of float32, weights of 20.
        np.testing.assert_allclose(told, hinge / (1 + hinge), atol=1e-4)


def test_success_is_that_of_the_image_in_bytes():
    problem = Attack(model(), [OWN], [0], eps=EPS)
    x = np.random.default_rng(0).normal(size=48).astype(np.float32)
    levels = np.rint(8 * np.tanh(4 * x.reshape(SHAPE)))
    images = np.clip(np.rint(255 * OWN) + levels, 0, 255) / 255
    told = problem.metrics(x)
    assert told["attack_success"] == np.mean(logits(images).argmax(axis=1) != 0)
    assert told["distortion_linf_max"] <= 8 / 255 * (1 + 1e-6)


def test_a_budget_of_queries_is_planned_for_and_the_best_success_is_kept():
    found = fedzo.UniversalAttack(model(max_queries=20_000), eps=EPS).fit(DEVICES, 0)
    result = found.result
    assert found.queries <= 20_000  # it ends when nothing better is found
    winner = next(r for r in result.history if r["round"] == result.algorithm.server.first_step)
    assert winner["attack_success"] <= max(r["attack_success"] for r in result.history)
    best = next(r for r in result.history if r["round"] == result.best.round)
    assert best["attack_success"] == max(r["attack_success"] for r in result.history)
    assert best["attack_success"] > 0.3
    judge = fedzo.UniversalAttack(model(), eps=EPS)
    judge._perturbation = found.perturbation
    assert judge.success_rate(OWN, 0) == best["attack_success"]
    moved = np.rint(255 * found.apply(OWN)) - np.rint(255 * OWN)
    assert np.abs(moved).max() <= 8
    half = found.project(EPS / 2)
    assert np.abs(255 * half.apply(OWN) - 255 * OWN).max() <= 4 + 1e-3
    assert found.eps == EPS


def test_a_texture_that_slopes_do_not_show_is_found():
    """A unit that only a strong and fine wave wakes: all around no perturbation it is silent."""
    fine = plane_waves((16, 16), 4)[-1]

    def scores(batch):
        amounts = (np.asarray(batch, np.float64).reshape(-1, 256) - 0.5) @ fine / (fine @ fine)
        return np.stack([np.full(len(batch), 1e-6), np.maximum(amounts**2 - 4e-4, 0)], axis=1)

    images = np.full((30, 16, 16), 0.5) + RNG.uniform(-1e-3, 1e-3, size=(30, 16, 16))
    wanted = {"input_shape": (16, 16), "max_queries": 8_000}
    found = fedzo.UniversalAttack(FunctionModel(scores, **wanted), eps=EPS)
    found.fit(np.array_split(images, 3), 0)
    assert found.result.history[-1]["attack_success"] == 1.0
    slopes = fedzo.FedZO(
        smoothing=1.0, batch_size=1, local_steps=1, server=fedzo.server.SignMomentum()
    )
    steps = fedzo.UniversalAttack(
        FunctionModel(scores, **wanted), eps=EPS, algorithm=slopes, rounds=100, evaluate_every=50
    )
    with pytest.warns(FedzoWarning):
        steps.fit(np.array_split(images, 3), 0)


def test_the_best_is_chosen_by_success_before_the_loss():
    """Of two evaluated models the one that fools more is kept, though its loss is higher."""

    class Told(Attack):
        def losses(self, x, devices):
            return np.full(len(devices), 1.0 if x.any() else 0.999)

        def metrics(self, x):
            super().metrics(x)
            return {"attack_success": 0.5 if x.any() else 0.25}

    by_success = Told(model(), [OWN], [0], eps=EPS)
    by_loss = Told(model(), [OWN], [0])
    algorithm = fedzo.FedZO(learning_rate=0.01, directions=2, batch_size=1, local_steps=1)
    best = [fedzo.minimize(p, algorithm=algorithm, rounds=1).best for p in (by_success, by_loss)]
    assert [b.round for b in best] == [1, 0]


def test_a_resumed_run_chooses_as_one_at_once(tmp_path):
    algorithm = fedzo.FedZO(
        smoothing=1.0, batch_size=1, local_steps=1, server=fedzo.server.SignMomentum(rounds=8)
    )

    def run(rounds, **where):
        problem = Attack(model(), DEVICES, [0] * 3, eps=EPS)
        return fedzo.minimize(problem, algorithm=algorithm, rounds=rounds, **where)

    at_once = run(8)
    run(5, run_dir=tmp_path)
    resumed = run(8, run_dir=tmp_path, resume=True)
    assert resumed.best.round == at_once.best.round
    assert resumed.x.tobytes() == at_once.x.tobytes()


def test_nothing_found_is_told():
    deaf = FunctionModel(lambda batch: np.tile([1 / 3, 0.0], (len(batch), 1)), input_shape=SHAPE)
    tester = fedzo.UniversalAttack(deaf, eps=EPS, rounds=2)
    with pytest.warns(FedzoWarning):
        tester.fit(DEVICES, 0)
    assert not tester.result.success
    assert tester.result.status is Status.STALLED


def test_what_leads_to_no_perturbation_is_said():
    victim = model(max_queries=2_000)
    with pytest.warns(UserWarning, match="errs on all inputs without a perturbation"):
        fedzo.UniversalAttack(victim, eps=EPS).fit(DEVICES, 1)  # they are of class 0
    with rejects("target"):
        fedzo.UniversalAttack(victim, eps=EPS, target=9).fit(DEVICES, 0)


def test_a_target_is_what_inputs_are_taken_for():
    found = fedzo.UniversalAttack(model(), eps=0.2, target=2, rounds=60).fit(DEVICES, 0)
    taken = logits(found.apply(OWN)).argmax(axis=1)
    assert found.success_rate(OWN, 0) == np.mean(taken == 2) > 0.5
    values = Attack(model(), [OWN], [0], target=2, c=0.0).values(
        np.zeros((1, 48), np.float32), np.arange(len(OWN))
    )
    scores = logits(OWN)
    expected = np.maximum(np.delete(scores, 2, axis=1).max(axis=1) - scores[:, 2], 0)
    np.testing.assert_allclose(values[0], expected, atol=0.3)  # 2z is kept off the range's ends
    with rejects("target"):
        fedzo.UniversalAttack(model(), eps=0.2, target=0).fit(DEVICES, 0)


@pytest.mark.parametrize("given", [OWN, list(OWN), OWN.reshape(len(OWN), -1)])
def test_one_batch_in_place_of_a_list_of_batches_is_refused(given):
    with rejects("images_per_device"):
        fedzo.UniversalAttack(model(), eps=EPS).fit(given, 0)


def test_the_measured_rate_is_on_the_result():
    found = fedzo.UniversalAttack(model(), rounds=1).fit(DEVICES, 0)
    assert isinstance(found.result.algorithm.learning_rate, float)


def test_labels_and_targets_of_a_configuration():
    pytest.importorskip("onnxruntime")
    problem = attack(label=["deer"], target="frog", eps=EPS, devices=2)
    assert set(problem.own.labels) == {problem.classes.index("deer")}
    assert attack(label="all", devices=2).evaluation_cost == problem.evaluation_cost
    with rejects("label"):
        attack(label=["dear"])
    with rejects("target"):
        attack(target="deer")
    with rejects("eps"):
        attack(eps=8)


def wavy(batch):
    """Give way to one wave, of many, and to nothing else."""
    fine = plane_waves((16, 16), 4)[20]
    amounts = (np.asarray(batch, np.float64).reshape(-1, 256) - 0.5) @ fine / (fine @ fine)
    return np.stack([np.full(len(batch), 0.015), np.abs(amounts)], axis=1)


FLAT = np.full((40, 16, 16), 0.5) + RNG.uniform(-1e-3, 1e-3, size=(40, 16, 16))


@pytest.mark.parametrize("budget", [500, 1_000, 5_000])
def test_small_budgets_find_the_wave_evaluate_it_and_spend_no_more_than_they_have(budget):
    model = FunctionModel(wavy, input_shape=(16, 16), max_queries=budget)
    attack = fedzo.UniversalAttack(model, eps=EPS).fit(np.array_split(FLAT, 4), 0)
    assert attack.queries <= budget
    assert attack.result.history[-1]["attack_success"] == 1.0
    assert np.mean(wavy(attack.apply(FLAT)).argmax(axis=1) != 0) == 1.0


@pytest.mark.parametrize("budget", [1, 39, 41, 100, 257, 480, 999, 2_500])
@pytest.mark.parametrize("shape", [SHAPE, (48,)])
def test_no_budget_is_exceeded_whatever_the_inputs(budget, shape):
    counted = []

    def counting(batch):
        counted.append(len(batch))
        return logits(batch)

    model = FunctionModel(counting, input_shape=shape, max_queries=budget)
    attack = fedzo.UniversalAttack(model, eps=EPS)
    inputs = [part.reshape(-1, *shape) for part in DEVICES]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedzoWarning)  # the smallest find nothing
        attack.fit(inputs, 0)
    assert sum(counted) == attack.queries <= budget


def test_the_winner_of_the_halving_is_returned_unless_something_beats_it():
    """A victim whose answers after the halving are noise: no later model is better."""
    rng, asked = np.random.default_rng(5), []

    def turncoat(batch):
        asked.append(len(batch))
        scores = wavy(batch)
        return scores if sum(asked) < 9_000 else scores + rng.normal(size=scores.shape)

    model = FunctionModel(turncoat, input_shape=(16, 16), max_queries=40_000)
    attack = fedzo.UniversalAttack(model, eps=EPS).fit(np.array_split(FLAT, 4), 0)
    result = attack.result
    winner = next(r for r in result.history if r["round"] == result.algorithm.server.first_step)
    best = next(r for r in result.history if r["round"] == result.best.round)
    assert best["attack_success"] >= winner["attack_success"] == 1.0
    assert attack.queries < 40_000  # the steps end: they gain nothing


def test_evaluations_take_fewer_inputs_if_queries_are_few():
    few = Attack(model(max_queries=1_000), [IMAGES], [LABELS], eps=EPS, held_out=(IMAGES, LABELS))
    assert few.evaluation_cost <= 70
    assert len(few.evaluated.labels) == len(few.held_out.labels) == 35
    many = Attack(model(max_queries=9_000), [IMAGES], [LABELS], eps=EPS, held_out=(IMAGES, LABELS))
    assert many.evaluation_cost == 120
    paper = Attack(model(max_queries=1_000), [IMAGES], [LABELS])
    assert paper.evaluation_cost == 60


def test_a_thousand_queries_are_enough_for_what_ships():
    pytest.importorskip("onnxruntime")
    deer = attack(eps=EPS)
    victim = fedzo.models.load("cifar10-resnet8", max_queries=1_000)
    rows = deer.own.rows.reshape(-1, 3, 32, 32)
    found = fedzo.UniversalAttack(victim, eps=EPS).fit(np.array_split(rows, 10), 4)
    held_out = deer.held_out.rows.reshape(-1, 3, 32, 32)
    assert np.mean(deer.model.predict(found.apply(held_out)) != 4) >= 0.9
    assert victim.queries <= 1_000


@pytest.mark.parametrize("budget", [60, 100, 300])
@pytest.mark.parametrize("seed", range(3))
def test_the_fewest_queries_search_too(budget, seed):
    """Evaluations of 40 inputs would take all of them."""
    labels_only = FunctionModel(
        lambda batch: logits(batch).argmax(axis=1), "labels", classes=4, max_queries=budget
    )
    images, labels = np.array_split(IMAGES, 4), np.array_split(LABELS, 4)
    attack = fedzo.UniversalAttack(labels_only, eps=0.1, seed=seed).fit(images, labels)
    assert attack.queries <= budget
    assert np.mean(logits(attack.apply(IMAGES)).argmax(axis=1) != LABELS) > 0.05
