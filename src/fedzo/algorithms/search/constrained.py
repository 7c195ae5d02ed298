r"""Searches under constraints, by an augmented Lagrangian.

Constraints are functions of x that the server evaluates itself: they cost no queries. With
equalities h(x) = 0 and inequalities g(x) <= 0, a search minimises

.. math:: f(x) + \sum_i \left(\lambda_i h_i(x) + \frac{\rho}{2} h_i(x)^2\right)
          + \frac{1}{2\rho} \sum_j \left(\max(0, \mu_j + \rho g_j(x))^2 - \mu_j^2\right)

again and again. In between, the multipliers become :math:`\lambda + \rho h` and
:math:`\max(0, \mu + \rho g)`, and ρ grows tenfold if the violation has not halved.

References
----------
E. G. Birgin and J. M. Martínez, "Practical Augmented Lagrangian Methods for Constrained
Optimization", SIAM, 2014.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedzo.algorithms.search.base import (
    Asking,
    BudgetExhausted,
    MeasuredSlopes,
    Search,
    SearchContext,
)
from fedzo.core.importing import call_user
from fedzo.core.tasks import Evaluate, Slopes
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, require

FEASIBLE = 1e-6  # the largest violation of a result that counts as feasible
_TIMES = 20  # searches at most
_SHARE = 0.4  # of the queries left, for each but the last
_STEADY = 1e-7  # relative change of x from one search to the next, at its end


class Constraint(NamedTuple):
    """low <= function(x) <= high, each a number or an array."""

    function: Callable[[Array], Any]
    low: Any
    high: Any

    def value(self, x: Array) -> Array:
        """Return the values of the user's function, shape (number of constraints,)."""
        return np.atleast_1d(np.asarray(call_user(self.function, x), np.float64))


class Constraints:
    """SciPy's constraints: LinearConstraint, NonlinearConstraint, dictionaries, or several.

    Examples
    --------
    >>> circle = Constraints({"type": "ineq", "fun": lambda x: 1 - x @ x}, np.zeros(2))
    >>> float(circle.violation(np.array([2.0, 0.0]))), float(circle.violation(np.zeros(2)))
    (3.0, 0.0)
    """

    def __init__(self, given: Any, x0: Array) -> None:
        several = given if isinstance(given, list | tuple) else [given]
        self._every = [_read(one) for one in several]
        equal = []
        for one in self._every:
            shape = one.value(x0).shape
            equal += [np.broadcast_to(np.equal(one.low, one.high), shape), np.zeros(shape, bool)]
        self.equal = np.concatenate(equal)

    def residuals(self, x: Array) -> Array:
        """Return h(x) where ``equal``, and g(x) elsewhere; -inf where there is no limit."""
        found = []
        for one in self._every:
            value, low, high = one.value(x), one.low, one.high
            same = np.equal(low, high)
            found.append(np.where(same, value - low, low - value))
            found.append(np.where(same, -np.inf, value - high))
        return np.concatenate(found)

    def violation(self, x: Array) -> float:
        """Return by how much x violates a constraint at most."""
        residuals = self.residuals(x)
        return float(np.max(np.where(self.equal, np.abs(residuals), residuals), initial=0.0))


def _read(one: Any) -> Constraint:
    allowed = "a LinearConstraint, a NonlinearConstraint or a dict with 'type' and 'fun' of SciPy"
    if isinstance(one, dict):
        kind, fun, args = one.get("type"), one.get("fun", ""), one.get("args", ())
        require(kind in ("eq", "ineq") and callable(fun), "constraints", one, allowed)
        function: Callable[..., Any] = fun
        return Constraint(lambda x: function(x, *args), 0.0, 0.0 if kind == "eq" else np.inf)
    from scipy.optimize import LinearConstraint, NonlinearConstraint

    if isinstance(one, LinearConstraint):
        return Constraint(lambda x: one.A @ x, one.lb, one.ub)
    if isinstance(one, NonlinearConstraint):
        return Constraint(one.fun, one.lb, one.ub)
    raise InvalidValue("constraints", one, allowed)


