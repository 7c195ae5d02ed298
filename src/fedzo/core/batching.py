"""Join the queries of several devices into one batch for a black box.

A model evaluates hundreds of inputs in one call much faster than a few per call, but a device asks
for few at a time. So each device of a group runs on its own thread and waits at each query. Once
every device of the group waits or has finished, their queries are answered in one call, in device
order. Which queries are joined depends on that order only, not on the threads.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import Halted

Answer = Array | BaseException
# For np.seterr: the run's loop catches values that are not finite, and names round and device.
SILENT: Any = {"over": "ignore", "invalid": "ignore"}
A = TypeVar("A")
B = TypeVar("B")


class QueryBatcher:
    """Joins the queries of several devices into one call.

    Parameters
    ----------
    answer : callable
        Takes a list of queries and returns an answer to each, or the exception to raise at the
        place of that query.
    most : int
        The largest number of devices in a group.

    Examples
    --------
    >>> calls = []
    >>> def doubled(asked):
    ...     calls.append(len(asked))
    ...     return [2 * array for array in asked]
    >>> batcher = QueryBatcher(doubled, most=3)
    >>> def twice(number):  # two queries, one after the other
    ...     return batcher.ask(batcher.ask(np.array(number)))
    >>> [int(answer) for answer in batcher.map(twice, [1, 2, 3, 4])], calls
    ([4, 8, 12, 16], [3, 3, 1, 1])
    """

    def __init__(self, answer: Callable[[list[Any]], Sequence[Answer]], most: int) -> None:
        self._answer, self.most = answer, most
        self._place = threading.local()

    def ask(self, query: Any) -> Array:
        """Return the answer to a query, batched with those of the same group."""
        group: _Group | None = getattr(self._place, "group", None)
        if group is None:  # outside of map
            (answer,) = self._answer([query])
        else:
            answer = group.ask(self._place.number, query)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def map(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Yield ``function(item)`` of each item in order, one group of threads after another."""
        every = list(items)
        for at in range(0, len(every), self.most):
            yield from self._in_parallel(function, every[at : at + self.most])

    def _in_parallel(self, function: Callable[[A], B], items: list[A]) -> Iterator[B]:
        group = _Group(self._answer, len(items))

        def work(number: int) -> B:
            self._place.group, self._place.number = group, number
            try:
                return function(items[number])
            finally:
                group.leave()

        under_way = [self._threads.submit(work, number) for number in range(len(items))]
        try:
            yield from (future.result() for future in under_way)
        except BaseException:  # also when the reader closes the stream early
            group.stop()
            raise
        finally:
            wait(under_way)  # the next group uses the same threads

    def close(self) -> None:
        """End the threads; a later ``map`` starts new ones."""
        if (threads := self.__dict__.pop("_threads", None)) is not None:
            threads.shutdown()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """One thread per device of a group, kept from round to round."""
        return ThreadPoolExecutor(
            self.most, "fedzo-device", initializer=lambda: np.seterr(**SILENT)
        )


class _Group:
    """Devices that wait for each other at their queries."""

    def __init__(self, answer: Callable[[list[Any]], Sequence[Answer]], count: int) -> None:
        self._answer, self._working = answer, count
        self._asked: dict[int, Any] = {}
        self._answers: dict[int, Answer] = {}
        self._changed, self._stopped = threading.Condition(), False

    def ask(self, number: int, query: Any) -> Answer:
        with self._changed:
            self._asked[number] = query
            self._answer_if_all_wait()
            self._changed.wait_for(lambda: number in self._answers or self._stopped)
            return self._answers.pop(number, Halted("the round was abandoned"))

    def leave(self) -> None:
        with self._changed:
            self._working -= 1
            self._answer_if_all_wait()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _answer_if_all_wait(self) -> None:
        if self._stopped or not self._asked or len(self._asked) < self._working:
            return
        order = sorted(self._asked)
        try:
            answers = self._answer([self._asked[number] for number in order])
        except BaseException as error:  # or the other devices would wait for ever
            answers = [error] * len(order)
        self._asked.clear()
        self._answers.update(zip(order, answers, strict=True))
        self._changed.notify_all()
