"""Searches: their questions to the numbers, resume to the bit, and what they must never do."""

import hashlib
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedzo
from fedzo.algorithms.search.adaptive import is_separable, search_lines, turns
from fedzo.algorithms.search.base import SearchContext, Suspended, complete
from fedzo.algorithms.search.descent import curvature, two_loops, typical_scale
from fedzo.algorithms.search.model import ModelDescent, minimum_in_ball
from fedzo.algorithms.search.population import SEPARABLE, Evolution
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Evaluate, Slopes, Update, owners
from fedzo.problems import FunctionObjective
from raising import rejects

SEARCHES = {
    "adaptive": fedzo.Adaptive(),
    "lbfgs": fedzo.LBFGS(),
    "cma": fedzo.CMA(),
    "tpe": fedzo.TPE(),
}
SLOPES = np.array([[1.0, 2.0, 3.0], [5.0, 7.0, 11.0]])  # of two linear devices


def linear(x, device):
    return float(SLOPES[device] @ x) + device


def ask(task, fun, dim, devices):
    """Return the mean answer of a federation, and how many values it took."""
    objective = FunctionObjective(fun, dim, devices)
    replies = [task.reply(objective, i) for i in range(devices)]
    assert all(len(reply.values) == task.size for reply in replies)
    return np.mean([reply.values for reply in replies], axis=0), sum(r.queries for r in replies)


def finish(search, fun, x0, devices, left=np.inf):
    """Run a search without a run around it; return its context."""
    context = SearchContext(x0, devices, left, Draws(0, Stream.SEARCH))
    live = Suspended(search.search(context, None), context)
    while live.task is not None:
        answer, asked = ask(live.task, fun, x0.size, devices)
        assert asked == live.task.queries(devices)
        left -= asked
        assert left >= 0
        live.tell(left, answer)
    return context, live.reason


@pytest.mark.parametrize("central", [False, True])
def test_slopes_that_everyone_measures_are_the_means(central):
    question = Slopes(np.ones(3), np.array([0.1, 0.2, 0.3]), everyone=True, central=central)
    answer, asked = ask(question, linear, 3, 2)
    assert asked == question.queries(2) == 2 * (1 + 3 * (1 + central))
    assert answer[0] == pytest.approx((6 + 24) / 2)
    assert answer[-3:] == pytest.approx([3.0, 4.5, 7.0])


def test_slopes_that_are_shared_out_are_their_owners():
    question = Slopes(np.ones(3), np.full(3, 0.1), everyone=False, central=False)
    answer, asked = ask(question, linear, 3, 2)
    assert asked == question.queries(2) == 2 + 3
    measured = answer[1:4] / answer[4:7]
    assert measured == pytest.approx([1.0, 7.0, 3.0])  # devices 0, 1, 0


@pytest.mark.parametrize("everyone", [False, True])
def test_slopes_of_some_coordinates_cost_only_their_values(everyone):
    question = Slopes(np.ones(3), np.array([0.1, 0.1, 0.0]), everyone=everyone)
    answer, asked = ask(question, linear, 3, 2)
    assert asked == question.queries(2) == 2 + 2 * (1 + everyone)
    assert answer[4:7].tolist() == [0.5, 0.5, 0.0]
    assert answer[1:4] == pytest.approx(np.array([1.0, 7.0, 0.0]) / 2)


@pytest.mark.parametrize("turn", [0, 1, 7])
@pytest.mark.parametrize(("devices", "dim"), [(1, 4), (3, 7), (5, 5), (9, 4)])
def test_every_coordinate_has_an_owner_and_every_device_is_asked(devices, dim, turn):
    shares = np.array([owners(i, devices, dim, turn) for i in range(devices)])
    assert (shares.sum(axis=0) >= 1).all()
    assert shares.sum() == max(dim, devices)


def test_in_as_many_turns_as_devices_everybody_has_every_coordinate():
    shares = np.array([[owners(i, 3, 7, turn) for i in range(3)] for turn in range(3)])
    assert (shares.sum(axis=0) == 1).all()


def test_points_are_answered_in_order():
    answer, asked = ask(Evaluate(np.eye(3)), linear, 3, 2)
    assert answer == pytest.approx([3.5, 5.0, 7.5])
    assert asked == 6


