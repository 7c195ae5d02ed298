"""Differential privacy on the scalars: clipped, noised to the constant, counted, refused beyond."""

import math
from bisect import bisect
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from flwr.app import Message
from one_node import ask, node, refusal
from scipy.stats import norm

import fedzo
from fedzo.config.experiment import Experiment
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.errors import Halted
from fedzo.flower import FlowerEngine, FlowerSettings, privacy, protocol
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.ledger import Ledger
from fedzo.flower.privacy import Privacy, Private
from fedzo.problems import FunctionObjective, Quadratic, Softmax, softmax
from raising import fails

NUMBERS = {"epsilon": 8.0, "noise": 20.0, "difference_clip": 0.01, "loss_clip": 3.0}
DOTTED = {f"privacy.{k}": v for k, v in NUMBERS.items()}


@pytest.fixture
def as_if_proven(monkeypatch):
    """Let nodes answer privately, to test what they would answer and count."""
    monkeypatch.setattr(privacy, "PROVEN", (Quadratic, Softmax))


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


def asked_nothing(x, device):
    raise AssertionError("a node with [privacy] asked a function")


def torch_problem():
    torch = pytest.importorskip("torch")
    data = (torch.zeros(3, 2), torch.zeros(3, 1))
    return fedzo.TorchProblem(torch.nn.Linear(2, 1), asked_nothing, [data, data])


@pytest.mark.parametrize(
    "kind", [protocol.HELLO, protocol.INITIAL, protocol.TRAIN, protocol.EVALUATE]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda: Quadratic(dim=8, devices=6),
        lambda: FunctionObjective(asked_nothing, 8, devices=6),
        lambda: softmax(devices=6),
        Records,
        lambda: Experiment.load("tuning").problem(),
        lambda: Experiment.load("attack").problem(),
        torch_problem,
    ],
    ids=["quadratic", "function", "softmax", "own", "tuning", "attack", "torch"],
)
def test_node_with_privacy_rejects_every_problem(make, kind, caplog):
    """No test on neighbouring data sets exists yet, so no ε would be known to be right."""
    problem = make()
    grid, x = node(problem, dotted=DOTTED), np.zeros(problem.dim)
    if kind in (protocol.HELLO, protocol.INITIAL):
        (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, kind)])
        content = reply.content
    else:
        content = ask(grid, x=x, kind=kind)
    assert refusal(content) == "not-proven"
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"[privacy] is not supported for {type(problem).__name__}: no test on" in said
    assert not Path(grid.contexts[1].node_config["ledger"]).exists()  # nothing was charged


def test_run_says_why_nodes_with_privacy_do_not_join():
    settings = FlowerSettings(grace=0.02, patience=0.1)
    with fails("no-quorum", Halted) as caught:
        FlowerEngine(node(dotted=DOTTED), 0, fedzo.Ideal(), settings)
    assert ErrorCode.NOT_PROVEN.words in str(caught.value)


@pytest.mark.usefixtures("as_if_proven")
def test_subclass_of_a_proven_problem_is_not_proven():
    """It can compute other values."""

    class Own(Quadratic):
        pass

    assert refusal(ask(node(Quadratic(dim=8, devices=6), dotted=DOTTED))) is None
    assert refusal(ask(node(Own(dim=8, devices=6), dotted=DOTTED))) == "not-proven"


@pytest.mark.parametrize("difference", ["forward", "central"])
def test_differences_are_clipped_record_by_record_and_noised(monkeypatch, difference):
    private, asked = quiet(monkeypatch, difference_clip=0.25)
    distinct = 3 * (1 - (2 / 3) ** 6)
    estimator = Estimator(0.1, 1, "coordinate", difference)
    buffer = estimator.buffer(1, np.float64)
    at = Draws(0, Stream.DIRECTIONS)
    coefficients, _ = estimator.estimate(private, np.zeros(1), 6, buffer, at)
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


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_not_finite_tells_nothing_of_a_record(monkeypatch):
    """One record's loss overflows at a point of the server's choice: the mean stays a number."""
    private, _ = quiet(monkeypatch, loss_clip=1.5, difference_clip=0.25)
    monkeypatch.setattr(Records, "slopes", np.array([1.0, np.inf, np.nan]))
    (loss,) = private.losses(np.ones(1), [0])
    assert loss == pytest.approx(1.0 / (3 * (1 - (2 / 3) ** 3)), rel=1e-12)
    estimator = Estimator(0.1, 1, "coordinate")
    buffer, at = estimator.buffer(1, np.float64), Draws(0, Stream.DIRECTIONS)
    coefficients, _ = estimator.estimate(private, np.zeros(1), 6, buffer, at)
    assert coefficients == pytest.approx([1.0 / (3 * (1 - (2 / 3) ** 6))], rel=1e-12)


@pytest.mark.parametrize("mu", [0.1, 1.0, math.sqrt(10)])
def test_epsilon_is_the_closed_form(mu):
    """Balle & Wang (2018), Theorem 5: δ = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)."""
    settings = Privacy(**{**NUMBERS, "noise": 1 / mu})
    epsilon = settings.spent(1)
    tails = [norm.cdf(sign * mu / 2 - epsilon / mu) for sign in (1, -1)]
    assert tails[0] - math.exp(epsilon) * tails[1] == pytest.approx(1e-5, rel=1e-6)


