"""Server steps against rounds that were worked out by hand, and one run of each."""

import numpy as np
import pytest

import fedzo
from fedzo.algorithms import SERVER_STEPS
from fedzo.algorithms.server import Adagrad, Adam, Momentum, SignMomentum, Yogi
from fedzo.problems.quadratic import Quadratic
from fedzo.runs.parts import describe_parts, make_parts


def follow(step, updates):
    x = np.zeros(len(updates[0]))
    kept = step.init(x)
    for t, delta in enumerate(updates):
        x, kept = step.apply(t, kept, x, np.array(delta))
    return x


def test_momentum_adds_up_to_the_geometric_sum():
    x = follow(Momentum(rate=0.5, beta=0.5), [[1.0]] * 3)
    # m = 1, 1.5, 1.75
    assert x == pytest.approx([0.5 * (1 + 1.5 + 1.75)])


def test_two_rounds_of_adam():
    x = follow(Adam(rate=0.1, beta_1=0.5, beta_2=0.75), [[2.0], [-1.0]])
    m, v = 0.5 * (0.5 * 2) + 0.5 * -1, 0.75 * (0.25 * 4) + 0.25 * 1
    second = 0.1 * (m / 0.75) / np.sqrt(v / (1 - 0.75**2))
    assert x == pytest.approx([0.1 + second])


def test_two_rounds_of_yogi():
    x = follow(Yogi(rate=0.1, beta_1=0.0, beta_2=0.75), [[2.0], [0.5]])
    v = 1.0 - 0.25 * 0.25  # 0 + 0.25 * 4, and then less, for 0.25 < 1
    assert x == pytest.approx([0.1 + 0.1 * 0.5 / np.sqrt(v / (1 - 0.75**2))])


def test_adagrad_shortens_equal_updates_by_the_root_of_the_round():
    x = follow(Adagrad(rate=1.0, beta_1=0.0), [[7.0]] * 4)
    assert x == pytest.approx([1 + 2**-0.5 + 3**-0.5 + 0.5])


def test_signs_of_the_momentum_in_steps_that_shrink_geometrically_and_then_stay():
    step = SignMomentum(rate=0.8, last_rate=0.1, beta=0.5, rounds=3)
    x = follow(step, [[4.0, -1.0], [-1.0, 0.25], [-2.0, 0.25], [-1.0, 0.0], [0.0, 0.0]])
    # m = 4, 1, -1.5, ... and -1, -0.25, 0.125, ...; the rates are 0.8, 0.4, 0.2, 0.1, 0.1
    assert x == pytest.approx([0.8 + 0.4 - 0.2 - 0.2, -0.8 - 0.4 + 0.2 + 0.2])


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad", "normalised", "sign", "sign_momentum"])
def test_units_of_the_updates_do_not_matter(name):
    updates = np.array([[1.0, -3.0], [0.5, 2.0], [-1.0, 0.1]])
    step = SERVER_STEPS[name]()
    assert follow(step, 1e6 * updates) == pytest.approx(follow(step, 1e-3 * updates), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SERVER_STEPS)
def test_precision_and_arguments_are_left_as_they_are(name, dtype):
    step = SERVER_STEPS[name]()
    x, delta = np.ones(3, dtype), np.array([0.1, 0.0, -0.2])
    kept = step.init(x)
    before = [array.copy() for array in kept]
    after, _ = step.apply(0, kept, x, delta)
    assert after.dtype == dtype
    assert np.array_equal(x, np.ones(3))
    for array, old in zip(kept, before, strict=True):
        assert np.array_equal(array, old)


@pytest.mark.parametrize("name", SERVER_STEPS)
def test_each_travels_resumes_and_lowers_a_quadratic(name, tmp_path):
    problem = Quadratic(dim=8, devices=4, gradient_noise=0.0, dissimilarity=0.1)
    algorithm = fedzo.FedZO(
        learning_rate=0.02,
        directions=8,
        direction_kind="orthogonal",
        batch_size=1,
        server=SERVER_STEPS[name](),
    )
    assert make_parts(describe_parts(algorithm, fedzo.Ideal()))[0] == algorithm
    at_once = fedzo.minimize(problem, algorithm=algorithm, rounds=30)
    fedzo.minimize(problem, algorithm=algorithm, rounds=13, run_dir=tmp_path)
    resumed = fedzo.minimize(problem, algorithm=algorithm, rounds=30, run_dir=tmp_path, resume=True)
    assert np.array_equal(at_once.last, resumed.last)
    assert at_once.fun < at_once.history[0]["train_loss"]