def test_two_loops_are_the_inverse_on_a_quadratic_once_all_directions_are_known():
    hessian = np.array([[4.0, 1.0], [1.0, 3.0]])
    conjugate = [np.array([1.0, 0.0]), np.array([-1.0, 4.0])]  # s_1' A s_2 = 0
    pairs = [(s, hessian @ s) for s in conjugate]
    gradient = np.array([2.0, -5.0])
    assert two_loops(gradient, pairs, 0.7) == pytest.approx(np.linalg.solve(hessian, gradient))


def test_curvature_of_a_quadratic_is_its_mean_second_derivative():
    diagonal, scale = np.array([1.0, 4.0, 10.0]), np.array([1.0, 1.0, 2.0])
    context = SearchContext(np.zeros(3), 1, np.inf, Draws(0, Stream.SEARCH))

    def search():
        yield from context.start()
        return (yield from curvature(context, scale)).second

    live = Suspended(search(), context)
    while live.task is not None:
        answer, _ = ask(live.task, lambda x, i: 0.5 * float(diagonal @ x**2) + 1, 3, 1)
        live.tell(np.inf, answer)
    # Rounding is below a hundredth of the second difference where it is read.
    assert live.reason == pytest.approx((1 + 4 + 40) / 3, rel=0.02)


def test_typical_scales():
    assert np.array_equal(typical_scale(np.array([0.0, 0.0])), [1, 1])
    uniform = np.random.default_rng(0).uniform(-4, 4, 500)
    assert np.ptp(typical_scale(uniform)) == 0


def test_turns_of_a_quartic_are_three_at_most():
    t = np.linspace(-2, 2, 101)
    assert turns(t**4 - 2 * t**2, 1e-9) == 3
    assert turns(np.cos(20 * t), 1e-9) > 10
    assert turns(np.cos(20 * t), 3.0) == 0  # all of it below the noise


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_lbfgs_finds_the_minimum_of_devices_that_differ(devices):
    """The mean of f_i = (x - c_i)' A (x - c_i) is lowest at the mean c; A has the condition 1e4."""
    scales = 10.0 ** np.linspace(0, 4, 5)
    centres = np.random.default_rng(1).normal(size=(devices, 5))
    context, reason = finish(
        fedzo.LBFGS(), lambda x, i: float(scales @ (x - centres[i]) ** 2), np.zeros(5), devices
    )
    assert reason == "no step improves on x any more"
    assert context.x == pytest.approx(centres.mean(axis=0), abs=1e-4)


@pytest.mark.parametrize("units", [1e-6, 1.0, 1e6])
def test_units_of_f_do_not_matter(units):
    def valley(x, i):
        return units * float(100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)

    context, _ = finish(fedzo.Adaptive(), valley, np.array([-1.2, 1.0]), 1, left=400)
    assert context.fun / units < 1e-6


@pytest.mark.parametrize("units", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("start", [0.0, 2.0])
def test_units_of_x_do_not_matter(units, start):
    centre = units * np.array([1.0, -2.0, 0.5])

    def bowl(x, i):
        return float(np.array([1.0, 10.0, 100.0]) @ ((x - centre) / units) ** 2)

    context, _ = finish(fedzo.Adaptive(), bowl, np.full(3, start * units), 1, left=600)
    assert context.fun < 1e-6


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("budget", [1, 2, 7, 60, 333])
def test_a_budget_is_never_exceeded_and_the_end_never_worse(name, budget):
    calls = []

    def bowl(x, device):
        calls.append(device)
        return float(np.sum((x - 0.1 * device) ** 2))

    result = fedzo.minimize(
        bowl,
        np.full(3, 0.5),
        devices=2,
        algorithm=SEARCHES[name],
        max_queries=budget,
        rounds=10_000,
        workers=1,
    )
    assert len(calls) == result.nfev <= budget
    assert not result.fun > 0.25 * 3


@pytest.mark.parametrize("name", SEARCHES)
def test_resumed_is_the_same_as_at_once(name, tmp_path):
    def waves(x, device):
        return float(np.sum(x**2) + np.cos(5 * x).sum()) + device

    def run(rounds, **more):
        return fedzo.minimize(
            waves,
            np.ones(3),
            devices=2,
            algorithm=SEARCHES[name],
            rounds=rounds,
            max_queries=900,
            **more,
        )

    at_once = run(40)
    run(17, run_dir=tmp_path)
    resumed = run(40, run_dir=tmp_path, resume=True)
    assert resumed.history[-1]["train_loss"] == at_once.history[-1]["train_loss"]
    assert np.array_equal(resumed.last, at_once.last)
    assert resumed.queries == at_once.queries


def test_noise_is_measured_and_the_start_is_not_lost_to_luck():
    noise = np.random.default_rng(3)
    context, _ = finish(
        fedzo.Adaptive(), lambda x, i: float(x @ x) + noise.normal(), np.full(4, 3.0), 2, left=3000
    )
    # Of 8 repeats a standard deviation is within a factor 2 with probability 0.99.
    assert 0.5 < context.noise * np.sqrt(2) < 2
    assert context.x @ context.x < 36 / 4


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["adaptive", "lbfgs", "cma"]),
    dim=st.integers(1, 5),
    size=st.floats(-3, 0),
    budget=st.integers(100, 1000),
    devices=st.sampled_from([1, 3]),
)
def test_noise_does_not_end_a_search_before_its_budget(name, dim, size, budget, devices):
    """What noise hides can still be averaged out, so there is always something left to gain."""
    noise, x0 = np.random.default_rng(budget), np.full(dim, -1.0)

    def valley(x):
        return float(np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2) + np.sum((1 - x) ** 2))

    def seen(x, device):
        return valley(x) + 10**size * noise.normal()

    context, _ = finish(SEARCHES[name], seen, x0, devices, left=budget)
    # What may remain is a generation and its comparison, or one mean of many values.
    assert context.asked >= 0.85 * budget
    assert valley(context.x) <= valley(x0) + 3 * 10**size


