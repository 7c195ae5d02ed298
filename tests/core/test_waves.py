"""Images to begin a search at."""

import numpy as np
import pytest
from scipy.fft import dctn

from fedzo.core.waves import axes_of, plane_wave_count, plane_waves


@pytest.mark.parametrize("shape", [(3, 16, 12), (16, 12, 3), (1, 16, 12), (16, 12, 1), (16, 12)])
def test_each_image_is_one_wave_along_height_and_width(shape):
    """Its cosines along both sides are within two of the wave's own frequency."""
    axes, waves = axes_of(shape), plane_waves(shape, 4)
    assert [shape[axis] for axis in axes] == [16, 12]
    assert len(waves) == plane_wave_count(shape, 4)
    images = np.moveaxis(waves.reshape(-1, *shape), [axis + 1 for axis in axes], [1, 2])
    images = images.reshape(len(waves), 16, 12, -1)
    powers = np.square(dctn(images, axes=(1, 2))).sum(axis=3)
    numbers = [(i, abs(j)) for i in range(5) for j in range(0 if i in (0, 4) else -3, 5)]
    for power, (i, j) in zip(powers, numbers * (len(waves) // len(numbers)), strict=True):
        down, right = np.unravel_index(power.argmax(), power.shape)
        assert abs(down - i * 16 / 4) <= 2
        assert abs(right - j * 12 / 4) <= 2
    assert np.abs(waves).max() <= 1


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 3)])
def test_colours_last_are_the_same_images(shape):
    first = plane_waves((3, 8, 8), 2).reshape(-1, 3, 8, 8)
    given = plane_waves(shape, 2).reshape(-1, *shape)
    assert np.array_equal(given if shape[0] == 3 else np.moveaxis(given, -1, 1), first)


@pytest.mark.parametrize("shape", [(), (10,), (4, 5, 6, 7), (5, 6, 7)])
def test_what_is_not_an_image_has_no_waves(shape):
    assert axes_of(shape) == ()
    assert plane_waves(shape, 8).shape == (0, np.prod(shape, dtype=int))
