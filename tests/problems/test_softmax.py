"""Softmax regression: values, gradients and metrics against slow, plain NumPy in float64."""

import math

import numpy as np
import pytest
from numba import njit

from fedzo import data
from fedzo.core.capabilities import NamesRecords
from fedzo.core.estimator import Estimator
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.problems import Softmax, softmax
from fedzo.problems.softmax_regression import exp
from raising import rejects

HERE = Draws(seed=2, stream=Stream.BATCHES, round=1, device=3, step=4)
MINI = data.load("fashion-mnist-mini")


@pytest.fixture(scope="module")
def problem():
    return softmax(devices=10)


def plain_losses(x, inputs, labels):
    """Cross-entropy of raw bytes, class-major weights with the bias last, in float64."""
    weights = np.asarray(x, np.float64).reshape(10, 785)
    logits = (inputs / 255.0) @ weights[:, :-1].T + weights[:, -1]
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return total - logits[np.arange(len(labels)), labels]


def some_model(problem, scale, step=0):
    noise = Draws(9, Stream.INIT, step=step).normals(problem.dim, dtype=np.float32)
    return np.float32(scale) * noise


def drawn_samples(problem, device, size, draws):
    index = problem.parts[device][draws.integers(problem.size(device), size)]
    return MINI.train_inputs[index], MINI.train_labels[index]


@pytest.mark.parametrize("size", [1, 4, 5, 7, 25, 64])
@pytest.mark.parametrize("count", [1, 2, 21])
def test_values(problem, size, count):
    points = np.stack([some_model(problem, 0.1, k) for k in range(count)])
    batch = problem.batch(3, size, HERE)
    expected = [plain_losses(x, *drawn_samples(problem, 3, size, HERE)) for x in points]
    values = problem.values(points, batch)
    assert values.dtype == np.float64
    # float32 products of 785 terms, logits of a few units: errors of about 1e-6.
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_double_precision_model():
    problem = Softmax(MINI, np.array_split(np.arange(4000), 10), np.float64)
    x = some_model(problem, 0.1).astype(np.float64)
    values = problem.values(x[None], problem.batch(3, 25, HERE))
    expected = plain_losses(x, *drawn_samples(problem, 3, 25, HERE))
    np.testing.assert_allclose(values[0], expected, rtol=1e-12)


def test_values_along_small_steps_keep_their_digits(problem):
    """A step of 1e-6 changes losses by about 1e-8, far below float32; we still see 4 digits."""
    x = some_model(problem, 0.1)
    directions = Draws(1, Stream.DIRECTIONS).normals(4, problem.dim, dtype=np.float32)
    batch = problem.batch(3, 25, HERE)
    steps = np.array([0.0, 1e-6, 1e-6, 1e-6])
    values = problem.values_along(x, directions, np.array([0, 0, 1, 3]), steps, batch)
    inputs, labels = drawn_samples(problem, 3, 25, HERE)
    wide = x.astype(np.float64)
    base = plain_losses(wide, inputs, labels)
    for row, k in ((1, 0), (2, 1), (3, 3)):
        moved = plain_losses(wide + 1e-6 * directions[k].astype(np.float64), inputs, labels)
        np.testing.assert_allclose(values[row] - values[0], moved - base, rtol=2e-4, atol=1e-11)


@pytest.mark.parametrize("difference", ["forward", "central"])
@pytest.mark.parametrize(
    ("b2", "precision", "rtol"), [(1, np.float32, 1e-4), (20, np.float32, 1e-4), (2, float, 1e-10)]
)
def test_a_compiled_step_is_the_sum_of_its_parts(problem, difference, b2, precision, rtol):
    """Batch, draw, values_along, coefficients, advance: the same step, to the model's rounding."""

    class Parts(Objective):
        """The same problem without its step."""

        dim, devices = problem.dim, problem.devices

        def batch(self, device, size, draws):
            return problem.batch(device, size, draws)

        def values_along(self, *arguments):
            return problem.values_along(*arguments)

    start = some_model(problem, 0.1).astype(precision)
    estimator = Estimator(1e-3, b2, "sphere", difference)
    at = HERE.on(Stream.DIRECTIONS)
    seen = []
    for objective in (problem, Parts()):
        buffer, delta = estimator.buffer(problem.dim, precision), start / 100
        moves, x, asked = estimator.step(objective, start, 25, buffer, at, 1e-3, delta, start)
        assert np.array_equal(x, start + delta)
        expected = start / 100 + moves.astype(np.float64) @ buffer.rows
        np.testing.assert_allclose(delta, expected, atol=1e-6)
        assert asked == 25 * (b2 + 1 if difference == "forward" else 2 * b2)
        np.testing.assert_allclose(np.linalg.norm(buffer.vectors(), axis=1), 1, rtol=1e-6)
        seen.append((moves, buffer.rows.copy()))
    (one, rows), (two, same_rows) = seen
    assert np.array_equal(rows, same_rows)
    np.testing.assert_allclose(one, two, rtol=rtol, atol=rtol * np.abs(two).max())


