"""Images as waves."""

import numpy as np
import pytest
from scipy.fft import dctn

from fedzo.core.waves import Waves


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 9), (16, 20, 3), (28, 28)])
def test_they_are_the_orthonormal_cosine_transform(shape):
    waves, images = Waves(shape), np.random.default_rng(0).standard_normal((5, *shape))
    rows = images.reshape(5, -1)
    known = dctn(images, axes=range(1, len(shape) + 1), norm="ortho").reshape(5, -1)
    assert waves.coefficients(rows) == pytest.approx(known, abs=1e-12)
    assert waves.images(known) == pytest.approx(rows, abs=1e-12)
    assert waves.images(known.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("shape", [(3, 32, 32), (32, 32, 3)])
def test_bands_are_of_one_colour_and_one_range_of_frequencies(shape):
    waves = Waves(shape)
    bands = waves.bands.reshape(shape)
    bands = bands if shape[0] == 3 else np.moveaxis(bands, -1, 0)
    assert (bands[0, 0, 0], bands[0, 1, 1], bands[0, 0, 2]) == (0, 0, 1)
    assert not set(bands[0].flat) & set(bands[1].flat)
    assert bands.max() + 1 == waves.count
    of_first = bands[0, np.arange(32), np.arange(32)]
    assert np.all(np.diff(of_first) >= 0)  # higher frequencies, higher bands


@pytest.mark.parametrize("shape", [(), (10,), (4, 5, 6, 7)])
def test_what_is_not_an_image_stays_as_it_is(shape):
    waves, rows = Waves(shape), np.arange(6.0).reshape(2, 3)
    assert waves.coefficients(rows) is rows
    assert (waves.count, set(waves.bands)) == (1, {0})
