r"""The default for plain functions: a quasi-Newton descent and CMA-ES share the queries.

Neither is good at everything: differences win where f is smooth, populations where it is rugged,
flat or noisy. So the search first looks at f, and then gives each what it is good for.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from fedzo.algorithms.search.averaging import AveragedDescent
from fedzo.algorithms.search.base import (
    EPS,
    FEW,
    Asking,
    BudgetExhausted,
    Search,
    SearchContext,
    surely_lowest,
)
from fedzo.algorithms.search.descent import Curvature, Descent, curvature, typical_scale
from fedzo.algorithms.search.model import FIRST, LARGEST, LAST, ModelDescent
from fedzo.algorithms.search.population import SEPARABLE, Evolution, population_for, repeats_for
from fedzo.core.types import Array
from fedzo.errors import require

MEMORY = 30  # pairs of L-BFGS
RACE = 0.08  # share of the queries that each method has under noise, before one is chosen
FADING = 0.5  # of the noise at the start, below which a racer's says that noise falls with f
FAR, FAR_GUESSED = 100.0, 30.0  # units of the scale, over which it is not that of f
FEW_QUERIES = 100  # per device: too few to look at f before it is modelled,
FEW_QUERIES_OF_FEW = 300  # and of one device, if x has at most so many numbers:
FEWEST_NUMBERS = 6  # with more, a gradient is a batch that workers evaluate side by side
COARSE = (3e-3, 0.5)  # with few queries: resolution of models, and then the width of CMA-ES
SHARED_FROM = 20  # queries per device, with which devices measure shares of the slopes instead,
SHARED_UNTIL = 3  # if there are fewer than so many times d: a model takes d of each device
FEW_NUMBERS = 10  # for which CMA-ES needs no slopes beside it, where there are few queries
LINES = (24, 12)  # values along a line, by which f is looked at, if there are enough
LONGEST = 20  # times the usual queries, after which a search without a budget ends
LEAST_GAIN = 1e-8  # of a run of CMA-ES, as a share of all, for another one to be worth its queries
LAST_SHARE = 0.2  # of the queries, for the descent that follows CMA-ES
BEGINNINGS = 3  # random points, of which the best is where another descent begins
RETURNS = 4  # descents to the same minimum, after which no other one is looked for
LOOKS = 0.1  # share of the queries that looking at f may take
LOW, HIGH = 1.0, 30.0  # times its fall, that f shall rise within the length of f
WITHIN_BOUNDS = 2.0  # of such lengths, which are a quarter of the width
PLATEAU = 0.01  # units of the scale, over which f does not change where a descent may not end
SHORTEST = 1e-9  # of such lengths, in units of the scale
ON_LINES = (0.4, 0.8)  # of the queries left: every line early, and then once more
LEAST = 56  # values on a line, for it to be searched
REACH = 5.0  # how far a line goes, in units of the scale
_VALLEYS, _ZOOMS, _NEAR = 3, 2, 6  # of a grid that are looked into; finer grids; their values

Method = ModelDescent | Descent | AveragedDescent | Evolution


@dataclass(frozen=True, kw_only=True)
class Adaptive(Search):
    r"""Minimise a function of which nothing is known, with nothing set but the budget.

    Its parts are a quasi-Newton descent (:mod:`~fedzo.algorithms.search.descent`),

    .. math:: x^{k+1} = x^k - \alpha_k H_k g^k,

    an averaged descent (:mod:`~fedzo.algorithms.search.averaging`), a search along single lines
    (:func:`search_lines`) and CMA-ES.

    1. The noise of the values is measured by repeats at x0, and rounding or jitter by differences
       along a short line. With few queries, or where values are rounded or jitter, a descent by
       quadratic models (:mod:`~fedzo.algorithms.search.model`) comes first. Several devices with
       fewer than 3 d queries each measure slopes instead.
    2. Without noise the descent gets an eighth of the queries. How far from its end f is as high as
       at the start is the length of f, in place of that of x0. Then f is evaluated along two lines.
       f is rugged if it turns more often than a polynomial of degree four can. If it is not, the
       descent continues to its end, and others start elsewhere. If it is, and f is a sum of
       functions of single coordinates, each coordinate is searched along a line.
    3. CMA-ES gets the rest, from the best point and as wide as the length of f. The last
       queries are for a second descent from the best point.
    4. Under noise all descents and CMA-ES race from the start, and the winner gets the rest. With
       few queries they follow one another; beyond 200 numbers the averaged descent is first. The
       result replaces the start if repeated evaluations show that it is better beyond the noise.

    All lengths are relative to the start, to 1 if that is more, or to the problem's scale, and all
    values to the noise or the decrease of f. So other units of f, and larger ones of x, give the
    same run. The model is the best evaluated point: it never gets worse.

    Parameters
    ----------
    tol : float
        The search ends when ten steps of a descent, or a whole run of CMA-ES, lower f by less than
        this share of the total decrease. By default it ends when nothing improves any more.
        Without a budget, the search of a smooth function ends with its descent. With a budget, it
        continues to search for other minima. Noisy values have a separate criterion.
    batch_size, participants, weighting
        See :class:`~fedzo.algorithms.search.base.Search`.

    References
    ----------
    A. S. Berahas, R. H. Byrd and J. Nocedal, "Derivative-Free Optimization of Noisy Functions via
    Quasi-Newton Methods", SIAM Journal on Optimization 29, 2019. N. Hansen, "The CMA Evolution
    Strategy: A Tutorial", 2016.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> from fedzo.algorithms.search.adaptive import Adaptive
    >>> def distance(x, device):
    ...     return float(np.sum((x - device) ** 2))
    >>> result = fedzo.minimize(distance, np.zeros(3), devices=3, algorithm=Adaptive())
    >>> result.x.round(4), round(result.fun, 4)
    (array([1., 1., 1.]), 2.0)
    """

    tracks_best: ClassVar[bool] = True
    measures_noise: ClassVar[bool] = True

    tol: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        real = isinstance(self.tol, float | int) and not isinstance(self.tol, bool)
        require(real and 0 <= self.tol < 1, "tol", self.tol, "a number in [0, 1)")

    def search(self, context: SearchContext, scale: Array | None) -> Asking[str]:
        """Look at f, and give the queries to what it is good for."""
        limited = math.isfinite(context.left)
        budget = context.left if limited else 200.0 * (context.dim + 1) * context.devices
        yield from context.start(scale)
        guessed = scale is None and not context.x.any()  # nothing tells how long steps should be
        known = scale is not None
        scale = typical_scale(context.x, scale)
        if context.noise:
            return (yield from self._noisy(context, scale, budget, guessed))
        modelled = context.dim <= LARGEST
        each = budget / context.devices
        shared = context.devices > 1 and SHARED_FROM <= each < SHARED_UNTIL * context.dim
        small = context.devices == 1 and context.dim <= FEWEST_NUMBERS
        enough = FEW_QUERIES_OF_FEW if small else FEW_QUERIES
        few = modelled and each < enough and not shared
        if not (few or context.rough):
            yield from context.probe(scale)
        if few or (context.rough and modelled):
            return (yield from self._modelled(context, scale, budget, known))
        return (yield from self._smooth(context, scale, budget, known))

    def _smooth(
        self, context: SearchContext, scale: Array, budget: float, known: bool
    ) -> Asking[str]:
        """Descend, look whether f is rugged, and share the rest between descents and CMA-ES."""
        x0, start, limited = context.x, context.fun, math.isfinite(context.left)
        curved = yield from curvature(context, scale)
        descent, slow, rugged = None, False, True
        if curved is not None:
            descent = Descent(context, scale, curved.second, MEMORY)
            rugged, ended = False, False
            affordable = [n for n in LINES if 2 * n * context.devices <= LOOKS * budget]
            if affordable:
                ended = yield from descent.run(limit=0.12 * budget, tol=self.tol)
                far = yield from reach(context, scale, start, known, curved.length)
                scale, curved = far * scale, Curvature(far**2 * curved.second, curved.length / far)
                rugged = yield from is_rugged(context, scale, affordable[0])
            if not rugged:
                window = max(0.15 * budget, 3.0 * context.dim)
                if not ended:
                    ended = yield from descent.run(window=window, slow=0.002, tol=self.tol)
                if ended and not limited and not (yield from is_flat(context, scale)):
                    return "no step improves on x any more"
                if context.devices > 1 and not descent.exact:
                    averaged = AveragedDescent(context, scale, curved.second)
                    yield from averaged.run(window=window, slow=0.002)
                slow = not ended
                if ended and limited:
                    yield from from_elsewhere(context, scale, curved.second, (x0, start))
        left = context.left if limited else 4 * budget
        searched = rugged and ON_LINES[0] * left >= LEAST * context.dim * context.devices
        if searched and (yield from is_separable(context, scale)):
            for share in ON_LINES:
                left = context.left if limited else 4 * budget
                yield from search_lines(context, scale, share * left)
        return (yield from self._share(context, scale, budget, start, descent, slow))

    def _modelled(
        self, context: SearchContext, scale: Array, budget: float, known: bool
    ) -> Asking[str]:
        """Descend by models; then CMA-ES, as long as it improves on that.

        With few queries the models stay coarse, until CMA-ES has found something better.
        """
        start, (last, sigma) = context.fun, (LAST, 1.0) if context.rough else COARSE
        yield from ModelDescent(context, scale, last=last).run()
        scale = scale * (yield from reach(context, scale, start, known))
        return (yield from self._share(context, scale, budget, start, sigma=sigma))

    def _share(
        self,
        context: SearchContext,
        scale: Array,
        budget: float,
        start: float,
        descent: Descent | None = None,
        slow: bool = False,
        sigma: float = 1.0,
    ) -> Asking[str]:
        """Give the rest to CMA-ES, and what it finds to a second descent; then again.

        That is a descent by models, as wide as the last generation, unless x is too large for it.
        """
        modelled = context.dim <= LARGEST
        reserved = LAST_SHARE * budget if modelled or slow else 0.0
        before, population, longest = context.fun, None, LONGEST * max(budget, LONGEST)
        while context.left > 0:
            run = Evolution(context, context.x, sigma, scale, population)
            # A descent that was only slow gets half of the rest back, if CMA-ES is no better.
            until = reserved
            if slow and math.isfinite(context.left):
                until = max(reserved, context.left / 2)
            going = True
            while going and context.left > until and context.asked <= longest:
                going = yield from run.generation()
            gained = before - context.fun
            if context.asked > longest:
                return "nothing improves any more"
            if going:
                if slow and descent is not None:
                    yield from descent.run()
                elif gained > 0 and modelled:
                    yield from ModelDescent(context, scale, radius=min(FIRST, run.width / 4)).run()
                reserved, slow = 0.0, False
            elif gained <= max(
                max(self.tol, LEAST_GAIN) * (start - context.fun),
                3 * context.error(context.fun) * context.rough,
            ):
                return "nothing improves any more"
            before, population = context.fun, 2 * run.size
        return "the budget is spent"

    def _noisy(
        self, context: SearchContext, scale: Array, budget: float, guessed: bool
    ) -> Asking[str]:
        """Race CMA-ES and two descents from the start: the winner has the rest, then the others.

        The result is compared with the start by repeats, at the end and before the next
        method continues from there.
        """
        x0, repeats, curved = context.x, repeats_for(context, budget), None
        few = 8 * context.devices > LOOKS * budget
        if guessed or context.dim > FEW_NUMBERS or not few:
            curved = yield from curvature(context, scale)
        if curved is not None:
            far = curved.length
            if far >= FAR or (guessed and not 1 / FAR_GUESSED <= far <= FAR_GUESSED):
                scale, curved = far * scale, Curvature(far**2 * curved.second, 1.0)

        def spend(run: Method, limit: float) -> Asking[None]:
            candidates = 2 + len(methods) * (limit < math.inf) + (context.x is not x0)
            context.reserved = candidates * repeats * context.devices
            with suppress(BudgetExhausted):
                yield from run.run(limit=min(limit, budget - context.asked))
            context.reserved = 0.0

        methods, race = self._racers(context, scale, budget, curved)
        going = methods[0]()
        if race:
            runs = [going, *(method() for method in methods[1:])]
            for run in runs:
                yield from spend(run, RACE * budget)
            means, errors = yield from context.compare([x0, *(run.x for run in runs)], repeats)
            first = surely_lowest(means[1:], errors[1:])
            # Noise that falls with f vanishes at the minimum, and a population converges.
            fades = repeats >= FEW and errors[1 + first] < FADING * errors[0]
            first = 0 if fades else first
            going, methods = runs[first], [methods[first], *methods[:first], *methods[first + 1 :]]
        for method in [*methods[1:], None]:
            yield from spend(going, math.inf)
            found = [x for x in (going.x, *going.luckiest) if not np.array_equal(x, context.x)]
            if found:
                yield from context.compare([context.x, *found], repeats)
            if method is None or context.asked >= budget:
                break
            going = method()  # the winner has converged: another one goes on from there
        return "nothing improves beyond the noise"

    def _racers(
        self, context: SearchContext, scale: Array, budget: float, curved: Curvature | None
    ) -> tuple[list[Callable[[], Method]], bool]:
        """Return the methods for noisy values, and whether there are queries for a race."""

        def evolution() -> Method:  # with many numbers there is no time for it to shrink
            sigma = 1.0 if context.dim <= SEPARABLE else 0.3
            return Evolution(context, context.x, sigma, scale, population_for(context))

        def averaged() -> Method:
            assert curved is not None
            return AveragedDescent(context, scale, curved.second)

        def descent() -> Method:
            assert curved is not None
            return Descent(context, scale, curved.second, MEMORY)

        modelled = context.dim <= LARGEST
        in_turn = [lambda: ModelDescent(context, scale), evolution] if modelled else [evolution]
        if curved is None:
            return in_turn, False
        step = AveragedDescent(context, scale, curved.second).cost
        if context.dim > SEPARABLE:
            return [averaged], False
        if 4 * step <= RACE * budget:
            return [evolution, averaged, descent], True
        few = context.dim * context.devices < step / 4 or context.left < 1.5 * step
        return (in_turn if modelled or few else [averaged]), False


def from_elsewhere(
    context: SearchContext, scale: Array, curved: float, begun: tuple[Array, float]
) -> Asking[None]:
    """Descend from other points to other minima, with half of the queries at most.

    A descent begins at the best of some points, and is left where it hardly falls any more; in the
    end the lowest goes on. A few that come back to the minimum that is known say that it is alone.
    """
    (x0, start), kept, returns, lowest = begun, context.left / 2, 0, None
    budget, step = context.left - kept, context.devices * (context.dim + 2)
    while context.left > kept and returns < RETURNS:
        points = x0 + scale * context.draw().normals(BEGINNINGS, context.dim)
        known = context.fun
        values = yield from context.values(points)
        first = int(np.argmin(values))
        if not math.isfinite(values[first]):
            continue
        at = points[first], float(values[first])
        descent = Descent(context, scale, curved, MEMORY, at=at)
        yield from descent.run(limit=budget / 3, window=2 * step, slow=0.05)
        if abs(descent.fun - known) < 1e-3 * abs(start - known):
            returns += 1
        elif descent.fun < known:
            lowest = descent
    if lowest is not None:
        yield from lowest.run(window=4 * step, slow=0.002)


def is_flat(context: SearchContext, scale: Array) -> Asking[bool]:
    """Return whether f does not change at all around the best x, as on a plateau."""
    moves = PLATEAU * scale * context.draw().normals(2, context.dim)
    values = yield from context.values(context.x + moves)
    return bool((values == context.fun).all())


def is_rugged(context: SearchContext, scale: Array, count: int) -> Asking[bool]:
    """Return whether f turns more than three times along a random line through the best x.

    At a local minimum that a descent has found, waves are not hidden by a slope; a wide and a
    narrow line show long and short ones.
    """
    x = context.x
    for width in (0.5, 0.25):
        line = width * scale * context.draw().normals(context.dim)
        lengths = (np.arange(count) + 0.5) / count * 2 - 1
        values = yield from context.values(x + lengths[:, None] * line)
        values = values[np.isfinite(values)]
        visible = 16 * EPS * float(np.median(np.abs(values))) if values.size else 0.0
        if turns(values, visible) > 3:
            return True
    return False


def turns(values: Array, visible: float) -> int:
    """Return how often values in a row turn from rising to falling or back, by more than noise.

    >>> turns(np.array([3.0, 1.0, 0.0, 0.1, 2.0, 1.0]), visible=0.5)
    2
    """
    rises, last = [], values[0] if len(values) else 0.0
    for value in values[1:]:
        if abs(value - last) > visible:
            rises.append(bool(value > last))
            last = value
    return sum(a != b for a, b in pairwise(rises))


def reach(
    context: SearchContext, scale: Array, start: float, known: bool, seen: float = 1.0
) -> Asking[float]:
    """Return the length of f in units of the scale: where it is about as high as at the start.

    It does not depend on where the origin of x is. Waves do not grow with the length: they are
    not a reason for a shorter one. If f has not fallen, it is a length at which f was ``seen``. A
    scale that is ``known``, as bounds tell it, is at most doubled: beyond, bounds reflect x.
    """
    x, fun = context.x, context.fun
    fall = start - fun
    farthest = WITHIN_BOUNDS if known else 1 / SHORTEST
    if not fall > 0:
        return min(max(1.0, seen), farthest)

    def rise(length: float) -> Asking[float]:
        moves = length * scale * context.draw().normals(2, context.dim)
        values = yield from context.values(x + moves)
        return float(np.mean(values)) - fun

    length = 1.0 if known else max(1.0, 1 / float(np.max(scale)))
    here = yield from rise(length)
    while here > HIGH * fall and length > SHORTEST:
        nearer = yield from rise(length / 4)
        if here / 4 < nearer < math.inf:
            break
        length, here = length / 4, nearer
    while here < LOW * fall and length < farthest:
        farther = yield from rise(min(4 * length, farthest))
        if not farther > 1.2 * here:
            break
        length, here = min(4 * length, farthest), farther
    return length


def is_separable(context: SearchContext, scale: Array) -> Asking[bool]:
    r"""Return whether f is a sum of functions of single numbers, to rounding, around the best x.

    Where :math:`f(x) = \sum_j f_j(x_j)`, moves split into two parts, a and b, have
    :math:`f(x + a + b) - f(x + a) = f(x + b) - f(x)`.
    """
    x, fun = context.x, context.fun
    for _ in range(3):
        draws = context.draw().uniform(2 * context.dim)
        move = 2 * scale * (2 * draws[: context.dim] - 1)
        part = np.where(draws[context.dim :] < 0.5, move, 0.0)
        values = yield from context.values(np.array([x + move, x + part, x + move - part]))
        both, one, other = values
        rounding = 1000 * EPS * float(np.max(np.abs([*values, fun])))
        visible = max(rounding, 1e-9 * float(np.ptp([*values, fun])))
        if not abs(both - one - other + fun) <= visible:
            return False
    return True


def search_lines(context: SearchContext, scale: Array, queries: float) -> Asking[bool]:
    """Search the line of each coordinate in turn; return whether the queries were enough for it.

    All that a sum of functions of single numbers knows of a coordinate is seen on one line, and a
    line can be searched everywhere, however many minima it has.
    """
    each = int(queries / (context.dim * context.devices))
    if each < LEAST:
        return False
    for j in range(context.dim):

        def look(grid: Array, j: int = j) -> Asking[Array]:
            points = np.repeat(context.x[None], len(grid), axis=0)
            points[:, j] = grid
            return (yield from context.values(points))

        reach, count = REACH * scale[j], each - (_VALLEYS + _ZOOMS) * _NEAR
        grid = np.linspace(context.x[j] - reach, context.x[j] + reach, count)
        width = grid[1] - grid[0]
        lowest = valleys((yield from look(grid)), _VALLEYS)
        near = np.linspace(-width, width, _NEAR)
        grid = (grid[lowest][:, None] + near).ravel()
        for _ in range(1 + _ZOOMS):
            values = yield from look(grid)
            near = near * 2 / _NEAR
            grid = grid[int(np.argmin(values))] + near
    return True


def valleys(values: Array, most: int) -> Array:
    """Return where values are lower than beside them, the lowest first.

    >>> valleys(np.array([3.0, 1.0, 2.0, 0.0, 5.0, 4.0]), most=2)
    array([3, 1])
    """
    padded = np.concatenate([[np.inf], values, [np.inf]])
    found = np.flatnonzero((values <= padded[:-2]) & (values <= padded[2:]))
    return found[np.argsort(values[found], kind="stable")][:most]
