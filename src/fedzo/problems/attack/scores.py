"""What a model's scores say of inputs: margins."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.models import Model
from fedzo.models.base import check_columns, rounding_step

Array = NDArray[Any]

MARGINS = ("logits", "confidences")


def margins(
    model: Model,
    scores: Array,
    labels: Array,
    target: int | None,
    margin: str,
    may_be_rounded: bool,
) -> Array:
    """Return by how much the right class leads any other, or any other class the target.

    Of probabilities that are rounded, if they may be, it is that of the confidences: logarithms
    would make a lot of the step from 0 to 0.01.

    >>> from fedzo.models import FunctionModel
    >>> model = FunctionModel(len, outputs="logits")
    >>> margins(model, np.array([[1.0, 3.0, 2.5]]), np.array([1]), None, "logits", False)
    array([0.5])
    >>> margins(model, np.array([[1.0, 3.0, 2.5]]), np.array([1]), 0, "logits", False)
    array([2.])
    """
    if target is not None:
        labels = np.full(len(labels), target)
    check_columns(labels, scores.shape[1])  # which a model may not tell before it answers
    rounded = (
        may_be_rounded and model.outputs == "probabilities" and rounding_step(scores) is not None
    )
    confidences = rounded or margin == "confidences"
    of = model.probabilities_of if confidences else model.log_scores_of
    scores = of(scores).astype(np.float64)
    rows = np.arange(len(labels))
    own = scores[rows, labels]
    scores[rows, labels] = -np.inf
    lead = np.asarray(own - scores.max(axis=1))
    return lead if target is None else -lead
