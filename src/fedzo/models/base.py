"""The base of every black box: a batch of inputs in, a row of scores for each of them out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.core.budget import Meter
from fedzo.errors import (
    InvalidValue,
    ModelError,
    check_count,
    first_line,
    nearest,
    one_of,
    require,
)
from fedzo.models.rounding import step_of

Array = NDArray[Any]

OUTPUTS = ("logits", "probabilities", "log-probabilities", "labels")
_WORTH_A_PIECE = 16  # inputs: a batch is not shared among threads in smaller parts
_ROUNDING = 1e-3  # how far from one a model's probabilities may sum


class Common(TypedDict, total=False):
    """The settings that every kind of model takes; :class:`Model` explains them."""

    input_range: Sequence[float]
    input_shape: Sequence[int] | None
    max_queries: int | None
    max_batch: int | None
    classes: int | None


class Model(ABC):
    """A classifier that is known by its answers only, and that counts them.

    One query is one input that is answered. All threads together get exactly as many answers
    as the budget allows: a batch that is too large for what is left is asked for in part, and
    then :class:`~fedzo.errors.BudgetSpent` is raised. A batch that fails stays counted, since
    the model may have worked on it.

    Parameters
    ----------
    name
        What error messages call the model.
    outputs
        What the answers are: "logits", "probabilities" or "log-probabilities"; or "labels", one
        for each input: then the scores are 1 for it and 0 for any other.
    input_range
        The smallest and the largest number that an input may hold. Not enforced, except on
        whole numbers: bytes from 0 to 255 for a model that wants [0, 1] are refused.
    input_shape
        The shape of one input, which a batch is brought to. None: batches are handed on in
        the shape they have.
    max_queries
        How many queries may be answered in all; None: any number.
    max_batch
        The most inputs that go into the model at a time; larger batches are split.
    classes
        How many classes there are; needed where the answers are labels, known by itself elsewhere.

    Attributes
    ----------
    classes : int or None
        How many scores an answer has; None until it is known.
    in_flight : int
        How many parts of a batch may be under way at a time.

    Examples
    --------
    A kind of model of one's own needs nothing but scores:

    >>> class Threshold(Model):
    ...     def _scores(self, batch):
    ...         total = batch.sum(axis=1, keepdims=True)
    ...         return np.hstack([1.5 - total, total - 1.5])
    >>> model = Threshold("threshold", outputs="logits", input_shape=(3,), max_queries=5)
    >>> model([[0.0, 0.5, 0.5], [1.0, 1.0, 1.0]])
    array([[ 0.5, -0.5],
           [-1.5,  1.5]])
    >>> model.predict(np.ones((2, 3))), model.queries
    (array([1, 1]), 4)
    >>> model(np.ones((2, 3)))
    Traceback (most recent call last):
        ...
    fedzo.errors.BudgetSpent: the budget of 5 queries is spent
    """

    def __init__(
        self,
        name: str,
        outputs: str,
        *,
        input_range: Sequence[float] = (0.0, 1.0),
        input_shape: Sequence[int] | None = None,
        max_queries: int | None = None,
        max_batch: int | None = None,
        classes: int | None = None,
    ) -> None:
        if outputs not in OUTPUTS:
            raise InvalidValue("outputs", outputs, one_of(OUTPUTS) + nearest(str(outputs), OUTPUTS))
        if max_batch is not None:
            check_count("max_batch", max_batch)
        if classes is not None or outputs == "labels":
            check_count("classes", classes, least=2)
        self.name, self.outputs, self.max_batch = name, outputs, max_batch
        self.input_range = _range(input_range)
        self.input_shape = None if input_shape is None else shape_of(input_shape)
        self.meter = Meter(max_queries)
        self.classes = classes
        self.in_flight = 1
        self._fixed_batch: int | None = None

    @property
    def max_queries(self) -> int | None:
        """How many queries may be answered in all."""
        return self.meter.max_queries

    @property
    def queries(self) -> int:
        """How many queries have been answered."""
        return self.meter.queries

    def __call__(self, inputs: ArrayLike) -> Array:
        """Return the scores of a batch of inputs, (n, classes), float32 or float64.

        The inputs are rows, (n, dim), or have the model's shape, (n, ...).
        """
        batch = self._batch(inputs)
        granted = self.meter.take(len(batch))
        if granted:
            answers = self._in_parts(batch[:granted])
        self.meter.require(granted, len(batch))
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    def predict(self, inputs: ArrayLike) -> Array:
        """Return the label of the highest score of each input."""
        return np.asarray(np.argmax(self(inputs), axis=1))

    def columns(self, labels: ArrayLike) -> Array:
        """Return the columns of the scores that labels stand for; asks the model nothing.

        A label is the index of its column, unless a kind of model has names for them.
        """
        columns = np.asarray(labels)
        allowed = "whole numbers, columns of the model's scores"
        require(columns.dtype.kind in "iu", "labels", f"an array of {columns.dtype}", allowed)
        check_columns(columns, self.classes)
        return columns.astype(np.int64)

    def log_scores(self, inputs: ArrayLike) -> Array:
        """Return :meth:`log_scores_of` the scores of a batch."""
        return self.log_scores_of(self(inputs))

    def probabilities(self, inputs: ArrayLike) -> Array:
        """Return :meth:`probabilities_of` the scores of a batch."""
        return self.probabilities_of(self(inputs))

    def log_scores_of(self, scores: Array) -> Array:
        """Return scores whose differences are differences of logits; asks the model nothing.

        Logits, log-probabilities and labels stay as they are, of probabilities it is the logarithm.
        A probability below the smallest normal number of its type counts as that number, whose
        logarithm is -87.3 in float32 and -708.4 in float64; so does a log-probability of -inf.
        """
        if self.outputs in ("logits", "labels"):
            return scores
        tiny = np.finfo(scores.dtype).tiny
        if self.outputs == "probabilities":
            return np.asarray(np.log(np.maximum(scores, tiny)))
        return np.where(np.isneginf(scores), np.log(tiny), scores)

    def probabilities_of(self, scores: Array) -> Array:
        """Return the probabilities that scores stand for; asks the model nothing."""
        if self.outputs in ("probabilities", "labels"):
            return scores
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, outputs={self.outputs!r})"

    @abstractmethod
    def _scores(self, batch: Array) -> ArrayLike:
        """Return the scores of a batch that fits; it belongs to the caller, only read it."""

    def _declare(self, shape: Sequence[int | None]) -> None:
        """Adopt the shape that a file or a service declares for a batch; None is open.

        If it fixes the size of a batch, a shorter one is filled up; that is not counted as
        queries.
        """
        if len(shape) < 2:
            raise self._error(f"its input has {len(shape)} axes, not one for the batch and more")
        batch, *inputs = shape
        if self.input_shape is None and None not in inputs:
            self.input_shape = shape_of([size for size in inputs if size is not None])
        elif self.input_shape is not None:
            agree = len(inputs) == len(self.input_shape) and all(
                theirs in (None, ours)
                for theirs, ours in zip(inputs, self.input_shape, strict=True)
            )
            shown = ", ".join("any" if size is None else str(size) for size in inputs)
            require(agree, "input_shape", self.input_shape, f"the shape of {self.name}: ({shown})")
        if batch is not None:
            self._fixed_batch = batch
            self.max_batch = min(self.max_batch or batch, batch)

    def _batch(self, inputs: ArrayLike) -> Array:
        batch = np.asarray(inputs)
        shape = self.input_shape
        fits = batch.ndim >= 2 and len(batch) > 0
        wanted = "a batch of one input or more, the inputs along its first axis"
        if shape is not None:
            fits = fits and batch.shape[1:] in (shape, (math.prod(shape),))
            shapes = dict.fromkeys([("n", *shape), ("n", math.prod(shape))])
            wanted = f"of shape {' or '.join(map(str, shapes))}, n >= 1".replace("'", "")
        require(fits, "inputs", f"an array of shape {batch.shape}", wanted)
        self._check_numbers(batch)
        return batch if shape is None else batch.reshape(-1, *shape)

    def _check_numbers(self, batch: Array) -> None:
        kind, (low, high) = batch.dtype.kind, self.input_range
        require(kind in "fiu", "inputs", f"an array of {batch.dtype}", "of numbers")
        if kind in "iu" and not (batch.min() >= low and batch.max() <= high):
            held = f"whole numbers from {batch.min()} to {batch.max()}"
            raise InvalidValue("inputs", held, f"in the model's input_range, {low:g} to {high:g}")

    def _in_parts(self, batch: Array) -> list[Array]:
        """Return the scores of a batch part by part, several of them under way at a time.

        After a failure nothing more is asked, and what was not asked is not counted.
        """
        size = self.max_batch or len(batch)
        if self.in_flight > 1:  # parts of about the same size, as many for each thread
            many = self.in_flight * math.ceil(len(batch) / (self.in_flight * size))
            size = min(size, max(math.ceil(len(batch) / many), _WORTH_A_PIECE))
        parts = [batch[at : at + size] for at in range(0, len(batch), size)]
        if self.in_flight == 1 or len(parts) == 1:
            answers, asked = [], 0
            try:
                for part in parts:
                    asked += len(part)
                    answers.append(self._answer(part))
            except Exception:
                self.meter.give_back(len(batch) - asked)
                raise
            return answers
        under_way = [self._threads.submit(self._answer, part) for part in parts]
        try:
            return [answer.result() for answer in under_way]
        except BaseException:
            unasked = [len(p) for p, a in zip(parts, under_way, strict=True) if a.cancel()]
            self.meter.give_back(sum(unasked))
            wait(under_way)  # what is being asked is not left behind
            raise

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Threads for the parts of a batch; they end with the model."""
        return ThreadPoolExecutor(self.in_flight, "fedzo-model")

    def _answer(self, part: Array) -> Array:
        batch = _filled(part, self._fixed_batch)
        return self._checked(self._scores(batch), len(batch))[: len(part)]

    def _checked(self, answer: ArrayLike, rows: int) -> Array:
        try:
            scores = np.asarray(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise self._error(f"the answer is not an array: {first_line(error)}") from None
        if self.outputs == "labels":
            return self._one_hot(scores, rows)
        if scores.ndim != 2 or len(scores) != rows or scores.shape[1] < 2:
            wanted = f"({rows}, classes), 2 classes or more"
            raise self._error(f"answered scores of shape {scores.shape}, not {wanted}")
        if scores.shape[1] != (self.classes or scores.shape[1]):
            raise self._error(f"answered {scores.shape[1]} classes, but {self.classes} before")
        if scores.dtype.kind != "f":
            raise self._error(f"answered {scores.dtype}, not floating-point numbers")
        if scores.dtype not in (np.float32, np.float64):
            scores = scores.astype(np.float32 if scores.itemsize < 4 else np.float64)
        self._check_values(scores)
        self.classes = scores.shape[1]
        return scores

    def _one_hot(self, labels: Array, rows: int) -> Array:
        """Return 1 for the label of each input and 0 for the other classes."""
        if labels.shape not in ((rows,), (rows, 1)):
            raise self._error(f"answered labels of shape {labels.shape}, not ({rows},)")
        assert self.classes is not None  # or the model would not have been made
        flat = labels.reshape(-1)
        numbers = flat.dtype.kind in "fiu"
        columns = flat.astype(np.int64) if numbers and np.isfinite(flat).all() else None
        if columns is None or np.any(columns != flat):
            raise self._error(f"answered {flat.dtype}, not whole numbers; is outputs = 'labels'?")
        if columns.min() < 0 or columns.max() >= self.classes:
            held = f"from {columns.min()} to {columns.max()}"
            raise self._error(f"answered labels {held}, not 0 to {self.classes - 1}")
        scores = np.zeros((rows, self.classes), np.float32)
        scores[np.arange(rows), columns] = 1
        return scores

    def _check_values(self, scores: Array) -> None:
        fine = np.isfinite(scores)
        if self.outputs == "log-probabilities":
            fine |= np.isneginf(scores)  # the logarithm of zero
        if not fine.all():
            row, column = np.argwhere(~fine)[0]
            raise self._error(
                f"{(~fine).sum():,} of {fine.size:,} scores are not finite,"
                f" first {scores[row, column]} for class {column} of input {row} of its batch"
            )
        if self.outputs != "logits":
            self._check_probabilities(scores)

    def _check_probabilities(self, scores: Array) -> None:
        hint = f"; outputs = {self.outputs!r} does not fit this model"
        with np.errstate(over="ignore"):
            chances = scores if self.outputs == "probabilities" else np.exp(scores)
            sums = chances.sum(axis=1)
        if chances.min() < 0 or chances.max() > 1 + _ROUNDING:
            span = f"from {chances.min():g} to {chances.max():g}"
            raise self._error(f"answered probabilities {span}, not in [0, 1]{hint}")
        worst = sums[np.argmax(np.abs(sums - 1))]
        if abs(worst - 1) > _ROUNDING + self._lost_by_rounding(scores):
            raise self._error(f"answered probabilities that sum to {worst:g}, not to 1{hint}")

    def _lost_by_rounding(self, scores: Array) -> float:
        """Return how far from one probabilities may sum that are rounded to a digit or more."""
        step = step_of(scores) if self.outputs == "probabilities" else None
        return 0.0 if step is None or step == 1 else scores.shape[1] * step / 2

    def _error(self, problem: str) -> ModelError:
        return ModelError(self.name, problem)


def check_columns(columns: Array, classes: int | None) -> None:
    """Refuse columns that the scores do not have; without their number, only negative ones."""
    lowest, highest = (int(columns.min()), int(columns.max())) if columns.size else (0, 0)
    fits = lowest >= 0 and (classes is None or highest < classes)
    last = "" if classes is None else f" to {classes - 1}"
    allowed = f"columns of the model's scores, 0{last or ' and up'}"
    require(fits, "labels", f"from {lowest} to {highest}", allowed)


def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one input, checked."""
    allowed = "whole numbers >= 1, one for each axis of an input"
    require(isinstance(shape, list | tuple) and len(shape) > 0, "input_shape", shape, allowed)
    for size in shape:
        whole = isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 1
        require(bool(whole), "input_shape", shape, allowed)
    return tuple(int(size) for size in shape)


def _filled(batch: Array, size: int | None) -> Array:
    """Return a batch filled up with its last input, for a model of a fixed batch size."""
    if size is None or len(batch) == size:
        return batch
    return np.concatenate([batch, np.repeat(batch[-1:], size - len(batch), axis=0)])


def _range(bounds: Any) -> tuple[float, float]:
    allowed = "two finite numbers, the smaller first"
    require(not isinstance(bounds, str), "input_range", bounds, allowed)
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise InvalidValue("input_range", bounds, allowed) from None
    require(-math.inf < low < high < math.inf, "input_range", bounds, allowed)
    return low, high
