"""Steps along estimated gradients on one device: eq. (5) and (6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedzo.core.capabilities import BatchesQueries, InPlace, Streamed
from fedzo.core.directions import STREAMABLE
from fedzo.core.estimator import Estimator, require_finite, scale_slopes
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Update
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum, scales
from fedzo.errors import BudgetSpent

Correction = Callable[[Array], Array]


def local_steps(
    estimator: Estimator,
    objective: Objective,
    x: Array,
    at: Draws,
    *,
    learning_rate: float,
    batch_size: int,
    steps: int = 1,
    weight: float = 1,
    correction: Correction | None = None,
) -> Update:
    r"""Take H steps from x on the device at ``at``; return how far the model moved.

    .. math:: x^{(k+1)} = x^{(k)} - \eta \bigl( \tilde\nabla F_i(x^{(k)})
              + c(x^{(k)}) \bigr)

    with the estimate of eq. (2), and the algorithm's own correction c(x), if it has one.

    The update is summed by itself, step by step, rather than taken as x^{(H)} - x^{(0)}: small
    moves are not rounded to the precision of a large model, and the seed and the coefficients make
    the same sum again, to the bit. With a correction it is not a sum of directions, and has no
    coefficients.

    Examples
    --------
    One step on f(x) = x_1 + 2 x_2 along both axes, and the same with a pull back to the start:

    >>> from fedzo.core.random import Stream
    >>> from fedzo.problems import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: x[0] + 2 * x[1], dim=2, devices=1)
    >>> estimator = Estimator(smoothing=0.1, directions=2, kind="coordinate")
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS)
    >>> options = dict(learning_rate=0.5, batch_size=1, steps=2)
    >>> local_steps(estimator, objective, np.zeros(2), at, **options).delta.round(9)
    array([-1., -2.])
    >>> pull = lambda x: x  # the start is 0
    >>> options |= dict(correction=pull)
    >>> local_steps(estimator, objective, np.zeros(2), at, **options).delta.round(9)
    array([-0.75, -1.5 ])
    """
    streamed = objective.capability(Streamed)
    if streamed is not None and estimator.kind in STREAMABLE and correction is None:
        return _streamed_steps(
            estimator, objective, streamed, x, at, learning_rate, batch_size, steps, weight
        )
    buffer = estimator.buffer(x.size, x.dtype)
    start, delta, queries = x, np.zeros_like(x), 0
    coefficients = np.empty((steps, estimator.directions), x.dtype)
    for k in range(steps):
        if correction is not None:  # at x^(k), before the estimate moves it
            pull = (learning_rate * correction(x)).astype(x.dtype)
        try:
            coefficients[k], x, asked = estimator.step(
                objective, x, batch_size, buffer, at._replace(step=k), learning_rate, delta, start
            )
        except BudgetSpent:
            if k == 0 or objective.capability(BatchesQueries) is None:  # else it depends on threads
                raise
            coefficients[k:] = 0  # the steps so far are an update, too
            break
        if correction is not None:
            delta -= pull
            x = start + delta
        queries += asked
    return Update(
        device=at.device,
        delta=delta,
        weight=weight,
        queries=queries,
        coefficients=coefficients if correction is None else None,
    )


def _streamed_steps(
    estimator: Estimator,
    objective: Objective,
    streamed: Streamed,
    x: Array,
    at: Draws,
    learning_rate: float,
    batch_size: int,
    steps: int,
    weight: float,
) -> Update:
    """Take the same steps without holding a direction.

    A point is x and a sum of directions, which the objective adds while it draws them.
    """
    kind, count, dim = estimator.kind, estimator.directions, x.size
    rows, signs = estimator.stencil
    moves = np.empty((steps, count), x.dtype)
    walked, queries = None, 0
    for k in range(steps):
        here = at._replace(step=k)
        place = estimator.address(here)
        batch = objective.batch(at.device, batch_size, here.on(Stream.BATCHES))
        # A row times its scale is a direction, so a step of μ along that is this along the row:
        lengths = scales(kind, count, dim, place, x.dtype)
        offsets = (estimator.smoothing * signs * lengths[rows]).astype(x.dtype).reshape(-1, 1, 1)
        points = [
            DirectionSum.of(kind, dim, [place], offset, int(n)) if offset else None
            for n, offset in zip(rows, offsets, strict=True)
        ]
        values = np.asarray(streamed.values_streamed(x, walked, points, batch), np.float64)
        slopes, factor = np.empty(count), estimator.factor(dim, values.shape[1])
        scale_slopes(values, estimator.difference == "forward", lengths, factor, slopes)
        require_finite(slopes, here)
        moves[k] = -learning_rate * slopes
        walked, queries = estimator.update(dim, at, moves[: k + 1]), queries + values.size
    assert walked is not None
    in_place = objective.capability(InPlace) is not None
    delta = replace(walked, in_place=True) if in_place else np.asarray(walked, x.dtype)
    return Update(device=at.device, delta=delta, weight=weight, queries=queries, coefficients=moves)
