"""What a model's scores say of inputs: margins, and how finely they are told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.models import Model
from fedzo.models.base import check_columns

Array = NDArray[Any]

MARGINS = ("logits", "confidences")
_DECIMALS = 4  # scores with more of them are as good as exact


def margins(
    model: Model,
    scores: Array,
    labels: Array,
    target: int | None,
    margin: str,
    may_be_rounded: bool,
) -> Array:
    """Return by how much the right class leads any other, or any other class the target.

    A zero of probabilities that are rounded, if they may be, is taken for half of a step.

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
    if may_be_rounded and model.outputs == "probabilities" and margin == "logits":
        step = step_of(scores)
        scores = scores if step is None else np.maximum(scores, step / 2)
    of = model.log_scores_of if margin == "logits" else model.probabilities_of
    scores = of(scores).astype(np.float64)
    rows = np.arange(len(labels))
    own = scores[rows, labels]
    scores[rows, labels] = -np.inf
    lead = np.asarray(own - scores.max(axis=1))
    return lead if target is None else -lead


def step_of(scores: Array) -> float | None:
    """Return the step between scores that are rounded to few decimals; None: they are not.

    >>> step_of(np.array([[0.25, 0.75], [0.5, 0.5]])), step_of(np.array([[0.0, 1.0]]))
    (0.01, 1.0)
    >>> step_of(np.array([[1 / 3, 2 / 3]], np.float32)) is None
    True
    """
    exact = scores.astype(np.float64)
    close = 4 * np.finfo(scores.dtype).eps * np.maximum(np.abs(exact), 1e-3)
    for decimals in range(_DECIMALS + 1):
        if np.all(np.abs(np.round(exact, decimals) - exact) <= close):
            return float(10.0**-decimals)
    return None
