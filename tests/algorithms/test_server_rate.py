"""The rate of Adam at the server is measured: it finds the scale of a problem."""

import signal

import numpy as np
import pytest

import fedzo
from fedzo.algorithms import server_rate
from fedzo.algorithms.base import RoundInfo
from fedzo.algorithms.server_rate import ServerMove, ServerRate
from fedzo.core.engine import LocalEngine, drive
from fedzo.core.machine import deferred_signals
from fedzo.core.tasks import Evaluate, Offsets
from fedzo.core.updates import DirectionSum
from fedzo.problems import FunctionObjective
from fedzo.server import Adagrad, Adam, Yogi
from fedzo.uplinks import Ideal
from fedzo.uplinks.base import RunSetting
from raising import rejects

CENTRES = np.linspace(-1, 1, 30)


def bowl(unit=1.0, factor=1.0):
    """A quadratic in other units of x and of f, with its minimum one unit away."""
    return lambda x, device: float(factor * np.sum((x / unit - CENTRES) ** 2))


def algorithm(server=Adam, unit=1.0, **settings):
    options = {"local_steps": 1, "directions": 10, "batch_size": 1, "smoothing": 0.01 * unit}
    return fedzo.FedZO(**{**options, **settings}, server=server(learning_rate="auto"))


@pytest.mark.parametrize("server", [Adam, Yogi, Adagrad])
@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e4])
def test_the_rate_suits_any_units(server, unit):
    """By the same relative perturbation: f falls to a tenth within 60 rounds of 10 directions."""
    result = fedzo.minimize(
        bowl(unit, 1e6), np.zeros(30), devices=4, algorithm=algorithm(server, unit), rounds=60
    )
    assert result.success
    assert result.fun < 0.1 * 1e6 * np.sum(CENTRES**2)
    rates = [record["learning_rate"] for record in result.history[1:]]
    assert all(1e-4 < rate / unit < 1 for rate in rates)
    assert result.algorithm.server.learning_rate == rates[-1]


def test_other_units_of_f_make_the_same_run():
    first, second = (
        fedzo.minimize(bowl(1.0, factor), np.zeros(30), devices=4, algorithm=algorithm(), rounds=20)
        for factor in (1.0, 2.0**40)
    )
    assert first.x == pytest.approx(second.x, rel=1e-5)


def test_a_model_that_is_lost_returns_to_the_best():
    """Beyond x = 2 the loss is not finite. The run goes back, and ends better than it began."""

    def cliff(x, device):
        return float(np.sum(x**2) - 3 * x.sum()) if x.max() < 2 else float("nan")

    options = {"rounds": 60, "evaluate_every": 60, "algorithm": algorithm(directions=3)}
    result = fedzo.minimize(cliff, np.zeros(3), devices=2, **options)
    assert result.success, result.message
    assert result.fun < -6  # the minimum is -6.75


@pytest.mark.parametrize("start", [CENTRES, CENTRES + 1e-3])
def test_a_start_near_the_minimum_is_not_lost(start):
    """No rate of the first probes lowers f by much, and larger ones raise it."""
    options = {"rounds": 40, "evaluate_every": 5, "algorithm": algorithm(smoothing=1e-3)}
    result = fedzo.minimize(bowl(), start, devices=4, **options)
    assert result.fun <= bowl()(start, 0)
    assert result.history[-1]["train_loss"] < 0.01  # the bowl is 10 deep


def test_a_rate_that_is_too_small_grows(monkeypatch):
    """The ladder of the first probe ends far below the rates that suit the bowl."""
    monkeypatch.setattr(server_rate, "LADDER", np.array([[0.2, 0.1]]))
    options = {"rounds": 60, "evaluate_every": 1, "algorithm": algorithm()}
    result = fedzo.minimize(bowl(), np.zeros(30), devices=4, **options)
    assert result.history[1]["learning_rate"] < 0.0004  # 0.2 / 100 sqrt(30)
    assert result.algorithm.server.learning_rate > 0.01
    assert result.fun < 0.1 * np.sum(CENTRES**2)


def test_an_update_that_leads_up_is_not_blamed_on_the_rate():
    """f rises along the first update at every rate: the next round measures the rate."""
    calls, true = [], bowl()

    def misled_at_first(x, device):
        calls.append(device)
        return true(x, device) if len(calls) > 4 * 11 else -true(x, device)  # the first round

    result = fedzo.minimize(
        misled_at_first,
        np.zeros(30),
        devices=4,
        algorithm=algorithm(),
        rounds=30,
        evaluate_every=1,
        workers=1,
        callback=lambda progress: calls.clear() if progress.round == 0 else None,
    )
    rates = [record["learning_rate"] for record in result.history[1:3]]
    unit = 0.01 / np.sqrt(30)
    assert rates[0] < unit  # the model hardly moves
    assert rates[1] > unit
    assert result.fun < 0.5 * np.sum(CENTRES**2)


def probed(t, rate, first, lowest):
    """Probe a parabola along x = (s, ..., s), whose minimum is at s = ``lowest``."""
    fun = FunctionObjective(lambda x, device: float((x.mean() - lowest) ** 2), 30, devices=2)
    algorithm = fedzo.FedZO(smoothing=0.01, server=Adam(learning_rate="auto", beta1=0, beta2=0))
    with LocalEngine(fun, 0) as engine:
        setting, x = RunSetting(engine, Ideal()), np.zeros(30)
        start = ServerRate(fedzo=algorithm).init(x, setting)
        state = start._replace(numbers=np.array([rate, first, np.inf, 0.0, 1.0, 0.01]))
        info = RoundInfo(2, 0)
        task = ServerRate(fedzo=algorithm)._probe(t, state, np.ones(30), setting, info)
        after, info = drive(task, engine)
    return after.numbers[0], info.queries // 2  # a value without noise per point and device


