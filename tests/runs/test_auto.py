"""Numbers in place of "auto": what they are, what they cost, how they adapt, that they are kept."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest

import fedzo
from driving import begin
from fedzo.algorithms.adaptive_rate import AdaptiveState, Numbers, judged, numbers_of
from fedzo.cli import main
from fedzo.config.experiment import Experiment
from fedzo.core.engine import LocalEngine, drive
from fedzo.errors import Halted, UserCodeError
from fedzo.problems import FunctionObjective, Quadratic
from fedzo.runs.auto import choose
from fedzo.theory import report
from fedzo.theory.bounds import Constants
from fedzo.uplinks.base import RunSetting
from raising import fails, rejects

AUTO = fedzo.FedZO(
    learning_rate="auto",
    smoothing="auto",
    batch_size=1,
    directions=6,
    direction_kind="orthogonal",
    difference="central",
    local_steps=2,
    participants=3,
)
START = np.linspace(1, 2, 6)


def probe(algorithm, engine, x0, rounds):
    """Choose numbers in place of "auto"."""
    setting = RunSetting(engine, fedzo.Ideal())
    return drive(choose(algorithm, setting, engine.objective, x0, rounds), engine)


def chosen(fun, algorithm=AUTO, rounds=50, seed=0, workers=1):
    with LocalEngine(FunctionObjective(fun, 6, devices=4), seed, workers) as federation:
        return probe(algorithm, federation, START, rounds)


@pytest.mark.parametrize("curvature", [1e-6, 1e-2, 1.0, 37.0, 1e8])
def test_half_of_what_is_best_for_a_round_of_a_quadratic(curvature):
    """With all d directions D = -H ∇f, and f falls furthest at η = 1/(HL)."""
    found = chosen(lambda x, i: 0.5 * curvature * float(x @ x))
    assert found.algorithm.learning_rate == pytest.approx(0.5 / (2 * curvature), rel=1e-6)


def test_smoothing_is_the_corollarys_where_values_have_no_noise():
    """μ = (d b1 b2 M H T)^(-1/4) where b1 b2 <= d; two values at x0 and five beside it tell."""
    found = chosen(lambda x, i: float(x @ x))
    assert found.algorithm.smoothing == pytest.approx((6 * 6 * 3 * 2 * 50) ** -0.25)
    only = chosen(lambda x, i: float(x @ x), replace(AUTO, learning_rate=0.1))
    assert (only.algorithm.smoothing, only.queries) == (found.algorithm.smoothing, 4 * 7)
    assert only.algorithm.learning_rate == 0.1
    given = chosen(lambda x, i: float(x @ x), replace(AUTO, smoothing=0.5))
    assert given.algorithm.smoothing == 0.5


def test_queries_are_counted_and_others_are_left_alone():
    calls = []

    def bowl(x, device):
        calls.append(device)
        return float(x @ x)

    found = chosen(bowl)
    assert found.queries == len(calls)
    # Seven values of each device for μ, a round, and a few looks along the line.
    assert 4 * 7 + 2 * 3 * 12 < found.queries <= 4 * 7 + 2 * 3 * 12 + 4 * 8
    kept = replace(found.algorithm, learning_rate="auto", smoothing="auto")
    assert kept == AUTO


def test_the_same_seed_chooses_the_same_with_any_workers():
    def rough(x, device):
        return float(np.sum(np.abs(x - device) ** 1.5))

    few = replace(AUTO, directions=1)
    one, two, other = (chosen(rough, few, seed=s, workers=w) for s, w in ((1, 1), (1, 3), (2, 1)))
    assert one == two
    assert one.algorithm.learning_rate != other.algorithm.learning_rate


def test_a_cliff_is_kept_away_from():
    """Not finite beyond a step: half of half of the last good one, at most."""
    found = chosen(lambda x, i: np.inf if x[0] < 0.9 else float(x.sum()))
    step = found.algorithm.learning_rate * 2  # D = -H (1, ..., 1)
    assert 0 < step < 0.1


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda x, i: np.nan, "not finite near x0"),
        (lambda x, i: 3.0, "the loss is the same all around x0"),
    ],
)
def test_what_cannot_be_chosen_for_is_told(fun, message):
    with pytest.raises(Halted, match=message):  # after some queries
        fedzo.minimize(fun, START, devices=4, algorithm=AUTO)


def test_a_start_at_the_minimum_stays_there():
    auto = replace(AUTO, direction_kind="sphere", difference="forward", participants=None)
    result = fedzo.minimize(
        lambda x, i: float(x @ x), np.zeros(6), devices=4, algorithm=auto, rounds=30
    )
    assert result.fun < 1e-6
    assert result.best.fun == 0


def test_steps_on_which_nothing_falls_are_no_error():
    """With a μ of one's own: half of it is how far a round like the measured one goes."""
    algorithm = replace(AUTO, smoothing=0.5, local_steps=1, participants=None)
    found = chosen(lambda x, i: float(np.abs(x - START).max() > 0.1 * (i + 1)) + x[0], algorithm)
    fallen = chosen(lambda x, i: 1e-3 * x[0], algorithm).algorithm.learning_rate
    assert found.algorithm.smoothing == 0.5
    assert 0 < found.algorithm.learning_rate < fallen