def test_values_that_are_not_numbers_are_the_worst():
    def hole(x, device):
        return float("nan") if x[0] > 0.5 else float((x[0] - 1) ** 2 + x[1] ** 2)

    context, _ = finish(fedzo.Adaptive(), hole, np.zeros(2), 1, left=500)
    assert np.isfinite(context.fun)
    assert context.x[0] == pytest.approx(0.5, abs=0.01)


def test_a_plateau_ends_without_an_error():
    result = fedzo.minimize(
        lambda x, device: 1.0, np.zeros(4), devices=1, max_queries=2000, workers=1
    )
    assert result.fun == 1.0
    assert not result.success


def test_the_plain_call_ends_by_itself():
    result = fedzo.minimize(
        lambda x, device: float(np.sum((x - device) ** 2)), np.zeros(3), devices=3
    )
    assert result.x == pytest.approx(np.ones(3), abs=1e-4)
    assert result.success
    assert result.nfev < 690


def test_some_devices_are_enough():
    algorithm = fedzo.CMA(participants=2)
    result = fedzo.minimize(
        lambda x, device: float(np.sum((x - 1) ** 2)),
        np.zeros(2),
        devices=5,
        algorithm=algorithm,
        rounds=60,
    )
    assert result.x == pytest.approx(np.ones(2), abs=0.05)
    assert {record["participants"] for record in result.history[1:]} == {2}


def told(generator, context, fun, devices=1):
    """Return what a part of a search comes to."""

    def whole():
        yield from context.start()
        return (yield from generator())

    live = Suspended(whole(), context)
    while live.task is not None:
        answer, _ = ask(live.task, fun, context.dim, devices)
        live.tell(context.left, answer)
    return live.reason


@pytest.mark.parametrize(
    ("fun", "separable"),
    [
        (lambda x, i: float(np.sum(x**2 - np.cos(9 * x) + 1e6)), True),
        (lambda x, i: float(np.sum(x**2) + 1e-3 * x[0] * x[1]), False),
        (lambda x, i: float(np.sqrt(x @ x)), False),
    ],
)
def test_a_sum_of_functions_of_single_numbers_is_told_from_others(fun, separable):
    context = SearchContext(np.full(4, 0.5), 1, np.inf, Draws(0, Stream.SEARCH))
    assert told(lambda: is_separable(context, np.ones(4)), context, fun) == separable


def test_lines_are_searched_everywhere():
    """Rastrigin's function in ten numbers has 10^10 local minima, and 10 lines."""

    def rastrigin(x, device):
        z = x - 0.7
        return float(np.sum(z**2 + 10 - 10 * np.cos(2 * np.pi * z)))

    context = SearchContext(np.full(10, 3.0), 1, 2000.0, Draws(0, Stream.SEARCH))
    assert told(lambda: search_lines(context, np.ones(10), 1900), context, rastrigin)
    assert context.x == pytest.approx(np.full(10, 0.7), abs=1e-3)


