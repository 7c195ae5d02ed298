"""Patterns of ±1 for inputs of any shape, and small changes of them: where a search may begin."""

import math

import numpy as np

from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.waves import Waves

_LARGEST, _SMALLEST = 0.2, 1 / 64  # the shares of an input that the first and last changes cover


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
    signs = _signs(draws, math.prod(shape)).reshape(shape)
    axes = Waves(shape).axes
    if number % 2 or not axes:
        return signs.reshape(-1)
    longest = max(shape[axis] for axis in axes)
    share = draws._replace(step=draws.step + 1).uniform(1)[0]
    side = max(2, round(2 * (longest / 4) ** share))  # from 2 to half of the longest side
    for axis in axes:
        signs = np.take(signs, np.arange(shape[axis]) // side, axis=axis)
    return signs.reshape(-1)


def changed(
    x: Array, shape: tuple[int, ...], progress: float, height: float, draws: Draws
) -> Array:
    """Return x with a part of it replaced by ±height, shape (d,).

    The part is a square of one random colour for images, else some random numbers. It covers a
    fifth of the input if ``progress`` is 0, and a 64th if it is 1.

    >>> from fedzo.core.random import Stream
    >>> changed(np.zeros(10), (10,), 0.0, 2.0, Draws(0, Stream.SEARCH, 0, 0, 0))
    array([ 0.,  0.,  0.,  2.,  0.,  0.,  0., -2.,  0.,  0.])
    """
    share = _LARGEST * (_SMALLEST / _LARGEST) ** progress
    image, axes = x.reshape(shape).copy(), Waves(shape).axes
    other = draws._replace(step=draws.step + 1)
    if not axes:
        count = max(1, round(share * x.size))
        image.reshape(-1)[draws.subset(x.size, count)] = height * _signs(other, count)
        return image.reshape(-1)
    side = max(1, round(math.sqrt(share * math.prod(shape[axis] for axis in axes))))
    corner = draws.uniform(len(axes))
    area: list[slice] = [slice(None)] * len(shape)
    for axis, at in zip(axes, corner, strict=True):
        long = min(side, shape[axis])
        begin = int(at * (shape[axis] - long + 1))
        area[axis] = slice(begin, begin + long)
    colours = [1 if axis in axes else size for axis, size in enumerate(shape)]
    tint = _signs(other, math.prod(colours))
    image[tuple(area)] = height * tint.reshape(colours)
    return image.reshape(-1)


def _signs(draws: Draws, count: int) -> Array:
    return np.where(draws.words(count) >> 31, 1, -1).astype(np.float32)
