"""The change of variables, against the paper's formula written out in float64."""

import numpy as np
import pytest

from fedzo.variables.perturbation import EDGE, Perturbation, perturbed, scaled
from raising import fails, rejects

RNG = np.random.default_rng(5)
NOISE = RNG.normal(size=(2, 3, 4))
INSIDE = RNG.uniform(0.05, 0.95, size=(7, 2, 3, 4))  # in [0, 1], off the ends


def formula(inputs, noise, low, high):
    """1/2 tanh(atanh 2z + x) of the paper, z in [-1/2, 1/2], and back."""
    z = (inputs - low) / (high - low) - 0.5
    return (np.tanh(np.arctanh(2 * z) + noise) / 2 + 0.5) * (high - low) + low


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.5, 0.5), (0.0, 255.0), (-3.0, 1.0)])
def test_what_becomes_of_inputs_is_the_papers_formula_in_any_range(low, high):
    inputs = low + (high - low) * INSIDE
    noise = Perturbation(NOISE, (low, high))
    expected = formula(inputs, NOISE, low, high)
    # float32: a few units of 6e-8 of the range
    np.testing.assert_allclose(noise.apply(inputs), expected, atol=4e-7 * (high - low))
    moved = ((expected - inputs) / (high - low)).reshape(7, -1)
    l2, linf = np.linalg.norm(moved, axis=1), np.abs(moved).max(axis=1)
    told = (l2.mean(), l2.max(), linf.mean(), linf.max())
    np.testing.assert_allclose(noise.distortion(inputs), told, rtol=2e-6)


def test_no_perturbation_changes_nothing_and_costs_nothing():
    none = Perturbation(np.zeros((2, 3, 4)))
    np.testing.assert_allclose(none.apply(INSIDE), INSIDE, atol=1e-7)
    assert none.distortion(INSIDE) == (0, 0, 0, 0)


def test_bytes_at_the_ends_of_the_range_are_kept_and_can_still_move():
    images = np.array([[0, 255, 128, 1, 254]]) / 255
    none = Perturbation(np.zeros(5)).apply(images)
    assert np.array_equal(np.rint(none * 255), np.rint(images * 255))
    moved = Perturbation(np.array([3.0, -3.0, 0, 0, 0])).apply(images)
    assert moved[0, 0] > 0.25  # from black
    assert moved[0, 1] < 0.75  # from white


def test_nothing_leaves_the_range_however_large_the_noise():
    extreme = Perturbation(np.array([1e30, -1e30, 50.0, -50.0, 8.0]))
    inputs = np.array([[0.0, 1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.5, 0.5, 0.0]])
    out = extreme.apply(inputs)
    assert out.min() >= 0
    assert out.max() <= 1
    assert np.isfinite(out).all()


def test_a_small_movement_keeps_its_digits():
    """1e-6 moves a pixel by less than float32 can tell from it, but the distortion is right."""
    noise = np.full(1000, 1e-6)
    inputs = np.full((1, 1000), 0.75)
    slope = (1 - 0.5**2) / 2  # of 1/2 tanh at 2z = 1/2
    expected = slope * 1e-6 * np.sqrt(1000)
    np.testing.assert_allclose(Perturbation(noise).distortion(inputs).l2_mean, expected, rtol=1e-5)


def test_many_perturbations_of_chosen_inputs_at_once():
    angles = scaled(INSIDE, (0.0, 1.0))
    shifts = np.tanh(RNG.normal(size=(3, 24)).astype(np.float32))
    inputs, squares, _ = perturbed(angles[[4, 0, 4]], shifts, (0.0, 1.0))
    for k in range(3):
        for m, i in enumerate([4, 0, 4]):
            row = INSIDE[i].reshape(-1)
            expected = formula(row, np.arctanh(shifts[k].astype(np.float64)), 0, 1)
            np.testing.assert_allclose(inputs[k, m], expected, atol=4e-7)
            np.testing.assert_allclose(squares[k, m], np.sum((expected - row) ** 2), rtol=4e-6)


def test_saved_and_loaded_is_the_same(tmp_path):
    path = tmp_path / "noise.of-mine"
    Perturbation(NOISE, (-0.5, 0.5)).save(path)
    loaded = Perturbation.load(path)
    assert loaded.noise.tobytes() == NOISE.tobytes()
    assert loaded.noise.shape == (2, 3, 4)
    assert loaded.input_range == (-0.5, 0.5)
    assert [p.name for p in tmp_path.iterdir()] == ["noise.of-mine"]


def test_bad_files_are_named(tmp_path):
    with fails("unreadable"):
        Perturbation.load(tmp_path / "none")
    (tmp_path / "text").write_text("noise")
    with fails("not-a-perturbation"):
        Perturbation.load(tmp_path / "text")


@pytest.mark.parametrize("inputs", [np.ones((2, 5)), np.ones(24), np.ones((1, 4, 3, 2))])
def test_inputs_of_another_shape_are_refused(inputs):
    with rejects("inputs"):
        Perturbation(NOISE).apply(inputs)


@pytest.mark.parametrize("value", [-0.01, 1.01, np.nan])
def test_inputs_out_of_range_are_refused(value):
    inputs = np.full((1, 24), 0.5)
    inputs[0, 3] = value
    with rejects("inputs"):
        Perturbation(NOISE).apply(inputs)


@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (-2.1179, 2.64), (0, 0.1)]
)
def test_no_rounding_leads_out_of_the_range(bounds):
    """Of most bounds there is no float32; the numbers stay on the right side of them."""
    low, high = bounds
    rng = np.random.default_rng(5)
    inputs = np.concatenate([rng.uniform(low, high, size=(300, 24)), [[low] * 24, [high] * 24]])
    for size in (0.5, 4.0, 8.0, 40.0):
        moved = Perturbation(rng.normal(size=24) * size, bounds).apply(inputs).astype(np.float64)
        assert moved.min() >= low
        assert moved.max() <= high


def test_an_empty_batch_stays_one_and_has_no_distortion():
    noise = Perturbation(NOISE)
    assert noise.apply(np.empty((0, 24))).shape == (0, 24)
    with rejects("inputs"):
        noise.distortion(np.empty((0, 24)))


def test_the_edge_is_a_quarter_of_a_grey_level():
    assert pytest.approx(1 / 255 / 4) == EDGE / 2
