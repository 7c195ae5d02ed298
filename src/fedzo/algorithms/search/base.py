"""What black-box searches share: the search as an algorithm, and what a search knows.

A search is a generator of the tasks :class:`~fedzo.core.tasks.Evaluate` and
:class:`~fedzo.core.tasks.Slopes` over many rounds. It is sent the federation's mean replies, and
ends when there is nothing left to ask. A search is deterministic: the log of all replies rebuilds
it.
"""

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.base import (
    Algorithm,
    Round,
    RoundInfo,
    check_participants,
    check_uplink,
    check_weighting,
)
from fedzo.core.capabilities import HasUserView
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Evaluate, Replies, Slopes, Update
from fedzo.core.types import Array
from fedzo.errors import FedzoWarning, Halted, check_counts
from fedzo.uplinks.base import RunSetting

R = TypeVar("R")
Asking = Generator[Evaluate | Slopes, Array, R]  # asks, and returns an R
EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
FEW = 8  # values
DOUBT = 2.5  # errors of a difference, beyond which it is no chance
GIVEN_UP, ASKED_AGAIN = 3, 16  # tasks without a reply; tasks until a device is asked again
PASSED_ON = 3  # times that the shares of silent devices are passed on
ENDLESS = 1e25  # a fall, in units of the first value or change: f has no minimum there
STARTS = 8  # points at a time, of which one shall have a value where x0 has none
DIFFERENCES = 7  # values on a line, whose differences tell the noise
EXACT = 1e-11  # noise, as a share of the value: rounding of a function that is computed exactly
USUAL = range(-10, 100)  # powers of two: squares of such values are of use, and so are tolerances


class BudgetExhausted(Exception):  # noqa: N818 - reads as the sentence it prints
    """The next question would take more queries than are left."""


class MeasuredSlopes(NamedTuple):
    """The federation's reply to :class:`~fedzo.core.tasks.Slopes`."""

    fun: float  # f(x)
    own: Array  # the slopes as the devices measured their own coordinates
    every: Array  # the mean slopes of all devices; as ``own`` where they were shared out