@pytest.mark.parametrize("unit", [1e-3, 1e-5])
def test_smoothing_gets_small_where_the_units_of_x_are(unit):
    """A run in thousandths ends near the best there is; with the corollary's μ it gets nowhere."""

    def bowl(x, device):
        return float(np.sum((x / unit - device) ** 2))

    auto = replace(AUTO, direction_kind="sphere", difference="forward", participants=None)
    for seed in range(3):
        result = fedzo.minimize(
            bowl, 4 * START * unit, devices=4, algorithm=auto, rounds=60, seed=seed
        )
        assert result.history[0]["train_loss"] > 100
        assert result.fun < 1.3 * 6 * 1.25  # six times the variance of 0, ..., 3 is the least


def test_a_device_that_is_missing_does_not_move_the_level():
    """Device 3 has a level of its own; without it the others' mean would look like a fall."""

    def levels(x, device):
        levels.calls += 1
        silent = levels.calls > 3 * 2 * 12 + 8 and device == 3  # all but the first look
        return np.nan if silent else float(np.sum((x - 1.5) ** 2)) + 1e6 * (device == 3)

    levels.calls = 0
    objective = FunctionObjective(levels, 6, devices=4, on_failure="leave_out")
    with LocalEngine(objective, 0, workers=1) as federation:
        found = probe(AUTO, federation, START, 50)
    assert levels.calls == found.queries  # those that were not answered, too
    exact = chosen(lambda x, i: float(np.sum((x - 1.5) ** 2)))
    np.testing.assert_allclose(
        found.algorithm.learning_rate, exact.algorithm.learning_rate, rtol=1e-3
    )


def test_a_budget_that_the_measurement_spends():
    asked = []

    def bowl(x, device):
        asked.append(device)
        return x @ x

    result = fedzo.minimize(bowl, START, devices=4, algorithm=AUTO, max_queries=9)
    spent = "the budget of 9 queries is spent before the end of the first round"
    assert (result.message, result.queries) == (spent, 9)
    assert (result.success, result.status) == (False, fedzo.Status.STALLED)
    assert len(asked) == 9
    np.testing.assert_array_equal(result.x, START)


def noisy_slope(x, device, level=0.5):
    noisy_slope.draws += 1
    return float(x.sum()) + level * np.sin(1e3 * noisy_slope.draws)


def test_smoothing_is_such_that_differences_stand_out_of_the_noise():
    """A slope of length sqrt(6): differences are about μ, and the noise of two values 0.5."""
    noisy_slope.draws = 0
    found = chosen(noisy_slope)
    assert 1 < found.algorithm.smoothing < 200
    exact = chosen(lambda x, i: float(x.sum()))
    assert exact.algorithm.smoothing < 0.1


def test_smoothing_of_values_in_single_precision():
    """Of 10,000 in float32 nothing below 0.001 can be seen."""

    class Single(Quadratic):
        def values(self, points, batch):
            return np.asarray(points.sum(axis=1)[:, None] + 1e4, np.float32)

    algorithm = replace(AUTO, learning_rate=1.0)
    with LocalEngine(Single(dim=6, devices=4), 0, 1) as federation:
        few = probe(algorithm, federation, START, 10**6)
    differences = few.algorithm.smoothing  # along a unit vector, of a slope of about 1
    assert differences > 1e4 * np.finfo(np.float32).eps


