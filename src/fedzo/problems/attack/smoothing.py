"""How far from x an attack must look, so that the answers of a model differ."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from fedzo.core.directions import Frame
from fedzo.core.random import Draws, Stream
from fedzo.errors import BudgetSpent
from fedzo.models.base import rounding_step

if TYPE_CHECKING:
    from fedzo.problems.attack.problem import Attack

_INPUTS = 32  # that are asked about, to see whether scores are rounded
_TRIES = 8  # inputs and directions, to see whether differences stand out


def choose_smoothing(problem: Attack, draws: Draws) -> float:
    """Return μ for an attack within a budget: 1, or more where answers are rounded.

    It is doubled until half of the differences along some directions are not zero, or
    until the directions reach the ball's surface; that is warned of.
    """
    x, smoothing, most = problem.initial(), 1.0, math.sqrt(problem.dim)
    rows, labels = problem.own
    try:
        some = np.unique(np.arange(_INPUTS) * len(labels) // _INPUTS)
        inputs, _ = problem.transform.query_inputs(rows[some], x[None])
        scores = problem.victim.ask(inputs[0])
        step = rounding_step(scores)
        if step is None:
            return smoothing
        at_x = np.maximum(problem.margins(scores, labels[some]), 0)
        resisting = np.flatnonzero(at_x > 0)
        if not len(resisting):
            return smoothing
        # Small changes show near the boundary, but most inputs are far from it: so any of them.
        tried = resisting[np.unique(np.arange(_TRIES) * len(resisting) // _TRIES)]
        frame = Frame("sphere", _TRIES, problem.dim, x.dtype)
        frame.draw(draws.on(Stream.DIRECTIONS))
        directions = frame.scales[:, None] * frame.rows
        while smoothing < most:
            values = problem.values((smoothing * directions).astype(x.dtype), some[tried])
            if np.mean(values != at_x[tried]) >= 0.5:
                break
            smoothing *= 2
    except BudgetSpent:
        return smoothing
    if smoothing == 1:  # coarse, but fine enough
        return smoothing
    smoothing = min(smoothing, most)
    model = problem.model
    answers = "labels only" if model.outputs == "labels" else f"scores in steps of {step:g}"
    warnings.warn(
        f"{model.name} answers {answers}: smoothing is raised from 1 to {smoothing:g}, "
        "so that differences stand out",
        UserWarning,
        stacklevel=2,
    )
    return smoothing
