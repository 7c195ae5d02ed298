"""Devices that work side by side and put what they ask to a black box in one batch.

A model answers hundreds of inputs at a time far quicker than a few at a time, but a device asks
for few. So each device of a group works on a thread of its own and waits where it asks; once all
of them wait, or are done, what they ask is answered together, in the order of the devices. Who
asks what with whom depends on nothing but that order, and not on the threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedzo.errors import Halted

Array = NDArray[Any]
Answer = Array | Exception
A = TypeVar("A")
B = TypeVar("B")


class Gathering:
    """Joins what devices ask at the same moment into one call.

    Parameters
    ----------
    answer : callable
        Takes a list of what was asked and returns an answer to each, or the exception to raise
        where it was asked.
    most : int
        How many devices work side by side at most.

    Examples
    --------
    >>> calls = []
    >>> def doubled(asked):
    ...     calls.append(len(asked))
    ...     return [2 * array for array in asked]
    >>> gathering = Gathering(doubled, most=3)
    >>> def twice(number):  # asks two questions, one after the other
    ...     return gathering.ask(gathering.ask(np.array(number)))
    >>> [int(answer) for answer in gathering.map(twice, [1, 2, 3, 4])], calls
    ([4, 8, 12, 16], [3, 3, 1, 1])
    """

    def __init__(self, answer: Callable[[list[Any]], Sequence[Answer]], most: int) -> None:
        self._answer, self.most = answer, most
        self._place = threading.local()

    def ask(self, question: Any) -> Array:
        """Return the answer to a question, asked together with those of the same group."""
        circle: _Circle | None = getattr(self._place, "circle", None)
        if circle is None:
            (answer,) = self._answer([question])
        else:
            answer = circle.ask(self._place.number, question)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def map(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """Return a function of each item, in their order, so many at a time side by side."""
        every = list(items)
        for at in range(0, len(every), self.most):
            yield from self._side_by_side(function, every[at : at + self.most])

    def _side_by_side(self, function: Callable[[A], B], items: list[A]) -> Iterator[B]:
        circle = _Circle(self._answer, len(items))

        def work(number: int) -> B:
            self._place.circle, self._place.number = circle, number
            try:
                return function(items[number])
            finally:
                circle.leave()

        under_way = [self._threads.submit(work, number) for number in range(len(items))]
        try:
            yield from (future.result() for future in under_way)
        except BaseException:  # also what a reader raises who wants no more
            circle.stop()
            raise
        finally:
            wait(under_way)  # the threads are for the next group

    def close(self) -> None:
        """End the threads; whoever maps again starts others."""
        if (threads := self.__dict__.pop("_threads", None)) is not None:
            threads.shutdown()

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        """A thread for each device that works side by side, kept from round to round."""
        silent: Any = {"over": "ignore", "invalid": "ignore"}  # non-finite values are caught later
        return ThreadPoolExecutor(
            self.most, "fedzo-device", initializer=lambda: np.seterr(**silent)
        )


class _Circle:
    """Some devices that wait for each other where they ask."""

    def __init__(self, answer: Callable[[list[Any]], Sequence[Answer]], count: int) -> None:
        self._answer, self._working = answer, count
        self._asked: dict[int, Any] = {}
        self._answers: dict[int, Answer] = {}
        self._changed, self._stopped = threading.Condition(), False

    def ask(self, number: int, question: Any) -> Answer:
        with self._changed:
            self._asked[number] = question
            self._answer_if_all_wait()
            self._changed.wait_for(lambda: number in self._answers or self._stopped)
            return self._answers.pop(number, Halted("the round was given up"))

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
        except Exception as error:
            answers = [error] * len(order)
        self._asked.clear()
        self._answers.update(zip(order, answers, strict=True))
        self._changed.notify_all()