def test_a_run_counts_the_probe_and_goes_on_where_it_was(tmp_path):
    asked = []

    def bowl(x, device):
        asked.append(device)
        return float(np.sum((x - device) ** 2))

    found = chosen(bowl, rounds=8)
    run = {"devices": 4, "evaluate_every": 2, "workers": 1, "algorithm": AUTO}
    first = fedzo.minimize(bowl, START, rounds=8, run_dir=tmp_path / "a", **run)
    assert first.history[0]["queries"] == found.queries
    assert first.nfev == len(asked) - found.queries  # those of the choice above
    table = tomllib.loads((tmp_path / "a" / "config.toml").read_text())["algorithm"]
    assert (table["learning_rate"], table["smoothing"]) == ("auto", "auto")
    assert isinstance(first.algorithm.learning_rate, float)
    # T is in the corollary: the rate is chosen for 8 rounds, and the run then continued
    asked.clear()
    longer = fedzo.minimize(bowl, START, rounds=30, run_dir=tmp_path / "a", resume=True, **run)
    assert len(asked) == longer.nfev - first.nfev  # no probe
    assert longer.history[: len(first.history)] == first.history


def test_a_kill_at_any_round_is_resumed_to_the_bit(tmp_path):
    def valley(x, device):
        return float(np.sum((x - device) ** 2) + 10 * (x[0] - x[1]) ** 4)

    run = {"devices": 4, "rounds": 25, "evaluate_every": 5, "algorithm": AUTO}
    whole = fedzo.minimize(valley, START, run_dir=tmp_path / "whole", **run)
    for stop in (0, 1, 13, 24):

        def dies(progress, stop=stop):
            if progress.round == stop:
                raise SystemExit(0)

        folder = tmp_path / str(stop)
        with pytest.raises(UserCodeError):
            fedzo.minimize(valley, START, run_dir=folder, checkpoint_every=1, callback=dies, **run)
        again = fedzo.minimize(
            valley, START, run_dir=folder, checkpoint_every=1, resume=True, **run
        )
        assert again.last.tobytes() == whole.last.tobytes()
        assert [{**r, "seconds": 0} for r in again.history] == [
            {**r, "seconds": 0} for r in whole.history
        ]


def test_the_rate_grows_where_the_first_is_too_short():
    """Around the start f is curved 100 times as much as on the way from there."""

    def bent(x, device):
        return float(np.sum(np.sqrt(1e-4 + (x - 2) ** 2)) + 1e-3 * np.sum((x - 50) ** 2))

    with LocalEngine(FunctionObjective(bent, 6, devices=4), 0, 1) as federation:
        first = probe(AUTO, federation, np.full(6, 2.01), 60).algorithm
    run = {"devices": 4, "rounds": 60, "workers": 1}
    fixed = fedzo.minimize(bent, np.full(6, 2.01), algorithm=first, **run)
    adapted = fedzo.minimize(bent, np.full(6, 2.01), algorithm=AUTO, **run)
    assert adapted.fun < fixed.fun
    assert adapted.algorithm.learning_rate != first.learning_rate


def test_on_a_rise_the_run_goes_back_and_the_rate_falls():
    """Beyond 0.5 there is a wall that x0 does not see."""

    def wall(x, device):
        return float(-x[0] + 1e6 * max(x[0] - 0.5, 0.0) ** 2 + 1e-3 * (x[1:] @ x[1:]))

    result = fedzo.minimize(
        wall, np.zeros(6), devices=4, algorithm=AUTO, rounds=80, evaluate_every=1
    )
    losses = [record["train_loss"] for record in result.history]
    assert result.success
    assert losses[-1] < losses[0]
    assert result.fun < -0.4


@pytest.mark.parametrize("seed", range(6))
def test_it_never_ends_worse_than_it_began(seed):
    """Quartics that soar, in any units, with noise in every other one."""
    r = np.random.default_rng(seed)
    centres, units, height = r.normal(size=(3, 5)), 10 ** r.uniform(-3, 3), 10 ** r.uniform(-6, 6)
    noise = r.normal(size=10_000) * (seed % 2) * 0.01
    calls = iter(range(10**9))

    def rough(x, device):
        z = x / units - centres[device]
        soaring = float(z @ z + 100 * np.sum((z[1:] - z[:-1] ** 2) ** 2))
        return height * (soaring + noise[next(calls) % 10_000])

    auto = replace(AUTO, directions=5, participants=None)
    result = fedzo.minimize(rough, np.zeros(5), devices=3, algorithm=auto, rounds=60, workers=1)
    assert result.success, result.message
    assert result.history[-1]["train_loss"] <= 1.01 * result.history[0]["train_loss"]


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_other_units_of_f_are_the_same_run(factor):
    def bowl(x, device):
        return float(np.sum((x - device) ** 2) + (x[0] - x[1]) ** 4)

    def in_units(x, device):
        return factor * bowl(x, device)

    run = {"devices": 4, "algorithm": AUTO, "rounds": 30}
    one, other = (fedzo.minimize(f, START, **run) for f in (bowl, in_units))
    assert one.x.tobytes() == other.x.tobytes()


