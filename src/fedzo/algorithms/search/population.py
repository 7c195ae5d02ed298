r"""Any ask-and-tell optimiser across a federation: all devices get its points, it gets their mean.

A generation of points x_1, ..., x_k goes to all participating devices, and only their values come
back; the optimiser receives :math:`f(x_j) = \sum_i w_i F_i(x_j) / \sum_i w_i`. CMA-ES is
written here; TPE and the CMA-ES of whole numbers are those of well-kept libraries, whose random
numbers follow from the run's seed.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedzo.algorithms.search.base import (
    EPS,
    TINY,
    Asking,
    Search,
    SearchContext,
    SearchState,
    typical,
)
from fedzo.algorithms.search.descent import typical_scale
from fedzo.core.types import Array
from fedzo.errors import (
    Halted,
    MissingExtra,
    check_count,
    check_counts,
    check_positive,
    require,
)
from fedzo.uplinks.base import RunSetting

SEPARABLE = 200  # numbers, beyond which a full covariance cannot be learnt in time
LEAST_GENERATIONS, GENERATIONS = 6, 60  # that the queries are enough for: at least; under noise
_WIDE, _WIDEST = 1e3, 1e4  # widths of a generation that has diverged; where it ends
_FAR = 1e32  # beyond which nothing is looked for
_LEVEL = 1e-14  # of the range of the first generation's values, that counts as nothing
_NEAR = 1e-12  # of the first width, that counts as nothing
_LONG = 1e7  # times the shortest axis, which the longest may be
_EVEN = 10  # points of TPE before the first that follows from the others
_FINALISTS = 20  # trials of TPE for each that is scored again, twice
_MOST_LEVELS = 1000  # of a whole number that has a margin; more are as good as real
_WORST = 1e300  # what stands for a point that has no value


class Evolution:
    r"""A run of CMA-ES, in units of ``scale``: generations, and the mean that they lead to.

    Its constants are those of Hansen's tutorial (2016), with negative weights; beyond ``SEPARABLE``
    numbers only the variances are adapted (Ros & Hansen 2008). The comments have its equations.
    """

    width = 0.0  # of the last generation

    def __init__(
        self,
        context: SearchContext,
        mean: Array,
        sigma: float,
        scale: Array,
        population: int | None,
    ) -> None:
        d = context.dim
        self.context, self.scale, self.sigma = context, scale, sigma
        self.luckiest: list[Array] = []  # the point of the lowest value so far
        self.lowest = math.inf
        self.mean: Array = mean / scale
        self.size = k = population or 4 + int(3 * math.log(d))
        self.separable = d > SEPARABLE
        raw = math.log((k + 1) / 2) - np.log(np.arange(1, k + 1))  # (49)
        best, rest = np.maximum(raw, 0.0), np.minimum(raw, 0.0)
        self.mass = mass = float(best.sum() ** 2 / (best @ best))  # mu_eff
        mass_rest = float(rest.sum() ** 2 / max(float(rest @ rest), 1e-300))
        self.rate_step = (mass + 2) / (d + mass + 5)  # c_sigma, (55)
        self.damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (d + 1)) - 1) + self.rate_step
        self.rate_path = (4 + mass / d) / (d + 4 + 2 * mass / d)  # c_c, (56)
        faster = (d + 2) / 3 if self.separable else 1.0
        self.rate_one = faster * 2 / ((d + 1.3) ** 2 + mass)  # c_1, (57)
        rank = 2 * (mass - 2 + 1 / mass) / ((d + 2) ** 2 + mass)
        self.rate_rank = min(1 - self.rate_one, faster * rank)  # c_mu, (58)
        one, many = self.rate_one, max(self.rate_rank, 1e-300)
        least = min(1 + one / many, 1 + 2 * mass_rest / (mass + 2), (1 - one - many) / (d * many))
        below = 0.0 if self.separable else max(least, 0.0) / max(-float(rest.sum()), 1e-300)
        self.weights = best / best.sum() + below * rest  # (50) to (53)
        self.expected = math.sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d**2))  # of |N(0, I)|
        self.path, self.path_step = np.zeros(d), np.zeros(d)  # p_c, p_sigma
        self.covariance: Array = np.ones(d) if self.separable else np.eye(d)
        self.axes, self.widths = np.eye(0 if self.separable else d), np.ones(d)  # B and D
        self.each = max(1, int(0.5 / (d * (one + many))))  # generations, for which B and D last
        self.age, self.first, self.least = 0, 0.0, _NEAR * sigma
        self.trend = deque[float](maxlen=10 + -(-30 * d // k))  # lowest values of generations

    @property
    def x(self) -> Array:
        """The mean of the distribution."""
        return np.asarray(self.mean * self.scale)

    def sample(self) -> tuple[Any, Array]:
        """Return a generation in units of the distribution, N(0, I), and its points."""
        z = self.context.draw().normals(self.size * self.context.dim).reshape(self.size, -1)
        points = self.mean + self.sigma * self._stretched(z)
        if not (np.abs(points) < _FAR).all():
            words = f"f seems unbounded below: the search has moved x by {_FAR:g} times its scale"
            raise Halted(words)
        self.width = float(np.ptp(points, axis=0).max())
        return z, points * self.scale

    def _stretched(self, z: Array) -> Array:
        """Return y = B D z."""
        y = z * self.widths
        return y if self.separable else np.asarray(y @ self.axes.T)

    def run(self, limit: float) -> Asking[bool]:
        """Ask for generations; return True when it has converged, False after ``limit`` queries."""
        begun = self.context.asked
        while self.context.asked - begun < limit:
            if not (yield from self.generation()):
                return True
        return False

    def generation(self) -> Asking[bool]:
        """Ask for one generation; return False when the run has converged."""
        asked, points = self.sample()
        values = yield from self.context.values(points)
        lowest = int(np.argmin(values))
        if values[lowest] < self.lowest:
            self.luckiest, self.lowest = [points[lowest]], float(values[lowest])
        if self.context.noise:
            middle, deviation = typical(values)
            error = float(deviation) / math.sqrt(len(values))
            self.context.suggest(self.x, float(middle), error)
        return self.tell(asked, np.minimum(values, _WORST))

    def tell(self, asked: Any, values: Array) -> bool:
        """Adapt the distribution; return False when it has converged."""
        d, w, order = self.context.dim, self.weights, np.argsort(values, kind="stable")
        z = asked[order]
        y, self.age = self._stretched(z), self.age + 1
        best = np.maximum(w, 0.0)
        step, inner = best @ y, best @ z  # <y>_w, and D^-1 B^T <y>_w
        self.mean = self.mean + self.sigma * step  # (42)
        whitened = inner if self.separable else self.axes @ inner  # C^-1/2 <y>_w
        rate = self.rate_step
        gain = math.sqrt(rate * (2 - rate) * self.mass)
        self.path_step = (1 - rate) * self.path_step + gain * whitened  # (43)
        length = float(np.linalg.norm(self.path_step))
        grown = math.sqrt(1 - (1 - rate) ** (2 * self.age)) * (1.4 + 2 / (d + 1)) * self.expected
        slow, rate = length < grown, self.rate_path  # h_sigma
        self.path = (1 - rate) * self.path + slow * math.sqrt(rate * (2 - rate) * self.mass) * step
        growth = self.rate_step / self.damping * (length / self.expected - 1)
        self.sigma *= math.exp(min(1.0, growth))  # (44)
        one, many = self.rate_one, self.rate_rank
        w = np.where(w >= 0, w, w * d / (np.sum(z**2, axis=1) + EPS))  # (46)
        kept = 1 - many * self.weights.sum() - one * (1 - (not slow) * rate * (2 - rate))
        if self.separable:
            self.covariance = kept * self.covariance + one * self.path**2 + many * (w @ y**2)
            self.widths = np.sqrt(np.maximum(self.covariance, TINY))
        else:
            ranks = one * np.outer(self.path, self.path) + many * (y.T * w) @ y
            self.covariance = kept * self.covariance + ranks  # (47)
            if self.age % self.each == 0:
                squares, self.axes = np.linalg.eigh(self.covariance)
                self.widths = np.sqrt(np.maximum(squares, TINY))
        return not self._has_converged(values)

    def _has_converged(self, values: Array) -> bool:
        """Return whether all is level, or the points too close, in a plane or too far apart."""
        low, high = float(np.min(values)), float(np.max(values))
        known = values[values < _WORST]
        self.first = self.first or float(np.ptp(known) if known.size else 0.0)
        self.trend.append(low)
        recent = max(high, *self.trend) - min(self.trend)
        whole = len(self.trend) == self.trend.maxlen
        level = whole and recent <= max(16 * EPS * abs(low), _LEVEL * self.first)
        size = float(self.widths.max())
        near = self.sigma * size <= max(EPS * float(np.abs(self.mean).max()), self.least)
        narrow = size > _LONG * float(self.widths.min())
        return level or near or narrow or not self.sigma * size < _WIDEST


class MixedEvolution(Evolution):
    """A run of CatCMA with margin: real numbers, whole numbers and options at once."""

    def __init__(self, context: SearchContext, box: list[Side], population: int | None) -> None:
        import cmaes

        self.context, self.box = context, box
        self.luckiest, self.lowest = [context.x], math.inf
        levels = [side.levels for side in box]
        whole = [2 < level <= _MOST_LEVELS for level in levels]
        unordered = [level < 0 or level == 2 for level in levels]
        others = [not (a or b) for a, b in zip(whole, unordered, strict=True)]
        self.kinds = [np.flatnonzero(kind) for kind in (others, whole, unordered)]
        self.order = np.concatenate(self.kinds).tolist()
        spaces: list[Any] = [
            [[0.0, 1.0] for _ in self.kinds[0]],
            [range(levels[j]) for j in self.kinds[1]],
            [abs(levels[j]) for j in self.kinds[2]],
        ]
        seed = int(context.draw().words(1)[0])
        x, z, c = (space or None for space in spaces)
        self.strategy = cmaes.CatCMAwM(x, z, c, population_size=population, seed=seed)
        self.size = int(self.strategy.population_size)

    @property
    def x(self) -> Array:
        """The best point so far: a mean of options does not exist."""
        return self.luckiest[0]

    def sample(self) -> tuple[list[Any], Array]:
        """Return a generation as the library knows it, and its points."""
        asked = [self.strategy.ask() for _ in range(self.size)]
        points, reals = np.empty((self.size, self.context.dim)), len(self.kinds[0])
        for one, point in zip(asked, points, strict=True):
            options = None if one.c is None else one.c.argmax(axis=1)
            values = [part for part in (one.x, one.z, options) if part is not None]
            for i, value in enumerate(np.concatenate(values).tolist()):
                j = self.order[i]
                side = self.box[j]
                point[j] = side.point(side.at(value) if i < reals else value)
        return asked, points

    def tell(self, asked: Any, values: Array) -> bool:
        """Send different numbers: the library divides by their quartiles' distance."""
        known = values[values < _WORST]
        worst = float(known.max()) if known.size else 0.0
        ties = 1e-9 * max(abs(worst), 1e-9) * np.arange(len(values))
        told = np.minimum(values, worst) + ties
        self.strategy.tell(list(zip(asked, told.tolist(), strict=True)))
        return not self.strategy.should_stop()


