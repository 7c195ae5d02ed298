"""The attacked model: several devices query it in one batch, within one budget."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedzo.core.batching import Answer, QueryBatcher
from fedzo.core.types import Array
from fedzo.errors import Halted, ModelError
from fedzo.models import Model
from fedzo.models.base import LazyBatch, Write, copying
from fedzo.problems.attack.detector import Detector

_DEVICES_AT_ONCE = 32
_NUMBERS = 1 << 21  # in the directions of all devices at once: a few hundred MB with all else


class Question(NamedTuple):
    """Inputs to evaluate: how many, and what writes them, as a piece of a ``LazyBatch``."""

    size: int
    write: Write
    least: int  # an answer to fewer of them, the first, is of no use
    evaluates: bool  # whether it may use the queries that are reserved for evaluations


class Victim:
    """The attacked model, which several devices query in one batch.

    Parameters
    ----------
    model : Model
        The black box.
    shape : tuple of int
        The shape of an input, if the model does not know it.
    dim : int
        The number of values of an input.

    Attributes
    ----------
    reserved : int
        The number of queries that only evaluations may use.
    evaluated : bool
        Whether a perturbation was evaluated: from then on a failing model ends the run normally.
    failure : ModelError, optional
        The failure of the model that ended the run.
    detector : Detector, optional
        Watches the queries, for the report.
    """

    def __init__(self, model: Model, shape: tuple[int, ...], dim: int) -> None:
        self.model, self._shape = model, model.input_shape or shape
        at_once = max(1, min(_DEVICES_AT_ONCE, _NUMBERS // dim))
        self.batcher = QueryBatcher(self._answer, at_once)
        self.reserved, self.evaluated = 0, False
        self.detector: Detector | None = None
        self.failure: ModelError | None = None

    def ask(self, count: int, write: Write, least: int) -> Array:
        """Return the scores of ``count`` inputs, or of the ``least`` first of them or more.

        Raises :class:`~fedzo.errors.BudgetSpent` if the budget does not allow so many.
        """
        return self.batcher.ask(Question(count, write, least, evaluates=False))

    def evaluate(self, inputs: Array) -> Array:
        """Return the scores of inputs, (n, d); may use the queries reserved for evaluations."""
        count = len(inputs)
        return self.batcher.ask(Question(count, copying(inputs), count, evaluates=True))

    def predictions(self, inputs: Array) -> Array | None:
        """Return the predictions of inputs, or None without enough queries for all of them."""
        try:
            return np.asarray(self.evaluate(inputs).argmax(axis=1))
        except Halted:
            return None

    def _answer(self, questions: list[Question]) -> Sequence[Answer]:
        sizes = np.array([question.size for question in questions])
        left = self.model.meter.left
        if left is not None:
            left -= 0 if questions[0].evaluates else self.reserved  # the same for all of a group
            granted = (left - (np.cumsum(sizes) - sizes)).clip(0, sizes)
            least = np.array([question.least for question in questions])
            sizes = np.where(granted < least, 0, granted)
        spent = self.model.meter.spent()
        if not sizes.any():
            return [spent] * len(questions)
        pieces = [(int(n), question.write) for n, question in zip(sizes, questions, strict=True)]
        scores = self._scores(LazyBatch(pieces, self._shape))
        parts = np.split(scores, np.cumsum(sizes)[:-1])
        return [part if len(part) else spent for part in parts]

    def _scores(self, inputs: LazyBatch) -> Array:
        if self.detector is not None:
            self.detector.watch(inputs, self.model.input_range, self.model.meter.queries)
        try:
            return self.model(inputs)
        except ModelError as error:
            if not self.evaluated:
                raise
            self.failure = error
            raise Halted(str(error)) from error
