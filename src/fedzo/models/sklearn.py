"""A scikit-learn classifier as a black box."""

from __future__ import annotations

import math
from typing import Any, Unpack

from numpy.typing import ArrayLike

from fedzo.errors import UsageError, require
from fedzo.models.base import Array, Common, Model


class SklearnModel(Model):
    """Anything with ``predict_proba`` over rows: a fitted classifier, a pipeline.

    A label is the index of its column, which is its place in the estimator's ``classes_``.

    Parameters
    ----------
    estimator
        The fitted classifier. It is given flat rows, whatever ``input_shape`` is.
    **common
        ``input_range``, ``input_shape``, ``budget`` and ``max_batch`` of
        :class:`~fedzo.models.Model`. The shape is taken from the estimator if it is not given.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> fitted = LogisticRegression().fit([[0.0], [1.0]], ["cat", "dog"])
    >>> model = SklearnModel(fitted)
    >>> fitted.classes_[model.predict([[0.1], [0.9]])].tolist()
    ['cat', 'dog']
    """

    def __init__(self, estimator: Any, **common: Unpack[Common]) -> None:
        name = type(estimator).__name__
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

    def _scores(self, batch: Array) -> ArrayLike:
        return self.estimator.predict_proba(batch.reshape(len(batch), -1))  # type: ignore[no-any-return]
