"""A scikit-learn classifier."""

import math
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.types import Array
from fedzo.errors import UsageError, first_line, one_of, require
from fedzo.models.base import Common, Model

_ANSWERS = {"probabilities": "predict_proba", "labels": "predict"}


class SklearnModel(Model):
    """A fitted classifier or pipeline with ``predict_proba`` or ``predict``.

    Labels are the ``classes_`` of the estimator: names, or numbers that need not begin with zero.
    Without ``classes_``, a label is the index of its column.

    Parameters
    ----------
    estimator
        The fitted classifier. It receives flat rows, independently of ``input_shape``.
    outputs
        "probabilities", or "labels" to use ``predict`` only. None: probabilities, if the estimator
        has them.
    **common
        ``input_range``, ``input_shape``, ``max_queries``, ``max_batch`` and ``classes`` of
        :class:`~fedzo.models.Model`. The shape is taken from the estimator if it is not given.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0]], ["cat", "dog"])
    >>> model = SklearnModel(fitted)
    >>> model.predict([[0.1], [0.9]]).tolist(), model.columns(["dog"]).tolist()
    (['cat', 'dog'], [1])
    """

    def __init__(
        self, estimator: Any, outputs: str | None = None, **common: Unpack[Common]
    ) -> None:
        name = type(estimator).__name__
        if isinstance(estimator, type):
            message = f"{estimator.__name__} is a class: give a fitted estimator"
            raise UsageError(message, code="not-an-estimator")
        likely = callable(getattr(estimator, "predict_proba", None))
        outputs = outputs or ("probabilities" if likely else "labels")
        require(outputs in _ANSWERS, "outputs", outputs, one_of(_ANSWERS))
        asked = _ANSWERS[outputs]
        if not callable(getattr(estimator, asked, None)):
            message = f"{name} has no {asked}, which outputs = {outputs!r} needs"
            raise UsageError(message, code="no-such-outputs")
        labels = list(getattr(estimator, "classes_", ()))
        several = any(np.ndim(label) for label in labels)  # several outputs with their own classes
        self._labels = np.array([] if several else labels)
        if self._labels.size:
            common = {**common, "classes": self._labels.size}
        super().__init__(name, outputs, **common)
        self._ask = getattr(estimator, asked)
        features = getattr(estimator, "n_features_in_", None)
        if features is not None:
            self.input_shape = self.input_shape or (int(features),)
            fits = math.prod(self.input_shape) == features
            allowed = f"of {features} numbers, as {name} takes"
            require(fits, "input_shape", self.input_shape, allowed)
        self.estimator = estimator

    def predict(self, inputs: ArrayLike) -> Array:
        """Return the label, one of ``classes_``, with the highest score of each input."""
        columns = super().predict(inputs)
        return self._labels[columns] if self._labels.size else columns

    def columns(self, labels: ArrayLike) -> Array:
        """Return the column of the scores that belongs to each label, one of ``classes_``."""
        if not self._labels.size:
            return super().columns(labels)
        places = {label: column for column, label in enumerate(self._labels.tolist())}
        given = np.asarray(labels).tolist()
        for label in given:
            allowed = f"of the classes that {self.name} knows, {one_of(places)}"
            require(label in places, "labels", label, allowed)
        return np.array([places[label] for label in given], np.int64)

    def _scores(self, batch: Array) -> ArrayLike:
        try:
            answer = self._ask(batch.reshape(len(batch), -1))
        except ValueError as error:  # not fitted, or not for such inputs
            raise self._error(first_line(error), "run-failed") from error
        if self.outputs == "labels" and self._labels.size:
            return self.columns(answer)
        return answer  # type: ignore[no-any-return]
