"""Patterns of ±1 for inputs of any shape: where a search may begin."""

import math

import numpy as np

from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.waves import Waves


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
    axes = Waves(shape).axes
    if number % 2 or not axes:
        return signs.reshape(-1)
    longest = max(shape[axis] for axis in axes)
    share = draws._replace(step=draws.step + 1).uniform(1)[0]
    side = max(2, round(2 * (longest / 4) ** share))  # from 2 to half of the longest side
    for axis in axes:
        signs = np.take(signs, np.arange(shape[axis]) // side, axis=axis)
    return signs.reshape(-1)
