r"""Quasi-Newton descent across a federation: L-BFGS at the server, slopes from the devices.

.. math:: x^{k+1} = x^k - \alpha_k H_k g^k, \qquad g_j^k = \frac{F(x^k + h e_j) - F(x^k)}{h}

with H_k the inverse Hessian that limited-memory BFGS makes of the last pairs
:math:`s = x^{k+1} - x^k`, :math:`y = g^{k+1} - g^k`, and α_k from a line search that allows for the
noise ε of the values: :math:`f(x + \alpha p) \le f(x) + c_1 \alpha\, p^T g + 2 ε`.

* The step h follows the noise and the curvature c, :math:`h = 2\sqrt{ε / c}`, which balances the
  error of truncation, ch/2, and that of the noise, 2ε/h (Moré & Wild 2012; Berahas et al. 2019).
* The coordinates are shared out among the devices: a gradient takes d + N values. The i-th device's
  slopes are its own, not the federation's: once that stalls the descent, all devices measure all
  slopes at one point z, and :math:`b = \nabla f(z) - \text{own}(z)` corrects what follows. A pair y
  is free of b, and so of differences between devices that are linear in x. Where they are not, and
  steps bring far less than slopes promise, all devices measure all slopes, if that is affordable.
* Pairs whose :math:`s^T y` does not stand out of the noise of y are left out (Shi et al. 2022).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from fedzo.algorithms.search.base import EPS, Asking, ProgressMonitor, Search, SearchContext
from fedzo.core.types import Array
from fedzo.errors import check_counts

# How slopes are measured, each way when the one before stalls: shared out among the devices, the
# same with a correction, by all devices, and by all devices on both sides of x.
SHARED_OUT, CORRECTED, EVERYONE, CENTRAL = range(4)

STEPS = 11  # of a descent, from the first to the last of which f must fall
LARGEST_STEP = 5.0  # of a difference, in units of the scale
CHEAP, DEAR = 0.1, 0.2  # shares of the queries left that the slopes of all devices may take once
AFFORDABLE = 0.05  # the same, at each step
LASTING = 6  # steps, that a correction should be good for
POOR, POOR_STEPS = 0.1, 3  # of the fall that the slope promised; half of it is usual
MEASURED_BY_ALL = 3  # numbers: their slopes by all devices cost at most twice what shares cost
NEXT_TO_NOTHING = 1e-6  # of the fall of a descent: that is all another step would bring


def typical_scale(x0: Array, known: Array | None = None) -> Array:
    """Return a length for each number in x: the one that is known, or one by the start.

    That is its root mean square, or 1; each number's own size where they differ by decades.

    >>> typical_scale(np.zeros(2), known=np.array([np.nan, 7.0]))
    array([1., 7.])
    >>> typical_scale(np.zeros(2)), typical_scale(np.array([3.0, 4.0, 0.0])).round(3)
    (array([1., 1.]), array([2.887, 2.887, 2.887]))
    >>> typical_scale(np.array([1e-6, 1.0, 1e5]))
    array([1.e-06, 1.e+00, 1.e+05])
    """
    if known is not None:
        return np.where(np.isnan(known), typical_scale(x0), known)
    sizes = np.abs(x0.astype(np.float64))
    if not sizes.any():
        return np.ones_like(sizes)
    # The logarithms of uniform or normal numbers have a deviation below 0.5.
    if sizes.all() and np.std(np.log10(sizes)) > 0.9:
        return sizes
    return np.full_like(sizes, math.sqrt(float(np.mean(sizes**2))))


class Curvature(NamedTuple):
    """What a line through x tells of f."""

    second: float  # the mean second derivative, for a step of the scale
    length: float  # of the steps, in units of the scale, by which it was seen


def curvature(context: SearchContext, scale: Array) -> Asking[Curvature | None]:
    r"""Return the mean second derivative at the best x, or None where there is none to be seen.

    Along a line v of random signs it is :math:`(f(x + tv) + f(x - tv) - 2 f(x)) / t^2 d`, at a t at
    which the difference stands out of the noise, and not by far: longer steps may have left the
    neighbourhood of x.
    """
    signs = np.where(context.draw().uniform(context.dim) < 0.5, -1.0, 1.0)
    x, fun, noisy = context.x, context.fun, context.noise > 0
    visible = (20 if noisy else 100) * context.error(fun)
    far, length = (10.0, 0.1) if noisy else (1e6, 1e-5)
    short, long, found = 0.0, math.inf, None  # steps that show nothing, and that show too much
    for _ in range(12):
        move = length * signs * scale
        values = yield from context.values(np.array([x + move, x - move]))
        second = abs(float(values.sum()) - 2 * fun)
        if second >= visible:
            long = length
            if math.isfinite(second):
                found = Curvature(second / length**2 / context.dim, length)
            # Where f is a parabola, this is as far as one can see well.
            length *= max(math.sqrt(math.sqrt(far) * visible / second), 1e-4)
        else:
            short = length
        if second <= far * visible <= far * second or long <= 10 * short:
            break
        if long < math.inf:
            length = max(length, math.sqrt(short * long))
        else:
            length *= 10 if noisy else 100
    return found


def difference_step(context: SearchContext, fun: float, curved: float, central: bool) -> float:
    r"""Return h, in units of the scale: :math:`2\sqrt{ε / c}`, and more for central differences.

    Those are wrong by the third derivative only. However large the noise, h is kept where f may
    still be what it is at x.
    """
    h = 2 * math.sqrt(context.error(fun, context.devices) / curved)
    if central:
        h *= 2 if context.noise else 20
    return min(h, max(LARGEST_STEP, math.sqrt(context.dim)))


def two_loops(gradient: Array, pairs: list[tuple[Array, Array]], start: float) -> Array:
    """Return H g by the two loops of L-BFGS (Nocedal 1980), with H_0 = ``start`` I.

    >>> two_loops(np.array([2.0, 8.0]), [(np.array([0.0, 1.0]), np.array([0.0, 4.0]))], 0.5)
    array([1., 2.])
    """
    q, shares = gradient.copy(), []
    for s, y in reversed(pairs):
        shares.append(float(s @ q) / float(s @ y))
        q -= shares[-1] * y
    q *= start
    for (s, y), share in zip(pairs, reversed(shares), strict=True):
        q += (share - float(y @ q) / float(s @ y)) * s
    return q


class Descent:
    """A quasi-Newton descent that can be paused and resumed, in units of ``scale``."""

    def __init__(
        self,
        context: SearchContext,
        scale: Array,
        curved: float,
        memory: int,
        at: tuple[Array, float] | None = None,
    ) -> None:
        self.context, self.scale, self.curved, self.memory = context, scale, curved, memory
        self.x: Array = context.x if at is None else at[0]
        self.fun = context.fun if at is None else at[1]
        self.pairs: list[tuple[Array, Array]] = []
        self.first = 1 / curved  # H_0
        self.gradient: Array | None = None
        self.correction: Array | float = 0.0  # b
        self.stage, self.steps_in_stage = SHARED_OUT, 0
        self.poor_steps = 0  # in a row
        self.luckiest: list[Array] = []  # it trusts no single value
        self.gradient_error = 0.0
        self.trail = [self.fun]  # f after each step

    @property
    def exact(self) -> bool:
        """Whether all devices measure all slopes."""
        return self.stage >= EVERYONE or self.few

    @property
    def few(self) -> bool:
        """Whether the slopes of all devices cost little more than shares of them."""
        return self.context.devices == 1 or self.context.dim <= MEASURED_BY_ALL

    def run(
        self, limit: float = math.inf, window: float = math.inf, slow: float = 0.0, tol: float = 0.0
    ) -> Asking[bool]:
        """Descend; return True when no step improves on x any more.

        That is also where the last ten steps have brought less than a share ``tol`` of all of them.
        Returns False after ``limit`` queries, or where the last ``window`` queries have brought
        at most a share ``slow`` of the descent so far, and there is more to come.
        """
        begun, pace = self.context.asked, ProgressMonitor(self.context.asked, self.fun)
        if self.gradient is None:
            context = self.context
            if context.devices > 1 and self._share() <= CHEAP:
                self.stage = CORRECTED
            everyone = self.stage == CORRECTED
            self.gradient, self.fun = yield from self._slopes(self.x, self.fun, everyone)
        while self.context.asked - begun <= limit:
            moved = yield from self._step()
            stalled = not moved or self._is_misled()
            if stalled and not (yield from self._measure_better()):
                return True
            self.trail.append(self.fun)
            if tol and self.trail[-STEPS:][0] - self.fun < tol * (self.trail[0] - self.fun):
                return True
            if pace.is_slow(self.context.asked, self.fun, window, slow):
                if self.exact or self._share() > AFFORDABLE:
                    return self._has_converged()
                yield from self._enter(EVERYONE)
                pace = ProgressMonitor(self.context.asked, self.fun)
        return False

    def _is_misled(self) -> bool:
        """Return whether steps bring little since shares of slopes, of unlike devices, mislead."""
        return self.poor_steps >= POOR_STEPS and not self.exact

    def _has_converged(self) -> bool:
        """Return whether the next step would bring next to nothing, as far as H and g tell."""
        assert self.gradient is not None
        ahead = float(self.gradient @ two_loops(self.gradient, self.pairs, self.first)) / 2
        return ahead <= NEXT_TO_NOTHING * (self.trail[0] - self.fun)

    def _step(self) -> Asking[bool]:
        """Take one step; return whether there was any."""
        gradient = self.gradient
        assert gradient is not None
        if not np.isfinite(gradient).all() or not gradient.any():
            return False
        context, p = self.context, -two_loops(gradient, self.pairs, self.first)
        slope = float(p @ gradient)
        if not slope < 0:
            self.pairs, p = [], -self.first * gradient
            slope = float(p @ gradient)
        found = yield from self._line_search(p, slope)
        if found is None:
            return False
        length, fun = found
        s, x = length * p, self.x + length * p * self.scale
        ahead, fun = yield from self._slopes(x, fun)
        y = ahead - gradient
        sy = float(s @ y)
        noise = self.gradient_error if context.noise else 0.0
        stands_out = max(1e-10 * float(np.linalg.norm(y)), noise) * float(np.linalg.norm(s))
        if np.isfinite(y).all() and sy > stands_out:
            self.pairs = [*self.pairs, (s, y)][-self.memory :]
            self.first = sy / float(y @ y)
        promised = -length * slope
        self.poor_steps = self.poor_steps + 1 if self.fun - fun < POOR * promised else 0
        self.x, self.fun, self.gradient = x, fun, ahead
        if context.noise:
            context.suggest(x, fun, context.noise / math.sqrt(2))
        self.steps_in_stage += 1
        return True

    def _measure_better(self) -> Asking[bool]:
        """Forget the pairs, or measure the slopes by a better rule; False if there is none."""
        misled, self.poor_steps = self._is_misled(), 0
        if self.pairs and not misled:
            self.pairs = []
            return True
        stage = self._next_stage(misled)
        if stage is None:
            return False
        yield from self._enter(stage)
        return True

    def _enter(self, stage: int) -> Asking[None]:
        """Measure slopes in another way from here on, or the correction again."""
        self.stage, self.steps_in_stage, self.pairs = stage, 0, []
        self.gradient, self.fun = yield from self._slopes(self.x, self.fun, everyone=True)

    def _share(self) -> float:
        """Return what share of the queries that are left the slopes of all devices take."""
        context = self.context
        return context.devices * context.dim / context.left if context.left > 0 else math.inf

    def _next_stage(self, misled: bool) -> int | None:
        """Return how to measure slopes from here on; None where that is too dear, or no better."""
        share = self._share()
        if self.stage >= EVERYONE or self.few:
            return CENTRAL if self.stage < CENTRAL else None
        if self.stage == SHARED_OUT:
            return CORRECTED if share <= DEAR else None
        if not self.steps_in_stage:
            return CENTRAL
        if share <= AFFORDABLE and self.steps_in_stage < LASTING:
            return EVERYONE
        return None if misled and self.steps_in_stage < LASTING else CORRECTED  # again, at this x

    def _slopes(self, x: Array, fun: float, everyone: bool = False) -> Asking[tuple[Array, float]]:
        """Return the gradient at x, for steps of ``scale``, and the current estimate of f(x)."""
        context, central = self.context, self.stage == CENTRAL
        error = context.error(fun, context.devices)
        h = difference_step(context, fun, self.curved, central)
        steps = np.maximum(h * self.scale, 8 * EPS * np.abs(x))
        everyone = everyone or self.exact
        slopes = yield from context.slopes(x, steps, everyone=everyone, central=central)
        own, every = slopes.own * self.scale, slopes.every * self.scale
        if everyone:
            self.correction = every - own
        heard = context.devices if everyone else 1
        self.gradient_error = math.sqrt(context.dim * (0.5 if central else 2) / heard) * error / h
        return own + self.correction, (fun + slopes.fun) / 2 if context.noise else fun

    def _line_search(self, p: Array, slope: float) -> Asking[tuple[float, float] | None]:
        """Return a length along p that is good enough, and f there."""
        context, error = self.context, self.context.error(self.fun)
        length = 1.0
        for _ in range(20 if self.exact else 8):  # slopes that mislead are no reason to go on
            fun = yield from self._along(length, p)
            rise = fun - self.fun
            enough = 1e-4 * length * slope
            if rise <= enough + error / 2 if context.noise else rise < min(0.0, enough + 2 * error):
                break
            if not math.isfinite(fun):
                length *= 0.1
            else:  # the lowest point of the parabola
                bend = rise - slope * length
                lowest = -slope * length**2 / (2 * bend) if bend > 0 else length / 2
                length = min(max(lowest, 0.1 * length), 0.5 * length)
            if -length * slope < 0.1 * error:
                return None
        else:
            return None
        # As good as straight: the step may have been much too short.
        while length >= 1 and fun - self.fun < 0.6 * length * slope - 2 * error:
            farther = length * (2.5 if self.pairs else 4.0)
            there = yield from self._along(farther, p)
            if not there < fun:
                break
            length, fun = farther, there
        return length, fun

    def _along(self, length: float, p: Array) -> Asking[float]:
        values = yield from self.context.values(self.x + length * p * self.scale)
        return float(values[0])


@dataclass(frozen=True, kw_only=True)
class LBFGS(Search):
    r"""L-BFGS at the server, from differences that the devices share out among them.

    .. math:: x^{k+1} = x^k - \alpha_k H_k g^k

    as :mod:`fedzo.algorithms.search.descent` describes it. For smooth functions of up to a few
    thousand numbers, whose noise is small; it ends where no step improves on x any more. Under
    noise and with a budget it goes on from there, each value the mean of four times as many.

    Parameters
    ----------
    memory : int
        How many pairs (s, y) make H_k.
    batch_size, participants, weighting
        See :class:`~fedzo.algorithms.search.base.Search`.

    References
    ----------
    J. Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of Computation
    35, 1980. A. S. Berahas, R. H. Byrd and J. Nocedal, "Derivative-Free Optimization of Noisy
    Functions via Quasi-Newton Methods", SIAM Journal on Optimization 29, 2019. H.-J. M. Shi,
    Y. Xie, R. Byrd and J. Nocedal, "A Noise-Tolerant Quasi-Newton Algorithm for Unconstrained
    Optimization", SIAM Journal on Optimization 32, 2022.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> def valley(x, device):
    ...     return 100 * (x[1] - x[0] ** 2) ** 2 + (1 + 0.1 * device - x[0]) ** 2
    >>> result = fedzo.minimize(valley, np.zeros(2), devices=3, algorithm=LBFGS(), rounds=300)
    >>> result.x.round(3)  # the mean of 1, 1.1 and 1.2, and its square
    array([1.1 , 1.21])
    """

    tracks_best: ClassVar[bool] = True
    measures_noise: ClassVar[bool] = True

    memory: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "memory")

    def search(self, context: SearchContext, scale: Array | None) -> Asking[str]:
        """Descend until nothing improves."""
        scale = typical_scale(context.x, scale)
        yield from context.start()
        curved = yield from curvature(context, scale)
        if curved is None:
            return "no slope stands out of the noise"
        descent = Descent(context, scale, curved.second, self.memory)
        yield from descent.run()
        while context.noise and math.isfinite(context.left):
            context.average(4)  # half of the noise: steps that it hid can be seen
            at = descent.x, float((yield from context.values(descent.x))[0])
            descent = Descent(context, scale, curved.second, self.memory, at=at)
            yield from descent.run()
        if context.noise:
            context.suggest(descent.x, descent.fun, 0.0)
        return "no step improves on x any more"
