r"""The gradient estimate from values, eq. (2) of the paper, and local steps along it, eq. (5), (6).

.. math::

    \tilde\nabla F_i(x) = \frac{1}{b_1 b_2} \sum_{m=1}^{b_1} \sum_{n=1}^{b_2}
        \frac{d\, v_n}{\mu} \bigl( F_i(x + \mu v_n, \xi_m) - F_i(x, \xi_m) \bigr)

It is a combination of the directions, so all that has to be computed from values, sent
over a network or logged is b2 coefficients.

What keeps precision, since values at x and x + μv agree in most of their digits:

* the difference is taken sample by sample, on the same ξ, before any mean is;
* it is taken in float64. Of two float32 values within a factor two of each other the
  difference is then exact (Sterbenz), so float32 losses lose nothing *here*;
* the mean over the batch and the factor d/μ are float64 too; only the b2 finished
  coefficients are rounded to the model's precision.

What float32 losses lost before they came here, about 1e-7 of their size, is multiplied by
d/μ all the same: an objective that can should give float64 values (the softmax problem
does: its matrix product is float32, its losses are float64). And where points are built,
they have the model's precision: of a float32 model at 1000, a step of 1e-5 along an axis is
rounded away. Use a float64 start for black boxes that can tell such points apart.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from fedzo.core.capabilities import BatchesQueries, FusedStep, InPlace, Streamed
from fedzo.core.directions import STREAMABLE, DirectionBuffer, check_directions
from fedzo.core.objective import Objective, returned, values_along
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Update
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum, Offset, scales
from fedzo.errors import (
    BudgetSpent,
    NonFinite,
    check_choice,
    check_count,
    check_positive,
    require,
)

DIFFERENCES = ("forward", "central")
EVERY_DEVICE = 2**32 - 1  # stands for the device in the address of shared directions


@dataclass(frozen=True)
class Estimator:
    r"""Eq. (2): ``smoothing`` is μ, ``directions`` is b2, and b1 is the size of the batch.

    ``difference = "central"`` takes (F(x + μv) - F(x - μv)) / 2μ in place of
    (F(x + μv) - F(x)) / μ: no error of first order in μ, for 2 b2 instead of b2 + 1 values
    a sample. ``shared`` directions are the same for all devices of a step.

    ``fixed`` is K, where the directions of all steps of a run are drawn from a fixed set: K / b2
    groups of b2 directions (FedKSeed: Qin et al., "Federated Full-Parameter Tuning of
    Billion-Sized Language Models with Communication Cost under 18 Kilobytes", ICML 2024). The model
    of any round is then its start plus one sum over the set,
    :math:`x^t = x^0 + \sum_{j=1}^{K} a_j^t g_j`, and K numbers describe all rounds so far.

    Examples
    --------
    The estimate of a linear function's gradient a has expectation a, exactly:

    >>> import numpy as np
    >>> from fedzo.problems import FunctionObjective
    >>> from fedzo.core.random import Draws, Stream
    >>> a = np.array([1.0, -2.0, 3.0])
    >>> objective = FunctionObjective(lambda x, device: a @ x, dim=3, devices=1)
    >>> estimator = Estimator(smoothing=0.1, directions=3, kind="coordinate")
    >>> buffer = estimator.buffer(dim=3, dtype=np.float64)
    >>> at = Draws(seed=0, stream=Stream.DIRECTIONS)
    >>> coefficients, queries = estimator.estimate(objective, np.zeros(3), 1, buffer, at)
    >>> (coefficients @ buffer.rows).round(9), queries
    (array([ 1., -2.,  3.]), 4)
    """

    smoothing: float
    directions: int
    kind: str = "sphere"
    difference: str = "forward"
    shared: bool = False
    fixed: int | None = None

    def __post_init__(self) -> None:
        check_positive(self, "smoothing")
        check_directions(self.kind, self.directions)
        check_choice("difference", self.difference, DIFFERENCES)
        if self.fixed is not None:
            check_count("fixed_directions", self.fixed)
            allowed = f"a multiple of directions, {self.directions}"
            require(self.fixed % self.directions == 0, "fixed_directions", self.fixed, allowed)

    def buffer(self, dim: int, dtype: Any) -> DirectionBuffer:
        """Return memory for the directions of one estimate after another."""
        return DirectionBuffer(self.kind, self.directions, dim, dtype)

    def update(self, dim: int, at: Draws, coefficients: Array) -> DirectionSum:
        """Return the update of (H, b2) coefficients along the steps of the device at ``at``."""
        places = [self.address(at._replace(step=k)) for k in range(len(coefficients))]
        return DirectionSum.of(self.kind, dim, places, coefficients)

    def set_sum(self, dim: int, seed: int, table: Array) -> DirectionSum:
        """Return the sum over a fixed set of directions with these coefficients, (K / b2, b2)."""
        used = np.flatnonzero(table.any(axis=1))
        places = [self.of_set(seed, int(group)) for group in used]
        return DirectionSum.of(self.kind, dim, places, table[used])

    def estimate(
        self, objective: Objective, x: Array, batch_size: int, buffer: DirectionBuffer, at: Draws
    ) -> tuple[NDArray[np.float64], int]:
        """Estimate the gradient at x on the device and with the randomness of one address.

        Returns coefficients c, with ``c @ buffer.rows`` the estimate, and the number of
        values asked for. Non-finite values give non-finite coefficients: it is for the
        caller to say so.
        """
        values = self._values(objective, x, batch_size, buffer, at)
        return self.slopes(values, buffer.scales, x.size), values.size

    def slopes(self, values: Array, lengths: Array, dim: int) -> NDArray[np.float64]:
        """Return the coefficients of the rows, from the values at the stencil's points, (k, b).

        A row times its number of ``lengths`` is a direction.
        """
        slopes, factor = np.empty(self.directions), self.factor(dim, values.shape[1])
        scale_slopes(values, self.difference == "forward", lengths, factor, slopes)
        return slopes

    def offsets(self, at: Draws, lengths: Array, dim: int, dtype: DTypeLike) -> list[Offset]:
        """Return the stencil's points as offsets from x, along directions drawn at ``at``."""
        rows, signs = self.stencil
        # A row times its length is a direction, so a step of μ along that is this along the row:
        steps = (self.smoothing * signs * lengths[rows]).astype(dtype).reshape(-1, 1, 1)
        return [
            DirectionSum.of(self.kind, dim, [at], step, int(row)) if step else None
            for row, step in zip(rows, steps, strict=True)
        ]

    def step(
        self,
        objective: Objective,
        x: Array,
        batch_size: int,
        buffer: DirectionBuffer,
        at: Draws,
        learning_rate: float,
        delta: Array,
        start: Array,
    ) -> tuple[Array, Array, int]:
        """Move ``delta`` by -η times the estimate at x; return what moved it, and start + delta.

        What moved it are the coefficients of ``buffer.rows``, in the model's precision. A
        problem that does all of this in one compiled call, its ``fused_step``, is asked to.
        Raises :class:`~fedzo.errors.NonFinite` where a value was not finite.
        """
        fused = objective.capability(FusedStep) if buffer.kind == "sphere" else None
        if fused is not None:
            factor = -learning_rate * self.factor(x.size, batch_size)
            rows, offsets = self.stencil[0], self.smoothing * self.stencil[1]
            addresses = at.on(Stream.BATCHES), self.address(at)
            moves, new_x, asked = fused.fused_step(
                x, buffer, rows, offsets, factor, addresses, batch_size, delta, start
            )
            require_finite(moves, at)
            return moves, new_x, asked
        coefficients, asked = self.estimate(objective, x, batch_size, buffer, at)
        require_finite(coefficients, at)
        moves = (-learning_rate * coefficients).astype(x.dtype)
        return moves, buffer.advance(moves, delta, start), asked

    def factor(self, dim: int, batch_size: int) -> float:
        """D / (μ b1 b2), or half of it for two-sided differences: what eq. (2) has in front."""
        sides = 1 if self.difference == "forward" else 2
        return dim / (sides * self.smoothing * batch_size * self.directions)

    def address(self, at: Draws) -> Draws:
        """Return where the directions of a step are drawn, of the device at ``at`` or of all."""
        if self.fixed is not None:
            return self.of_set(at.seed, self.group(at))
        at = at.on(Stream.DIRECTIONS)
        return at._replace(device=EVERY_DEVICE) if self.shared else at

    def group(self, at: Draws) -> int:
        """Return which b2 directions of a fixed set a step takes, uniformly at random."""
        at = at._replace(device=EVERY_DEVICE) if self.shared else at
        return int(at.on(Stream.CHOICES).integers(self.set_shape[0], 1)[0])

    def of_set(self, seed: int, group: int) -> Draws:
        """Return where b2 directions of a fixed set are drawn."""
        return Draws(seed, Stream.DIRECTIONS, round=group, device=EVERY_DEVICE)

    @property
    def set_shape(self) -> tuple[int, int]:
        """(K / b2, b2), the groups of a fixed set and the directions in each."""
        assert self.fixed is not None
        return self.fixed // self.directions, self.directions

    def _values(
        self, objective: Objective, x: Array, batch_size: int, buffer: DirectionBuffer, at: Draws
    ) -> NDArray[np.float64]:
        """Fill the buffer, and return the values at the stencil's points as float64, (k, b)."""
        rows, signs = self.stencil
        batch = objective.batch(at.device, batch_size, at.on(Stream.BATCHES))
        buffer.draw(self.address(at))
        # v_n is scales[n] * buffer.rows[n], so a step of μ along v_n is this along the row:
        steps = self.smoothing * signs * buffer.scales[rows]
        values = values_along(objective, x, buffer.rows, rows, steps, batch)
        found = returned(f"{type(objective).__name__}.values", values, (len(rows), -1))
        return np.asarray(found, np.float64)

    @cached_property
    def stencil(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Which direction each point uses, and with which sign.

        The base point x of the forward difference comes first, with the sign 0: its value
        F(x, ξ_m) is asked for once and shared by all directions.
        """
        each, one = np.arange(self.directions), np.ones(self.directions)
        if self.difference == "forward":
            return np.concatenate(([0], each)), np.concatenate(([0], one))
        return np.concatenate((each, each)), np.concatenate((one, -one))


def require_finite(coefficients: Array, at: Draws) -> None:
    """Raise unless all coefficients of the step at ``at`` are finite."""
    if not np.isfinite(coefficients).all():
        raise NonFinite("the loss", at.round + 1, at.device)


@njit(cache=True)  # a few hundred numbers: too short to be worth giving up the GIL
def scale_slopes(values: Any, forward: Any, scales: Any, factor: Any, out: Any) -> None:
    """out[n] = factor * scales[n] * sum_m of the difference along direction n at sample m.

    Of ``values``, (k, b), the first row is the base of forward differences; of central ones
    the second half is the other side.
    """
    count, samples = out.size, values.shape[1]
    for n in range(count):
        ahead = n + 1 if forward else n
        behind = 0 if forward else count + n
        total = 0.0
        for m in range(samples):
            total += values[ahead, m] - values[behind, m]
        out[n] = factor * scales[n] * total


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
        along = _streamed_steps(
            estimator, objective, streamed, x, at, learning_rate, batch_size, steps
        )
        return along._replace(weight=weight)
    x = np.asarray(x)  # may lie on an accelerator
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
    found = coefficients if correction is None else None
    return Update(at.device, delta, weight, queries, coefficients=found)


def _streamed_steps(
    estimator: Estimator,
    objective: Objective,
    streamed: Streamed,
    x: Array,
    at: Draws,
    learning_rate: float,
    batch_size: int,
    steps: int,
) -> Update:
    """Take the same steps without holding a direction.

    A point is x and a sum of directions, which the objective adds while it draws them.
    """
    count, dim = estimator.directions, x.size
    moves = np.empty((steps, count), x.dtype)
    walked, queries = None, 0
    for k in range(steps):
        here = at._replace(step=k)
        place = estimator.address(here)
        batch = objective.batch(at.device, batch_size, here.on(Stream.BATCHES))
        lengths = scales(estimator.kind, count, dim, place, x)
        points = estimator.offsets(place, lengths, dim, x.dtype)
        values = np.asarray(streamed.values_streamed(x, walked, points, batch), np.float64)
        slopes = estimator.slopes(values, lengths, dim)
        require_finite(slopes, here)
        moves[k] = -learning_rate * slopes
        walked, queries = estimator.update(dim, at, moves[: k + 1]), queries + values.size
    assert walked is not None
    in_place = objective.capability(InPlace) is not None
    delta = replace(walked, in_place=True) if in_place else np.asarray(walked, x.dtype)
    return Update(at.device, delta, 1, queries, coefficients=moves)