class SearchContext:
    """The state that the parts of a search share: queries left, noise, and the best point.

    Parameters
    ----------
    x0 : array
        Where the search starts.
    devices : int
        N.
    left : float
        How many queries there are, over all devices.
    draws : Draws
        Where its random numbers come from.
    """

    def __init__(self, x0: Array, devices: int, left: float, draws: Draws) -> None:
        self.x, self.fun = x0.astype(np.float64), math.inf
        self.devices, self.dim, self.left, self.asked = devices, x0.size, left, 0
        self.reserved = 0.0  # of what is left, for what must still be asked at the end
        self.noise = 0.0  # the standard deviation of a value
        self.times = 1  # how many values of the federation a value is the mean of
        self.rough = False  # values are rounded or jitter, always alike at one point
        self._usual = TINY  # the size of the first values
        self._x0, self.at_start = self.x, np.empty(0)  # where it starts; noisy values there
        self._floor = TINY  # what counts as nothing: of a value that is exactly zero
        self._draws, self._drawn = draws._replace(stream=Stream.SEARCH), 0

    def draw(self) -> Draws:
        """Return the next address of random numbers."""
        self._drawn += 1
        return self._draws._replace(step=self._drawn)

    def error(self, fun: float, devices: int = 1) -> float:
        """Return how uncertain a mean value of this size is, by noise or by rounding.

        With ``devices`` = N it is that of one device's value, whose noise is not averaged.
        """
        return max(self.noise * math.sqrt(devices), 4 * EPS * abs(fun), self._floor)

    def ask(self, task: Evaluate | Slopes) -> Asking[Array]:
        """Put a question, if it can be paid for."""
        cost = task.queries(self.devices)
        if cost > self.left - self.reserved:
            raise BudgetExhausted
        self.asked += cost
        self.left -= cost
        answer = yield task
        return answer

    def values(self, points: Array) -> Asking[Array]:
        """Return the mean values at points, infinite where there is none, and keep the best.

        Of noisy values the lowest is only the luckiest: those are settled by :meth:`compare`.
        """
        points = points.reshape(-1, self.dim)
        if self.times > 1:
            points = np.repeat(points, self.times, axis=0)
        values = yield from self.ask(Evaluate(points))
        values = np.where(np.isnan(values), np.inf, values)
        if self.times > 1:
            values = values.reshape(-1, self.times).mean(axis=1)
        lowest = int(np.argmin(values))
        self._check_bounded(values)
        if not self.noise and values[lowest] < self.fun:
            self.x, self.fun = points[lowest].copy(), float(values[lowest])
        return values

    def average(self, times: int) -> None:
        """Make every value from here on the mean of ``times`` as many values."""
        self.times *= times
        self.noise /= math.sqrt(times)

    def slopes(
        self, x: Array, steps: Array, *, everyone: bool, central: bool, turn: int = 0
    ) -> Asking[MeasuredSlopes]:
        """Return f and its slopes at x; those that nobody measured are not numbers.

        The slopes of coordinates whose step is 0 are not asked for.
        """
        d, asked = self.dim, steps != 0
        task = Slopes(x, steps, everyone, central, turn)
        answer = yield from self.ask(task)
        for _ in range(self.times - 1):
            answer = answer + (yield from self.ask(task))
        answer = answer / self.times
        fun, every = float(answer[0]), answer[1 + 2 * d :]
        own = own_slopes(answer, d)
        for other in range(1, 1 + min(PASSED_ON, self.devices - 1)):
            if np.isfinite(own[asked]).all():
                break
            answer = yield from self.ask(replace(task, turn=turn + other, everyone=False))
            own = np.where(np.isfinite(own), own, own_slopes(answer, d))
        return MeasuredSlopes(fun, own, every if everyone else own)

    def _check_bounded(self, values: Array) -> None:
        """Raise where f falls without an end."""
        if self.asked <= 10 * (self.dim + 2) * self.devices:
            self._usual = max(self._usual, np.abs(values[np.isfinite(values)]).max(initial=0.0))
        lowest = float(np.min(values))
        if lowest < -ENDLESS * self._usual:
            raise Halted(f"f is unbounded below: a value is {lowest:.3g}")

    def suggest(self, x: Array, fun: float, error: float) -> None:
        """Take a method's present point for the best, if its mean value is lower beyond doubt.

        So a noisy search that is stopped has something to show at any time.
        """
        if fun + 2 * error < self.fun:
            self.x, self.fun = x.copy(), fun

    def compare(self, candidates: list[Array], repeats: int) -> Asking[tuple[Array, Array]]:
        """Take for the best the candidate of the lowest mean over some repeats.

        Returns the means and their errors. Another candidate replaces the first only if its mean is
        lower by two and a half times the error of the difference. If the first is x0, its values at
        the start count, too.
        """
        points = np.repeat(np.array(candidates), repeats, axis=0)
        known = self.at_start if np.array_equal(candidates[0], self._x0) else self.at_start[:0]
        values = yield from self.values(points[min(known.size, repeats) :])
        values = np.concatenate([known[:repeats], values])
        repeated = values.reshape(len(candidates), repeats)
        means, deviations = typical(repeated)
        if repeats < FEW:  # so few do not tell how much they vary
            deviations = np.full(len(candidates), self.noise)
        errors = deviations / math.sqrt(repeats)
        lowest = surely_lowest(means, errors)
        self.x, self.fun = candidates[lowest].copy(), float(means[lowest])
        return means, errors

    def start(self, scale: Array | None = None) -> Asking[None]:
        """Measure f at x0 and the noise of its values: two repeats, more where they differ.

        Where x0 has no value, the search starts at a point near it that has one.
        """
        x0 = self.x
        values = yield from self.values(np.array([x0] * 2))
        length = 1.0 if scale is None else np.where(np.isnan(scale), 1.0, scale)
        for k in range(10**6):
            if np.isfinite(values).any():
                break
            size = length * 10.0 ** ((k + 1) // 2 * (-1) ** k % 7)
            points = x0 + size * self.draw().normals(STARTS, self.dim)
            found = yield from self.values(points)
            if np.isfinite(found).any():
                x0 = points[int(np.argmin(found))]
                values = yield from self.values(np.array([x0] * 2))
        self._x0 = x0
        # A sum of many terms is rounded differently in batches of different sizes.
        rounding = 100 * EPS * float(np.max(np.abs(values)))
        if not np.ptp(values) <= rounding:
            count = 6 if 8 * self.devices <= 0.1 * self.left else 2
            more = yield from self.values(np.array([x0] * count))
            values = np.concatenate([values, more])
            values = values[np.isfinite(values)]
            self.at_start, (centre, self.noise) = values, map(float, typical(values))
            if np.mean(np.abs(values - np.median(values)) <= rounding) > 0.5:  # but for outliers
                values, self.noise, self.rough = np.array([np.median(values)]), 0.0, True
            else:
                values = np.array([centre])
        self.x, self.fun = x0, float(np.mean(values))
        self._floor = max(EPS**2 * abs(self.fun), TINY) if math.isfinite(self.fun) else TINY

    def probe(self, scale: Array) -> Asking[None]:
        r"""Measure how uncertain values are that are always alike at one point (Moré & Wild 2011).

        On a short line, differences of a smooth function vanish with their order, and those of
        noise do not: :math:`\sigma_k^2 = (k!)^2 / (2k)!\; \overline{(\Delta^k f)^2}`. Where all
        values are the same, the line was too short; where the orders disagree, too long. The
        rounding of x itself, which a steep function shows, is no roughness.
        """
        x, fun, length = self.x, self.fun, 1e-7
        digit = EPS * float(np.max(np.abs(x) / scale))  # of x, in units of the scale
        line = scale * self.draw().normals(self.dim)
        size = max(abs(fun), TINY)
        for _ in range(4):
            steps = length * np.arange(1, DIFFERENCES)[:, None]
            values = np.concatenate([[fun], (yield from self.values(x + steps * line))])
            if not np.isfinite(values).all():
                return
            if len(np.unique(values)) <= DIFFERENCES // 2:
                length *= 1000
                if length > 10:
                    return
                continue
            levels = []
            for k in range(1, DIFFERENCES - 1):
                table = np.diff(values, k)
                share = math.factorial(k) ** 2 / math.factorial(2 * k)
                levels.append(math.sqrt(share * float(np.mean(table**2))))
            level, last = max(levels[-3:]), min(levels[-3:])
            exact = EXACT * size + 10 * digit * float(np.ptp(values)) / length
            if level > 5 * last and level > exact:
                length *= 0.01
                continue
            if level < 0.3 * EPS * size:  # steps of whole digits: the next ones shall be broken
                length *= 37.7
                continue
            self._floor = max(self._floor, level)
            self.rough = level > exact
            return


def typical(values: Array) -> tuple[Array, Array]:
    """Return a mean and a standard deviation along the last axis that outliers do not change.

    Of eight values or more it is the mean of the middle half; of normal values, both are those of
    the distribution.

    >>> mean, deviation = typical(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1e9]))
    >>> float(mean), round(float(deviation), 2)
    (4.5, 2.97)
    """
    count = values.shape[-1]
    if count < FEW:
        return np.mean(values, axis=-1), np.std(values, axis=-1, ddof=min(1, count - 1))
    ordered = np.sort(values, axis=-1)
    cut = count // 4
    middle = np.mean(ordered[..., cut : count - cut], axis=-1)
    centre = np.median(values, axis=-1, keepdims=True)
    return middle, 1.4826 * np.median(np.abs(values - centre), axis=-1)


def surely_lowest(means: Array, errors: Array) -> int:
    """Return which mean is the lowest; the first one, unless another is lower beyond doubt.

    >>> surely_lowest(np.array([1.0, 0.0]), np.array([0.2, 0.2]))
    1
    >>> surely_lowest(np.array([1.0, 0.0]), np.array([0.3, 0.3]))
    0
    """
    lowest = int(np.argmin(means))
    sure = means[lowest] < means[0] - DOUBT * math.hypot(errors[0], errors[lowest])
    return lowest if sure else 0


def own_slopes(answer: Array, dim: int) -> Array:
    """Return the slopes in a mean reply, NaN where no device measured any."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(answer[1 : 1 + dim] / answer[1 + dim : 1 + 2 * dim])


def complete(updates: list[Update], means: Array, known: Array) -> tuple[Array, Array]:
    r"""Return the mean values over all devices although some are missing, and ``known``, updated.

    ``known`` has a value of each device at one point, infinite if it has never replied. A point is
    compared with that one over the devices that answered both,
    :math:`f(x) = \bar b + \overline{F_i(x) - b_i}`, and so with all other points.

    >>> values = np.array([[1.0, 2.0], [11.0, np.nan]])
    >>> updates = [Update(i, np.empty(0), 1, 2, values=row) for i, row in enumerate(values)]
    >>> complete(updates, np.array([6.0, np.nan]), np.full(3, np.inf))
    (array([6., 7.]), array([ 1., 11., inf]))
    """
    replied = np.isfinite(known)
    whole = len(updates) == np.count_nonzero(replied) or not replied.any()
    devices = [update.device for update in updates]
    values = np.array([update.values for update in updates]).reshape(len(updates), -1)
    there, known = np.isfinite(values), known.copy()
    if whole and there.all():
        known[devices] = values[:, int(np.argmin(means))]
        return means, known
    means, full = means.copy(), there.all(axis=0) & whole
    if full.any():
        best = int(np.argmin(np.where(full, means, np.inf)))
        known[devices] = values[:, best]
    elif not replied.any():
        return means, known
    weights = np.array([update.weight for update in updates], float)
    base = known[devices]
    new = np.isinf(base)
    for j in np.flatnonzero(~full):
        common = there[:, j] & ~new
        if common.any():
            change = np.average((values[:, j] - base)[common], weights=weights[common])
            means[j] = np.mean(known[np.isfinite(known)]) + change
            late = new & there[:, j]
            known[np.array(devices)[late]] = values[late, j] - change
    return means, known


class ProgressMonitor:
    """How fast a descent lowers f, per query.

    Examples
    --------
    >>> pace = ProgressMonitor(asked=0, fun=10.0)
    >>> pace.is_slow(asked=50, fun=1.0, window=40, slow=0.1)  # 9 in the last 50 queries
    False
    >>> pace.is_slow(asked=100, fun=0.9, window=40, slow=0.1)  # 0.1, of 9.1 so far
    True
    >>> pace = ProgressMonitor(asked=0, fun=10.0)
    >>> pace.is_slow(asked=50, fun=10.0, window=40, slow=0.1)  # nothing at all
    True
    """

    def __init__(self, asked: int, fun: float) -> None:
        self._trail = [(asked, fun)]

    def is_slow(self, asked: int, fun: float, window: float, slow: float) -> bool:
        """Return whether the last ``window`` queries brought a share of at most ``slow``."""
        self._trail.append((asked, fun))
        before = [f for a, f in self._trail if a <= asked - window]
        return bool(before) and before[-1] - fun <= slow * (self._trail[0][1] - fun)


class SearchState(NamedTuple):
    """What a search carries from round to round."""

    x: Array  # the best so far
    x0: Array  # where it began
    log: Array  # queries at the start; then for each round the queries left, and the reply
    known: Array  # a value of each device at one point, infinite before its first reply
    silent: Array  # how many tasks in a row each device has not replied to
    fun: Array  # f(x) as the search has measured it, infinite if an evaluation is needed


class Suspended:
    """A search that waits for the reply to its task.

    If the first values are very large or small, the search sees all values divided by a power
    of two, the ``unit``. That is exact, and their squares neither overflow nor vanish.
    """

    def __init__(self, search: Asking[str], context: SearchContext) -> None:
        self.search, self.context = search, context
        self.read: Array | None = None  # the log of the state that it has come to
        self.log = np.empty(0)  # the same, with the queries that a resumed run has left
        self.task: Evaluate | Slopes | None = None
        self.reason = ""
        self.unit = 0.0  # unknown
        self.same: bool | None = None  # whether an evaluation asks for the same values
        self._advance(None)

    @property
    def fun(self) -> float:
        """f(x) of the best point, as the devices report it."""
        return self.context.fun * (self.unit or 1.0)

    @property
    def at_start(self) -> Array:
        """Noisy values of the federation at the start, as the devices report them."""
        return np.asarray(self.context.at_start * (self.unit or 1.0))

    def tell(self, left: float, values: Array) -> None:
        """Send a reply and the number of queries left, and get the next task."""
        self.context.left = left
        if not self.unit and np.isfinite(values).any():
            largest = float(np.max(np.abs(values[np.isfinite(values)])))
            exponent = math.frexp(largest)[1] if largest else 0
            self.unit = 1.0 if exponent in USUAL else math.ldexp(1.0, exponent - 1)
        if self.unit not in (0.0, 1.0):
            values = values / self.unit
            if isinstance(self.task, Slopes):  # f, slopes, how many measured each, mean slopes
                d = self.context.dim
                values[1 + d : 1 + 2 * d] *= self.unit
        self._advance(values)

    def _advance(self, values: Array | None) -> None:
        try:  # a generator that has not begun takes nothing
            self.task = next(self.search) if values is None else self.search.send(values)
        except StopIteration as end:
            self.task, self.reason = None, end.value
        except BudgetExhausted:
            self.task, self.reason = None, "the budget is spent"


@dataclass(frozen=True, kw_only=True)
class Search(Algorithm):
    """Base class of black-box searches; a subclass defines :meth:`search`.

    Parameters
    ----------
    batch_size : int
        b1, realisations ξ in a value, where the problem has any.
    participants : int, optional
        M, devices in a round; all N by default.
    weighting : str
        ``uniform``, or ``size``: devices count by the number of their samples.
    """

    moves_each_round: ClassVar[bool] = False

    batch_size: int = 25
    participants: int | None = None
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        check_counts(self, "batch_size", optional=["participants"])
        check_weighting(self.weighting)

    def search(self, context: SearchContext, scale: Array | None) -> Asking[str]:
        """Yield tasks, be sent their mean replies; return why the search ended.

        ``scale`` is the typical length of each coordinate of x, if the problem has one.
        """
        raise NotImplementedError

    def init(self, x0: Array, setting: RunSetting) -> SearchState:
        """Return the state before round 0."""
        check_participants(self.participants, setting)
        check_weighting(self.weighting, setting)
        check_uplink(self, setting, "values")
        none = np.full(setting.devices, np.inf)
        left = np.array([setting.queries_left])
        return SearchState(x0, x0, left, none, np.zeros(setting.devices, int), np.array(np.inf))

    def loss(self, state: SearchState) -> float | None:
        """Return f(x) as the search has measured it."""
        return float(state.fun) if np.isfinite(state.fun) else None

    def round(self, t: int, state: SearchState, setting: RunSetting) -> Round[SearchState]:
        """Yield one task of the search, and send it the mean reply."""
        search = self._suspended(state, setting)
        if search.task is None:
            return state, RoundInfo(participants=0, queries=0, done=search.reason)
        devices = setting.uplink.participants(t, self.participants, setting)
        if state.silent.any():
            devices = devices[self._are_asked(t, state)[devices]]
        task = replace(
            search.task,
            batch_size=self.batch_size,
            weighting=self.weighting,
            seed=setting.seed,
            round=t,
            devices=devices,
        )
        replies = yield task
        updates = list(replies)
        values, sent = setting.uplink.aggregate_values(t, Replies(updates, task), setting)
        known, silent = state.known, state.silent
        answered = [update.device for update in updates if update.contributors == 1]
        if self.participants is None and len(answered) == len(updates) and updates:
            if isinstance(search.task, Evaluate):
                values, known = complete(updates, values, known)
            if len(answered) < len(task.devices) or silent.any():
                silent = silent.copy()
                silent[list(task.devices)] += 1
                silent[answered] = 0
                given_up = (silent == GIVEN_UP) & (state.silent < GIVEN_UP)
                for device in np.flatnonzero(given_up & np.isinf(known)):
                    words = f"device {device} never replied: f is the mean of the others"
                    warnings.warn(words, FedzoWarning, stacklevel=2)
        if not search.unit and values.min() == values.max():  # exact: no evaluations at the end
            self._known(search, state, setting)
        left = setting.queries_left
        search.tell(left, values)
        search.log = search.read = np.concatenate([search.log, [left], values])
        x = search.context.x.astype(state.x0.dtype)
        info = RoundInfo.of(replies, sent)._replace(done=search.reason)
        fun = np.array(self._known(search, state, setting))
        return SearchState(x, state.x0, search.log, known, silent, fun), info

    def _are_asked(self, t: int, state: SearchState) -> NDArray[np.bool_]:
        """Return which devices are asked: silent ones occasionally, if they have ever replied."""
        asked = (state.silent < GIVEN_UP) | (self.participants is not None)
        return asked | np.isfinite(state.known) if t % ASKED_AGAIN == 0 else asked

    def _known(self, search: Suspended, state: SearchState, setting: RunSetting) -> float:
        """Return f(x), if an evaluation by the run would ask for the very same values.

        So it is of a plain function, which has one value per device. A training has another seed in
        an evaluation: the best trial is scored again. The run evaluates a noisy result freshly, and
        a float32 model too, which is not quite the point that the search asked for.
        """
        context, meter = search.context, setting.engine.meter
        if meter is None:
            return math.inf
        if context.noise:
            meter.at_start = search.at_start
        if search.same is None:
            same = self.tracks_best and self.participants is None and self.weighting == "uniform"
            same = same and setting.engine.evaluation_cost == setting.devices
            same = same and state.x0.dtype == np.float64
            search.same = same and setting.engine.provides(HasUserView)
        if not search.same:
            return math.inf
        meter.evaluations = 0
        return search.fun

    def _suspended(self, state: SearchState, setting: RunSetting) -> Suspended:
        """Return the search that has read this state's log, replayed from it if need be."""
        search: Suspended | None = setting.scratch.get("search")
        if search is not None and search.read is state.log:
            return search
        devices = self.participants or setting.devices
        draws = Draws(setting.seed, Stream.SEARCH)
        context = SearchContext(state.x0, devices, float(state.log[0]), draws)
        search = Suspended(self.search(context, setting.scale), context)
        log, at = state.log.copy(), 1
        while at < log.size and search.task is not None:
            end = at + 1 + search.task.size
            if end >= log.size:  # a resumed run may have more queries to give
                log[at] = max(log[at], setting.queries_left)
            search.tell(float(log[at]), log[at + 1 : end])
            self._known(search, state, setting)  # sets the reserved queries, as a round does
            at = end
        search.log, search.read = log, state.log
        setting.scratch["search"] = search
        return search