@pytest.mark.parametrize(
    ("t", "lowest", "factor"),
    [
        *[(16, 0.5, 0.75), (16, 1.6, 0.8), (16, 3, 1), (16, 7, 1), (16, 12.5, 1.5625)],
        *[(16, 40, 5), (16, 999, 12), (4, 12.5, 1.5625), (2, 12.5, 12.5 / 6)],
        *[(1, 12.5, 3.125), (1, 1.6, 1)],
    ],
)
def test_the_rate_is_kept_if_f_is_lowest_a_few_steps_ahead(t, lowest, factor):
    """The rate changes by how far the minimum is outside of 2 to 8 steps, within limits."""
    rate, queries = probed(t, 1.0, float(lowest) ** 2, lowest)
    assert rate == pytest.approx(factor, rel=1e-6)
    assert queries == (3 if lowest < 12 else 6)


@pytest.mark.parametrize(
    ("lowest", "rate"), [(99, 32), (20, 20), (15, 8), (6, 6), (3, 2), (1.25, 1.25)]
)
def test_the_first_rate_is_on_the_ladder_or_where_f_is_lowest(lowest, rate):
    """In perturbations of a number: 32, 8, 2, ..., at which f falls, or less."""
    unit = 0.01 / np.sqrt(30)
    found, queries = probed(0, unit, np.inf, lowest * unit)
    assert found / unit == pytest.approx(rate, rel=1e-6)
    assert queries == 5


def test_a_flat_function_is_not_left():
    """Nothing rises or falls: the rate stays the perturbation of a number."""
    result = fedzo.minimize(
        lambda x, device: 1.0, np.zeros(30), devices=2, algorithm=algorithm(), rounds=10
    )
    assert result.algorithm.server.learning_rate == pytest.approx(0.01 / np.sqrt(30), rel=0.9)
    assert np.array_equal(result.x, np.zeros(30))


def test_a_resumed_run_is_the_same_run(tmp_path):
    def run(rounds, **options):
        return fedzo.minimize(
            bowl(), np.zeros(30), devices=3, algorithm=algorithm(), rounds=rounds, **options
        )

    whole = run(20)
    run(9, run_dir=tmp_path / "run")
    assert np.array_equal(run(20, run_dir=tmp_path / "run", resume=True).x, whole.x)


@pytest.mark.parametrize("kind", ["rademacher", "sphere"])
def test_offsets_are_the_points_of_the_steps(kind):
    """Part by part, at any place of the vector, as the server would take the step at once."""
    rng, server = np.random.default_rng(0), Adam(learning_rate=0.25)
    x = rng.standard_normal(70_001).astype(np.float32)
    state = tuple(rng.random(x.size).astype(np.float32) for _ in range(2))
    at = fedzo.random.Draws(0, fedzo.random.Stream.DIRECTIONS)
    update = DirectionSum.of(kind, x.size, [at], rng.standard_normal((1, 3)).astype(np.float32))
    moved, _ = server.step(3, state, x, update)
    move = ServerMove(server, 3, state, update)
    assert np.array_equal(np.asarray(Offsets(x, (None, move))), np.stack([x, moved]))
    part = np.empty(1000, np.float32)
    move.add_to(part, 12_345, x[12_345:13_345])
    assert np.array_equal(part, moved[12_345:13_345])


def test_steps_in_place_are_the_same_steps():
    rng, server = np.random.default_rng(0), Adam()
    x = rng.standard_normal(200_000).astype(np.float32)
    state = server.init(x)
    at = fedzo.random.Draws(0, fedzo.random.Stream.DIRECTIONS)
    terms = rng.standard_normal((1, 3)).astype(np.float32)
    update = DirectionSum.of("rademacher", x.size, [at], terms)
    moved, after = server.step(0, state, x, update)
    object.__setattr__(update, "in_place", True)
    own, moments = server.step(0, state, x, update)
    assert own is x
    assert all(new is old for new, old in zip(moments, state, strict=True))
    assert np.array_equal(own, moved)
    assert all(np.array_equal(*pair) for pair in zip(moments, after, strict=True))


def test_offsets_are_evaluated_as_points_are():
    objective = FunctionObjective(bowl(), 30, devices=2)
    x = np.ones(30)
    move = ServerMove(Adam(learning_rate=0.5), 0, Adam().init(x), -x)
    found = Evaluate(Offsets(x, (None, move))).reply(objective, 0)
    dense = Evaluate(np.stack([x, x - 0.5])).reply(objective, 0)
    assert found.values == pytest.approx(dense.values)
    assert found.queries == dense.queries == 2


def test_signals_wait_for_the_end_of_a_block():
    done = []

    def interrupted():
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done == [1]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_only_numbers_and_auto_are_rates():
    with rejects("learning_rate"):
        Adam(learning_rate=-1.0)
    with LocalEngine(FunctionObjective(bowl(), 30, devices=2), 0) as engine:
        state = ServerRate(fedzo=algorithm()).init(np.zeros(30), RunSetting(engine, Ideal()))
    assert np.isinf(state.numbers[1])  # not measured yet