def test_gradient(problem):
    """Against central differences of the float64 loss along random directions."""
    x = some_model(problem, 0.1)
    batch = problem.batch(3, 25, HERE)
    gradient = problem.gradient(x, batch)
    assert gradient.dtype == np.float32
    inputs, labels = drawn_samples(problem, 3, 25, HERE)
    wide = x.astype(np.float64)
    for v in Draws(5, Stream.DIRECTIONS).normals(5, problem.dim):
        ahead = plain_losses(wide + 1e-5 * v, inputs, labels).mean()
        behind = plain_losses(wide - 1e-5 * v, inputs, labels).mean()
        assert gradient @ v == pytest.approx((ahead - behind) / 2e-5, rel=1e-4, abs=1e-4)


def test_losses_and_metrics(problem):
    x = some_model(problem, 0.05)
    for i, loss in enumerate(problem.losses(x, np.arange(10))):
        own = problem.parts[i]
        expected = plain_losses(x, MINI.train_inputs[own], MINI.train_labels[own]).mean()
        assert loss == pytest.approx(expected, abs=1e-5)
    metrics = problem.metrics(x)
    expected = plain_losses(x, MINI.test_inputs, MINI.test_labels).mean()
    assert metrics["test_loss"] == pytest.approx(expected, abs=1e-5)
    weights = x.reshape(10, 785)
    guess = np.argmax(MINI.test_inputs / 255 @ weights[:, :-1].T + weights[:, -1], axis=1)
    assert metrics["test_accuracy"] == np.mean(guess == MINI.test_labels)


def test_batches_are_the_device_s_own_with_replacement(problem):
    """Every sample of the device comes up, no other does, and some come up twice."""
    size = problem.size(3)
    batch = problem.batch(3, 20 * size, HERE)
    pixels = np.rint(batch.inputs[:, :784] * 255).astype(np.uint8)
    own = {row.tobytes() for row in MINI.train_inputs[problem.parts[3]]}
    seen = {row.tobytes() for row in pixels}
    assert seen == own
    assert np.all(batch.inputs[:, 784] == 1)
    assert np.all(batch.inputs[:, 785:] == 0)
    first = {row.tobytes() for row in pixels[:size]}
    assert len(first) < 0.7 * size  # 1 - 1/e of them, if drawn with replacement


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite_points_give_not_finite_values(problem, bad):
    x = some_model(problem, 0.1)
    x[7] = bad
    batch = problem.batch(3, 5, HERE)
    batch.inputs[:, 7] = 1.0
    assert not np.isfinite(problem.values(x[None], batch)).any()


def test_large_logits_do_not_overflow(problem):
    x = np.zeros(problem.dim, np.float32)
    x.reshape(10, 785)[0, -1] = 5000.0  # the bias of class 0
    batch = problem.batch(3, 25, HERE)
    expected = np.where(batch.labels == 0, 0.0, 5000.0)
    np.testing.assert_allclose(problem.values(x[None], batch)[0], expected, atol=1e-6)


def test_a_batch_names_its_records(problem):
    """Columns with one name are one sample, and devices share no names."""
    seen = {}
    for device in (2, 3):
        batch = problem.batch(device, 200, HERE)
        names = problem.capability(NamesRecords).records(batch)
        assert len(names) == 200 > len(set(names.tolist())) > 1
        for name, row, label in zip(names.tolist(), batch.inputs, batch.labels, strict=True):
            owner, first, of = seen.setdefault(name, (device, row, label))
            assert owner == device
            assert np.array_equal(first, row)
            assert of == label


def test_the_factory_names_its_keys():
    with rejects("devices"):
        softmax(devices=4001)
    with rejects("partition"):
        softmax(partition="shard")


@njit
def _each(function, inputs, out):
    for i in range(inputs.size):
        out[i] = function(inputs[i])


def test_exp():
    x = np.concatenate([-np.logspace(-18, np.log10(699), 20_001), [0.0, -0.0]])
    out = np.empty(x.size)
    _each(exp, x, out)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-15)
    for value, expected in ((-1e6, math.exp(-700)), (-math.inf, math.exp(-700))):
        _each(exp, np.array([value]), out)
        assert out[0] == pytest.approx(expected)
    _each(exp, np.array([math.nan]), out)
    assert math.isnan(out[0])