def population_for(context: SearchContext) -> int:
    """Return how many points a generation should have, for some generations at least.

    Many points average the noise: up to four times as many as usual, as the queries allow.
    """
    usual, each = 4 + int(3 * math.log(context.dim)), context.left / context.devices
    wanted = min(each / GENERATIONS, 4 * usual) if context.noise and math.isfinite(each) else 0
    return max(4, int(min(max(usual, wanted), each / LEAST_GENERATIONS)))


def repeats_for(context: SearchContext, budget: float) -> int:
    """Return how often each candidate is asked to be compared with others under noise."""
    share = 0.008 * budget / context.devices
    return max(2, min(100, int(share))) if math.isfinite(share) else 100


@dataclass(frozen=True, kw_only=True)
class CMA(Search):
    r"""CMA-ES across a federation, the separable one beyond d = 200.

    .. math:: x_j \sim m + \sigma\, N(0, C), \qquad m \leftarrow \sum_j w_j x_{j:\lambda}

    with x_{j:λ} the j-th best of λ points by their mean over the devices; σ and C follow the paths
    that m takes. When a run has converged the next begins at x0 with twice the population, if the
    number of queries is limited; the search ends there if it is not. Whole numbers and options
    have their own distribution, with a margin (CatCMAwM).

    Parameters
    ----------
    sigma : float
        The standard deviation to begin with, in units of the problem's scale, or of the start's
        size.
    population : int, optional
        λ, points in a round, 2 or more; 4 + 3 log d by default.
    levels : sequence of int
        See :class:`TPE`.
    batch_size, participants, weighting
        See :class:`~fedzo.algorithms.search.base.Search`.

    References
    ----------
    N. Hansen, "The CMA Evolution Strategy: A Tutorial", 2016; A. Auger and N. Hansen, "A restart
    CMA evolution strategy with increasing population size", CEC 2005. R. Hamano et al.,
    "CatCMA with Margin: Stochastic Optimization for Continuous, Integer, and Categorical
    Variables", GECCO 2025. The library: M. Nomura and M. Shibata, "cmaes: A Simple yet Practical
    Python Library for CMA-ES", 2024.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> from fedzo.algorithms.search.population import CMA
    >>> def bowl(x, device):
    ...     return float(np.sum((x - device) ** 2))
    >>> result = fedzo.minimize(bowl, np.zeros(2), devices=3, algorithm=CMA(), rounds=60)
    >>> result.x.round(2)
    array([1., 1.])
    """

    tracks_best: ClassVar[bool] = True
    measures_noise: ClassVar[bool] = True

    sigma: float = 0.5
    population: int | None = None
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sigma")
        if self.population is not None:
            check_count("population", self.population, least=2)

    def search(self, context: SearchContext, scale: Array | None) -> Asking[str]:
        """Run CMA-ES, again with twice the population when it has converged, to the end."""
        x0, budget = context.x, context.left
        scale = typical_scale(x0, scale)
        yield from context.start()
        repeats, population = repeats_for(context, budget), self.population
        population = population or population_for(context)
        while True:
            if self.levels:
                box = sides(self.levels, (), context.dim)
                run: Evolution = MixedEvolution(context, box, population)
            else:
                run = Evolution(context, x0, self.sigma, scale, population)
            # Under noise the mean is what a run has found, and the last queries compare it.
            reserved = (4 * repeats + run.size) * context.devices if context.noise else -math.inf
            # Noise hides whether it has converged: without a budget it ends when nothing improves.
            endless = context.noise and not math.isfinite(budget)
            fun, still, patience = context.fun, 0, 100 + 10 * context.dim if endless else math.inf
            while still < patience and context.left >= reserved and (yield from run.generation()):
                fun, still = context.fun, 0 if context.fun < fun else still + 1
            if context.noise:
                yield from context.compare([x0, context.x, run.x, *run.luckiest], repeats)
            if not math.isfinite(budget):  # no number of queries says how often to begin again
                if run.width > _WIDE:
                    raise Halted(f"f has no minimum within {_WIDE:g} times the scale of x")
                return "CMA-ES has converged"
            population = 2 * run.size


