r"""Measure squared norms of gradients, and curvature, of a problem that gives values only.

**Squared norms from slopes.** For v uniform on the sphere, :math:`d\, E(v^T g)^2 = \|g\|^2`. So K
orthonormal directions, the same for all devices and samples, and central differences
:math:`s = v^T \nabla F_i(x, \xi)` give unbiased estimates of all squared norms that Assumptions
3 and 4 speak of: :math:`\|\nabla f_i\|^2`, the spread of :math:`\nabla F_i` over ξ,
:math:`\|\nabla f\|^2` and :math:`\|\nabla f_i - \nabla f\|^2`, each less what the noise of a finite
batch adds to it. Their relative error is about :math:`\sqrt{2/K}`, whatever d is, and none if
K = d. Memory is that of K vectors.

**Where.** At x⁰ and at a few points further down, each found by a line search along the
estimated gradient: an assumption that holds for all x is looked at where a run goes.

**L** is sought by climbing: the curvature :math:`v^T \nabla^2 F v` is a second difference, and v
is turned to where it grows (steepest ascent with Rayleigh-Ritz over three vectors).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.directions import Frame
from fedzo.core.objective import Objective, values_along
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue

Array = NDArray[Any]

_ROUND, _TASK = (1 << 26) - 1, 63  # an address that no run draws at
_NUMBERS = 1 << 25  # in all directions of a measurement: memory is a few times that
_HALVINGS = 10  # of a step that does not lower the loss


class Plan(NamedTuple):
    """How a budget of queries is spent."""

    points: int
    repeats: int
    devices: int
    directions: int
    samples: int

    @property
    def cost(self) -> int:
        """How many values the slopes and the moves between the points take at most."""
        batches = self.devices * self.samples
        slopes = self.points * self.repeats * batches * (2 * self.directions + 1)
        return slopes + (self.points - 1) * batches * (3 + _HALVINGS)


def plan_for(objective: Objective, queries: int, evaluations: int) -> Plan:
    """Spend what the evaluations leave: three quarters on slopes, the rest on L."""
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
        plan = plan._replace(repeats=plan.repeats + 2)  # two halves, of the same size
    return plan


class Probe:
    """Asks an objective for values along directions, and counts them."""

    def __init__(self, objective: Any, step: float, plan: Plan, seed: int) -> None:
        self.objective, self.step, self.plan, self.seed = objective, step, plan, seed
        self.devices = self.at(Stream.PARTICIPANTS).subset(objective.devices, plan.devices)
        self.queries = 0

    def at(self, stream: Stream, point: int = 0, device: int = 0, step: int = 0) -> Draws:
        """Return the draws of one purpose and place."""
        return Draws(self.seed, stream, _ROUND - point, device, step, _TASK)

    def batch(self, point: int, device: int, repeat: int, size: int | None = None) -> Any:
        """Return a batch of a device, the same whenever it is asked for."""
        draws = self.at(Stream.BATCHES, point, device, repeat)
        return self.objective.batch(device, size or self.plan.samples, draws)

    def values(self, x: Array, directions: Array, steps: Array, batch: Any) -> Array:
        """Return the values at x + steps[k] directions[k], (k, b), counted."""
        rows = np.arange(len(steps))
        values = values_along(self.objective, x, directions, rows, steps, batch)
        self.queries += values.size
        return np.asarray(values, np.float64)

    def differences(self, x: Array, directions: Array, batch: Any) -> tuple[Array, Array, Array]:
        """Return F(x, ξ), and first and second derivatives along the directions, (k, b)."""
        count, h = len(directions), self.step
        steps = np.repeat([0.0, h, -h], [1, count, count])
        points = np.concatenate((directions[:1], directions, directions))
        values = self.values(x, points, steps, batch)
        base, plus, minus = values[0], values[1 : 1 + count], values[1 + count :]
        return base, (plus - minus) / (2 * h), (plus + minus - 2 * base) / h**2


# ---- squared norms of gradients, at points further and further down


class Slopes(NamedTuple):
    """Unbiased squared norms: (repeats, points, devices), and (repeats, points) for f."""

    own: Array  # ‖∇f_i‖²
    spread: Array  # E‖∇F_i - ∇f_i‖²
    unlike: Array  # ‖∇f_i - ∇f‖²
    all: Array  # ‖∇f‖²
    curvature: Array  # the mean second derivative of f_i, tr(∇²f_i)/d


def walk(probe: Probe, x: Array) -> tuple[list[Array], Slopes]:
    """Measure at x and, downhill, at further points."""
    path, measured = [x], []
    for p in range(probe.plan.points):
        slopes, gradient = _measure(probe, p, path[p])
        measured.append(slopes)
        if p + 1 < probe.plan.points:
            path.append(_descend(probe, p, path[p], gradient))
    return path, Slopes(*(np.stack(each, axis=1) for each in zip(*measured, strict=True)))


def _measure(probe: Probe, p: int, x: Array) -> tuple[Slopes, Array]:
    """Return the norms at a point, and the estimated gradient of f."""
    frame = Frame("orthogonal", probe.plan.directions, x.size, x.dtype)
    gradient, repeats = np.zeros(x.size), probe.plan.repeats
    found = []
    for r in range(repeats):
        frame.draw(probe.at(Stream.DIRECTIONS, p, step=r))
        means, noises, curves = [], [], []
        for i in probe.devices:
            _, slopes, seconds = probe.differences(x, frame.rows, probe.batch(p, int(i), r))
            b = slopes.shape[1]  # 1 where a problem has no randomness, whatever was asked for
            means.append(slopes.mean(axis=1))
            noises.append(slopes.var(axis=1, ddof=1) if b > 1 else np.zeros(len(slopes)))
            curves.append(seconds.mean())
        found.append(_norms(np.array(means), np.array(noises), b, x.size, np.array(curves)))
        mean = np.mean(means, axis=0).astype(x.dtype)
        gradient += x.size / (len(mean) * repeats) * (mean @ frame.rows)
    return Slopes(*(np.array(each) for each in zip(*found, strict=True))), gradient


def _norms(means: Array, noises: Array, b: int, dim: int, curves: Array) -> Slopes:
    """Turn slopes, (devices, directions), into squared norms: d times the mean square.

    The mean of b slopes has the variance noise/b, and its square that much too much.
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
    """Return a lower point along the gradient: Newton's step on that line, halved if need be."""
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