def test_a_single_rise_is_waited_for_and_a_great_one_is_not():
    numbers = Numbers(rate=0.1, smoothing=1e-3, variance=0.0, gained=10.0)
    state = AdaptiveState(np.ones(1), (), np.zeros(1), (), np.array(numbers))
    for look in range(1, 4):
        state = judged(state, np.array([[1.0, 1.5, 2.0]] * 2))
        assert (numbers_of(state).rate, numbers_of(state).rises, state.x[0]) == (0.1, look, 1.0)
    back = judged(state, np.array([[1.0, 1.5, 2.0]] * 2))  # the fourth
    assert (numbers_of(back).rate, numbers_of(back).rises, back.x[0]) == (0.05, 0.0, 0.0)
    lower = judged(state, np.array([[1.0, 0.5, 2.0]] * 2))
    assert (numbers_of(lower).rises, numbers_of(lower).gained) == (0.0, 10.5)
    great = judged(state._replace(numbers=np.array(numbers)), np.array([[1.0, 2.5, 4.0]] * 2))
    assert (numbers_of(great).rate, great.x[0]) == (0.05, 0.0)


def test_a_rate_of_ones_own_is_left_alone():
    auto = replace(AUTO, learning_rate=0.01)
    result = fedzo.minimize(
        lambda x, i: float(x @ x), START, devices=4, algorithm=auto, rounds=30, workers=1
    )
    assert result.algorithm.learning_rate == 0.01
    assert "learning_rate" not in result.history[-1]


def test_by_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    auto = ["--set", "algorithm.learning_rate=auto", "--set", "algorithm.smoothing=auto"]
    short = ["--set", "run.rounds=4", "--quiet"]
    assert main(["run", "quadratic", *auto, *short, "--out", "auto"]) == 0
    assert main(["run", "auto/config.toml", "--out", "again", "--quiet"]) == 0
    assert np.array_equal(np.load("auto/model.npy"), np.load("again/model.npy"))
    more = ["--set", "run.rounds=6", "--quiet"]
    assert main(["run", "quadratic", *auto, *more, "--resume", "--out", "auto"]) == 0
    assert json.loads((tmp_path / "auto/history.jsonl").read_text().splitlines()[-1])["round"] == 6


def test_any_other_word_is_refused():
    with rejects("algorithm.learning_rate"):
        Experiment.load("quadratic", {"algorithm": {"learning_rate": "best"}})
    with rejects("learning_rate"):
        fedzo.FedZO(learning_rate="best")
    experiment = Experiment.load("quadratic", {"algorithm": {"learning_rate": 1}})
    assert type(experiment.algorithm.learning_rate) is float


def test_who_cannot_choose_says_so():
    problem = Quadratic(dim=6, devices=4)
    with LocalEngine(problem, seed=0) as federation, rejects("algorithm.smoothing"):
        begin(AUTO, START, federation, fedzo.Ideal())
    with fails("auto-without-run"):
        report(AUTO, Constants(L=1.0, gap=1.0, sigma_g=1.0), devices=4, dim=6, rounds=10)


@pytest.mark.parametrize(("name", "rounds"), [("quadratic", 60), ("softmax", 20), ("tuning", 16)])
def test_as_good_as_the_numbers_that_ship(name, rounds):
    """Within 10 % of the loss, at no more queries than the shipped run has."""
    settings = {"run": {"rounds": rounds}}
    shipped = Experiment.load(name, settings).run()
    auto = {"algorithm": {"learning_rate": "auto", "smoothing": "auto"}}
    a_round = shipped.queries // rounds
    result = Experiment.load(name, settings | auto).run(
        callback=lambda progress: progress.queries + a_round > shipped.queries
    )
    assert result.queries <= shipped.queries
    assert result.fun <= 1.1 * shipped.fun


@pytest.mark.parametrize("unit", [1e-300, 1e200, 1e290])
def test_units_of_the_loss_do_not_matter(unit):
    """Squares of such losses overflow or vanish."""

    def fun(x, device):
        return unit * float(np.sum(x**2))

    automatic = fedzo.FedZO(learning_rate="auto", smoothing="auto")
    result = fedzo.minimize(fun, np.ones(3), devices=2, algorithm=automatic, rounds=5)
    assert result.fun < 0.01 * unit * 3
