"""What parties bring to an attack: labelled inputs, put into one form or refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.errors import InvalidValue, require
from fedzo.models import Model
from fedzo.perturbation import batch_of, scaled

Array = NDArray[Any]


class Inputs(NamedTuple):
    """Labelled inputs, those of several devices one after another."""

    angles: Array  # (n, d), see fedzo.perturbation.scaled
    labels: Array  # (n,), columns of the model's scores


def listed(key: str, parts: Iterable[Any]) -> list[Any]:
    """Return what there is for each device, one or more."""
    try:
        every = list(parts)
    except TypeError:
        raise InvalidValue(key, parts, "a list, with an entry for each device") from None
    require(len(every) > 0, key, "an empty list", "a list, with an entry for each device")
    return every


def shape_of_inputs(model: Model, first: ArrayLike) -> tuple[int, ...]:
    """Return the shape of one input, by what the model says of it or else by the first batch.

    Rows for a model of images have the model's shape; images for a model of rows keep theirs.

    >>> from fedzo.models import FunctionModel
    >>> images, rows = np.zeros((5, 2, 3)), np.zeros((5, 6))
    >>> of_images = FunctionModel(len, input_shape=(2, 3))
    >>> of_rows = FunctionModel(len, input_shape=(6,))
    >>> shape_of_inputs(of_images, rows), shape_of_inputs(of_rows, images)
    ((2, 3), (2, 3))
    """
    try:
        given = np.shape(first)[1:]
    except ValueError:  # lists of different lengths, which are refused soon
        given = ()
    wanted = model.input_shape
    if wanted is None or wanted == (math.prod(given),):
        return given
    return wanted


def labelled(
    model: Model, inputs: ArrayLike, labels: ArrayLike, shape: tuple[int, ...], of: str = ""
) -> Inputs:
    """Return a batch of inputs with their labels; ``of`` is whose they are.

    >>> from fedzo.models import FunctionModel
    >>> model = FunctionModel(lambda batch: batch)
    >>> labelled(model, [[0.5, 0.75], [0.0, 0.5]], 1, shape=(2,)).labels
    array([1, 1])
    """
    batch = batch_of(inputs, shape, f"inputs{of}")
    require(len(batch) > 0, f"inputs{of}", "an empty batch", "one input or more")
    return Inputs(
        scaled(batch, model.input_range), columns_of(model, labels, len(batch), f"labels{of}")
    )


def columns_of(model: Model, labels: ArrayLike, count: int, key: str = "labels") -> Array:
    """Return the columns of the labels of so many inputs; one label may stand for all."""
    allowed = f"one for each of the {count} inputs, or one for all"
    try:
        given = np.asarray(labels)
    except ValueError:
        raise InvalidValue(key, "lists of different lengths", allowed) from None
    require(given.shape in ((), (count,)), key, f"an array of shape {given.shape}", allowed)
    return model.columns(np.full(count, given) if given.ndim == 0 else given)