def test_the_first_candidate_is_given_up_beyond_the_noise_only():
    noise = np.random.default_rng(0)

    def bowl(x, device):
        return float(x @ x) + noise.normal()

    for far, kept in ((0.1, True), (2.0, False)):
        context = SearchContext(np.full(2, far), 1, np.inf, Draws(0, Stream.SEARCH))
        pair = [context.x, np.zeros(2)]
        told(lambda a=context, c=pair: a.compare(c, repeats=50), context, bowl)
        assert np.array_equal(context.x, pair[0]) == kept


def random_problem(seed, dims=(0, 1.6)):
    """Return a quadratic, or a bounded function of one, of random size, units and noise."""
    draws = np.random.default_rng(seed)
    dim, devices = round(10 ** draws.uniform(*dims)), int(draws.integers(1, 51))
    units_x, units_f = 10 ** draws.uniform(-6, 6, 2)
    curves = np.logspace(0, -draws.uniform(0, 6), dim)
    centre, tilts = draws.normal(size=dim), 0.3 * draws.normal(size=(devices, dim)) * curves
    tilts -= tilts.mean(axis=0)
    saturates, noisy = draws.random(2) < (0.3, 0.6)

    def exact(x, device):
        z = x / units_x - centre
        value = float(0.5 * curves @ z**2)
        return units_f * ((np.log1p(value) if saturates else value) + float(tilts[device] @ z))

    def mean(x):
        return float(np.mean([exact(x, i) for i in range(devices)]))

    x0 = (3 * draws.normal(size=dim) + centre) * units_x
    noise = noisy * draws.uniform(0, 0.3) * (mean(x0) - mean(centre * units_x))

    def fun(x, device):
        return exact(x, device) + noise * draws.normal()

    return fun, mean, x0, devices, noise


def test_random_problems_never_end_worse_than_they_began():
    """By the true f. Noise may fool a comparison at 2.5 errors, in 6 of 1,000 problems at most."""
    for seed in range(10):
        fun, mean, x0, devices, _ = random_problem(seed)
        budget = min(20 * (x0.size + 4) * devices, 4000)
        result = fedzo.minimize(fun, x0, devices=devices, max_queries=budget, workers=1, seed=seed)
        assert result.nfev <= budget
        assert np.isfinite(result.fun)
        assert mean(result.x) <= mean(x0)


@pytest.mark.slow
def test_larger_random_problems_never_end_worse_than_they_began():
    """An eighth of those of benchmarks/random_problems.py: up to 2,000 numbers and 50 devices."""
    root = Path(__file__).parents[2]
    solve = runpy.run_path(str(root / "benchmarks/random_problems.py"))["solve"]
    records = [solve(seed) for seed in range(25)]
    assert [record for record in records if record["fault"]] == []
    exact = [record["left"] for record in records if not record["noise"]]
    assert np.median(exact) < 0.1  # and it gets somewhere, however small the budget


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_other_units_are_the_same_run(factor):
    def waves(x, device):
        return float(np.sum(x**2) + np.cos(5 * x).sum()) + device

    x0 = np.array([1.0, -2.0, 0.5])
    plain, _ = finish(fedzo.Adaptive(), waves, x0, 2, left=600)
    of_f, _ = finish(fedzo.Adaptive(), lambda x, i: factor * waves(x, i), x0, 2, left=600)
    of_x, _ = finish(fedzo.Adaptive(), lambda x, i: waves(x / factor, i), factor * x0, 2, left=600)
    assert of_f.x == pytest.approx(plain.x, rel=1e-6)
    if factor > 1:
        assert of_x.x / factor == pytest.approx(plain.x, rel=1e-6)
    else:  # a start near 0 does not tell that x has small units: lengths of 1 are tried first
        assert waves(of_x.x / factor, 0) <= waves(plain.x, 0) + 0.01 * waves(x0, 0)