# ---- the largest curvature, L of Assumption 2


def climb(probe: Probe, x: Array, device: int, queries: int) -> tuple[float, float, int]:
    """Return the largest curvature found of one F_i(., ξ), and how sure that is.

    How sure: what the last half of the turns gained, and along how many directions was looked.

    Each turn of v finds where its curvature grows, and then takes the best of the span of v,
    that, and the last turn: a matrix of at most 3 x 3 from second differences. Two turns at
    least are made, on all d axes if the queries that are left are enough for that.
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
        raise InvalidValue("queries", queries, "larger: none are left to measure L with")
    halfway = history[(len(history) - 1) // 2]
    return max(history), max(history) - halfway, count * len(history)


def _ascent(probe: Probe, x: Array, v: Array, batch: Any, count: int, at: Draws) -> Array:
    """Return the sum of u (u^T ∇²F v) over all d axes u, or over fewer random directions.

    The mixed derivatives are one-sided differences, of a few directions at a time: memory
    is that of K vectors.
    """
    total, h = np.zeros_like(x), probe.step
    for chunk, first in enumerate(range(0, count, probe.plan.directions)):
        size = min(probe.plan.directions, count - first)
        if count == x.size:
            rows = np.eye(size, x.size, first, dtype=x.dtype)
        else:
            frame = Frame("sphere", size, x.size, x.dtype)
            frame.draw(at._replace(device=chunk))
            rows = frame.vectors()
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