def test_epsilon_of_answers_is_that_of_their_composition():
    """Google's accountant of privacy losses, which composes by itself, up to its grid of 1e-4."""
    settings = Privacy(**NUMBERS)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(20.0), 300)
    assert settings.spent(0) == 0.0
    assert settings.spent(300) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert 1e6 < settings.spent(10**9) < 2e6  # mu^2 / 2 and a little: exp(epsilon) is no number


@pytest.mark.usefixtures("as_if_proven")
def test_spent_epsilon_is_refused_over_all_runs():
    settings = Privacy(**NUMBERS)
    most = bisect(range(10**6), settings.epsilon, key=settings.spent) - 1  # answers that it allows
    algorithm = fedzo.FedZO(directions=2, local_steps=most // 2 + 2, batch_size=1)
    grid = node(Quadratic(dim=8, devices=6), dotted={**DOTTED, "limits.local-steps": 10**6})
    assert refusal(ask(grid, algorithm)) is None
    grid.contexts[1].run_id = 2
    assert refusal(ask(grid, algorithm)) == "privacy"
    assert refusal(ask(grid, kind=protocol.EVALUATE)) is None  # and nothing was charged for it
    assert refusal(ask(grid, algorithm, devices=[1])) is None  # which has other records
    ledger = Ledger(grid.contexts[1].node_config["ledger"])
    assert ledger.spent("2").run > 0
    assert ledger.epsilon(0, settings) == settings.spent(most // 2 + 3)
    assert ledger.epsilon(2, settings) == 0.0


def test_answers_with_less_noise_are_remembered_as_such(tmp_path):
    """300 answers with z = 20, then 100 with z = 10, are 700 with z = 20."""
    ledger = Ledger(str(tmp_path / "ledger.sqlite"))
    once, then = (Privacy(**{**NUMBERS, "noise": z, "epsilon": 50.0}) for z in (20.0, 10.0))
    ledger.reserve_answers({0: 300}, once)
    ledger.reserve_answers({0: 100}, then)
    assert ledger.epsilon(0, once) == pytest.approx(once.spent(700), rel=1e-12)


def test_no_algorithm_gets_an_answer_that_was_not_paid_for():
    """Whatever it does in a step: what is counted is what leaves."""
    private = Private(Records(), Privacy(**NUMBERS), answers={0: 2})
    private.losses(np.ones(1), [0, 0])
    for device in (0, 1):
        with fails("privacy", Rejected):
            private.losses(np.ones(1), [device])


@pytest.mark.usefixtures("as_if_proven")
def test_values_and_gradients_of_a_servers_choice_are_refused():
    """Questions of searches, and gradient steps, at a node that keeps its records private."""
    problem = softmax(devices=20)
    x = np.array(problem.initial(), np.float64)
    for task in (fedzo.Evaluate(np.stack([x, x]), 25), fedzo.LocalSteps(fedzo.FedAvg(), x)):
        content = ask(node(problem, dotted=DOTTED), task=task)
        assert not protocol.read_answer(content, asked=1).updates


def test_streamed_directions_are_as_private(monkeypatch):
    class Streamed(Records):
        def values_streamed(self, x, walked, steps, batch):
            points = np.array([[0.0 if step is None else 0.1] for step in steps])
            return self.values(points, batch)

    asked = []
    monkeypatch.setattr(
        "secrets.SystemRandom.gauss", lambda self, mean, deviation: asked.append(deviation) or 0.0
    )
    private = Private(Streamed(), Privacy(**{**NUMBERS, "difference_clip": 0.25}))
    distinct = 3 * (1 - (2 / 3) ** 6)
    values = private.values_streamed(np.zeros(1), None, [None, "a step"], (0, 6, [0, 1, 2, 0]))
    assert values[:, 0] == pytest.approx([0.0, (0.1 + 0.2 - 0.25) / distinct], rel=1e-12)
    assert asked == [pytest.approx(20 * 2 * 0.25 / distinct, rel=1e-12)]


@pytest.mark.usefixtures("as_if_proven")
def test_what_is_not_private_is_not_answered():
    private = Private(Quadratic(dim=8, devices=6), Privacy(**NUMBERS))
    with pytest.raises(Rejected):
        private.values(np.zeros((3, 8)), (0, 1, None))
    assert private.metrics(np.zeros(8)) == {}
    grid = node(softmax(devices=20), dotted=DOTTED)
    (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, protocol.HELLO)])
    assert "HasGradient" not in protocol.read_hello(reply.content).offers


def test_softmax_still_learns_under_noise():
    """A large epsilon: clipped, noised, and still most of the way."""
    problem = softmax(devices=10, partition="iid")
    settings = Privacy(epsilon=1e6, noise=0.01, difference_clip=0.05, loss_clip=10.0)
    algorithm = fedzo.FedZO(learning_rate=0.01)
    result = fedzo.minimize(
        Private(problem, settings), problem.initial(), algorithm=algorithm, rounds=20
    )
    everyone = np.arange(10)
    before, after = (problem.losses(x, everyone).mean() for x in (problem.initial(), result.last))
    assert after < 0.7 * before
