"""Estimate the constants of Assumptions 1-4 of a problem that gives values only.

What is measured, squared norms and curvature, and how: :mod:`fedzo.theory.measure`.

**From norms to constants.** Each of the assumptions is a line above a cloud of points, one for
each x and device. Its slope is that of the least-squares line, or none (c_g = 1, c_h = 0)
if that is within two standard errors of none; its height is that of the highest point. The
largest of many noisy numbers is too large, so the highest point is *picked* by one half of
the measurements and *measured* by the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from fedzo.core.objective import Objective
from fedzo.errors import UsageError, require
from fedzo.theory.bounds import Constants
from fedzo.theory.measure import Plan, Probe, climb, plan_for, walk

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
