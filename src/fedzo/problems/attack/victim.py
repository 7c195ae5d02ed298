"""The model under attack as devices ask it: together, within its budget, and until it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.batching import Answer, QueryBatcher
from fedzo.errors import Halted, ModelError
from fedzo.models import Model

Array = NDArray[Any]

_SIDE_BY_SIDE = 32  # devices at most
_NUMBERS = 1 << 21  # in the directions of all of them, about: a few hundred MB with all else


class Question(NamedTuple):
    """Inputs to be answered, (n, d): all or none, unless the first of them will do.

    Only for an evaluation are those queries used that are reserved for it.
    """

    inputs: Array
    may_be_cut: bool
    evaluates: bool


class Victim:
    """A model, asked by several devices at a time in one batch.

    Parameters
    ----------
    model : Model
        Whom to ask.
    shape : tuple of int
        The shape of an input, where the model does not say it.
    dim : int
        How many numbers an input has.

    Attributes
    ----------
    reserved : int
        How many queries are left for an evaluation by whatever else asks.
    evaluated : bool
        Whether there is a perturbation to keep: then a model that fails ends the run in order.
    failure : ModelError, optional
        What ended the run, if the model did.
    """

    def __init__(self, model: Model, shape: tuple[int, ...], dim: int) -> None:
        self.model, self._shape = model, model.input_shape or shape
        self.batcher = QueryBatcher(self._answer, max(1, min(_SIDE_BY_SIDE, _NUMBERS // dim)))
        self.reserved, self.evaluated = 0, False
        self.failure: ModelError | None = None

    def ask(self, inputs: Array, *, may_be_cut: bool = False, evaluates: bool = False) -> Array:
        """Return scores, fewer than inputs where a question was cut; BudgetSpent if there are none.

        What devices ask at the same time goes to the model as one batch.
        """
        return self.batcher.ask(Question(inputs, may_be_cut, evaluates))

    def _answer(self, questions: list[Question]) -> Sequence[Answer]:
        sizes = np.array([len(question.inputs) for question in questions])
        left = self.model.meter.left
        if left is not None:
            left -= 0 if questions[0].evaluates else self.reserved  # as all do, or none
            granted = (left - (np.cumsum(sizes) - sizes)).clip(0, sizes)
            whole = np.array([not question.may_be_cut for question in questions])
            sizes = np.where(whole & (granted < sizes), 0, granted)
        spent = self.model.meter.spent()
        if not sizes.any():
            return [spent] * len(questions)
        inputs = [q.inputs[:size] for q, size in zip(questions, sizes, strict=True)]
        scores = self._scores(inputs[0] if len(inputs) == 1 else np.concatenate(inputs))
        parts = np.split(scores, np.cumsum(sizes)[:-1])
        return [part if len(part) else spent for part in parts]

    def _scores(self, inputs: Array) -> Array:
        try:
            return self.model(inputs.reshape(-1, *self._shape))
        except ModelError as error:
            if not self.evaluated:
                raise
            self.failure = error
            raise Halted(str(error)) from error
