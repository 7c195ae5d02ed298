"""What black-box searches share: the search as an algorithm, and what a search knows.

A search is a generator of the tasks :class:`~fedzo.core.tasks.Evaluate` and
:class:`~fedzo.core.tasks.Slopes` over many rounds. It is sent the federation's mean replies, and
ends when there is nothing left to ask. A search is deterministic: the log of all replies rebuilds
it.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from fedzo.algorithms.base import (
    Algorithm,
    Round,
    RoundInfo,
    check_participants,
    check_uplink,
    check_weighting,
)
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Evaluate, Slopes
from fedzo.core.types import Array
from fedzo.errors import check_counts
from fedzo.uplinks.base import RunSetting

R = TypeVar("R")
Asking = Generator[Evaluate | Slopes, Array, R]  # asks, and returns an R
EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
FEW = 8  # values


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
        self.noise = 0.0  # the standard deviation of a mean value
        self._x0, self._at_start = self.x, np.empty(0)  # where it starts; noisy values there
        self._floor = TINY  # what counts as nothing: of a value that is exactly zero
        self._draws, self._drawn = draws._replace(stream=Stream.SEARCH), 0

    def draw(self) -> Draws:
        """Return the next address of random numbers."""
        self._drawn += 1
        return self._draws._replace(step=self._drawn)

    def error(self, fun: float) -> float:
        """Return how uncertain a mean value of this size is: by noise or by rounding."""
        return max(self.noise, 4 * EPS * abs(fun), self._floor)

    def device_error(self, fun: float) -> float:
        """Return the same of one device's value, whose noise is not averaged."""
        return max(self.noise * math.sqrt(self.devices), 4 * EPS * abs(fun), self._floor)

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
        points = np.atleast_2d(points)
        values = yield from self.ask(Evaluate(points))
        values = np.where(np.isfinite(values), values, np.inf)
        lowest = int(np.argmin(values))
        if not self.noise and values[lowest] < self.fun:
            self.x, self.fun = points[lowest].copy(), float(values[lowest])
        return values

    def slopes(
        self, x: Array, steps: Array, *, everyone: bool, central: bool, turn: int = 0
    ) -> Asking[MeasuredSlopes]:
        """Return f and its slopes at x; those that nobody measured are not numbers."""
        d = self.dim
        answer = yield from self.ask(Slopes(x, steps, everyone, central, turn))
        with np.errstate(divide="ignore", invalid="ignore"):
            own = answer[1 : 1 + d] / answer[1 + d : 1 + 2 * d]
        return MeasuredSlopes(float(answer[0]), own, answer[1 + 2 * d :] if everyone else own)

    def compare(self, candidates: list[Array], repeats: int) -> Asking[Array]:
        """Take for the best the candidate of the lowest mean over some repeats; return the means.

        Another candidate replaces the first only if its mean is lower by two and a half times the
        error of the difference. If the first is x0, its values at the start count, too.
        """
        points = np.repeat(np.array(candidates), repeats, axis=0)
        known = self._at_start if np.array_equal(candidates[0], self._x0) else self._at_start[:0]
        values = yield from self.values(points[min(known.size, repeats) :])
        values = np.concatenate([known[:repeats], values])
        repeated = values.reshape(len(candidates), repeats)
        means, deviations = repeated.mean(axis=1), repeated.std(axis=1, ddof=1)
        if repeats < FEW:  # so few do not tell how much they vary
            deviations = np.full(len(candidates), self.noise)
        errors = deviations / math.sqrt(repeats)
        lowest = int(np.argmin(means))
        if not means[lowest] < means[0] - 2.5 * math.hypot(errors[0], errors[lowest]):
            lowest = 0
        self.x, self.fun = candidates[lowest].copy(), float(means[lowest])
        return np.asarray(means)

    def start(self) -> Asking[None]:
        """Measure f at x0 and the noise of its values: a few repeats, more where they differ."""
        x0 = self.x
        values = yield from self.values(np.array([x0] * 3))
        # A sum of many terms is rounded differently in batches of different sizes.
        rounding = 100 * EPS * float(np.max(np.abs(values)))
        if np.isfinite(values).all() and np.ptp(values) > rounding:
            count = 5 if 8 * self.devices <= 0.1 * self.left else 2
            more = yield from self.values(np.array([x0] * count))
            values = np.concatenate([values, more])
            self._at_start = values[np.isfinite(values)]
            self.noise = float(np.std(values[np.isfinite(values)], ddof=1))
        self.x, self.fun = x0, float(np.mean(values))
        self._floor = max(EPS**2 * abs(self.fun), TINY) if math.isfinite(self.fun) else TINY


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


class Suspended:
    """A search that waits for the reply to its task."""

    def __init__(self, search: Asking[str], context: SearchContext) -> None:
        self.search, self.context = search, context
        self.read: Array | None = None  # the log of the state that it has come to
        self.log = np.empty(0)  # the same, with the queries that a resumed run has left
        self.task: Evaluate | Slopes | None = None
        self.reason = ""
        self._advance(None)

    def tell(self, left: float, values: Array) -> None:
        """Send a reply and the number of queries left, and get the next task."""
        self.context.left = left
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
        return SearchState(x0, x0, np.array([setting.queries_left]))

    def round(self, t: int, state: SearchState, setting: RunSetting) -> Round[SearchState]:
        """Yield one task of the search, and send it the mean reply."""
        search = self._suspended(state, setting)
        if search.task is None:
            return state, RoundInfo(participants=0, queries=0, done=search.reason)
        replies = yield replace(
            search.task,
            batch_size=self.batch_size,
            weighting=self.weighting,
            seed=setting.seed,
            round=t,
            devices=setting.uplink.participants(t, self.participants, setting),
        )
        values, sent = setting.uplink.aggregate_values(t, replies, setting)
        left = setting.queries_left
        search.tell(left, values)
        search.log = search.read = np.concatenate([search.log, [left], values])
        x = search.context.x.astype(state.x0.dtype)
        info = RoundInfo.of(replies, sent)._replace(done=search.reason)
        return SearchState(x, state.x0, search.log), info

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
            at = end
        search.log, search.read = log, state.log
        setting.scratch["search"] = search
        return search
