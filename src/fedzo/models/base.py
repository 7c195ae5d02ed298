"""The base class of black boxes, and the simplest of them, a Python function.

A model takes a batch of inputs and returns one row of scores per input.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from time import sleep
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.budget import Meter
from fedzo.core.importing import call_user
from fedzo.core.types import Array
from fedzo.errors import (
    ModelError,
    UsageError,
    check_choice,
    check_count,
    check_unmasked,
    first_line,
    require,
)

OUTPUTS = ("logits", "probabilities", "log-probabilities", "labels")
NETWORK_NUMBERS = 1 << 22  # in the inputs of a part, for a network in this process
_SMALLEST_PART = 16  # inputs: a batch is not shared among threads in smaller parts
_SUM_TOLERANCE = 1e-3  # of the sum of a model's probabilities
Write = Callable[[Array, int], None]
LONGEST_WAIT = 300.0  # seconds; a longer ``Retry-After`` is reported as an error
_DECIMALS = 4  # scores with more decimals count as exact


class Common(TypedDict, total=False):
    """The settings of every kind of model; :class:`Model` explains them."""

    input_range: Sequence[float]
    input_shape: Sequence[int] | None
    max_queries: int | None
    max_batch: int | None
    classes: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None


class LazyBatch:
    """A batch that is written a part at a time, when a model asks for that part.

    A part is then still in the cache of the thread that evaluates it.

    Parameters
    ----------
    pieces
        For each piece of the batch its length and a function ``write(out, start)``, which writes
        the inputs from ``start`` on into ``out``, (n, dim).
    shape
        The shape of one input.

    Examples
    --------
    >>> def ones(out, start):
    ...     out[:] = 1
    >>> LazyBatch([(2, ones), (3, ones)], (4,))[1:4].shape
    (3, 4)
    """

    def __init__(self, pieces: Sequence[tuple[int, Write]], shape: tuple[int, ...]) -> None:
        self._pieces, self._shape = pieces, shape

    def __len__(self) -> int:
        return sum(count for count, _ in self._pieces)

    def __getitem__(self, part: slice) -> Array:
        start, stop, _ = part.indices(len(self))
        out = np.empty((stop - start, math.prod(self._shape)), np.float32)
        first = 0  # of a piece
        for count, write in self._pieces:
            begin, end = max(start, first), min(stop, first + count)
            if begin < end:
                write(out[begin - start : end - start], begin - first)
            first += count
        return out.reshape(-1, *self._shape)


def copying(inputs: Array) -> Write:
    """Return what writes inputs that exist, (n, dim), as a piece of a :class:`LazyBatch`."""

    def write(out: Array, start: int) -> None:
        out[:] = inputs[start : start + len(out)]

    return write


class Model(ABC):
    """A classifier that is queried for scores only, and counts the queries.

    One query is one input that is answered. All threads together get exactly as many answers as
    the budget allows. If a batch exceeds the rest of the budget, only its first inputs are queried,
    and then :class:`~fedzo.errors.BudgetSpent` is raised. A batch that fails stays counted, since
    the model may have processed it.

    Parameters
    ----------
    name
        The name of the model in error messages.
    outputs
        The kind of scores: "logits", "probabilities", "log-probabilities", or "labels". A model
        that returns one label per input has a score of 1 for this label and 0 for the others.
    input_range
        The smallest and the largest number that an input may hold. Not enforced, except for whole
        numbers: bytes from 0 to 255 are rejected by a model with the range [0, 1].
    input_shape
        The shape of one input, to which batches are reshaped. None: batches keep their shape.
    max_queries
        The query budget; None: unlimited.
    max_batch
        The largest batch that the model receives at once; larger ones are split.
    classes
        The number of classes. Required if the outputs are labels, found out otherwise.
    mean, std
        Normalise inputs by (z - mean) / std before the model, with one number per channel, the
        first or last axis of an input. The query inputs stay in ``input_range``.

    Attributes
    ----------
    classes : int or None
        The number of scores per input; None until it is known.
    in_flight : int
        How many parts of a batch may be processed at the same time.

    Examples
    --------
    A custom kind of model defines one method:

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

    # In the inputs of a part: the layers of a network in this process need many times as much.
    _most_numbers: int | None = None

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
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        check_choice("outputs", outputs, OUTPUTS)
        if max_batch is not None:
            check_count("max_batch", max_batch)
        if classes is not None or outputs == "labels":
            check_count("classes", classes, least=2)
        self.name, self.outputs, self.max_batch = name, outputs, max_batch
        self.input_range = range_of(input_range)
        self.input_shape = None if input_shape is None else shape_of(input_shape)
        self.moments = _moments(mean, std)
        self.meter = Meter(max_queries)
        self.classes = classes
        self.in_flight = 1
        self._fixed_batch: int | None = None

    @property
    def max_queries(self) -> int | None:
        """The query budget; None: unlimited."""
        return self.meter.max_queries

    @property
    def queries(self) -> int:
        """The number of queries so far."""
        return self.meter.queries

    def __call__(self, inputs: ArrayLike | LazyBatch) -> Array:
        """Return the scores of a batch, shape (n, classes), float32 or float64.

        The inputs are rows, (n, dim), or have the model's input shape, (n, ...).
        """
        batch: Any = inputs if isinstance(inputs, LazyBatch) else self._batch(inputs)
        granted, log = self.meter.take(len(batch)), self.meter.log
        if granted:
            if granted < len(batch) or log.active:
                batch = batch[:granted]
            scores = log.answer(0, batch, lambda: self._in_parts(batch))
            self.classes = scores.shape[1]
        self.meter.require(granted, len(inputs))  # type: ignore[arg-type]
        return scores

    def predict(self, inputs: ArrayLike) -> Array:
        """Return the label with the highest score of each input, shape (n,)."""
        return np.asarray(np.argmax(self(inputs), axis=1))

    def columns(self, labels: ArrayLike) -> Array:
        """Return the column of the scores that each label stands for, without a query.

        A label is the index of its column, unless the kind of model has names for its classes.
        """
        columns = np.asarray(labels)
        allowed = "whole numbers, columns of the model's scores"
        require(columns.dtype.kind in "iu", "labels", f"an array of {columns.dtype}", allowed)
        check_columns(columns, self.classes)
        return columns.astype(np.int64)

    def probabilities(self, inputs: ArrayLike) -> Array:
        """Return :meth:`probabilities_of` the scores of a batch."""
        return self.probabilities_of(self(inputs))

    def log_scores_of(self, scores: Array) -> Array:
        """Return scores whose differences are differences of logits, without a query.

        These are the logarithms of probabilities; other scores are unchanged. A probability below
        the smallest normal number of its type counts as that number, whose logarithm is -87.3 in
        float32 and -708.4 in float64. The same holds for a log-probability of -inf.
        """
        if self.outputs in ("logits", "labels"):
            return scores
        tiny = np.finfo(scores.dtype).tiny
        if self.outputs == "probabilities":
            return np.asarray(np.log(np.maximum(scores, tiny)))
        return np.where(np.isneginf(scores), np.log(tiny), scores)

    def probabilities_of(self, scores: Array) -> Array:
        """Return the probabilities that scores stand for, without a query."""
        if self.outputs in ("probabilities", "labels"):
            return scores
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, outputs={self.outputs!r})"

    @abstractmethod
    def _scores(self, batch: Array) -> ArrayLike:
        """Return the scores of a batch of valid shape, which must not be changed."""

    def _declare(self, shape: Sequence[int | None]) -> None:
        """Adopt the batch shape that a file or a service declares, None for an open axis.

        If the batch size is fixed, shorter batches are padded; padding does not count as queries.
        """
        if len(shape) < 2:
            raise self._error(f"its input has {len(shape)} axes, expected 2 or more", "input-axes")
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
        check_unmasked("inputs", inputs)
        batch = np.asarray(inputs)
        shape = self.input_shape
        fits = batch.ndim >= 2 and len(batch) > 0
        wanted = "a batch of one input or more, the inputs along its first axis"
        if shape is not None:
            fits = fits and batch.shape[1:] in (shape, (math.prod(shape),))
            shapes = dict.fromkeys([("n", *shape), ("n", math.prod(shape))])
            wanted = f"of shape {' or '.join(map(str, shapes))}, n >= 1".replace("'", "")
        require(fits, "inputs", f"an array of shape {batch.shape}", wanted)
        kind, (low, high) = batch.dtype.kind, self.input_range
        require(kind in "fiu", "inputs", f"an array of {batch.dtype}", "of numbers")
        if kind in "iu":
            fits = bool(batch.min() >= low and batch.max() <= high)
            held = f"whole numbers from {batch.min()} to {batch.max()}"
            require(fits, "inputs", held, f"in the model's input_range, {low:g} to {high:g}")
        return batch if shape is None else batch.reshape(-1, *shape)

    def _in_parts(self, batch: Array | LazyBatch) -> Array:
        """Return the scores of a batch, several parts of it processed at the same time.

        After a failure, no further part is started, and parts not started are not counted.
        """
        size = self.max_batch or len(batch)
        if self._most_numbers is not None:
            size = min(size, max(1, self._most_numbers // batch[:1].size))
        if self.in_flight > 1:  # parts of about equal size, equally many per thread
            many = self.in_flight * math.ceil(len(batch) / (self.in_flight * size))
            size = min(size, max(math.ceil(len(batch) / many), _SMALLEST_PART))
        parts = [slice(at, at + size) for at in range(0, len(batch), size)]
        started: list[int] = []
        under_way: list[Future[Array]] = []

        def answer(part: slice) -> Array:
            some = batch[part]
            started.append(len(some))
            return self._answer(some)

        try:
            if self.in_flight == 1 or len(parts) == 1:
                answers = [answer(part) for part in parts]
            else:
                under_way = [self._threads.submit(answer, part) for part in parts]
                answers = [future.result() for future in under_way]
        except BaseException:
            for future in under_way:
                future.cancel()
            wait(under_way)  # no query outlives the call
            self.meter.give_back(len(batch) - sum(started))
            raise
        return answers[0] if len(answers) == 1 else np.concatenate(answers)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """Threads for the parts of a batch, which end with the model."""
        return ThreadPoolExecutor(self.in_flight, "fedzo-model")

    def _answer(self, part: Array) -> Array:
        batch, size = part, self._fixed_batch
        if size is not None and len(part) < size:  # pad with the last input
            batch = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
        if self.moments is not None:
            batch = self._normalised(batch, *self.moments)
        return self._checked(self._scores(batch), len(batch))[: len(part)]

    def _normalised(self, batch: Array, mean: Array, std: Array) -> Array:
        """Return (z - mean) / std, with the channels along the first or last axis of an input."""
        shape = batch.shape[1:]
        first = len(mean) == shape[0]
        if not first and (len(mean) != shape[-1] or shape[0] in (1, 3)):
            problem = f"mean has {len(mean)} numbers, but inputs are of shape {shape}"
            raise self._error(problem, "channels")
        along = [-1, *[1] * (len(shape) - 1)] if first else [-1]
        return np.asarray((batch - mean.reshape(along)) / std.reshape(along))

    def _checked(self, answer: ArrayLike, rows: int) -> Array:
        if np.ma.is_masked(answer):
            raise self._error("the answer has masked numbers", "not-finite")
        try:
            scores = np.asarray(answer)
        except (ValueError, TypeError, RuntimeError) as error:
            raise self._error(f"the answer is not an array: {first_line(error)}", "shape") from None
        if self.outputs == "labels":
            return self._one_hot(scores, rows)
        if scores.ndim != 2 or len(scores) != rows or scores.shape[1] < 2:
            wanted = f"({rows}, classes), 2 classes or more"
            raise self._error(f"answered scores of shape {scores.shape}, not {wanted}", "shape")
        if scores.shape[1] != (self.classes or scores.shape[1]):
            problem = f"answered {scores.shape[1]} classes, but {self.classes} before"
            raise self._error(problem, "classes-changed")
        if scores.dtype.kind != "f":
            raise self._error(f"answered {scores.dtype}, not floating-point numbers", "dtype")
        if scores.dtype not in (np.float32, np.float64):
            scores = scores.astype(np.float32 if scores.itemsize < 4 else np.float64)
        self._check_values(scores)
        self.classes = scores.shape[1]
        return scores

    def _one_hot(self, labels: Array, rows: int) -> Array:
        """Return 1 for the label of each input and 0 for the other classes."""
        if labels.shape not in ((rows,), (rows, 1)):
            raise self._error(f"answered labels of shape {labels.shape}, not ({rows},)", "shape")
        assert self.classes is not None  # checked by the constructor
        flat = labels.reshape(-1)
        if flat.dtype.kind not in "fiu" or np.any(flat % 1 != 0):  # also for NaN and inf
            raise self._error(f"answered {flat.dtype}, not whole numbers, as labels", "dtype")
        if flat.min() < 0 or flat.max() >= self.classes:
            held = f"labels from {flat.min():.0f} to {flat.max():.0f}"
            raise self._error(f"answered {held}, not 0 to {self.classes - 1}", "unknown-label")
        return np.eye(self.classes, dtype=np.float32)[flat.astype(np.int64)]

    def _check_values(self, scores: Array) -> None:
        fine = np.isfinite(scores)
        if self.outputs == "log-probabilities":
            fine |= np.isneginf(scores)  # the logarithm of zero
        if not fine.all():
            row, column = np.argwhere(~fine)[0]
            where = f"{scores[row, column]} for class {column} of input {row} of its batch"
            problem = f"{(~fine).sum():,} of {fine.size:,} scores are not finite, first {where}"
            raise self._error(problem, "not-finite")
        if self.outputs == "logits":
            return
        with np.errstate(over="ignore"):
            chances = scores if self.outputs == "probabilities" else np.exp(scores)
            sums = chances.sum(axis=1)
        worst = sums[np.argmax(np.abs(sums - 1))]
        step = rounding_step(scores) if self.outputs == "probabilities" else None
        rounded = 0.0 if step is None or step == 1 else scores.shape[1] * step / 2
        answered = ""
        if chances.min() < 0 or chances.max() > 1 + _SUM_TOLERANCE:
            answered = f"from {chances.min():g} to {chances.max():g}, not in [0, 1]"
        elif abs(worst - 1) > _SUM_TOLERANCE + rounded:
            answered = f"that sum to {worst:g}, not to 1"
        if answered:
            problem = f"answered probabilities {answered}; outputs = {self.outputs!r} does not fit"
            raise self._error(f"{problem} this model", "not-probabilities")

    def _error(self, problem: str, code: str | None = None) -> ModelError:
        return ModelError(self.name, problem, code)


class FunctionModel(Model):
    """A function that takes a batch of inputs and returns one row of scores per input.

    The function receives a copy of the batch, so it may work in place. With several workers, it
    must be safe to call from several threads. Its exceptions are passed on. Failures of a
    connection are retried first: an OSError, or an exception with the ``response`` of a service
    whose status is 429 or 5xx, as ``requests`` and ``httpx`` raise. ``Retry-After`` is respected.

    Parameters
    ----------
    fun
        batch -> scores: (n, ...) of the model's input shape to (n, classes).
    outputs
        The kind of scores: "logits", "probabilities", "log-probabilities" or "labels".
    in_flight
        The number of calls at the same time, each with a part of the batch.
    retries
        The number of further attempts after a failed connection.
    backoff
        Seconds to wait before the first retry, doubled before each further one.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`.

    Examples
    --------
    >>> import numpy as np
    >>> weights = np.array([[1.0, -1.0], [0.0, 2.0]])
    >>> model = FunctionModel(lambda batch: batch @ weights, input_shape=(2,))
    >>> model([[1.0, 0.0], [0.5, 0.5]])
    array([[ 1. , -1. ],
           [ 0.5,  0.5]])
    """

    def __init__(
        self,
        fun: Callable[[Array], ArrayLike],
        outputs: str = "logits",
        *,
        in_flight: int = 1,
        retries: int = 3,
        backoff: float = 0.5,
        **common: Unpack[Common],
    ) -> None:
        if not callable(fun):
            raise UsageError(f"{fun!r} is not a function of a batch of inputs")
        super().__init__(getattr(fun, "__name__", type(fun).__name__), outputs, **common)
        check_count("in_flight", in_flight)
        check_count("retries", retries, least=0)
        require(backoff > 0, "backoff", backoff, "a number > 0")
        self.fun, self.in_flight, self.retries, self.backoff = fun, in_flight, retries, backoff

    def _scores(self, batch: Array) -> ArrayLike:
        return call_user(self._patiently, batch)

    def _patiently(self, batch: Array) -> ArrayLike:
        """Call the function, again after each failure of a connection."""
        for number in range(self.retries):
            try:
                return self.fun(batch.copy())
            except Exception as error:
                response = getattr(error, "response", None)
                status = getattr(error, "code", getattr(response, "status_code", None))
                final = isinstance(status, int) and status != 429 and status < 500
                if final or (response is None and not isinstance(error, OSError)):
                    raise  # not a failure of a connection
                headers = getattr(error, "headers", getattr(response, "headers", None)) or {}
                seconds = retry_after(headers, self.backoff * 2.0**number)
                if seconds > LONGEST_WAIT:
                    raise
                sleep(seconds)
        return self.fun(batch.copy())


def retry_after(headers: Any, default: float) -> float:
    """Return the seconds in ``Retry-After``, which is a number or a date, or the default.

    >>> retry_after({"Retry-After": "7"}, 0.5), retry_after({"Retry-After": "soon"}, 0.5)
    (7.0, 0.5)
    """
    asked = str(headers.get("Retry-After", "")).strip()
    if asked.isdecimal():
        return float(asked)
    try:
        until = parsedate_to_datetime(asked)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return default  # absent, not a date, or a date without a time zone


def rounding_step(scores: Array) -> float | None:
    """Return the step between scores that are rounded to few decimals; None if they are not.

    >>> rounding_step(np.array([[0.25, 0.75], [0.5, 0.5]])), rounding_step(np.array([[0.0, 1.0]]))
    (0.01, 1.0)
    >>> rounding_step(np.array([[1 / 3, 2 / 3]], np.float32)) is None
    True
    """
    exact = scores.astype(np.float64)
    close = 4 * np.finfo(scores.dtype).eps * np.maximum(np.abs(exact), 1e-3)
    for decimals in range(_DECIMALS + 1):
        if np.all(np.abs(np.round(exact, decimals) - exact) <= close):
            return float(10.0**-decimals)
    return None


def check_columns(columns: Array, classes: int | None, key: str = "labels") -> None:
    """Reject columns that the scores do not have. ``classes`` is their number, None if unknown."""
    lowest, highest = (int(columns.min()), int(columns.max())) if columns.size else (0, 0)
    fits = lowest >= 0 and (classes is None or highest < classes)
    last = "" if classes is None else f" to {classes - 1}"
    allowed = f"columns of the model's scores, 0{last or ' and up'}"
    require(fits, key, f"from {lowest} to {highest}", allowed)


def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a valid shape of one input."""
    sizes = list(shape) if isinstance(shape, list | tuple) else []
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in sizes)
    fits = bool(sizes) and whole and min(sizes) >= 1
    require(fits, "input_shape", shape, "whole numbers >= 1, one for each axis of an input")
    return tuple(int(size) for size in sizes)


def _numbers(key: str, given: Any, allowed: str) -> list[float]:
    """Return one or several finite numbers, checked."""
    numbers = list(given) if isinstance(given, list | tuple | np.ndarray) else [given]
    fits = all(isinstance(n, int | float | np.number) and math.isfinite(n) for n in numbers)
    require(bool(numbers) and fits, key, given, allowed)
    return [float(number) for number in numbers]


def range_of(bounds: Any, key: str = "input_range") -> tuple[float, float]:
    """Return a valid range of inputs."""
    allowed = "two finite numbers, the smaller first"
    numbers = _numbers(key, bounds, allowed)
    require(len(numbers) == 2 and numbers[0] < numbers[1], key, bounds, allowed)
    return numbers[0], numbers[1]


def _moments(mean: Any, std: Any) -> tuple[Array, Array] | None:
    """Return mean and std per channel, or None if they are not given."""
    require((mean is None) == (std is None), "std", std, "given if and only if mean is given")
    if mean is None:
        return None
    allowed = "finite numbers, one per channel"
    means, stds = (_numbers(key, given, allowed) for key, given in (("mean", mean), ("std", std)))
    fits = len(means) == len(stds) and min(stds) > 0
    require(fits, "std", std, f"{len(means)} numbers above 0, as many as mean has")
    return np.array(means, np.float32), np.array(stds, np.float32)
