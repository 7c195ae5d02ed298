"""Differential privacy on the scalars: clipped, noised to the constant, counted, refused beyond."""

import math

import numpy as np
import pytest
from flwr.app import Message
from test_flower_node import ask, node, refusal

import fedzo
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.flower import wire
from fedzo.flower.ledger import Ledger
from fedzo.flower.privacy import Privacy, Private, gaussian_epsilon
from fedzo.flower.reasons import Refused
from fedzo.problems.function import FunctionObjective
from fedzo.problems.quadratic import Quadratic
from fedzo.problems.softmax import softmax

NUMBERS = {"epsilon": 8.0, "noise": 20.0, "difference_clip": 0.01, "loss_clip": 3.0}
DOTTED = {f"privacy.{k}": v for k, v in NUMBERS.items()}


class Records(fedzo.Objective):
    """Devices of three records, whose losses are a x, in a batch that has each of them twice."""

    dim, devices, slopes = 1, 2, np.array([1.0, 2.0, -40.0])

    def size(self, device):
        return 3

    def batch(self, device, size, draws):
        return [0, 1, 2, 0, 1, 2]

    def values(self, points, batch):
        return points[:, :1] * self.slopes[batch]

    def losses(self, x, devices):
        return np.full(len(devices), float(x[0]) * self.slopes.mean())


def quiet(monkeypatch, **changes):
    """Return the private records, and the deviations that noise was asked for, which is none."""
    asked = []
    monkeypatch.setattr(
        "secrets.SystemRandom.gauss", lambda self, mean, deviation: asked.append(deviation) or 0.0
    )
    return Private(Records(), Privacy(**{**NUMBERS, **changes})), asked


@pytest.mark.parametrize("difference", ["forward", "central"])
def test_differences_are_clipped_record_by_record_and_noised(monkeypatch, difference):
    private, asked = quiet(monkeypatch, difference_clip=0.25)
    distinct = 3 * (1 - (2 / 3) ** 6)
    estimator = Estimator(0.1, 1, "coordinate", difference)
    frame = estimator.frame(1, np.float64)
    at = Draws(0, Stream.DIRECTIONS)
    coefficients, _ = estimator.estimate(private, np.zeros(1), 6, frame, at)
    sides = 1 if difference == "forward" else 2
    change = [min(sides * 0.1 * a, 0.25) for a in (1.0, 2.0)] + [-0.25]  # each record once
    assert coefficients == pytest.approx([sum(change) / distinct / (sides * 0.1)], rel=1e-12)
    assert asked == [pytest.approx(20 * 2 * 0.25 / distinct, rel=1e-12)]


def test_losses_are_clipped_record_by_record_and_noised(monkeypatch):
    private, asked = quiet(monkeypatch, loss_clip=1.5)
    distinct = 3 * (1 - (2 / 3) ** 3)
    (loss,) = private.losses(np.ones(1), [0])
    assert loss == pytest.approx((1.0 + 1.5 - 1.5) / distinct, rel=1e-12)
    assert asked == [pytest.approx(20 * 2 * 1.5 / distinct, rel=1e-12)]


def test_noise_has_the_deviation_that_it_says():
    """Of 4,000 draws the sample deviation is within 5 / sqrt(8000) = 5.6 % with all but 1e-6."""
    objective = FunctionObjective(lambda x, device: 0.0, 1, devices=1)
    private = Private(objective, Privacy(**NUMBERS))
    drawn = [private.losses(np.zeros(1), [0])[0] for _ in range(4000)]
    assert np.std(drawn) == pytest.approx(20 * 2 * 3.0, rel=0.056)
    assert abs(np.mean(drawn)) < 5 * 120 / math.sqrt(4000)


@pytest.mark.parametrize(
    ("mu", "epsilon"),
    [
        (0.1, 0.34066936468432835),
        (1.0, 4.377178095681137),
        (3.1622776601683795, 17.856586830107616),
    ],
)
def test_epsilon_is_what_another_accountant_says(mu, epsilon):
    """By Google's dp-accounting 0.6.0: get_epsilon_gaussian(1 / mu, 1e-5)."""
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(epsilon, rel=1e-9)


def test_epsilon_of_answers_is_that_of_one_mechanism_with_less_noise():
    privacy = Privacy(**NUMBERS)
    assert privacy.spent(0) == 0.0
    assert privacy.spent(400) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-12)
    assert (
        1e6 < privacy.spent(10**9) < 2e6
    )  # mu^2 / 2 and a little, where exp(epsilon) is no number


def test_spent_epsilon_is_refused_over_all_runs():
    privacy = Privacy(**NUMBERS)
    most = next(k for k in range(1, 100_000, 2) if privacy.spent(k + 2) > 8.0)
    algorithm = fedzo.FedZO(directions=2, local_steps=most // 2 + 2, batch_size=1)
    grid = node(Quadratic(dim=8, devices=6), dotted={**DOTTED, "limits.local-steps": 10**6})
    assert refusal(ask(grid, algorithm)) is None
    grid.contexts[1].run_id = 2
    assert refusal(ask(grid, algorithm)) == "privacy"
    assert refusal(ask(grid, kind=wire.EVALUATE)) is None  # and nothing was charged for it
    assert refusal(ask(grid, algorithm, devices=[1])) is None  # which has other records
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("2").run > 0


def test_few_records_are_not_evaluated():
    problem = softmax(devices=20)
    grid = node(problem, dotted={**DOTTED, "privacy.records": problem.size(0) + 1})
    content = ask(grid, kind=wire.EVALUATE, x=problem.initial())
    assert wire.read_losses(content, asked=1)[1][0].startswith("records ")


def test_what_is_not_private_is_not_answered():
    private = Private(Quadratic(dim=8, devices=6), Privacy(**NUMBERS))
    with pytest.raises(Refused):
        private.values(np.zeros((3, 8)), (0, 1, None))
    assert private.metrics(np.zeros(8)) == {}
    assert not any(private.offers(name) for name in ("gradient", "fused_step", "metrics"))
    grid = node(softmax(devices=20), dotted=DOTTED)
    (reply,) = grid.send_and_receive([Message(wire.greeting({}), 1, wire.HELLO)])
    assert "gradient" not in wire.read_hello(reply.content).offers


def test_softmax_still_learns_under_noise():
    """A large epsilon: clipped, noised, and still most of the way."""
    problem = softmax(devices=10, partition="iid")
    privacy = Privacy(epsilon=1e6, noise=0.01, difference_clip=0.05, loss_clip=10.0)
    algorithm = fedzo.FedZO(learning_rate=0.01)
    result = fedzo.minimize(
        Private(problem, privacy), problem.initial(), algorithm=algorithm, rounds=20
    )
    everyone = np.arange(10)
    before, after = (problem.losses(x, everyone).mean() for x in (problem.initial(), result.last))
    assert after < 0.7 * before
