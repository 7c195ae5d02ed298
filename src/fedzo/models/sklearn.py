"""A scikit-learn classifier as a black box."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo.errors import UsageError, first_line, one_of, require
from fedzo.models.base import Array, Common, Model


class SklearnModel(Model):
    """Anything with ``predict_proba`` over rows: a fitted classifier, a pipeline.

    Its labels are those that the estimator was fitted to, its ``classes_``: names, or numbers
    that need not begin with zero. Without ``classes_`` a label is the index of its column.

    Parameters
    ----------
    estimator
        The fitted classifier. It is given flat rows, whatever ``input_shape`` is.
    **common
        ``input_range``, ``input_shape``, ``max_queries`` and ``max_batch`` of
        :class:`~fedzo.models.Model`. The shape is taken from the estimator if it is not given.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0]], ["cat", "dog"])
    >>> model = SklearnModel(fitted)
    >>> model.predict([[0.1], [0.9]]).tolist(), model.columns(["dog"]).tolist()
    (['cat', 'dog'], [1])
    """

    def __init__(self, estimator: Any, **common: Unpack[Common]) -> None:
        name = type(estimator).__name__
        if isinstance(estimator, type):
            raise UsageError(f"{estimator.__name__} is a class: give a fitted estimator of it")
        if not callable(getattr(estimator, "predict_proba", None)):
            raise UsageError(f"{name} has no predict_proba: it cannot tell how likely a class is")
        super().__init__(name, "probabilities", **common)
        features = getattr(estimator, "n_features_in_", None)
        if features is not None:
            self.input_shape = self.input_shape or (int(features),)
            fits = math.prod(self.input_shape) == features
            require(
                fits, "input_shape", self.input_shape, f"of {features} numbers, as {name} takes"
            )
        self.estimator = estimator
        labels = list(getattr(estimator, "classes_", ()))
        several = any(np.ndim(label) for label in labels)  # outputs, each with classes of its own
        self._labels = np.array([] if several else labels)
        self.classes = self._labels.size or None

    def predict(self, inputs: ArrayLike) -> Array:
        """Return the estimator's own label of the highest score of each input."""
        columns = super().predict(inputs)
        return self._labels[columns] if self._labels.size else columns

    def columns(self, labels: ArrayLike) -> Array:
        """Return the columns of the scores that belong to the estimator's own labels."""
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
            return self.estimator.predict_proba(batch.reshape(len(batch), -1))  # type: ignore[no-any-return]
        except ValueError as error:  # not fitted, or not for such inputs
            raise self._error(first_line(error)) from error
