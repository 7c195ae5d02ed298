"""Differential privacy on the scalars: by record, noised to the constant, counted, limited."""

import math
import os
import subprocess
import sys
from bisect import bisect
from pathlib import Path

import dp_accounting
import neighbours
import numpy as np
import pytest
from flwr.app import Message
from misbehaving import run
from neighbours import Named, largest, without_noise
from one_node import ask, node, refusal
from scipy.stats import beta, kstest, norm

import fedzo
from fedzo.config.experiment import Experiment
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.errors import Halted
from fedzo.flower import FlowerEngine, FlowerSettings, privacy, protocol
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.ledger import Ledger
from fedzo.flower.privacy import (
    Charge,
    Event,
    Privacy,
    Private,
    Releases,
    discrete_normals,
    grid_step,
    record_digests,
)
from fedzo.problems import Quadratic, Softmax, softmax
from raising import fails, rejects

NUMBERS = {"epsilon": 8.0, "noise": 20.0, "difference_clip": 0.01, "loss_clip": 3.0}
DOTTED = {f"privacy.{k}": v for k, v in NUMBERS.items()}
AVX2 = {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell"}
SAME = 1 + 1e-12  # the bound holds before a result is rounded to a float


def made(**changes):
    return Privacy(**{**NUMBERS, **changes})


# ------------------------------------------------------------------------------ neighbouring data


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("make", [*neighbours.BY_RECORD, *neighbours.BY_TORCH])
def test_one_record_moves_a_reply_by_no_more_than_its_bound(make, sampling, dtype, monkeypatch):
    """2C/b' if its values change and batches are known; C/(q n) if it counts as zero."""
    if make in neighbours.BY_TORCH:
        pytest.importorskip("torch")
    without_noise(monkeypatch)
    found = largest(make, dtype, sampling)
    assert 0.2 < found <= SAME  # the lower bound: the test can see a record


@pytest.mark.parametrize("make", [*neighbours.BY_DEVICE, neighbours.custom])
def test_one_device_without_samples_is_one_record(make, monkeypatch):
    without_noise(monkeypatch)
    assert 0.5 < largest(make, "float64", "fixed") <= SAME


@pytest.mark.slow
def test_the_bound_holds_with_other_kernels():
    """BLAS and numba have other kernels for AVX2, whose sums have other bits."""
    done = subprocess.run(
        [sys.executable, str(Path(neighbours.__file__))],
        env={**os.environ, **AVX2, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(found) == 6
    assert all(0.2 < float(shift) <= SAME for *_, shift in found)


def test_streamed_directions_are_as_private(monkeypatch):
    torch = pytest.importorskip("torch")
    without_noise(monkeypatch)
    inputs = torch.arange(12.0).reshape(4, 3)
    problem = fedzo.TorchProblem(
        torch.nn.Linear(3, 1, bias=False), lambda m, b: m(b[0])[:, 0], [(inputs,)]
    )
    private = Private(problem, made(difference_clip=0.25, sampling="fixed"))
    algorithm = fedzo.FedZO(directions=3, direction_kind="coordinate", smoothing=0.1, local_steps=1)
    at = Draws(0, Stream.DIRECTIONS)
    task = fedzo.LocalSteps(algorithm, problem.initial(), 1.0)
    update = algorithm.local(private, 0, task, at)
    which = np.unique(at.on(Stream.BATCHES).integers(4, 25))
    slopes = 0.1 * inputs.numpy()[which]
    slopes *= np.minimum(1, 0.25 / np.linalg.norm(slopes, axis=1, keepdims=True))
    assert -0.1 * update.delta == pytest.approx(slopes.mean(axis=0), rel=1e-6)


# --------------------------------------------------------------------------- what a node releases


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_without_noise_a_loss_is_the_clipped_mean(sampling, monkeypatch):
    """At zero all records have the loss ln 10, which equal values must not merge."""
    without_noise(monkeypatch)
    problem = softmax(devices=10, partition="iid")
    private = Private(problem, made(sampling=sampling))
    assert private.losses(problem.initial(), [0, 7]) == pytest.approx(math.log(10), rel=1e-9)
    x = np.random.default_rng(0).normal(0, 0.05, problem.dim).astype(np.float32)
    each = problem.values(x[None], problem.take(3, np.arange(problem.size(3))))[0]
    assert each.max() > 3 > each.min()
    assert private.losses(x, [3])[0] == pytest.approx(np.clip(each, -3, 3).mean(), rel=1e-7)


@pytest.mark.parametrize("size", [3, 25, 400])
@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize("clip", [1e-4, 10.0])
def test_without_noise_differences_are_the_clipped_means(size, difference, clip, monkeypatch):
    without_noise(monkeypatch)
    problem = softmax(devices=10, partition="iid")
    x = np.random.default_rng(0).normal(0, 0.05, problem.dim).astype(np.float32)
    private = Private(problem, made(difference_clip=clip, sampling="fixed"))
    changes, _ = neighbours.reply(private, x, size, difference, seed=4)
    estimator, at = Estimator(1e-2, 3, difference=difference), Draws(4, Stream.DIRECTIONS)
    buffer = estimator.buffer(problem.dim, x.dtype)
    which = np.unique(at.on(Stream.BATCHES).integers(problem.size(0), size))
    buffer.draw(estimator.address(at))
    rows, signs = estimator.stencil
    steps = 1e-2 * signs * buffer.scales[rows]
    values = problem.values_along(x, buffer.rows, rows, steps, problem.take(0, which))
    each = values[1:] - values[:1] if difference == "forward" else values[:3] - values[3:]
    each = each * np.minimum(1, clip / np.linalg.norm(each, axis=0))
    assert changes == pytest.approx(each.mean(axis=1), abs=1e-5 * np.abs(each).max())


def test_copies_count_once_and_their_mean_is_clipped(monkeypatch):
    """Three records, each of them twice, in the batches of a custom problem."""
    without_noise(monkeypatch)

    class Twice(Named):
        dim = 1

        def batch(self, device, size, draws):
            return np.array([0, 1, 2, 0, 1, 2])

    private = Private(Twice(np.array([[1.0], [2.0], [-40.0]])), made(difference_clip=0.25))
    estimator = Estimator(0.1, 1, "coordinate")
    buffer, at = estimator.buffer(1, np.float64), Draws(0, Stream.DIRECTIONS)
    coefficients, _ = estimator.estimate(private, np.zeros(1), 6, buffer, at)
    assert coefficients == pytest.approx([(0.1 + 0.2 - 0.25) / 3 / 0.1], rel=1e-9)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
def test_what_is_not_finite_or_raises_tells_nothing_of_a_record(monkeypatch):
    without_noise(monkeypatch)
    slopes = np.array([[1.0], [np.inf], [np.nan], [1e308]])

    class One(Named):
        dim = 1

        def take(self, device, which):
            if 3 in which:
                raise SystemExit("the name of a patient")
            return which

        def contents(self, device):
            return None

    private = Private(One(slopes), made(loss_clip=1.5))
    assert private.losses(np.ones(1), [0])[0] == pytest.approx(1 / 4, rel=1e-9)
    assert private.losses(np.full(1, 1e308), [0])[0] == pytest.approx(1.5 / 4, rel=1e-9)


@pytest.mark.parametrize(("sampling", "effect"), [("fixed", 2), ("poisson", 1)])
def test_noise_has_the_deviation_that_it_says(sampling, effect):
    """Of 500 draws the sample deviation is within 5 / sqrt(1000) = 16 % with all but 1e-6."""
    problem = neighbours.softmax(np.random.default_rng(0), False, np.float32)
    private = Private(problem, made(sampling=sampling))
    drawn = np.array([private.losses(problem.initial(), [0])[0] for _ in range(500)])
    assert np.std(drawn) == pytest.approx(20 * effect * 3.0 / 40, rel=0.16)
    assert abs(drawn.mean() - math.log(4)) < 5 * 20 * effect * 3.0 / 40 / math.sqrt(500)


def test_noise_is_normal_whole_and_on_the_grid():
    scale = 20 * 0.01 / grid_step(0.01)
    drawn = discrete_normals(scale, 2000)
    assert all(type(number) is int for number in drawn)
    assert kstest(np.array(drawn, float), "norm", (0, scale)).pvalue > 1e-6
    private = Private(softmax(devices=10, partition="iid"), made())
    steps = private.losses(private.initial(), range(10)) * private.size(0) / grid_step(3.0)
    assert steps == pytest.approx(np.round(steps), abs=0.15)  # but for the rounding of a float


def test_queries_do_not_tell_the_size_of_a_secret_batch():
    problem = softmax(devices=10, partition="iid")
    algorithm = fedzo.FedZO(directions=4, local_steps=2, batch_size=7)
    for round in range(5):
        task = fedzo.LocalSteps(algorithm, problem.initial(), 1.0, round=round)
        assert task.reply(Private(problem, made()), 0).queries == 2 * 5 * 7


# -------------------------------------------------------------------------------- secret batches


class Seen(Named):
    """A problem that notes which records are evaluated."""

    def __init__(self, count):
        super().__init__(np.ones((count, 5)))
        self.seen = []

    def take(self, device, which):
        self.seen += which.tolist()
        return which

    def contents(self, device):
        return [bytes([i]) for i in range(len(self.slopes))]


def batches(problem, private, size, count):
    found = []
    for round in range(count):
        problem.seen.clear()
        batch = private.batch(0, size, Draws(0, Stream.BATCHES, round=round % 3))
        estimate = np.arange(2), np.array([0.0, 0.1])
        private.values_along(np.zeros(5), np.ones((2, 5)), *estimate, batch)
        found.append(set(problem.seen))
    return found


def test_each_record_is_in_a_batch_with_probability_q():
    """Binomial counts: within 5 deviations, which all but 3e-5 of 50 records are."""
    problem = Seen(50)
    private = Private(problem, made())
    private.paid.secret = bytes(32)
    found = batches(problem, private, 5, 2000)
    q, deviation = 0.1, math.sqrt(2000 * 0.1 * 0.9)
    each = [sum(i in batch for batch in found) for i in range(50)]
    assert all(abs(count - 2000 * q) < 5 * deviation for count in each)
    together = sum({3, 4} <= batch for batch in found)  # independently of each other
    assert abs(together - 2000 * q * q) < 5 * math.sqrt(2000 * q * q)
    empty = sum(not batch for batch in found)
    assert abs(empty - 2000 * 0.9**50) < 5 * math.sqrt(2000 * 0.9**50)


def test_no_two_releases_have_the_same_secret_batch():
    """A server that repeats an address would learn more of one batch than is accounted for."""
    problem = Seen(50)
    one, two, other = (Private(problem, made()) for _ in range(3))
    one.paid.secret = two.paid.secret = bytes(32)
    first, second, third = (batches(problem, p, 25, 6) for p in (one, two, other))
    assert first == second != third
    assert len({frozenset(batch) for batch in first}) == 6  # of three addresses
    batch = one.batch(0, 5, Draws(0, Stream.BATCHES))
    one.values_along(np.zeros(5), np.ones((2, 5)), np.arange(2), np.arange(2.0), batch)
    with fails("privacy", Rejected):
        one.values_along(np.zeros(5), np.ones((2, 5)), np.arange(2), np.arange(2.0), batch)


def test_empty_batch_releases_noise():
    problem = softmax(devices=10, partition="iid")
    private = Private(problem, made())
    private.paid.key = lambda draws: b"\0"
    batch = private.batch(0, 1, Draws(0, Stream.BATCHES))
    batch.parts = []
    estimate = np.arange(2), np.array([0.0, 0.1])
    values = private.values_along(problem.initial(), np.ones((2, 7850)), *estimate, batch)
    assert values.shape == (2, 1)
    assert values[1, 0] != 0
    assert abs(values[1, 0]) < 7 * 20 * 0.01  # z C / (q n) with q n = 1


# --------------------------------------------------------------------------------------- guessing


def right_guesses(make, trials, dotted, size):
    """Return how often a server that knows both data sets guesses which one a node has."""
    random, right = np.random.default_rng(7), 0
    rng = np.random.default_rng(5)
    pair = [make(rng, False, np.float64), make(rng, True, np.float64)]
    secret = [0]
    grid = node(lambda context: pair[secret[0]], dotted=dotted)
    algorithm = fedzo.FedZO(
        directions=1, local_steps=1, batch_size=size, direction_kind="coordinate", smoothing=1.0
    )
    x, exact = np.zeros(pair[0].dim), []
    for round in range(trials):
        task = fedzo.LocalSteps(algorithm, x, 1.0, round=round, seed=3)
        exact = [task.reply(noiseless(problem, dotted), 0).delta.sum() for problem in pair]
        secret[0] = int(random.integers(2))
        content = ask(grid, task=task)
        (update,) = protocol.read_answer(content, asked=1).updates
        told = update.delta.sum()
        right += (abs(told - exact[1]) < abs(told - exact[0])) == bool(secret[0])
    return right


def noiseless(problem, dotted):
    numbers = {key.partition(".")[2]: value for key, value in dotted.items()}
    return Private(problem, Privacy(**{**numbers, "noise": 1e-9}))


@pytest.mark.parametrize("make", [neighbours.function, neighbours.custom, neighbours.quadratic])
@pytest.mark.parametrize("honest", [True, False])
def test_guesser_is_right_no_more_often_than_epsilon_allows(make, honest, monkeypatch):
    """(ε, δ) allows at most (exp(ε) + δ) / (exp(ε) + 1) right guesses of a fair coin.

    The confidence of the bound is 1 - 1e-6. With a tenth of the noise the test must fail.
    """
    trials, settings = 300, {**NUMBERS, "epsilon": 1e9, "noise": 4.0, "difference_clip": 1e-3}
    epsilon = Privacy(**settings).spent(1)
    most = (math.exp(epsilon) + 1e-5) / (math.exp(epsilon) + 1)
    if not honest:
        monkeypatch.setattr(
            privacy, "discrete_normals", lambda scale, count: discrete_normals(scale / 10, count)
        )
    dotted = {f"privacy.{key}": value for key, value in settings.items()}
    right = right_guesses(make, trials, dotted, 200)
    surely = beta.ppf(1e-6, right, trials - right + 1)  # Clopper & Pearson, one-sided
    assert (surely <= most) == honest, (right, trials, most)


@pytest.mark.parametrize("honest", [True, False])
def test_guesser_of_secret_batches_is_right_no_more_often(honest, monkeypatch):
    """One record of ten has a slope, or counts as zero; it is in a batch with probability 0.8.

    Without noise the guess is right with probability 0.9, more than ε allows (0.704). The noise
    cannot be seeded. Of 400 guesses, 324 must be right for the test to notice it: 6 deviations less
    than the 360 to expect.
    """

    class One(Seen):
        dim = 1

        def __init__(self, slope):
            super().__init__(10)
            self.slopes = np.zeros((10, 1))
            self.slopes[3] = slope

    trials, settings = 400, {**NUMBERS, "epsilon": 1e9, "noise": 4.0, "difference_clip": 1e-3}
    epsilon = Privacy(**settings).spent(1, 0.8)
    assert epsilon < Privacy(**settings).spent(1)
    most = (math.exp(epsilon) + 1e-5) / (math.exp(epsilon) + 1)
    if not honest:
        monkeypatch.setattr(
            privacy, "discrete_normals", lambda scale, count: discrete_normals(scale / 50, count)
        )
    random, pair, secret, right = np.random.default_rng(7), [One(0.0), One(1e3)], [0], 0
    dotted = {f"privacy.{key}": value for key, value in settings.items()}
    grid = node(lambda context: pair[secret[0]], dotted=dotted)
    algorithm = fedzo.FedZO(
        directions=1, local_steps=1, batch_size=8, direction_kind="coordinate", smoothing=1.0
    )
    for _ in range(trials):
        secret[0] = int(random.integers(2))
        content = ask(grid, task=fedzo.LocalSteps(algorithm, np.zeros(1), 1.0, seed=3))
        (update,) = protocol.read_answer(content, asked=1).updates
        right += (-update.delta.sum() > 0.5e-3 / 8) == bool(secret[0])
    surely = beta.ppf(1e-6, right, trials - right + 1)
    assert (surely <= most) == honest, (right, trials, most)


# ------------------------------------------------------------------------------------ accounting


@pytest.mark.parametrize("mu", [0.1, 1.0, math.sqrt(10)])
def test_epsilon_is_the_closed_form(mu):
    """Balle & Wang (2018), Theorem 5: δ = Φ(μ/2 - ε/μ) - exp(ε) Φ(-μ/2 - ε/μ)."""
    epsilon = made(noise=1 / mu).spent(1)
    tails = [norm.cdf(sign * mu / 2 - epsilon / mu) for sign in (1, -1)]
    assert tails[0] - math.exp(epsilon) * tails[1] == pytest.approx(1e-5, rel=1e-6)


def test_epsilon_of_answers_is_that_of_their_composition():
    """Google's accountant of privacy losses, which composes by itself, up to its grid of 1e-4."""
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(20.0), 300)
    assert made().spent(0) == 0.0
    assert made().spent(300) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert 1e6 < made().spent(10**9) < 2e6  # mu^2 / 2 and a little: exp(epsilon) is no number


@pytest.mark.parametrize(("rate", "noise", "times"), [(0.1, 20.0, 500), (0.05, 1.0, 200)])
def test_epsilon_of_secret_batches_is_an_upper_bound(rate, noise, times):
    """The accountant of privacy losses is nearly exact: ε is above it, by 20 % at most."""
    accountant = dp_accounting.pld.PLDAccountant()
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(sampled, times)
    exact = accountant.get_epsilon(1e-5)
    assert exact <= made(noise=noise).spent(times, rate) <= 1.2 * exact
    assert made(noise=noise).spent(times, rate) < made(noise=noise).spent(times)
    assert made(noise=noise).spent(times, 1.0) == pytest.approx(
        made(noise=noise).spent(times, 1 - 1e-12), rel=1e-6
    )


def test_answers_with_less_noise_are_remembered_as_such(tmp_path):
    """300 answers with z = 20, then 100 with z = 10, are 700 with z = 20."""
    ledger, known = ledger_in(tmp_path), frozenset([b"a"])
    settings = made(epsilon=50.0)
    for noise, times in ((20.0, 300), (10.0, 100)):
        ledger.charge({0: Charge(known, "fixed", Event(noise, 1.0), times)}, settings)
    assert ledger.epsilon(known, settings) == pytest.approx(settings.spent(700), rel=1e-12)


def ledger_in(folder):
    ledger = Ledger(str(folder / "ledger.sqlite"))
    assert ledger.create()
    return ledger


def charge(ledger, settings, times, *records, sampling="fixed"):
    event = Event(settings.noise, 1.0)
    known = frozenset(records) if records else None
    return ledger.charge({0: Charge(known, sampling, event, times)}, settings)


def test_budget_is_that_of_a_record_in_whatever_set_it_is(tmp_path):
    """Records that move to other devices take what they have spent with them."""
    ledger, settings = ledger_in(tmp_path), made()
    most = bisect(range(10**6), settings.epsilon, key=settings.spent) - 1
    charge(ledger, settings, most, b"a", b"b")
    for again in ((b"a", b"b"), (b"b", b"c"), (b"a",), (b"a", b"b", b"c")):
        with fails("privacy", Rejected):
            charge(ledger, settings, 1, *again)
    charge(ledger, settings, most // 2, b"c", b"d")
    charge(ledger, settings, most - most // 2, b"d", b"e")
    for again in ((b"d",), (b"c", b"d")):
        with fails("privacy", Rejected):
            charge(ledger, settings, 1, *again)
    charge(ledger, settings, most // 2, b"c")
    assert ledger.epsilon(frozenset([b"e"]), settings) == settings.spent(most - most // 2)


def test_relations_are_never_mixed(tmp_path):
    ledger, settings = ledger_in(tmp_path), made()
    charge(ledger, settings, 1, b"a", b"b")
    with fails("privacy", Rejected):
        charge(ledger, settings, 1, b"b", b"c", sampling="poisson")
    charge(ledger, settings, 1, b"c", sampling="poisson")


def test_numbering_devices_differently_buys_no_second_budget():
    problem = softmax(devices=20)
    turned = Softmax(problem.data, [*problem.parts[1:], problem.parts[0]])
    assert record_digests(problem, 1) == record_digests(turned, 0)
    here = [problem]
    settings = made(epsilon=1.0)
    most = bisect(range(10**6), 1.0, key=settings.spent) - 1
    dotted = {**DOTTED, "privacy.epsilon": 1.0, "limits.local-steps": 10**6}
    grid = node(lambda context: here[0], dotted=dotted)
    algorithm = fedzo.FedZO(directions=1, local_steps=most, batch_size=10**4)
    x = problem.initial()
    assert refusal(ask(grid, algorithm, devices=[1], x=x, kind=protocol.TRAIN)) is None
    here[0] = turned
    assert refusal(ask(grid, devices=[0], x=x, kind=protocol.EVALUATE)) == "privacy"
    assert refusal(ask(grid, devices=[1], x=x, kind=protocol.EVALUATE)) is None


@pytest.mark.parametrize("form", ["tensors", "arrays"])
def test_records_of_tensors_are_known_by_their_contents(form):
    torch = pytest.importorskip("torch")
    rows = [torch.arange(12.0).reshape(6, 2), torch.arange(6)]
    parts = rows if form == "tensors" else [row.numpy() for row in rows]
    halves = [tuple(part[half] for part in parts) for half in (slice(0, 3), slice(3, 6))]
    one, two = (
        fedzo.TorchProblem(torch.nn.Linear(2, 1), lambda m, b: m(b[0])[:, 0], data)
        for data in (halves, halves[::-1])
    )
    assert record_digests(one, 0) == record_digests(two, 1) != record_digests(one, 1)
    assert len(record_digests(one, 0)) == 3
    listed = torch.utils.data.TensorDataset(*rows)
    own = fedzo.TorchProblem(torch.nn.Linear(2, 1), lambda m, b: m(b[0])[:, 0], [listed])
    assert record_digests(own, 0) is None  # a data set may change its samples


def test_spent_epsilon_is_refused_over_all_runs():
    """A device without known records shares the budget of the node."""
    settings = made()
    most = bisect(range(10**6), settings.epsilon, key=settings.spent) - 1  # answers that it allows
    algorithm = fedzo.FedZO(directions=2, local_steps=most // 2 + 2, batch_size=1)
    grid = node(Quadratic(dim=8, devices=6), dotted={**DOTTED, "limits.local-steps": 10**6})
    assert refusal(ask(grid, algorithm)) is None
    grid.contexts[1].run_id = 2
    for device in (0, 1):
        assert refusal(ask(grid, algorithm, devices=[device])) == "privacy"
    assert refusal(ask(grid, kind=protocol.EVALUATE)) is None  # and nothing was charged for it
    ledger = Ledger(grid.contexts[1].node_config["ledger"])
    assert ledger.spent("2").run > 0
    assert ledger.epsilon(None, settings) == settings.spent(most // 2 + 3)


def test_no_algorithm_gets_an_answer_that_was_not_paid_for(tmp_path):
    """Whatever it does in a step: what is counted is what leaves."""
    problem = softmax(devices=10, partition="iid")
    private = Private(problem, made())
    charges = {0: private.charge(0, Releases(2, 25))}
    assert charges[0].event == Event(20.0, 25 / 400)
    private.paid = ledger_in(tmp_path).charge(charges, made())
    for device, size, fine in ((0, 25, True), (0, 26, False), (1, 25, False), (0, 25, False)):
        task = fedzo.LocalSteps(
            fedzo.FedZO(directions=1, local_steps=1, batch_size=size), problem.initial(), 1.0
        )
        if fine:
            task.reply(private, device)
        else:
            with fails("privacy", Rejected):
                task.reply(private, device)


# --------------------------------------------------------------------------------- what is refused


class Unnamed(fedzo.Objective):
    """A problem that does not say which records it evaluates."""

    dim, devices = 8, 6

    def batch(self, device, size, draws):
        raise AssertionError("evaluated")

    values = losses = batch


@pytest.mark.parametrize(
    "kind", [protocol.HELLO, protocol.INITIAL, protocol.TRAIN, protocol.EVALUATE]
)
@pytest.mark.parametrize(
    ("problem", "sampling"), [(Unnamed(), None), (Quadratic(dim=8, devices=6), "poisson")]
)
def test_problem_that_cannot_be_private_is_refused(problem, sampling, kind, caplog):
    dotted = {**DOTTED, **({"privacy.sampling": sampling} if sampling else {})}
    grid = node(problem, dotted=dotted)
    if kind in (protocol.HELLO, protocol.INITIAL):
        (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, kind)])
        content = reply.content
    else:
        content = ask(grid, kind=kind)
    assert refusal(content) == "no-records"
    (said,) = [record.getMessage() for record in caplog.records]
    assert type(problem).__name__ in said
    assert Ledger(grid.contexts[1].node_config["ledger"]).spent("1").total == 0


def test_run_says_why_nodes_with_privacy_do_not_join():
    settings = FlowerSettings(grace=0.02, patience=0.1)
    with fails("no-quorum", Halted) as caught:
        FlowerEngine(node(Unnamed(), dotted=DOTTED), 0, fedzo.Ideal(), settings)
    assert ErrorCode.NO_RECORDS.words in str(caught.value)


@pytest.mark.parametrize("name", ["softmax", "quadratic", "tuning", "attack", "attack-eps"])
def test_every_shipped_problem_can_be_private(name):
    if name.startswith("attack"):
        pytest.importorskip("onnxruntime")
    problem = Experiment.load(name).problem()
    grid, x = node(problem, dotted=DOTTED), problem.initial()
    algorithm = fedzo.FedZO(directions=2, local_steps=1, batch_size=3)
    assert refusal(ask(grid, algorithm, x=x)) is None
    assert refusal(ask(grid, x=x, kind=protocol.EVALUATE)) is None


def test_values_and_gradients_of_a_servers_choice_are_refused():
    """Questions of searches, and gradient steps, at a node that keeps its records private."""
    problem = softmax(devices=20)
    x = np.array(problem.initial(), np.float64)
    for task in (fedzo.Evaluate(np.stack([x, x]), 25), fedzo.LocalSteps(fedzo.FedAvg(), x)):
        content = ask(node(problem, dotted=DOTTED), task=task)
        assert not protocol.read_answer(content, asked=1).updates


def test_what_is_not_private_is_not_answered():
    private = Private(Quadratic(dim=8, devices=6), made())
    with pytest.raises(Rejected):
        private.values(np.zeros((3, 8)), private.batch(0, 1, Draws(0, Stream.BATCHES)))
    assert private.metrics(np.zeros(8)) == {}
    grid = node(softmax(devices=20), dotted=DOTTED)
    (reply,) = grid.send_and_receive([Message(protocol.greeting({}), 1, protocol.HELLO)])
    assert "HasGradient" not in protocol.read_hello(reply.content).offers


@pytest.mark.parametrize(
    "wrong", [{"noise": 0.0}, {"noise": 1e5}, {"sampling": "shuffled"}, {"delta": 1.0}]
)
def test_wrong_settings_are_refused(wrong):
    with rejects(next(iter(wrong))):
        made(**wrong)


# -------------------------------------------------------------------------------------- whole runs


def test_private_run_returns_a_better_model_than_its_start():
    """Over node messages. The loss falls by more than 1; its noise is 0.003 per evaluation."""
    problem = softmax(devices=10, partition="iid")
    settings = made(epsilon=1e6, noise=0.3, difference_clip=2e-3, loss_clip=10.0)
    dotted = {f"privacy.{k}": getattr(settings, k) for k in NUMBERS}
    grid = node(lambda context: problem, nodes=2, dotted=dotted)
    result = run(grid, algorithm=fedzo.FedZO(learning_rate=0.01), rounds=20)
    everyone = np.arange(10)
    before, after = (problem.losses(x, everyone).mean() for x in (problem.initial(), result.x))
    assert result.success
    assert result.best.round > 0
    assert after < 0.7 * before
    assert result.fun == pytest.approx(after, abs=0.02)
    assert result.history[0]["train_loss"] == pytest.approx(math.log(10), abs=0.02)