@dataclass(frozen=True, kw_only=True)
class TPE(Search):
    r"""The tree-structured Parzen estimator of Optuna across a federation.

    .. math:: x^{t+1} = \arg\max_x\, l(x) / g(x)

    with l and g the densities of the good and of the other points so far, as their mean over the
    devices tells. For a handful of numbers and expensive values, such as trainings. The first ten
    points are the start and nine that cover the box evenly. At last the best twentieth of the
    points is evaluated twice more, and the lowest mean wins.

    Parameters
    ----------
    sigma : float
        The half-width of the box around the start that is searched, in units of the problem's
        scale, or of the start's size. With bounds, π is the whole of them.
    population : int
        How many points are asked at a time.
    levels : sequence of int
        What the numbers in x stand for, as :class:`~fedzo.variables.space.Space` says it: k levels
        in order, -k for k options in none, 0 for a number. Then all of each range is searched.
    conditions : sequence of pairs
        Which number's option each of them depends on, (number, option), or () if on none.
    batch_size, participants, weighting
        See :class:`~fedzo.algorithms.search.base.Search`.

    References
    ----------
    J. Bergstra, R. Bardenet, Y. Bengio and B. Kégl, "Algorithms for Hyper-Parameter Optimization",
    NeurIPS 2011. The library: T. Akiba et al., "Optuna", KDD 2019.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> from fedzo.algorithms.search.population import TPE
    >>> def bowl(x, device):
    ...     return float(np.sum((x - 0.2 * device) ** 2))
    >>> result = fedzo.minimize(bowl, np.zeros(2), devices=3, algorithm=TPE(), rounds=60)
    >>> bool(np.abs(result.x - 0.2).max() < 0.5)
    True
    """

    tracks_best: ClassVar[bool] = True

    sigma: float = math.pi
    population: int = 1
    levels: tuple[int, ...] = ()
    conditions: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sigma")
        check_counts(self, "population")

    def init(self, x0: Array, setting: RunSetting) -> SearchState:
        """Return the state before round 0."""
        if find_spec("optuna") is None:
            raise MissingExtra("algorithm.name: TPE needs optuna", "tune")
        fits = len(self.levels) in (0, x0.size)
        require(fits, "levels", len(self.levels), f"{x0.size}, one for each number in x")
        return super().init(x0, setting)

    def search(self, context: SearchContext, scale: Array | None) -> Asking[str]:
        """Ask Optuna for points, and tell it their values, to the end."""
        import optuna
        from scipy.stats.qmc import Halton

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        box = self._box(context.x, typical_scale(context.x, scale))
        seed = int(context.draw().words(1)[0])
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
        study = optuna.create_study(sampler=sampler)
        # The start, and then points that cover the box more evenly than random ones.
        study.enqueue_trial({f"x{j}": side.share(context.x[j]) for j, side in enumerate(box)})
        for shares in Halton(context.dim, rng=seed).random(_EVEN - 1):
            pairs = enumerate(zip(box, shares, strict=True))
            study.enqueue_trial({f"x{j}": side.at(float(share)) for j, (side, share) in pairs})
        cost = self.population * context.devices
        finalists = int(context.left / cost) // _FINALISTS if math.isfinite(context.left) else 0
        finalists = finalists if finalists > 1 else 0
        tried: list[Array] = []
        found = np.empty(0)
        while context.left >= cost + 2 * finalists * context.devices:
            trials = [study.ask() for _ in range(self.population)]
            points = np.array([suggested(trial, box) for trial in trials])
            if not context.asked:
                points[0] = context.x  # to the bit
            values = yield from context.values(points)
            for trial, value in zip(trials, np.minimum(values, _WORST), strict=True):
                study.tell(trial, float(value))
            tried, found = [*tried, *points], np.append(found, values)
        if finalists:  # the lowest of many noisy values is lucky: the lowest few are scored again
            best = np.argsort(found, kind="stable")[:finalists]
            again = yield from context.values(np.repeat(np.array(tried)[best], 2, axis=0))
            means = (found[best] + again.reshape(-1, 2).sum(axis=1)) / 3
            lowest = int(np.argmin(means))
            context.x, context.fun = tried[best[lowest]], float(means[lowest])
        return "the budget is spent"

    def _box(self, x0: Array, scale: Array) -> list[Side]:
        """Return what is searched of each number."""
        if not self.levels:
            width = self.sigma * scale
            return [Side(0, (), x - w, x + w) for x, w in zip(x0, width, strict=True)]
        return sides(self.levels, self.conditions, x0.size)


