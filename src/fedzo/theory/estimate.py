r"""Estimate the constants of Assumptions 1-4 of a problem that provides values only.

**Squared norms from slopes.** For v uniform on the sphere, :math:`d\, E(v^T g)^2 = \|g\|^2`. So K
orthonormal directions, the same for all devices and samples, and central differences
:math:`s = v^T \nabla F_i(x, \xi)` give unbiased estimates of the squared norms in Assumptions 3
and 4: :math:`\|\nabla f_i\|^2`, the spread of :math:`\nabla F_i` over ξ, :math:`\|\nabla f\|^2` and
:math:`\|\nabla f_i - \nabla f\|^2`. The noise of a finite batch is subtracted from each. The
relative error is about :math:`\sqrt{2/K}` for any d, and zero if K = d. Memory is K vectors.

**Points.** The norms are measured at x⁰ and at a few points further down, where a run goes. Each is
found by a line search along the estimated gradient.

**L** is found by ascent: the curvature :math:`v^T \nabla^2 F v` is a second difference, and v turns
to where it grows (steepest ascent with Rayleigh-Ritz over three vectors).

**From norms to constants.** Each assumption is a line above a cloud of points, one point per x and
device. The slope is that of the least-squares line, or zero (c_g = 1, c_h = 0) if it is within two
standard errors of zero. The height is that of the highest point. The largest of many noisy numbers
is too large, so one half of the measurements *selects* the highest point and the other half
*measures* it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import ThreadpoolController

from fedzo.core.directions import DirectionBuffer
from fedzo.core.objective import Objective, values_along
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, UsageError, require
from fedzo.theory.bounds import Constants

_ROUND, _TASK = (1 << 26) - 1, 63  # an address that no run draws at
_NUMBERS = 1 << 25  # numbers in all directions of a measurement; memory is a few times that
_HALVINGS = 10  # of a step that does not lower the loss


class Plan(NamedTuple):
    """How a budget of queries is used."""

    points: int
    repeats: int
    devices: int
    directions: int
    samples: int

    @property
    def cost(self) -> int:
        """The largest number of queries for the slopes and the moves between the points."""
        batches = self.devices * self.samples
        slopes = self.points * self.repeats * batches * (2 * self.directions + 1)
        return slopes + (self.points - 1) * batches * (3 + _HALVINGS)


@dataclass(frozen=True)
class Estimate:
    """Measured constants, their standard errors and their cost in queries.

    ``errors`` come from independent repetitions; that of L is the gain of the last half of its
    ascent. ``notes`` explains each number. ``start`` is f(x⁰) and ``best`` the least f seen, both
    over all devices.
    """

    constants: Constants
    errors: Mapping[str, float]
    notes: Mapping[str, str]
    start: float
    best: float
    queries: int
    plan: Plan


def estimate(
    objective: Objective,
    x0: ArrayLike | None = None,
    *,
    queries: int = 500_000,
    step: float = 1e-2,
    lower_bound: float | None = 0.0,
    seed: int = 0,
) -> Estimate:
    """Measure L, σ_g, c_g, σ_h, c_h and f(x⁰) - f* from values.

    Parameters
    ----------
    objective : Objective
        The problem; a batch must give the same values each time.
    x0 : array, optional
        The start of a run; ``objective.initial()`` by default.
    queries : int
        The largest number of queries.
    step : float
        The step of the differences. It must be small against the distance over which the
        curvature changes, and large against rounding: an error ε in a value is an error 4ε/step²
        in a curvature.
    lower_bound : float, optional
        A known lower bound of f; most losses have f* >= 0. With None it is the best value seen,
        and the gap is too small.
    seed : int
        The seed of all random draws.

    Examples
    --------
    >>> from fedzo.problems import Quadratic
    >>> problem = Quadratic(dim=20, devices=5, smoothness=2.0, gradient_noise=3.0)
    >>> found = estimate(problem, queries=100_000)
    >>> round(found.constants.L, 3), round(found.constants.sigma_g), found.constants.c_g
    (2.0, 3, 1.0)
    >>> found.queries <= 100_000
    True
    """
    require(0 < step < math.inf, "step", step, "a number > 0")
    x = np.array(objective.initial() if x0 is None else x0)
    x = x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
    allowed = f"of the objective's dimension, {objective.dim}"
    require(x.shape == (objective.dim,), "x0", f"an array of shape {x.shape}", allowed)
    evaluation = sum(objective.size(i) for i in range(objective.devices))
    plan = plan_for(objective, queries, 2 * evaluation)
    probe = Probe(objective, step, plan, seed)
    everyone = np.arange(objective.devices)
    with ThreadpoolController().limit(limits=1, user_api="blas"):  # the matrices are small
        start = float(np.mean(objective.losses(x, everyone)))
        path, slopes = walk(probe, x)
        best = float(np.mean(objective.losses(path[-1], everyone)))
        probe.queries += 2 * evaluation
        _require_finite(start, best, *slopes)
        curvature = np.abs(slopes.curvature.mean(axis=0))
        p, i = np.unravel_index(np.argmax(curvature), curvature.shape)
        smooth, gained, looked = climb(probe, path[p], int(probe.devices[i]), queries)
    c_g, sigma_g = _envelope(slopes.own, slopes.spread)
    c_h, sigma_h = _envelope(slopes.all[:, :, None], slopes.unlike)
    gap = _gap(start, min(start, best), lower_bound)
    constants = Constants(smooth, gap, sigma_g[0], sigma_h[0], 1 + c_g[0], c_h[0])
    errors = {
        "L": gained,
        "gap": 0.0,
        "sigma_g": sigma_g[1],
        "sigma_h": sigma_h[1],
        "c_g": c_g[1],
        "c_h": c_h[1],
    }
    notes = _notes(plan, objective, lower_bound, looked)
    return Estimate(constants, errors, notes, start, best, probe.queries, plan)


def _envelope(horizontal: Array, vertical: Array) -> tuple[tuple[float, float], ...]:
    """Fit vertical <= slope * horizontal + height², all (repeats, points, devices).

    Return slope and height, each with its standard error.
    """
    horizontal = np.broadcast_to(horizontal, vertical.shape)
    repeats = len(vertical)
    slope = _slope(horizontal.mean(axis=0), vertical.mean(axis=0))
    without = [  # the jackknife: all repeats but one
        _slope(np.delete(horizontal, r, 0).mean(axis=0), np.delete(vertical, r, 0).mean(axis=0))
        for r in range(repeats)
    ]
    error = math.sqrt((repeats - 1) * np.var(without))
    slope = slope if slope > 2 * error else 0.0
    above = (vertical - slope * horizontal).reshape(repeats, -1)
    even, odd = above[::2], above[1::2]
    crossed = (odd[:, np.argmax(even.mean(axis=0))], even[:, np.argmax(odd.mean(axis=0))])
    values = np.concatenate(crossed)
    square, uncertain = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(repeats)
    height = math.sqrt(max(square, 0.0))
    # h² ± e is h ± e/2h, as long as that is small; and e is the square of sqrt(e).
    return (slope, error), (
        height,
        min(uncertain / (2 * height), math.sqrt(uncertain)) if height > 0 else math.sqrt(uncertain),
    )


def _slope(x: Array, y: Array) -> float:
    away = x - x.mean()
    square = float(np.sum(away**2))
    return float(np.sum(away * y)) / square if square > 0 else 0.0


def _gap(start: float, best: float, lower_bound: float | None) -> float:
    if lower_bound is None:
        return start - best
    allowed = f"at most {best:.6g}, the best loss seen, or None"
    require(lower_bound <= best, "lower_bound", lower_bound, allowed)
    return start - lower_bound


def _require_finite(*numbers: Any) -> None:
    if not all(np.isfinite(each).all() for each in numbers):
        words = "the loss is not finite near x0, where the constants are measured"
        raise UsageError(words, code="not-finite")


def _notes(
    plan: Plan, objective: Objective, lower_bound: float | None, looked: int
) -> dict[str, str]:
    sampled = "all" if plan.devices == objective.devices else f"{plan.devices} sampled"
    where = f"largest at {plan.points} points on {sampled} devices"
    line = "slope of the least-squares line, if beyond 2 standard errors"
    return {
        "L": f"a lower bound, of one F_i(., ξ), along {looked:,} directions; ± the last gain"
        + ("" if looked >= objective.dim else ": too few to be sure"),
        "gap": "f(x0) less the best value seen, a lower bound"
        if lower_bound is None
        else f"f(x0) - {lower_bound:g}, an upper bound if f >= {lower_bound:g}",
        "sigma_g": where,
        "sigma_h": where,
        "c_g": line,
        "c_h": line,
    }


# The measurements.


def plan_for(objective: Objective, queries: int, evaluations: int) -> Plan:
    """Return a plan for the budget without evaluations: 3/4 for slopes, the rest for L."""
    budget = 3 * (queries - evaluations) // 4
    directions = min(32, objective.dim, max(2, _NUMBERS // objective.dim))
    plan = Plan(4, 8, min(20, objective.devices), directions, 8)
    cuts = {"samples": 4, "directions": 8, "devices": 5, "points": 2}
    for floors in (cuts, {"samples": 2, "directions": 2, "devices": 2}):
        for key, floor in floors.items():
            while plan.cost > budget and getattr(plan, key) > floor:
                plan = plan._replace(**{key: max(floor, getattr(plan, key) // 2)})
    if plan.cost > budget:
        raise InvalidValue("queries", queries, f"at least {evaluations + 4 * plan.cost // 3 + 1}")
    while plan.repeats < 32 and plan._replace(repeats=plan.repeats + 2).cost <= budget:
        plan = plan._replace(repeats=plan.repeats + 2)  # two halves of the same size
    return plan


class Probe:
    """Queries an objective along directions, and counts the queries."""

    def __init__(self, objective: Any, step: float, plan: Plan, seed: int) -> None:
        self.objective, self.step, self.plan, self.seed = objective, step, plan, seed
        self.devices = self.at(Stream.PARTICIPANTS).subset(objective.devices, plan.devices)
        self.queries = 0

    def at(self, stream: Stream, point: int = 0, device: int = 0, step: int = 0) -> Draws:
        """Return the draws of a stream at a point, device and step."""
        return Draws(self.seed, stream, _ROUND - point, device, step, _TASK)

    def batch(self, point: int, device: int, repeat: int, size: int | None = None) -> Any:
        """Return a batch of a device, the same on each call."""
        draws = self.at(Stream.BATCHES, point, device, repeat)
        return self.objective.batch(device, size or self.plan.samples, draws)

    def values(self, x: Array, directions: Array, steps: Array, batch: Any) -> Array:
        """Return the values at x + steps[k] directions[k], shape (k, b), and count them."""
        rows = np.arange(len(steps))
        values = values_along(self.objective, x, directions, rows, steps, batch)
        self.queries += values.size
        return np.asarray(values, np.float64)

    def differences(self, x: Array, directions: Array, batch: Any) -> tuple[Array, Array, Array]:
        """Return F(x, ξ), and first and second derivatives along the directions, shape (k, b)."""
        count, h = len(directions), self.step
        steps = np.repeat([0.0, h, -h], [1, count, count])
        points = np.concatenate((directions[:1], directions, directions))
        values = self.values(x, points, steps, batch)
        base, plus, minus = values[0], values[1 : 1 + count], values[1 + count :]
        return base, (plus - minus) / (2 * h), (plus + minus - 2 * base) / h**2


# Squared norms of gradients, at points further and further down.


class Slopes(NamedTuple):
    """Unbiased squared norms, shape (repeats, points, devices), and (repeats, points) for f."""

    own: Array  # ‖∇f_i‖²
    spread: Array  # E‖∇F_i - ∇f_i‖²
    unlike: Array  # ‖∇f_i - ∇f‖²
    all: Array  # ‖∇f‖²
    curvature: Array  # the mean second derivative of f_i, tr(∇²f_i)/d


def walk(probe: Probe, x: Array) -> tuple[list[Array], Slopes]:
    """Measure at x and at further points downhill."""
    path, measured = [x], []
    for p in range(probe.plan.points):
        slopes, gradient = _measure(probe, p, path[p])
        measured.append(slopes)
        if p + 1 < probe.plan.points:
            path.append(_descend(probe, p, path[p], gradient))
    return path, Slopes(*(np.stack(each, axis=1) for each in zip(*measured, strict=True)))


def _measure(probe: Probe, p: int, x: Array) -> tuple[Slopes, Array]:
    """Return the norms at a point, and the estimated gradient of f."""
    buffer = DirectionBuffer("orthogonal", probe.plan.directions, x.size, x.dtype)
    gradient, repeats = np.zeros(x.size), probe.plan.repeats
    found = []
    for r in range(repeats):
        buffer.draw(probe.at(Stream.DIRECTIONS, p, step=r))
        means, noises, curves = [], [], []
        for i in probe.devices:
            _, slopes, seconds = probe.differences(x, buffer.rows, probe.batch(p, int(i), r))
            b = slopes.shape[1]  # 1 if a problem has no randomness
            means.append(slopes.mean(axis=1))
            noises.append(slopes.var(axis=1, ddof=1) if b > 1 else np.zeros(len(slopes)))
            curves.append(seconds.mean())
        found.append(_norms(np.array(means), np.array(noises), b, x.size, np.array(curves)))
        mean = np.mean(means, axis=0).astype(x.dtype)
        gradient += x.size / (len(mean) * repeats) * (mean @ buffer.rows)
    return Slopes(*(np.array(each) for each in zip(*found, strict=True))), gradient


def _norms(means: Array, noises: Array, b: int, dim: int, curves: Array) -> Slopes:
    """Turn slopes, shape (devices, directions), into squared norms: d times the mean square.

    The mean of b slopes has variance noise/b, which is subtracted from its square.
    """
    n = len(means)
    total = noises.sum(axis=0) / (b * n**2)  # the variance of the mean over devices
    away = (means - means.mean(axis=0)) ** 2 - (1 - 2 / n) * noises / b - total
    return Slopes(
        own=dim * (means**2 - noises / b).mean(axis=1),
        spread=dim * noises.mean(axis=1),
        unlike=dim * away.mean(axis=1) if n > 1 else np.zeros(1),
        all=dim * np.mean(means.mean(axis=0) ** 2 - total),
        curvature=curves,
    )


def _descend(probe: Probe, p: int, x: Array, gradient: Array) -> Array:
    """Return a lower point along the gradient: a Newton step on that line, halved if needed."""
    length = float(np.linalg.norm(gradient))
    if length == 0:
        return x
    down = (-gradient / length).astype(x.dtype)[None]
    batches = [probe.batch(p, int(i), probe.plan.repeats) for i in probe.devices]
    along = [probe.differences(x, down, batch) for batch in batches]
    base, slope, curve = (float(np.mean([np.mean(a[k]) for a in along])) for k in range(3))
    step = -slope / curve if slope < 0 < curve else 1.0
    for _ in range(_HALVINGS):
        steps = np.array([step])
        if np.mean([probe.values(x, down, steps, batch).mean() for batch in batches]) < base:
            break
        step /= 2
    return np.asarray(x + step * down[0], x.dtype)


# The largest curvature, L of Assumption 2.


def climb(probe: Probe, x: Array, device: int, queries: int) -> tuple[float, float, int]:
    """Return the largest curvature found of one F_i(., ξ), its last gain, and the directions used.

    The last gain is that of the last half of the turns. Each turn of v finds a direction in which
    the curvature grows. The new v is the best in the span of v, this direction and the last turn:
    a matrix of at most 3 x 3 from second differences. There are at least two turns, on all d axes
    if the queries suffice.
    """
    batch = probe.batch(probe.plan.points, device, 0, size=1)
    at = probe.at(Stream.DIRECTIONS, probe.plan.points)
    count = min(x.size, max(1, (queries - probe.queries) // 5 - 8))
    patience = 2 + math.ceil(x.size / count)
    v = at.normals(x.size, dtype=x.dtype)
    v /= np.linalg.norm(v)
    last = np.zeros((0, x.size), x.dtype)
    history: list[float] = []
    while probe.queries + 2 * count + 15 + 2 * count // probe.plan.directions <= queries:
        ascent = _ascent(probe, x, v, batch, count, at._replace(step=len(history) + 1))
        basis, _ = np.linalg.qr(np.concatenate((v[None], ascent[None], last)).T)
        values, vectors = np.linalg.eigh(_projected(probe, x, basis.T, batch))
        top = np.argmax(np.abs(values))
        turn = vectors[:, top].astype(x.dtype)
        v, last = basis @ turn, (basis[:, 1:] @ turn[1:])[None]
        history.append(abs(float(values[top])))
        if len(history) > patience and history[-1] <= 1.0001 * history[-1 - patience]:
            break
    if not history:
        raise InvalidValue("queries", queries, "larger: no queries are left to measure L")
    halfway = history[(len(history) - 1) // 2]
    return max(history), max(history) - halfway, count * len(history)


def _ascent(probe: Probe, x: Array, v: Array, batch: Any, count: int, at: Draws) -> Array:
    """Return the sum of u (u^T ∇²F v) over all d axes u, or over fewer random directions.

    The mixed derivatives are one-sided differences of a few directions at a time, so that memory
    is K vectors.
    """
    total, h = np.zeros_like(x), probe.step
    for chunk, first in enumerate(range(0, count, probe.plan.directions)):
        size = min(probe.plan.directions, count - first)
        if count == x.size:
            rows = np.eye(size, x.size, first, dtype=x.dtype)
        else:
            buffer = DirectionBuffer("sphere", size, x.size, x.dtype)
            buffer.draw(at._replace(device=chunk))
            rows = buffer.vectors()
        directions = np.concatenate((v[None], v[None], rows, rows + v))
        steps = np.concatenate(([0.0], np.full(2 * size + 1, h)))
        values = probe.values(x, directions, steps, batch).mean(axis=1)
        mixed = (values[2 + size :] - values[2 : 2 + size] - values[1] + values[0]) / h**2
        total += mixed.astype(x.dtype) @ rows
    return total


def _projected(probe: Probe, x: Array, basis: Array, batch: Any) -> Array:
    """Return B ∇²F B^T for orthonormal rows B: e_i + e_j has curvature H_ii + H_jj + 2 H_ij."""
    size = len(basis)
    i, j = np.triu_indices(size, 1)
    directions = np.concatenate((basis, basis[i] + basis[j]))
    curves = probe.differences(x, directions, batch)[2].mean(axis=1)
    matrix = np.diag(curves[:size])
    matrix[i, j] = matrix[j, i] = (curves[size:] - curves[i] - curves[j]) / 2
    return matrix
