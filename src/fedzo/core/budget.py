"""Counting queries where they are answered, and stopping at a limit to the query."""

from __future__ import annotations

import threading

from fedzo.errors import BudgetSpent, check_count


class Meter:
    """Counts the queries that a black box answers, over all threads, up to a budget.

    Whoever answers a batch first asks :meth:`take` how many of its queries may be answered.
    When that is not all of them, it answers those and then calls :meth:`require`, which
    raises: so exactly as many queries are answered as the budget has, never one more.

    Parameters
    ----------
    max_queries : int, optional
        How many queries may be answered in all; None: any number.

    Attributes
    ----------
    evaluations : int
        How many evaluations may come before whoever plans ahead is asked again.

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
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Return how many of so many queries may be answered, and count those."""
        with self._lock:
            left = wanted if self.max_queries is None else self.max_queries - self.queries
            granted = min(wanted, left)
            self.queries += granted
            return granted

    def give_back(self, unasked: int) -> None:
        """Take queries off the count that were granted, but never got to whoever answers."""
        with self._lock:
            self.queries -= unasked

    @property
    def left(self) -> int | None:
        """How many queries may still be answered; None: any number."""
        return None if self.max_queries is None else self.max_queries - self.queries

    def spent(self) -> BudgetSpent:
        """Return what to raise where the budget is not enough."""
        return BudgetSpent(f"the budget of {self.max_queries or 0:,} queries is spent")

    def require(self, granted: int, wanted: int) -> None:
        """Raise :class:`~fedzo.errors.BudgetSpent` unless all that was wanted was granted."""
        if granted < wanted:
            raise self.spent()
