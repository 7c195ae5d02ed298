"""What is brought to an attack, a model and labelled inputs: put into one form, or refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo import models
from fedzo.errors import InvalidValue, require
from fedzo.models import Model
from fedzo.variables.perturbation import batch_of, scaled

Array = NDArray[Any]


PIECE = 256  # inputs that go to the model at once, where there are many

Columns = TypeVar("Columns", bound=tuple[Any, ...])


class Inputs(NamedTuple):
    """Labelled inputs, those of several devices one after another."""

    angles: Array  # (n, d), see fedzo.variables.perturbation.scaled
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


def joined(parts: Sequence[Columns]) -> Columns:
    """Return several named tuples of arrays as one, the arrays end to end.

    >>> joined([Inputs(np.array([[0.5]]), np.array([1])), Inputs(np.array([[0.0]]), np.array([2]))])
    Inputs(angles=array([[0.5],
           [0. ]]), labels=array([1, 2]))
    """
    kind = type(parts[0])
    return kind(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def victim_of(
    spec: str, kind: str | None, options: dict[str, Any], max_queries: int | None
) -> Model:
    """Load the model; complain of its settings by the keys that they have in [problem]."""
    if max_queries is not None:
        allowed = "given once: as max_queries, or in model_options"
        require("max_queries" not in options, "max_queries", max_queries, allowed)
        options = {**options, "max_queries": max_queries}
    try:
        return models.load(spec, kind, **options)
    except InvalidValue as error:
        keys = {"kind": "model_kind"} | {key: f"model_options.{key}" for key in options}
        own = "max_queries" if max_queries is not None else "model_options.max_queries"
        keys["max_queries"] = own
        raise InvalidValue(keys.get(error.key, error.key), error.value, error.allowed) from None


def gets_right(model: Model, images: Array, label: int) -> Array:
    """Return the images, bytes, in the model's range, that it gets right."""
    low, high = model.input_range
    inputs = (low + images * ((high - low) / 255)).astype(np.float32).clip(low, high)
    pieces = [inputs[i : i + PIECE] for i in range(0, len(inputs), PIECE)]
    column = model.columns([label])
    right = [model(piece).argmax(axis=1) == column for piece in pieces]
    return inputs[np.concatenate(right)] if right else inputs