@pytest.mark.parametrize("origin", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("start", [2.0, 1e-3])
def test_the_length_of_f_is_that_of_f_itself(origin, start):
    """Rastrigin's function in four numbers, by where it starts and where its origin is."""

    def waves(x, device):
        z = x - origin - np.array([1.3, -2.1, 0.4, 1.8])
        tilted = z + 0.3 * np.roll(z, 1)
        return float(np.sum(tilted**2 + 10 - 10 * np.cos(2 * np.pi * tilted)))

    x0 = origin + start * np.array([1.0, -0.6, 0.3, -1.2])
    result, _ = finish(fedzo.Adaptive(), waves, x0, 1, left=3000)
    assert result.fun <= 8.0  # of 93 and 130; the nearest local minima have 30 and more


def test_noise_does_not_hide_a_slope_that_many_devices_measure():
    """Each device's noise is a tenth of the fall; single slopes drown in it, averages do not."""
    noise, centres = np.random.default_rng(1), np.random.default_rng(2).normal(size=(10, 40))

    def bowl(x, device):
        return float(np.mean((x - 3 - centres[device]) ** 2)) + noise.normal()

    result = fedzo.minimize(bowl, np.zeros(40), devices=10, max_queries=12_000, workers=1)
    goal = 3 + centres.mean(axis=0)
    assert np.mean((result.x - goal) ** 2) < 0.15 * np.mean(goal**2)


def test_a_rugged_sum_is_searched_without_a_budget_too():
    def waves(x, device):
        return float(np.sum(x**2 + 3 - 3 * np.cos(20 * x)))

    result = fedzo.minimize(waves, np.full(2, 2.3), devices=1, workers=1)
    assert result.fun < 0.05  # the next minima have 0.1


def test_a_tolerance_ends_the_plain_call_earlier():
    def valley(x, device):
        return float(100 * np.sum((x[1:] - x[:-1] ** 2) ** 2) + np.sum((1 - x) ** 2))

    whole, early = (
        fedzo.minimize(valley, np.full(6, -1.0), devices=2, tol=tol, workers=1)
        for tol in (None, 1e-2)
    )
    assert early.nfev < 0.7 * whole.nfev
    assert early.fun < 0.05 * early.history[0]["train_loss"]
    with pytest.raises(fedzo.errors.InvalidValue, match="tol"):
        fedzo.minimize(valley, np.zeros(2), devices=1, tol=1e-2, algorithm=fedzo.CMA())


def camel(x, device):  # six minima; the lowest two are -1.0316, the next ones -0.2155
    first = (4 - 2.1 * x[0] ** 2 + x[0] ** 4 / 3) * x[0] ** 2
    return first + x[0] * x[1] + 4 * (x[1] ** 2 - 1) * x[1] ** 2 + 0.05 * (device - 1) * x[0]


@pytest.mark.parametrize("bounds", [None, [(-3, 3), (-2, 2)]])
def test_other_minima_are_looked_for_with_few_queries(bounds):
    """Three devices and 200 points: a descent that has come to its end must not have them all.

    Each of eight starts finds one of the two lowest minima with a chance above nine in ten, by
    runs with other starts; all but two of eight do so in more than 95 of 100 cases.
    """
    starts = np.random.default_rng(0).uniform([-2.5, -1.5], [2.5, 1.5], (8, 2))
    ends = [
        fedzo.minimize(camel, start, devices=3, max_queries=600, bounds=bounds).fun
        for start in starts
    ]
    assert sum(end < -1.03 for end in ends) >= 6


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(-3, 3), st.booleans())
def test_a_quadratic_in_a_box_is_no_rugged_function(seed, dim, decades, at_ends):
    """Beyond its bounds x(u) is reflected: f looks like waves there."""
    draws = np.random.default_rng(seed)
    root = draws.normal(size=(dim, dim))
    width, centre = 10.0**decades, draws.uniform(-0.8, 0.8, dim)
    start = np.where(at_ends, -1.0, draws.uniform(-1, 1, dim))

    def bowl(x):
        z = x / width - centre
        return float(z @ (root.T @ root + 0.1 * np.eye(dim)) @ z)

    result = fedzo.minimize(bowl, start * width, bounds=[(-width, width)] * dim)
    assert result.message.startswith("no step improves on x any more")
    assert result.fun <= 1e-8 * bowl(start * width)
    assert result.nfev < 1000


def test_a_start_at_the_minimum_is_not_taken_for_a_rough_function():
    """There f changes by less than what the last digit of x changes it by."""
    for minimum in (1.0, 1e3, -7.0):
        result = fedzo.minimize(lambda x, m=minimum: float(((x - m) ** 2).sum()), [minimum] * 3)
        assert result.nfev < 200
        assert result.fun == 0.0


@pytest.mark.parametrize("budget", [9, 12])
def test_fewer_queries_than_numbers_are_worth_something(budget):
    start = np.full(20, 3.0)
    result = fedzo.minimize(lambda x: float(((x - 1) ** 2).sum()), start, max_queries=budget)
    assert result.fun <= 80 - 4  # what one number is worth


