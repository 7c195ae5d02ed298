r"""Measuring the constants of Assumptions 1-4 on a problem that gives values only.

**Squared norms from slopes.** For v uniform on the sphere, :math:`d\, E(v^T g)^2 = \|g\|^2`. So K
orthonormal directions, the same for all devices and samples, and central differences
:math:`s = v^T \nabla F_i(x, \xi)` give unbiased estimates of all squared norms that Assumptions
3 and 4 speak of: :math:`\|\nabla f_i\|^2`, the spread of :math:`\nabla F_i` over ξ,
:math:`\|\nabla f\|^2` and :math:`\|\nabla f_i - \nabla f\|^2`, each less what the noise of a finite
batch adds to it. Their relative error is about :math:`\sqrt{2/K}`, whatever d is, and none if
K = d. Memory is that of K vectors.

**Where.** At x⁰ and at a few points further down, each found by a line search along the
estimated gradient: an assumption that holds for all x is looked at where a run goes.

**From norms to constants.** Each of the assumptions is a line above a cloud of points, one for
each x and device. Its slope is that of the least-squares line, or none (c_g = 1, c_h = 0)
if that is within two standard errors of none; its height is that of the highest point. The
largest of many noisy numbers is too large, so the highest point is *picked* by one half of
the measurements and *measured* by the other.

**L** is sought by climbing: the curvature :math:`v^T \nabla^2 F v` is a second difference, and v
is turned to where it grows (steepest ascent with Rayleigh-Ritz over three vectors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from fedzo.core.directions import Frame
from fedzo.core.objective import Objective
from fedzo.core.random import Stream
from fedzo.errors import UsageError, require
from fedzo.theory.bounds import Constants
from fedzo.theory.curvature import climb
from fedzo.theory.probe import HALVINGS, Plan, Probe, plan_for

Array = NDArray[Any]


@dataclass(frozen=True)
class Estimate:
    """Measured constants, how sure they are, and what they cost.

    ``errors`` are standard errors, from independent repetitions; that of L is what the last
    half of the climb still gained. ``notes`` says what each number bounds, and from where.
    ``start`` is f(x⁰) and ``best`` the least f that was seen, both over all devices.
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
        The problem; a batch must give the same values each time it is asked.
    x0 : array, optional
        Where a run would start; the objective's own start by default.
    queries : int
        The most values to ask for.
    step : float
        How far apart the differences are taken: small against the distance over which the
        problem's curvature changes, large against what its precision loses (an error ε in
        a value is one of 4ε/step² in a curvature).
    lower_bound : float, optional
        What f is known to stay above: f* >= 0 for most losses. None takes the best value
        seen, and with it a gap that is too small.
    seed : int
        Names all randomness.

    Examples
    --------
    >>> from fedzo.problems.quadratic import Quadratic
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
        path, slopes = _walk(probe, x)
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


class _Slopes(NamedTuple):
    """Unbiased squared norms: (repeats, points, devices), and (repeats, points) for f."""

    own: Array  # ‖∇f_i‖²
    spread: Array  # E‖∇F_i - ∇f_i‖²
    unlike: Array  # ‖∇f_i - ∇f‖²
    all: Array  # ‖∇f‖²
    curvature: Array  # the mean second derivative of f_i, tr(∇²f_i)/d


def _walk(probe: Probe, x: Array) -> tuple[list[Array], _Slopes]:
    """Measure at x and, downhill, at further points."""
    path, measured = [x], []
    for p in range(probe.plan.points):
        slopes, gradient = _measure(probe, p, path[p])
        measured.append(slopes)
        if p + 1 < probe.plan.points:
            path.append(_descend(probe, p, path[p], gradient))
    return path, _Slopes(*(np.stack(each, axis=1) for each in zip(*measured, strict=True)))


def _measure(probe: Probe, p: int, x: Array) -> tuple[_Slopes, Array]:
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
    return _Slopes(*(np.array(each) for each in zip(*found, strict=True))), gradient


def _norms(means: Array, noises: Array, b: int, dim: int, curves: Array) -> _Slopes:
    """Turn slopes, (devices, directions), into squared norms: d times the mean square.

    The mean of b slopes has the variance noise/b, and its square that much too much.
    """
    n = len(means)
    total = noises.sum(axis=0) / (b * n**2)  # the variance of the mean over devices
    away = (means - means.mean(axis=0)) ** 2 - (1 - 2 / n) * noises / b - total
    return _Slopes(
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
    for _ in range(HALVINGS):
        steps = np.array([step])
        if np.mean([probe.values(x, down, steps, batch).mean() for batch in batches]) < base:
            break
        step /= 2
    return np.asarray(x + step * down[0], x.dtype)


def _envelope(horizontal: Array, vertical: Array) -> tuple[tuple[float, float], ...]:
    """Fit vertical <= slope * horizontal + height², all (repeats, points, devices).

    Returns slope and height, each with its standard error.
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
    allowed = f"at most {best:.6g}, a loss that was seen, or None"
    require(lower_bound <= best, "lower_bound", lower_bound, allowed)
    return start - lower_bound


def _require_finite(*numbers: Any) -> None:
    if not all(np.isfinite(each).all() for each in numbers):
        raise UsageError("the loss is not finite where the constants are measured, near x0")


def _notes(
    plan: Plan, objective: Objective, lower_bound: float | None, looked: int
) -> dict[str, str]:
    sampled = "all" if plan.devices == objective.devices else f"{plan.devices} sampled"
    where = f"largest at {plan.points} points on {sampled} devices"
    line = "slope of the least-squares line, if beyond 2 standard errors"
    return {
        "L": f"a lower bound, of one F_i(., ξ), along {looked:,} directions; ± what came last"
        + ("" if looked >= objective.dim else ": too few to be sure"),
        "gap": "f(x0) less the best value seen, a lower bound"
        if lower_bound is None
        else f"f(x0) - {lower_bound:g}, an upper bound if f >= {lower_bound:g}",
        "sigma_g": where,
        "sigma_h": where,
        "c_g": line,
        "c_h": line,
    }
