"""Counting queries where they are answered, and stopping at a limit to the query."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fedzo.core.value_log import ValueLog
from fedzo.errors import BudgetSpent, check_count


class Meter:
    """Counts the queries that a black box answers, over all threads, up to a budget.

    A black box that answers a batch first calls :meth:`take`, which grants a number of queries. If
    that is less than the batch, it answers those and then calls :meth:`require`, which raises. So
    exactly ``max_queries`` queries are answered, never one more.

    Parameters
    ----------
    max_queries : int, optional
        Limit on the number of queries; no limit by default.

    Attributes
    ----------
    evaluations : int
        Number of evaluations that a search must reserve queries for.
    reserved : int
        Number of queries that are kept back: for the evaluation of a noisy result.
    at_start : array
        Mean values at the start, if a search has found that they are noisy.
    log : ValueLog
        What the black box has answered since the last checkpoint of a run.

    Examples
    --------
    >>> meter = Meter(max_queries=10)
    >>> meter.take(8), meter.take(8), meter.queries
    (8, 2, 10)
    >>> meter.require(granted=2, wanted=8)
    Traceback (most recent call last):
        ...
    fedzo.errors.BudgetSpent: the budget of 10 queries is spent
    """

    def __init__(self, max_queries: int | None = None) -> None:
        if max_queries is not None:
            check_count("max_queries", max_queries)
        self.max_queries, self.queries, self.evaluations = max_queries, 0, 2
        self.log, self.reserved, self.at_start = ValueLog(), 0, np.empty(0)
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Return how many of the wanted queries are granted, and count them."""
        with self._lock:
            granted = wanted if self.left is None else max(0, min(wanted, self.left))
            self.queries += granted
            return granted

    def give_back(self, unasked: int) -> None:
        """Subtract queries that were granted, but not sent."""
        with self._lock:
            self.queries -= unasked

    @property
    def left(self) -> int | None:
        """Number of queries left; None without a limit."""
        most = self.max_queries
        return None if most is None else most - self.queries - self.reserved

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Grant no query for a while."""
        most, self.max_queries = self.max_queries, self.queries + self.reserved
        try:
            yield
        finally:
            self.max_queries = most

    def spent(self) -> BudgetSpent:
        """Return the exception for a budget that does not suffice."""
        return BudgetSpent(spent(self.max_queries or 0))

    def require(self, granted: int, wanted: int) -> None:
        """Raise :class:`~fedzo.errors.BudgetSpent` if fewer queries were granted than wanted."""
        if granted < wanted:
            raise self.spent()


def spent(max_queries: int) -> str:
    """Return the message of a run that ends for lack of queries."""
    return f"the budget of {max_queries:,} queries is spent"