@pytest.mark.parametrize("seed", range(3))
def test_devices_share_slopes_where_a_model_would_take_all_queries(seed):
    """30 queries per device and 40 numbers: by shares of the slopes it is a dozen gradients."""
    draws = np.random.default_rng(seed)
    centres = 1 + 0.1 * draws.normal(size=(20, 40))
    mean = centres.mean(axis=0)
    result = fedzo.minimize(
        lambda x, i: float(((x - centres[i]) ** 2).sum()), np.zeros(40), devices=20, max_queries=600
    )
    assert np.sum((result.x - mean) ** 2) < 0.01 * np.sum(mean**2)


@pytest.mark.parametrize(("budget", "devices"), [(5, 1), (6, 1), (20, 4), (35, 7)])
def test_five_queries_per_device_are_worth_something(budget, devices):
    """One is the evaluation of the start, and two are its repeats."""
    start = np.array([4.0, -3.0])
    result = fedzo.minimize(
        lambda x, i: float(((x - 1) ** 2).sum()), start, devices=devices, max_queries=budget
    )
    assert result.fun < 25
    assert result.nfev <= budget


def unlike_devices(seed, dim=200, devices=10, samples=20):
    """Return logistic losses whose devices have data of their own, each around another centre."""
    rng = np.random.default_rng(seed)
    truth, centres = rng.normal(size=dim), rng.normal(size=(devices, 1, dim))
    inputs = (centres + rng.normal(size=(devices, samples, dim))) / np.sqrt(dim)
    labels = np.sign(inputs @ truth)

    def loss(x, device):
        return float(np.mean(np.logaddexp(0, -labels[device] * (inputs[device] @ x))))

    return loss


@pytest.mark.parametrize("seed", [0, 2, 3, 6, 9, 10])
def test_shares_of_slopes_of_unlike_devices_do_not_mislead_for_long(seed):
    """Steps along slopes that are nobody's bring next to nothing: the averaged descent goes on.

    Before that was noticed three of these six ended above 0.5, where others came to 0.1.
    """
    loss = unlike_devices(seed)
    result = fedzo.minimize(loss, np.zeros(200), devices=10, max_queries=8000)
    assert result.fun < 0.25 * np.log(2)


# ------------------------------------------------------------- rounding, jitter, noise, no minimum


@pytest.mark.parametrize("decimals", [2, 4, 8])
@pytest.mark.parametrize("start", [2.0, -7.0])
def test_rounded_values_do_not_end_the_search_on_a_slope(decimals, start):
    def bowl(x, device):
        return round(float(((x - 1) ** 2).sum()), decimals)

    result = fedzo.minimize(bowl, np.full(6, start), devices=1)
    # Within half a unit of the last digit every point is as good as the minimum.
    assert np.sum((result.x - 1) ** 2) <= 0.51 * 10.0**-decimals


def jitter(x, salt):
    word = hashlib.blake2b(x.tobytes(), digest_size=8, salt=bytes([salt])).digest()
    return int.from_bytes(word, "little") / 2**63 - 1


@pytest.mark.parametrize("size", [1e-4, 0.05, 1.0])
@pytest.mark.parametrize("salt", range(3))
def test_jitter_that_depends_on_all_bits_of_x(size, salt):
    """The mean of a jitter is zero over any neighbourhood; a search must end, and get below it."""

    def bowl(x, device):
        return float(x @ x) + size * jitter(x, salt)

    result = fedzo.minimize(bowl, np.full(4, 3.0), devices=1, max_queries=2000)
    assert result.x @ result.x < max(0.5 * size, 1e-3)
    assert fedzo.minimize(bowl, np.full(4, 3.0), devices=1).nfev < 25_000  # 20 x 200 (d + 1)


def test_a_search_of_nothing_but_jitter_ends():
    assert fedzo.minimize(lambda x: jitter(x, 0), np.zeros(3)).nfev < 20_000


@pytest.mark.parametrize("budget", [None, 1000])
@pytest.mark.parametrize(
    "fun",
    [
        lambda x, i: -float(x.sum()),
        lambda x, i: -float(x @ x),
        lambda x, i: float("-inf") if x[0] > 3 else -float(x[0]),
    ],
)
@pytest.mark.parametrize("name", ["adaptive", "lbfgs"])
def test_a_function_without_a_minimum_ends_with_the_reason(fun, budget, name):
    more = {} if name == "adaptive" else {"algorithm": SEARCHES[name], "rounds": 5000}
    result = fedzo.minimize(fun, np.full(6, 2.0), devices=1, max_queries=budget, **more)
    assert np.isfinite(result.fun)
    assert result.fun < fun(np.full(6, 2.0), 0)
    assert "unbounded" in result.message


