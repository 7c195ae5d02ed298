"""Perturbations within a budget, against the definitions of the two balls."""

import numpy as np
import pytest

from fedzo.variables.perturbation import Perturbation, in_levels, inside, projected
from raising import rejects

RNG = np.random.default_rng(5)
ORDERS = {"inf": np.inf, "l2": 2}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("norm", ORDERS)
def test_no_x_leads_out_of_the_ball(norm, scale):
    points = RNG.normal(scale=scale, size=(4, 50))
    lengths = np.linalg.norm(inside(points, 0.3, norm), ORDERS[norm], axis=1)
    assert np.all(lengths <= 0.3 * (1 + 1e-6))  # float32
    if scale > 1:  # and it is the whole ball: 1e4 is as far as its surface
        np.testing.assert_allclose(lengths, 0.3, rtol=1e-5)


@pytest.mark.parametrize(("norm", "slope"), [("inf", 0.3), ("l2", 0.3 / np.sqrt(50))])
def test_the_slopes_at_zero(norm, slope):
    x = 1e-3 * RNG.normal(size=(1, 50))
    # the next term of either map is at most 1e-5 of the first
    np.testing.assert_allclose(inside(x, 0.3, norm), slope * x, rtol=2e-5)


@pytest.mark.parametrize("norm", ORDERS)
def test_a_projection_is_the_nearest_point(norm):
    delta = RNG.normal(size=20)
    nearest = projected(delta, 0.7, norm)
    assert np.linalg.norm(nearest, ORDERS[norm]) == pytest.approx(0.7)
    others = RNG.normal(size=(200, 20))
    others *= 0.7 / np.linalg.norm(others, ORDERS[norm], axis=1)[:, None]  # on the surface
    distances = np.linalg.norm(others - delta, axis=1)
    assert np.linalg.norm(nearest - delta) < distances.min()
    np.testing.assert_array_equal(projected(0.01 * delta, 0.7, norm), 0.01 * delta)


@pytest.mark.parametrize("eps", [8 / 255, 7.6 / 255, 1.0])
@pytest.mark.parametrize("norm", ORDERS)
def test_levels_are_whole_and_inside(norm, eps):
    delta = inside(RNG.normal(scale=3, size=(1, 300)), eps, norm)[0]
    levels = in_levels(delta, eps, norm)
    np.testing.assert_array_equal(levels, np.rint(levels))
    assert np.linalg.norm(levels, ORDERS[norm]) <= 255 * eps + 1e-5
    assert np.abs(levels / 255 - delta).max() < 1 / 255


def test_images_become_images_of_bytes_within_the_budget():
    images = RNG.integers(0, 256, size=(5, 3, 4, 4))
    delta = RNG.uniform(-0.1, 0.1, size=(3, 4, 4))
    perturbation = Perturbation.within(delta, (0.0, 1.0), 8 / 255, "inf")
    expected = np.clip(images + np.rint(255 * delta).clip(-8, 8), 0, 255)
    moved = 255 * perturbation.apply(images / 255)
    np.testing.assert_allclose(moved, expected, atol=1e-4)
    told = perturbation.distortion(images / 255)
    assert told.linf_max == pytest.approx(8 / 255, rel=1e-6)
    change = np.linalg.norm((expected - images).reshape(5, -1), axis=1) / 255
    assert told.l2_mean == pytest.approx(change.mean(), rel=1e-6)
    of_bytes = Perturbation.within(delta, (0.0, 255.0), 8 / 255, "inf")
    np.testing.assert_allclose(of_bytes.apply(images), expected, atol=1e-3)


def test_the_papers_form_projected_and_saved(tmp_path):
    paper = Perturbation(RNG.normal(size=6).astype(np.float32), (0.0, 1.0))
    small = paper.project(0.1)
    np.testing.assert_allclose(small.noise, (np.tanh(paper.noise) / 2).clip(-0.1, 0.1), atol=1e-7)
    assert np.linalg.norm(small.project(0.05, "l2").noise) == pytest.approx(0.05)
    small.save(tmp_path / "small.npz")
    again = Perturbation.load(tmp_path / "small.npz")
    assert (again.eps, again.norm) == (0.1, "inf")
    inputs = RNG.uniform(size=(3, 6))
    np.testing.assert_allclose(again.apply(inputs), np.clip(inputs + small.noise, 0, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("eps", "norm", "key"),
    [(8, "inf", "eps"), (0, "l2", "eps"), ("a", "inf", "eps"), (0.1, "l3", "norm")],
)
def test_what_is_not_a_ball_is_rejected(eps, norm, key):
    with rejects(key):
        Perturbation(np.zeros(4)).project(eps, norm)


def test_less_than_a_grey_level_is_refused_for_images():
    Perturbation(np.zeros(4)).project(0.001)
    with rejects("eps"):
        Perturbation(np.zeros((4, 4))).project(0.001)