class _Penalised(SearchContext):
    """What a search under multipliers sees: f and the penalty of the constraints."""

    def __init__(
        self,
        outer: SearchContext,
        x: Array,
        most: float,
        owner: Constrained,
        rho: float,
        by: Array,
        exact: bool,
    ) -> None:
        # A search of exact values that knows no limit ends when it has converged.
        super().__init__(x, outer.devices, np.inf if exact else most, outer.draw())
        self.outer, self.most, self.owner, self.rho, self.by = outer, most, owner, rho, by

    def penalty(self, u: Array) -> float:
        """Return what the constraints add to f(x)."""
        residuals = self.owner.residuals(u)
        equal, rho = self.owner.constraints.equal, self.rho
        above = np.maximum(0.0, self.by + rho * residuals)
        with np.errstate(invalid="ignore"):  # of no limit
            equality = residuals * (self.by + rho / 2 * residuals)
        parts = np.where(equal, equality, (above**2 - self.by**2) / (2 * rho))
        return float(np.sum(parts))

    def ask(self, task: Evaluate | Slopes) -> Asking[Array]:
        """Put a question, and add the penalty to values of points."""
        if self.asked + task.queries(self.devices) > self.most:
            raise BudgetExhausted
        answer = yield from super().ask(task)
        if not isinstance(task, Evaluate):
            return answer
        for u, value in zip(task.points, answer, strict=True):
            self.owner.note(self.outer, u, float(value), bool(self.noise))
        return np.asarray(answer + [self.penalty(u) for u in task.points])

    def slopes(
        self, x: Array, steps: Array, *, everyone: bool, central: bool, turn: int = 0
    ) -> Asking[MeasuredSlopes]:
        """Return f and its slopes with those of the penalty, by the same differences."""
        how: Any = {"everyone": everyone, "central": central, "turn": turn}
        found = yield from super().slopes(x, steps, **how)
        self.owner.note(self.outer, x, found.fun, bool(self.noise))
        here, moves = self.penalty(x), np.diag(steps)
        ahead = np.array([self.penalty(x + move) for move in moves])
        if central:
            slopes = (ahead - [self.penalty(x - move) for move in moves]) / (2 * steps)
        else:
            slopes = (ahead - here) / steps
        own, every = found.own + slopes, found.every + slopes
        return MeasuredSlopes(found.fun + here, own, every)


@dataclass(frozen=True, kw_only=True)
class Constrained(Search):
    """A search whose result satisfies constraints, to 1e-6, or as far as noisy values show.

    Parameters
    ----------
    inner : Search
        What minimises the augmented Lagrangian.
    constraints : Constraints
        Functions of the user's x.
    to_user : callable
        Maps the optimiser's x to the user's.
    """

    tracks_best: ClassVar[bool] = True
    measures_noise: ClassVar[bool] = True

    inner: Search
    constraints: Constraints = field(repr=False)
    to_user: Callable[[Array], Array] = field(repr=False)

    def residuals(self, u: Array) -> Array:
        """Return the residuals at the optimiser's x."""
        return self.constraints.residuals(self.to_user(u))

    def excess(self, u: Array) -> float:
        """Return by how much a point is more than feasible."""
        return max(0.0, self.constraints.violation(self.to_user(u)) - FEASIBLE)

    def note(self, context: SearchContext, u: Array, fun: float, noisy: bool) -> None:
        """Keep a point that is better: closer to feasible, or lower and as feasible."""
        if not noisy and (self.excess(u), fun) < (self.excess(context.x), context.fun):
            context.x, context.fun = u.copy(), fun

    def search(self, context: SearchContext, scale: Array | None) -> Asking[str]:
        """Run the search under multipliers that follow the constraints."""
        x, last, exact = context.x, np.inf, not np.isfinite(context.left)
        fun = float((yield from context.values(x))[0])
        by = np.zeros(len(self.constraints.equal))
        size = float(np.sum(np.maximum(_sides(self, x, by, 1.0), 0.0) ** 2))
        rho = float(np.clip(10 * max(1.0, abs(fun)) / max(1.0, size / 2), 1e-6, 10.0))
        for _ in range(_TIMES):
            run = _Penalised(context, x, _SHARE * context.left, self, rho, by, exact)
            with suppress(BudgetExhausted):
                yield from self.inner.search(run, scale)
            if run.noise:  # the lowest of noisy values is lucky; a search ends with compared ones
                context.x, context.fun = run.x, run.fun - run.penalty(run.x)
            exact = not run.noise
            moved, x = float(np.linalg.norm(run.x - x)), run.x
            off = float(np.max(np.abs(_sides(self, x, by, rho)), initial=0.0))
            residuals = self.residuals(x)
            above = np.maximum(0.0, by + rho * residuals)
            by = np.clip(np.where(self.constraints.equal, by + rho * residuals, above), -1e20, 1e20)
            if off <= FEASIBLE / 10 and moved <= _STEADY * max(1.0, float(np.linalg.norm(x))):
                return "the constraints are satisfied, and nothing improves any more"
            rho = 10 * rho if exact and off > last / 2 else rho  # not for the sake of noise
            last = off
        if self.excess(context.x):
            return f"the constraints are not satisfied after {_TIMES} searches"
        return f"the constraints are satisfied, but x still moves after {_TIMES} searches"


def _sides(owner: Constrained, u: Array, by: Array, rho: float) -> Array:
    """Return how far each constraint is from being satisfied with its multiplier."""
    residuals = owner.residuals(u)
    return np.where(owner.constraints.equal, np.abs(residuals), np.maximum(residuals, -by / rho))