class Side(NamedTuple):
    """One number's side of the box: what the numbers between its ends, or their sines, stand for.

    ``levels`` is as in :class:`TPE`. ``low`` and ``high`` are the ends of x; without them, of
    sin x.
    """

    levels: int
    condition: tuple[int, ...] = ()
    low: float = math.nan
    high: float = math.nan

    def share(self, x: float) -> Any:
        """Return what a library knows an x as."""
        plain = not math.isnan(self.low)
        return self.at((x - self.low) / (self.high - self.low) if plain else (1 + math.sin(x)) / 2)

    def at(self, share: float) -> Any:
        """Return what a library knows a share of the side as: a level, or the share itself."""
        count = abs(self.levels)
        return min(int(share * count), count - 1) if count else float(share)

    def point(self, value: Any) -> float:
        """Return the number in x that a library's value stands for; the middle, if it is None."""
        if value is None:
            return 0.0
        share = (value + 0.5) / abs(self.levels) if self.levels else value
        if not math.isnan(self.low):
            return float(self.low + share * (self.high - self.low))
        return math.asin(min(max(2 * share - 1, -1.0), 1.0))

    def suggested(self, trial: Any, name: str) -> Any:
        """Return the value that a trial of Optuna's suggests."""
        if not self.levels:
            return trial.suggest_float(name, 0.0, 1.0)
        if self.levels > 0:
            return trial.suggest_int(name, 0, self.levels - 1)
        return trial.suggest_categorical(name, range(-self.levels))


def sides(levels: tuple[int, ...], conditions: tuple[tuple[int, ...], ...], dim: int) -> list[Side]:
    """Return the whole range of each number in x."""
    require(len(levels) == dim, "levels", len(levels), f"{dim}, one for each number in x")
    return [Side(*pair) for pair in zip(levels, conditions or ((),) * dim, strict=True)]


def suggested(trial: Any, box: list[Side]) -> list[float]:
    """Return the point that a trial of Optuna's suggests."""
    taken: list[Any] = []
    for j, side in enumerate(box):
        absent = side.condition and taken[side.condition[0]] != side.condition[1]
        taken.append(None if absent else side.suggested(trial, f"x{j}"))
    return [side.point(value) for value, side in zip(taken, box, strict=True)]
