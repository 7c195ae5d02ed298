r"""Images to begin a search at: plane waves, and random patterns of ±1.

A perturbation that fools a classifier on many images is often a single strong and fine wave.
"""

import math

import numpy as np

from fedzo.core.random import Draws
from fedzo.core.types import Array

_PHASE = 3 * np.pi / 16  # no pixel is zero if ``divisions`` is 1, 2, 3, 4, 6 or 8
COLOURS = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [0.5, -1.0, 0.5]])  # see plane_waves


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether inputs of a shape are images: grey or colour, planes first or last.

    >>> is_image((3, 32, 32)), is_image((28, 28)), is_image((32, 32, 3)), is_image((10,))
    (True, True, True, False)
    """
    return len(shape) == 2 or (len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3)))


def axes_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of height and width of images; empty for other inputs.

    >>> axes_of((3, 32, 32)), axes_of((28, 28)), axes_of((32, 32, 3)), axes_of((10,))
    ((1, 2), (0, 1), (0, 1), ())
    """
    if not is_image(shape):
        return ()
    return (1, 2) if len(shape) == 3 and shape[0] in (1, 3) else (0, 1)


def plane_waves(shape: tuple[int, ...], divisions: int) -> Array:
    r"""Return images that are one wave each: float32, (k, d).

    .. math:: c \cos\bigl( \tfrac{\pi}{g} (i y + j x) + \tfrac{3 \pi}{16} \bigr),
              \qquad 0 \le i \le g, \quad -g < j \le g,

    at pixel (y, x). At this phase no pixel is near zero, so all of a budget in L∞ is used. Of each
    two waves that differ by their phase only there is one:
    :math:`2 g^2 + 2` waves, from a constant to a change of sign at every pixel, where g is
    ``divisions``. In colour images c is brightness, red against blue, and green against both; 1 at
    most.

    >>> len(plane_waves((3, 32, 32), 8)), plane_waves((10,), 8).shape
    (390, (0, 10))
    >>> plane_waves((2, 2), 1).round(2)[1]  # it changes along x only
    array([ 0.83, -0.83,  0.83, -0.83], dtype=float32)
    """
    axes, count = axes_of(shape), plane_wave_count(shape, divisions)
    if not count:
        return np.empty((0, math.prod(shape)), np.float32)
    down, right = (np.pi / divisions * np.arange(shape[axis]) for axis in axes)
    planes = np.array(
        [
            np.cos(i * down[:, None] + j * right + _PHASE)
            for i in range(divisions + 1)
            for j in range(0 if i in (0, divisions) else 1 - divisions, divisions + 1)
        ],
        np.float32,
    )
    if len(shape) == 3:
        tones = COLOURS.astype(np.float32) if count > len(planes) else np.ones((1, 1), np.float32)
        colours = 3 - sum(axes)  # the axis of colours
        planes = np.moveaxis(np.multiply.outer(tones, planes), 1, 2 + colours)
    return planes.reshape(count, -1)


def plane_wave_count(shape: tuple[int, ...], divisions: int) -> int:
    """Return the number of plane waves.

    >>> plane_wave_count((3, 32, 32), 8), plane_wave_count((28, 28), 8), plane_wave_count((9,), 8)
    (390, 130, 0)
    """
    if not divisions or not is_image(shape):
        return 0
    coloured = len(shape) == 3 and shape[3 - sum(axes_of(shape))] == len(COLOURS)
    return (len(COLOURS) if coloured else 1) * (2 * divisions**2 + 2)


def pattern(shape: tuple[int, ...], number: int, draws: Draws) -> Array:
    """Return one pattern of ±1, shape (d,).

    Images get a grid of squares, each of one random colour, if the number is even. Other patterns
    have a random sign for each number of the input.

    >>> from fedzo.core.random import Stream
    >>> pattern((4, 4), 0, Draws(3, Stream.SEARCH, 0, 0, 2)).reshape(4, 4)
    array([[ 1.,  1.,  1.,  1.],
           [ 1.,  1.,  1.,  1.],
           [ 1.,  1., -1., -1.],
           [ 1.,  1., -1., -1.]], dtype=float32)
    """
    words = draws.words(math.prod(shape))
    signs = np.where(words >> 31, 1, -1).astype(np.float32).reshape(shape)
    axes = axes_of(shape)
    if number % 2 or not axes:
        return signs.reshape(-1)
    longest = max(shape[axis] for axis in axes)
    share = draws._replace(step=draws.step + 1).uniform(1)[0]
    side = max(2, round(2 * (longest / 4) ** share))  # from 2 to half of the longest side
    for axis in axes:
        signs = np.take(signs, np.arange(shape[axis]) // side, axis=axis)
    return signs.reshape(-1)
