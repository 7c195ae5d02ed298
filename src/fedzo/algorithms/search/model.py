r"""Trust-region descent on a quadratic model: for few queries, and for values that are uncertain.

The model interpolates f at some points y_i around the best of them,

.. math:: m(x_k + s) = c + g^T s + \tfrac12 s^T H s, \qquad m(y_i) = f(y_i),

and of all such models it is the one whose Hessian is closest to the one before in Frobenius's
norm (Powell 2004). A step minimises m in a ball of radius Δ and replaces the point that helps the
model least. Where the model misleads, the farthest point is replaced by one that improves the
geometry. Where it is right and no step helps, the resolution ρ shrinks. A model sees f over a
distance of ρ, never over less, so neither rounding nor noise misleads it as long as f changes by
more over that distance.
"""

import math

import numpy as np

from fedzo.algorithms.search.base import Asking, SearchContext
from fedzo.core.types import Array

LARGEST = 60  # numbers in x, for which a model is worth its algebra
FIRST, LAST = 0.5, 1e-9  # ρ at the beginning and at the end, in units of the scale
AGAIN = 2  # values at the best point, before the model gets finer under noise
GAIN = (0.1, 0.7)  # shares of the promised decrease, below and above which Δ changes


class ModelDescent:
    """A descent by quadratic models that can be paused and resumed, in units of ``scale``."""

    def __init__(
        self,
        context: SearchContext,
        scale: Array,
        radius: float = FIRST,
        last: float = LAST,
    ) -> None:
        self.context, self.scale, self.last = context, scale, last
        dim = context.dim
        self.origin, self.fun = context.x, context.fun
        self.points, self.values = np.zeros((1, dim)), np.array([self.fun])
        self.most = min(2 * dim + 1 + dim // 2, (dim + 1) * (dim + 2) // 2)
        self.radius = self.resolution = radius  # Δ and ρ
        self.hessian = np.zeros((dim, dim))
        self.noise = context.noise  # it may be less where f is lower
        self.luckiest: list[Array] = []  # it trusts no single value

    @property
    def x(self) -> Array:
        """The best point."""
        return np.asarray(self.origin + self.points[self.best] * self.scale)

    @property
    def best(self) -> int:
        """Which of the points is the best."""
        return int(np.argmin(self.values))

    def run(self, limit: float = math.inf) -> Asking[bool]:
        """Descend; return True when it has converged, False after ``limit`` queries."""
        begun, dim = self.context.asked, self.context.dim
        if len(self.points) == 1:
            context = self.context
            affordable = (context.left - context.reserved) // context.devices
            count = int(min(dim, max(1, affordable - 1)))  # and a step
            yield from self._add(self.resolution * np.eye(dim)[:count])
        while self.context.asked - begun < limit:
            if not (yield from self._step()):
                return True
        return False

    def _add(self, moves: Array) -> Asking[Array]:
        """Evaluate points and add them to the model's."""
        moves = np.atleast_2d(moves)
        values = yield from self.context.values(self.origin + moves * self.scale)
        finite = np.isfinite(values)
        worst = float(np.max(self.values[np.isfinite(self.values)], initial=self.fun))
        # A barrier: as high as anything so far, and the model turns away.
        heights = np.where(finite, values, worst + abs(worst - float(np.min(self.values))))
        self.points = np.concatenate([self.points, moves])
        self.values = np.concatenate([self.values, heights])
        self.fun = float(np.min(self.values))
        return values

    def _step(self) -> Asking[bool]:
        """Take a step, or improve the model or its resolution; return False at the end."""
        best = self.best
        centre, fun = self.points[best], self.values[best]
        gradient, hessian = self._fit(best)
        step = minimum_in_ball(gradient, hessian, self.radius)
        length = float(np.linalg.norm(step))
        promised = -float(gradient @ step + 0.5 * step @ hessian @ step)
        gain = -1.0
        if length >= 0.5 * self.resolution and promised > 0:
            values = yield from self._add(centre + step)
            gain = (fun - float(values[0])) / promised
            if gain < GAIN[0]:
                self.radius = 0.5 * min(self.radius, length)
            elif gain < GAIN[1]:
                self.radius = max(0.5 * self.radius, length)
            else:
                self.radius = max(self.radius, 2 * length)
            if self.radius <= 1.5 * self.resolution:
                self.radius = self.resolution
            self._drop()
        else:
            self.radius = max(0.1 * self.radius, self.resolution)
        if gain >= GAIN[0]:
            return True
        far = np.linalg.norm(self.points - self.points[self.best], axis=1)
        reach = 2 * self.radius
        if len(self.points) > 1 and far.max() > reach:
            yield from self._improve(int(np.argmax(far)))
            return True
        if len(self.points) < self.context.dim + 1:
            yield from self._improve(None)
            return True
        if gain > 0 or self.radius > self.resolution:
            return True
        if self.resolution <= self.last or not (yield from self._sees()):
            return False
        old, self.resolution = self.resolution, self._finer()
        self.radius = max(0.5 * old, self.resolution)
        return True

    def _sees(self) -> Asking[bool]:
        """Return whether f changes by more than noise over the points; ask for the best again."""
        context = self.context
        if not context.noise:
            return bool(np.ptp(self.values) > 2 * context.error(self.fun))
        best = self.best
        again = yield from context.values(np.array([self.x] * AGAIN))
        known = np.array([*again, self.values[best]])
        self.noise = math.sqrt((self.noise**2 + float(np.var(known, ddof=1))) / 2)
        self.values[best] = self.fun = float(np.mean(known))
        context.suggest(self.x, self.fun, self.noise / math.sqrt(len(known)))
        return bool(np.ptp(self.values) > 3 * self.noise)

    def _finer(self) -> float:
        ratio = self.resolution / self.last
        if ratio <= 16:
            return self.last
        return math.sqrt(ratio) * self.last if ratio <= 250 else 0.1 * self.resolution

    def _system(self, centre: Array) -> tuple[Array, float]:
        """Return the matrix of the interpolation around a centre, and the unit of length."""
        moves = self.points - centre
        unit = float(np.max(np.linalg.norm(moves, axis=1))) or 1.0
        moves = moves / unit
        count, dim = moves.shape
        system = np.zeros((count + 1 + dim, count + 1 + dim))
        system[:count, :count] = 0.5 * (moves @ moves.T) ** 2
        system[:count, count] = system[count, :count] = 1.0
        system[:count, count + 1 :] = moves
        system[count + 1 :, :count] = moves.T
        return system, unit

    def _interpolate(self, centre: Array, values: Array) -> tuple[Array, Array]:
        """Return the gradient and the Hessian, of least norm, of a model with these values."""
        system, unit = self._system(centre)
        count, moves = len(self.points), (self.points - centre) / unit
        solved = solve(system, np.concatenate([values, np.zeros(len(system) - count)]))
        return solved[count + 1 :] / unit, (moves.T * solved[:count]) @ moves / unit**2

    def _fit(self, best: int) -> tuple[Array, Array]:
        """Return the gradient and the Hessian at the best point, whose change is the least."""
        centre = self.points[best]
        moves = self.points - centre
        rest = self.values - self.values[best] - 0.5 * np.sum(moves @ self.hessian * moves, axis=1)
        gradient, change = self._interpolate(centre, rest)
        self.hessian = self.hessian + change
        return gradient, self.hessian

    def _lagrange(self, centre: Array, at: Array) -> Array:
        """Return the Lagrange polynomials' values at a point."""
        system, unit = self._system(centre)
        count, s = len(self.points), (at - centre) / unit
        moves = (self.points - centre) / unit
        right = np.concatenate([0.5 * (moves @ s) ** 2, [1.0], s])
        return np.asarray(solve(system, right)[:count])

    def _drop(self) -> None:
        """Drop the point that the model can spare, if there are too many."""
        if len(self.points) <= self.most:
            return
        best, newest = self.best, len(self.points) - 1
        new = self.points[newest]
        self.points, values = self.points[:-1], self.values
        centre = new if best == newest else self.points[best]
        weights = np.abs(self._lagrange(centre, new))
        far = np.linalg.norm(self.points - centre, axis=1) / self.radius
        scores = weights * np.maximum(1.0, far) ** 4
        if best != newest:
            scores[best] = -1.0
        gone = int(np.argmax(scores))
        self.points = np.concatenate([np.delete(self.points, gone, axis=0), new[None]])
        self.values = np.delete(values, gone)

    def _improve(self, which: int | None) -> Asking[None]:
        """Replace a point by one that makes the model well posed within the radius."""
        best = self.best
        centre = self.points[best]
        if which is not None:
            gradient, hessian = self._interpolate(centre, np.eye(len(self.points))[which])
            candidates = [
                minimum_in_ball(sign * gradient, sign * hessian, self.radius) for sign in (1, -1)
            ]
            heights = [abs(float(gradient @ s + 0.5 * s @ hessian @ s)) for s in candidates]
            step = candidates[int(np.argmax(heights))]
            self.points = np.delete(self.points, which, axis=0)
            self.values = np.delete(self.values, which)
        else:
            step = self.radius * np.eye(self.context.dim)[len(self.points) - 1]
        if not step.any():
            step = self.radius * self.context.draw().normals(self.context.dim)
        yield from self._add(centre + step)


def solve(system: Array, right: Array) -> Array:
    """Return the solution of the interpolation, or the least one where it is not unique."""
    try:
        found = np.linalg.solve(system, right)
        if np.isfinite(found).all() and np.abs(system @ found - right).max() <= 1e-6 * (
            np.abs(right).max() + 1e-300
        ):
            return found
    except np.linalg.LinAlgError:
        pass
    return np.asarray(np.linalg.lstsq(system, right, rcond=1e-14)[0])


def minimum_in_ball(gradient: Array, hessian: Array, radius: float) -> Array:
    r"""Return the s of least :math:`g^T s + s^T H s / 2` with a norm of at most ``radius``.

    >>> minimum_in_ball(np.array([2.0, 0.0]), np.diag([4.0, 1.0]), 1.0)
    array([-0.5,  0. ])
    >>> minimum_in_ball(np.array([2.0, 0.0]), np.diag([-4.0, 1.0]), 3.0)
    array([-3.,  0.])
    """
    sizes, basis = np.linalg.eigh(hessian)
    along = basis.T @ gradient
    norm = float(np.linalg.norm(gradient))
    if sizes[0] > 0:
        step = -along / sizes
        if np.linalg.norm(step) <= radius:
            return np.asarray(basis @ step + 0.0)
    low = max(0.0, -sizes[0]) + 1e-14 * max(norm / radius, abs(sizes[-1]), abs(sizes[0]))
    high = low + norm / radius + 1e-300
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for _ in range(60):
            middle = 0.5 * (low + high)
            if np.linalg.norm(along / (sizes + middle)) > radius:
                low = middle
            else:
                high = middle
        step = -along / (sizes + high)
    step = np.where(np.isfinite(step), step, 0.0)
    short = radius**2 - float(step @ step)
    if sizes[0] <= 0 and short > 1e-6 * radius**2:  # the hard case: fill up along the lowest
        step[0] += math.copysign(math.sqrt(short), -along[0] if along[0] else 1.0)
        size = float(np.linalg.norm(step))
        step *= min(1.0, radius / size) if size else 1.0
    return np.asarray(basis @ step + 0.0)