def noisy_bowl(noise):
    draws = np.random.default_rng(0)
    return lambda x, device: float(x @ x) + noise * draws.normal()


@pytest.mark.parametrize("stop", [150, 300, 420])
def test_a_noisy_run_that_is_stopped_returns_its_best_estimate(stop):
    """Of a start of 32, at a noise of 0.1: it is no matter of luck who has gone 90 % of the way."""
    result = fedzo.minimize(
        noisy_bowl(0.1),
        np.full(8, 2.0),
        devices=1,
        max_queries=500,
        callback=lambda progress: progress.queries >= stop,
    )
    assert result.x @ result.x < 3.2
    assert result.fun < 16


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_start_without_a_value_has_a_folder_that_resumes(value, tmp_path):
    """Its first record has null in place of the loss."""

    def fun(x):
        return value if x[0] < 0.5 else float(((x - 1) ** 2).sum())

    def run(folder, **more):
        return fedzo.minimize(fun, np.zeros(2), max_queries=200, run_dir=folder, **more)

    def records(folder):
        lines = (folder / "history.jsonl").read_text().splitlines()
        return [{**json.loads(line), "seconds": 0} for line in lines]

    whole = run(tmp_path / "whole")
    assert whole.fun < 1e-6
    assert (tmp_path / "whole" / "curves.png").exists()
    run(tmp_path / "part", callback=lambda progress: progress.round == 2)
    again = run(tmp_path / "part", resume=True)
    assert again.x.tobytes() == whole.x.tobytes()
    assert records(tmp_path / "part") == records(tmp_path / "whole")


def test_a_start_without_a_value_is_left():
    def half(x, device):
        return float("nan") if x[0] < 1 else float((x - 2) @ (x - 2))

    result = fedzo.minimize(half, np.array([0.9, 0.0]), devices=1, max_queries=400)
    assert result.fun < 1e-3


# ------------------------------------------------------------------------------ missing devices


def unlike(x, device):
    return float(np.sum((x - device) ** 2)) + 100 * device


def test_values_that_fail_are_asked_again_and_do_not_mislead():
    draws = np.random.default_rng(0)

    def failing(x, device):
        if draws.random() < 0.1:
            raise OSError("no reply")
        return unlike(x, device)

    result = fedzo.minimize(
        failing, np.zeros(3), devices=8, max_queries=4000, on_failure="leave_out", workers=1
    )
    assert result.x == pytest.approx(np.full(3, 3.5), abs=1e-3)
    assert result.success


@pytest.mark.parametrize("dead", [0, 3])
def test_a_device_that_never_replies_is_dropped_with_a_warning(dead):
    calls = []

    def function(x, device):
        calls.append(device)
        if device == dead:
            raise OSError("no reply")
        return unlike(x, device)

    with pytest.warns(fedzo.errors.FedzoWarning, match=f"device {dead}") as warned:
        result = fedzo.minimize(
            function, np.zeros(3), devices=8, max_queries=4000, on_failure="leave_out", workers=1
        )
    assert len(warned) == 1
    others = [i for i in range(8) if i != dead]
    assert result.x == pytest.approx(np.full(3, np.mean(others)), abs=1e-3)
    assert result.fun == pytest.approx(np.mean([unlike(result.x, i) for i in others]))
    assert {one["device"] for one in result.dropped} == {dead}
    assert calls.count(dead) < 20


def test_points_are_compared_over_the_devices_that_answered_both():
    known = np.array([1.0, 10.0, 100.0])
    rows = [np.array([2.0, 1.0]), np.array([np.nan, 8.0])]  # the third has not replied
    updates = [Update(i, np.empty(0), 1, 2, values=row) for i, row in enumerate(rows)]
    means, after = complete(updates, np.array([np.nan, 4.5]), known)
    assert means == pytest.approx(
        [37 + 1, 37 - 1]
    )  # by 1 and by (0 - 2) / 2 from the mean of known
    assert np.array_equal(after, known)


# ---------------------------------------------------------------------------------- quadratic model


