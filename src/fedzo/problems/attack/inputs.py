"""Check the model and the labelled inputs of an attack, and bring them into one form."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedzo import models
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.errors import InvalidValue, check_choice, check_unmasked, require
from fedzo.models import Model
from fedzo.variables.perturbation import Perturbation

_SIDE = 8  # pixels: shorter rows are not taken for images
_ALIKE = 0.2  # the least correlation of neighbours in images; of digits it is 0.3
PIECE = 256  # the most inputs per model call

Columns = TypeVar("Columns", bound=tuple[Any, ...])


class Inputs(NamedTuple):
    """Labelled inputs of one or several devices."""

    rows: Array  # (n, d), as of fedzo.Perturbation.rows
    labels: Array  # (n,), columns of the model's scores

    def some(self, which: slice | Array) -> "Inputs":
        """Return some of the inputs."""
        return Inputs(self.rows[which], self.labels[which])


def listed(key: str, parts: Iterable[Any]) -> list[Any]:
    """Return a list with one entry per device, at least one."""
    try:
        every = list(parts)
    except TypeError:
        raise InvalidValue(key, parts, "a list with one entry per device") from None
    require(len(every) > 0, key, "an empty list", "a list with one entry per device")
    return every


def check_batches(model: Model, given: Any, first: Any) -> None:
    """Raise if the inputs are one batch: each input would become a device.

    >>> from fedzo.models import FunctionModel
    >>> check_batches(FunctionModel(len), images := np.zeros((60, 3, 32, 32)), images[0])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: images_per_device = 'an array of shape (60, 3, 32, 32)': must be a
    list with a batch of inputs for each device, as np.array_split(images, 10) returns
    """
    try:
        shape, whole = np.shape(first), getattr(given, "shape", None)
    except ValueError:  # lists of different lengths, which are rejected later
        return
    image = whole is not None and len(whole) == 4 and is_image(tuple(whole[1:]))
    single = image if model.input_shape is None else shape == model.input_shape
    held = f"entries of shape {shape}" if whole is None else f"an array of shape {tuple(whole)}"
    allowed = "a list with a batch of inputs for each device, as np.array_split(images, 10) returns"
    require(not (single or len(shape) < 2), "images_per_device", held, allowed)


def shape_of_inputs(model: Model, first: ArrayLike) -> tuple[int, ...]:
    """Return the shape of one input: that of the model, or else that of the first batch.

    Images for a model of rows keep their shape.

    >>> from fedzo.models import FunctionModel
    >>> images, rows = np.zeros((5, 2, 3)), np.zeros((5, 6))
    >>> of_images = FunctionModel(len, input_shape=(2, 3))
    >>> of_rows = FunctionModel(len, input_shape=(6,))
    >>> shape_of_inputs(of_images, rows), shape_of_inputs(of_rows, images)
    ((2, 3), (2, 3))
    """
    try:
        given = np.shape(first)[1:]
    except ValueError:  # lists of different lengths, which are rejected later
        given = ()
    wanted = model.input_shape
    if wanted is None or wanted == (math.prod(given),):
        return given
    return wanted


def hidden_image(rows: Array) -> tuple[int, ...] | None:
    """Return the shape of the images that flat rows seem to be; None if they do not.

    Neighbours in an image are alike, both along a row and along a column. They must correlate.

    >>> smooth = np.cumsum(np.cumsum(np.random.default_rng(0).normal(size=(40, 8, 8)), 1), 2)
    >>> hidden_image(smooth.reshape(40, 64)), hidden_image(np.random.rand(40, 64))
    ((8, 8), None)
    """
    count = rows.shape[1]
    best: tuple[float, tuple[int, ...] | None] = (_ALIKE, None)
    for colours in (1, 3):
        side = math.isqrt(count // colours)
        if side < _SIDE or colours * side * side != count or len(rows) < 2:
            continue
        for shape in {(side, side)} if colours == 1 else {(3, side, side), (side, side, 3)}:
            images = rows.reshape(-1, *shape)
            if len(shape) == 3 and shape[0] == 3:
                images = np.moveaxis(images, 1, -1)
            images = images - images.mean(axis=0)
            power = float(np.square(images).mean()) or 1.0
            down, along = (images[:, 1:] * images[:, :-1], images[:, :, 1:] * images[:, :, :-1])
            alike = min(float(down.mean()), float(along.mean())) / power
            best = max(best, (alike, shape), key=lambda one: one[0])
    return best[1]


def labelled(
    model: Model, inputs: ArrayLike, labels: ArrayLike, nothing: Perturbation, of: str = ""
) -> Inputs:
    """Return a batch of inputs with their labels; ``of`` names it in error messages.

    ``nothing`` is any perturbation of such inputs.

    >>> from fedzo.models import FunctionModel
    >>> model, nothing = FunctionModel(lambda batch: batch), Perturbation(np.zeros(2))
    >>> labelled(model, [[0.5, 0.75], [0.0, 0.5]], 1, nothing).labels
    array([1, 1])
    """
    rows = nothing.rows(inputs, f"inputs{of}")
    require(len(rows) > 0, f"inputs{of}", "an empty batch", "one input or more")
    return Inputs(rows, columns_of(model, labels, len(rows), f"labels{of}"))


def fooled(predictions: Array, labels: Array, target: int | None) -> Array:
    """Return which predictions are wrong, or are the target if there is one."""
    return np.asarray(predictions != labels if target is None else predictions == target)


def columns_of(model: Model, labels: ArrayLike, count: int, key: str = "labels") -> Array:
    """Return the columns of the labels of ``count`` inputs; one label may stand for all."""
    allowed = f"one for each of the {count} inputs, or one for all"
    check_unmasked(key, labels)
    try:
        given = np.asarray(labels)
    except ValueError:
        raise InvalidValue(key, "lists of different lengths", allowed) from None
    require(given.shape in ((), (count,)), key, f"an array of shape {given.shape}", allowed)
    return model.columns(np.full(count, given) if given.ndim == 0 else given)


def column_of_target(model: Model, target: Any) -> int:
    """Return the column of the target class."""
    try:
        return int(columns_of(model, target, 1, "target")[0])
    except InvalidValue as error:
        raise InvalidValue("target", target, error.allowed) from None


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate named tuples of arrays.

    >>> joined([Inputs(np.array([[0.5]]), np.array([1])), Inputs(np.array([[0.0]]), np.array([2]))])
    Inputs(rows=array([[0.5],
           [0. ]]), labels=array([1, 2]))
    """
    kind = type(parts[0])
    return kind(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def victim_of(
    spec: str, kind: str | None, options: dict[str, Any], max_queries: int | None
) -> Model:
    """Load the model; errors name the keys of the [problem] table."""
    if max_queries is not None:
        allowed = "given once: as max_queries, or in model_options"
        require("max_queries" not in options, "max_queries", max_queries, allowed)
        options = {**options, "max_queries": max_queries}
    try:
        return models.load(spec, kind, **options)
    except InvalidValue as error:
        keys = {"kind": "model_kind"} | {key: f"model_options.{key}" for key in options}
        if max_queries is not None:
            keys["max_queries"] = "max_queries"
        raise InvalidValue(keys.get(error.key, error.key), error.value, error.allowed) from None


def other_of(spec: str) -> Model:
    """Load the model on which the final perturbation is tested."""
    try:
        return models.load(spec)
    except InvalidValue as error:
        raise InvalidValue("transfer_to", spec, error.allowed) from None


def gets_right(model: Model, images: Array, labels: Array) -> tuple[Array, Array]:
    """Return the images that the model gets right, scaled to its range, and their labels."""
    low, high = model.input_range
    inputs = (low + images * ((high - low) / 255)).astype(np.float32).clip(low, high)
    pieces = [inputs[i : i + PIECE] for i in range(0, len(inputs), PIECE)]
    if not pieces:
        return inputs, labels
    predictions = np.concatenate([model(piece).argmax(axis=1) for piece in pieces])
    right = predictions == model.columns(labels)
    return inputs[right], labels[right]


def columns_named(names: str | Sequence[str], classes: Sequence[str], key: str) -> list[int]:
    """Return the columns of one class, of several, or of ``"all"``.

    >>> columns_named("all", ["cat", "deer"], "label"), columns_named("deer", ["cat", "deer"], "")
    ([0, 1], [1])
    """
    wanted = [names] if isinstance(names, str) else list(names)
    if wanted == ["all"]:
        return list(range(len(classes)))
    require(len(wanted) > 0, key, wanted, "a class or several")
    for name in wanted:
        check_choice(key, name, classes)
    return sorted({list(classes).index(name) for name in wanted})
