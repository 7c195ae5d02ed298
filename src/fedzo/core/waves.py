r"""Images as sums of waves: the orthonormal cosine transform, and its bands of frequency.

A perturbation that fools a classifier on many images is smooth, and more of colour than of
brightness. One that fools it on a single image is neither. So the search can concentrate on a few
bands.
"""

import math
from functools import cached_property, lru_cache

import numpy as np

from fedzo.core.types import Array

COLOURS = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [0.5, -1.0, 0.5]])  # see plane_waves
# Half waves along an image at which bands begin; further edges grow by a root of two.
_EDGES = (0.0, 1.5, 3.0, 5.0, 8.0, 12.0)


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether inputs of a shape are images: grey or colour, planes first or last.

    >>> is_image((3, 32, 32)), is_image((28, 28)), is_image((32, 32, 3)), is_image((10,))
    (True, True, True, False)
    """
    return len(shape) == 2 or (len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)))


class Waves:
    """The waves of images of one shape; inputs that are not images have one band, unchanged.

    Colours are transformed as well: red, green and blue become brightness and two differences.

    Attributes
    ----------
    bands : array of int, (d,)
        The band of each wave: its frequency, in each of the transformed colours.
    count : int
        How many bands there are.

    Examples
    --------
    A grey image of one value is one wave, and lengths stay what they are:

    >>> Waves((2, 2)).coefficients(np.full((1, 4), 3.0)).round(12)
    array([[6., 0., 0., 0.]])
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape if is_image(shape) else ()
        colour_last = len(self.shape) == 3 and self.shape[0] not in (1, 3)
        self._colours = 2 if colour_last else 0

    def coefficients(self, rows: Array) -> Array:
        """Return the amount of each wave in images, (k, d) -> (k, d)."""
        return self._along_axes(rows, inverse=False)

    def images(self, rows: Array) -> Array:
        """Return the images with these amounts of each wave, (k, d) -> (k, d)."""
        return self._along_axes(rows, inverse=True)

    def _along_axes(self, rows: Array, inverse: bool) -> Array:
        if not self.shape:
            return rows
        found, after = rows, math.prod(self.shape)
        for size in self.shape:
            after //= size  # numbers of the axes behind this one
            turn = _turn(size, inverse, rows.dtype.char)
            # Small products: BLAS would share a large one among threads, which the devices use.
            if after > 1:
                found = turn @ found.reshape(-1, size, after)
            else:
                found = found.reshape(len(rows), -1, size) @ turn.T
        return found.reshape(rows.shape)

    @cached_property
    def _edges(self) -> Array:
        edges = [*_EDGES]
        while self.shape and edges[-1] <= math.hypot(*self.sides):
            edges.append(edges[-1] * 2**0.5)
        return np.array(edges)

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of height and width; empty for other inputs."""
        every = range(len(self.shape))
        return tuple(axis for axis in every if len(self.shape) == 2 or axis != self._colours)

    @property
    def sides(self) -> tuple[int, ...]:
        """The height and the width of the images; empty for other inputs."""
        return tuple(self.shape[axis] for axis in self.axes)

    @cached_property
    def bands(self) -> Array:
        """The band of each wave."""
        if not self.shape:
            return np.zeros(1, int)  # broadcast to all numbers
        height, width = self.sides
        plane = np.hypot(np.arange(height)[:, None], np.arange(width))
        of_plane = np.digitize(plane, self._edges) - 1
        if len(self.shape) == 2:
            return of_plane.reshape(-1)
        colours = self.shape[self._colours]
        planes = [of_plane + colour * (len(self._edges) - 1) for colour in range(colours)]
        return np.stack(planes, axis=self._colours).reshape(-1)

    @property
    def count(self) -> int:
        """How many bands there are."""
        if not self.shape:
            return 1
        colours = self.shape[self._colours] if len(self.shape) == 3 else 1
        return colours * (len(self._edges) - 1)


def plane_waves(shape: tuple[int, ...], divisions: int) -> Array:
    r"""Return images that are one wave each, as amounts of :class:`Waves`: float32, (k, d).

    .. math:: c \cos\bigl( \tfrac{\pi}{g} (i y + j x) + \tfrac{\pi}{4} \bigr),
              \qquad 0 \le i \le g, \quad -g < j \le g,

    at pixel (y, x). Of each two waves that differ by their phase only there is one:
    :math:`2 g^2 + 2` waves, from a constant to a change of sign at every pixel, where g is
    ``divisions``. In colour images c is brightness, red against blue, and green against both; 1 at
    most.

    >>> len(plane_waves((3, 32, 32), 8)), plane_waves((10,), 8).shape
    (390, (0, 10))
    >>> Waves((2, 2)).images(plane_waves((2, 2), 1)).round(2)[1]  # it changes along x only
    array([ 0.71, -0.71,  0.71, -0.71], dtype=float32)
    """
    waves, count = Waves(shape), plane_wave_count(shape, divisions)
    if not count:
        return np.empty((0, math.prod(shape)), np.float32)
    down, right = (np.pi / divisions * np.arange(side) for side in waves.sides)
    planes = np.array(
        [
            np.cos(i * down[:, None] + j * right + np.pi / 4)
            for i in range(divisions + 1)
            for j in range(0 if i in (0, divisions) else 1 - divisions, divisions + 1)
        ],
        np.float32,
    )
    if len(shape) == 3:
        tones = COLOURS.astype(np.float32) if count > len(planes) else np.ones((1, 1), np.float32)
        planes = np.moveaxis(np.multiply.outer(tones, planes), 1, 2 + waves._colours)
    return waves.coefficients(planes.reshape(count, -1))


def plane_wave_count(shape: tuple[int, ...], divisions: int) -> int:
    """Return the number of plane waves.

    >>> plane_wave_count((3, 32, 32), 8), plane_wave_count((28, 28), 8), plane_wave_count((9,), 8)
    (390, 130, 0)
    """
    if not divisions or not is_image(shape):
        return 0
    coloured = len(shape) == 3 and shape[Waves(shape)._colours] == len(COLOURS)
    return (len(COLOURS) if coloured else 1) * (2 * divisions**2 + 2)


@lru_cache(maxsize=16)
def _turn(size: int, inverse: bool, dtype: str) -> Array:
    """Return the matrix that turns a line of numbers into its waves, or waves into the line."""
    return np.ascontiguousarray(cosines(size).T if inverse else cosines(size), dtype)


@lru_cache(maxsize=16)
def cosines(size: int) -> Array:
    """Return the orthonormal cosines of a line of numbers, a row each (DCT-II).

    >>> np.allclose(cosines(5) @ cosines(5).T, np.eye(5), atol=1e-15)
    True
    """
    angles = np.pi / size * np.outer(np.arange(size), np.arange(size) + 0.5)
    matrix = np.sqrt(2 / size) * np.cos(angles)
    matrix[0] /= np.sqrt(2)
    return np.asarray(matrix)