@pytest.mark.parametrize("dim", [1, 2, 5, 9])
def test_a_model_of_a_quadratic_finds_its_minimum_in_few_queries(dim):
    """With 2 d + 1 + d / 2 points and a step each, a quadratic takes some (d + 1)^2 values."""
    matrix = np.random.default_rng(dim).normal(size=(dim, dim))
    hessian, centre = matrix @ matrix.T + np.eye(dim), np.arange(dim) / dim

    def bowl(x, device):
        return float((x - centre) @ hessian @ (x - centre))

    context = SearchContext(np.ones(dim), 1, np.inf, Draws(0, Stream.SEARCH))
    model = []

    def descend():
        model.append(ModelDescent(context, np.ones(dim)))
        return (yield from model[0].run(limit=4 * (dim + 2) ** 2))

    told(descend, context, bowl)
    assert context.fun < 1e-6 * bowl(np.ones(dim), 0) + 1e-12


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_the_minimum_in_a_ball_is_one(seed):
    draws = np.random.default_rng(seed)
    dim = int(draws.integers(1, 6))
    matrix = draws.normal(size=(dim, dim)) * 10.0 ** draws.uniform(-3, 3)
    hessian, gradient = matrix + matrix.T, draws.normal(size=dim) * (draws.random(dim) < 0.8)
    radius = float(10.0 ** draws.uniform(-3, 2))

    def model(s):
        return gradient @ s + 0.5 * np.sum(s @ hessian * s, axis=-1)

    found = minimum_in_ball(gradient, hessian, radius)
    assert np.linalg.norm(found) <= radius * (1 + 1e-6)
    others = draws.normal(size=(500, dim))
    others *= radius * draws.random((500, 1)) / np.linalg.norm(others, axis=1, keepdims=True)
    least = min(0.0, *(gradient @ s + 0.5 * s @ hessian @ s for s in others))
    assert model(found) <= least + 1e-4 * abs(least) + 1e-12


@pytest.mark.parametrize("method", [None, "cma"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_other_units_of_f_give_the_same_run(method, noise):
    def run(exponent):
        draws = np.random.default_rng(1)

        def fun(x):
            value = np.sum((x - 1) ** 2) + (x[0] * x[1]) ** 2 + 0.3 + noise * draws.normal()
            return float(np.ldexp(value, exponent))

        result = fedzo.minimize(fun, np.zeros(3), max_queries=200, method=method)
        return result.x.tolist(), float(np.ldexp(result.fun, -exponent)), result.nfev

    assert all(run(exponent) == run(0) for exponent in (-900, -400, -60, 60, 400))


@pytest.mark.parametrize("largest", [1.7e308, 5e-324])
def test_the_first_value_may_be_the_largest_or_the_smallest_of_all_numbers(largest):
    def fun(x):
        return float(largest * min(1.0, np.sum((x - 1) ** 2) / 3))

    result = fedzo.minimize(fun, np.zeros(3), max_queries=200)
    assert result.fun <= fun(np.zeros(3))
    assert result.fun == fun(result.x)


@pytest.mark.parametrize(("dim", "size"), [(2, None), (6, None), (6, 20), (201, None)])
def test_a_generation_moves_the_distribution_as_in_the_library(dim, size):
    cmaes = pytest.importorskip("cmaes")
    context = SearchContext(np.full(dim, 2.0), 1, np.inf, Draws(3, Stream.SEARCH))
    ours = Evolution(context, context.x, 0.7, np.ones(dim), size)
    kind = cmaes.SepCMA if dim > SEPARABLE else cmaes.CMA
    theirs = kind(mean=np.full(dim, 2.0), sigma=0.7, population_size=ours.size)
    weights = np.logspace(0, 2, dim)
    for _ in range(12):
        drawn, points = ours.sample()
        values = points**2 @ weights
        ours.tell(drawn, values)
        theirs.tell(list(zip(points, values.tolist(), strict=True)))
        theirs.should_stop()  # where the library computes its axes
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("population", [0, 1, 2.5])
def test_a_generation_has_two_points_at_least(population):
    with rejects("population"):
        fedzo.CMA(population=population)
    two = fedzo.CMA(population=2)
    assert fedzo.minimize(lambda x: float(x @ x), np.ones(2), algorithm=two, max_queries=80).success


def test_a_plateau_is_no_end_without_a_budget():
    result = fedzo.minimize(lambda x: float(np.floor(np.abs(x - 3.3)).sum()), np.zeros(3))
    assert result.fun == 0


def test_the_result_of_a_short_noisy_search_is_not_lost():
    found = []
    for seed in range(8):
        draws = np.random.default_rng(seed)

        def bowl(x, draws=draws):
            return float(np.sum((x - 1) ** 2) + 0.1 * draws.normal())

        found.append(fedzo.minimize(bowl, np.zeros(2), max_queries=30, seed=seed).x)
    assert np.median(np.sum((np.array(found) - 1) ** 2, axis=1)) < 0.2  # 2 at the start
