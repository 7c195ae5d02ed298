"""A search as an algorithm: the server searches, and the devices answer its questions.

What persists is the log of all answers. A search is deterministic, so its log rebuilds it; the
one under way is kept at hand, for whoever comes with the log that it has read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.account import Account, Spent
from fedzo.algorithms.base import (
    Algorithm,
    RoundInfo,
    check_participants,
    check_weighting,
    weight_of,
)
from fedzo.algorithms.questions import Asking, Question, unpack
from fedzo.core.federation import Federation
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.work import Update, Work
from fedzo.errors import check_counts
from fedzo.uplinks.base import Uplink

Array = NDArray[Any]


class SearchState(NamedTuple):
    """What a search carries from round to round."""

    x: Array  # the best so far
    x0: Array  # where it began
    log: (
        Array  # how many queries there were; then for each round how many were left, and the answer
    )


class Live:
    """A search under way: what it has read, and what it asks next."""

    def __init__(self, search: Asking, account: Account) -> None:
        self.search, self.account = search, account
        self.log: Array = np.empty(0)
        self.read: Array | None = None  # the state's log that it has come to
        self.question: Question | None = None
        self.reason = ""
        self._advance(None)

    def tell(self, left: float, answer: Array) -> None:
        """Send an answer and how many queries are left, and hear the next question."""
        self.account.left = left
        self._advance(answer)

    def _advance(self, answer: Array | None) -> None:
        try:
            # A generator that has not begun takes nothing.
            self.question = next(self.search) if answer is None else self.search.send(answer)
        except StopIteration as end:
            self.question, self.reason = None, end.value
        except Spent:
            self.question, self.reason = None, "the budget is spent"


@dataclass(frozen=True, kw_only=True)
class Search(Algorithm):
    """What all searches have in common; a subclass defines :meth:`search`.

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
        check_counts(self, "batch_size")
        if self.participants is not None:
            check_counts(self, "participants")
        check_weighting(self.weighting)

    def search(self, account: Account, scale: Array | None) -> Asking:
        """Yield questions, be sent answers; return why it ended.

        ``scale`` is the typical length of each number in x, where the problem knows it.
        """
        raise NotImplementedError

    def init(self, x0: Array, federation: Federation, uplink: Uplink) -> SearchState:
        """Return the state before round 0."""
        check_participants(self.participants, federation)
        check_weighting(self.weighting, federation)
        return SearchState(x0, x0, np.array([self.queries_left(federation)]))

    def round(
        self, t: int, state: SearchState, federation: Federation, uplink: Uplink
    ) -> tuple[SearchState, RoundInfo]:
        """Return the state after round t: one question, and its answer told to the search."""
        live = self._live_of(state, federation)
        if live.question is None:
            return state, RoundInfo(participants=0, queries=0, done=live.reason)
        devices = uplink.participants(t, self.participants, federation)
        work = Work(self, live.question.pack(), t, federation.seed)
        updates = federation.map(work, devices)
        answer, sent = uplink.average_values(updates)
        if answer.size != live.question.size:  # nobody answered
            answer = np.full(live.question.size, np.nan)
        left = self.queries_left(federation)
        live.tell(left, answer)
        live.log = live.read = np.concatenate([live.log, [left], answer])
        x = live.account.x.astype(state.x0.dtype)
        info = RoundInfo.of(updates, sent)
        return SearchState(x, state.x0, live.log), info._replace(done=live.reason)

    def local(self, objective: Objective, device: int, x: Array, at: Draws) -> Update:
        """Return a device's answer to the question that x is."""
        batch = objective.batch(device, self.batch_size, at.on(Stream.BATCHES))
        values, points = unpack(x).answer(objective, device, batch)
        weight = weight_of(self.weighting, objective, device)
        return Update(device, np.empty(0), weight, points, values=values)

    def answered_by_all(self, x: Array) -> NDArray[np.bool_]:
        """Return which numbers of an answer to the question x can be compared among devices."""
        return unpack(x).answered_by_all

    def queries_left(self, federation: Federation) -> float:
        """Return how many queries may still be asked, but for those of the evaluations to come.

        That is the last one, and, where there are any in between, one before the next question.
        """
        meter = federation.meter
        if meter is None or meter.max_queries is None:
            return math.inf
        kept = meter.evaluations * federation.evaluation_cost
        return float(meter.max_queries - meter.queries - kept)

    def _live_of(self, state: SearchState, federation: Federation) -> Live:
        """Return the search that has read this state's log, rebuilt from it if need be."""
        live = self._under_way.get("live")
        if live is not None and live.read is state.log:
            return live
        devices = self.participants or federation.devices
        draws = Draws(federation.seed, Stream.SEARCH)
        account = Account(state.x0, devices, float(state.log[0]), draws)
        live, at = Live(self.search(account, federation.scale), account), 1
        log = state.log.copy()
        while at < log.size and live.question is not None:
            end = at + 1 + live.question.size
            if end >= log.size:  # whoever resumes may have more queries to give
                log[at] = max(log[at], self.queries_left(federation))
            live.tell(float(log[at]), log[at + 1 : end])
            at = end
        live.log, live.read = log, state.log
        self._under_way["live"] = live
        return live

    @cached_property
    def _under_way(self) -> dict[str, Live]:
        return {}
