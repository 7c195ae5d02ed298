"""What a run tells: while it goes, and when it has ended."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedzo.core.objective import Best

Array = NDArray[Any]


class Status(enum.IntEnum):
    """How a run ended; the first two are successes."""

    FINISHED = 0
    STOPPED = 1
    INTERRUPTED = 2
    NON_FINITE = 3
    HALTED = 4


class Progress(NamedTuple):
    """What a callback is shown after each round, and once before the first."""

    round: int
    rounds: int
    x: Array
    queries: int
    seconds: float
    record: Mapping[str, Any] | None  # the history's line, if this round was evaluated


Callback = Callable[[Progress], bool | None]


def together(callback: Callback | Sequence[Callback] | None) -> Callback | None:
    """Return several callbacks as one, which says stop when any of them does.

    >>> both = together([lambda progress: None, lambda progress: progress.round == 3])
    >>> both(Progress(3, 10, [], 0, 0.0, None))
    True
    """
    every = listed(callback)
    if not every:
        return None
    return lambda progress: True in [bool(one(progress)) for one in every]  # each is called


@contextmanager
def closing(*things: object) -> Iterator[None]:
    """Close the things that can be closed, however what is done meanwhile ends."""
    with ExitStack() as stack:
        for one in reversed(things):
            if hasattr(one, "close"):
                stack.callback(one.close)
        yield


def listed(callback: Callback | Sequence[Callback] | None) -> list[Callback]:
    """Return one callback, several or none as a list."""
    if callback is None:
        return []
    return [callback] if callable(callback) else list(callback)


@dataclass
class Result:
    """What came of a run, by SciPy's names where SciPy has one.

    ``x`` is the model after ``nit`` rounds, ``fun`` is f(x) as last evaluated, over all
    devices; ``best`` is the evaluated model of the lowest loss; ``nfev`` is
    ``queries`` and ``evaluation_queries`` together, as SciPy counts.
    ``history`` is the list of records that ``history.jsonl`` holds.
    """

    x: Array
    fun: float
    success: bool
    status: Status
    message: str
    nit: int
    best: Best
    queries: int
    evaluation_queries: int
    uplink_bytes: int
    downlink_bytes: int
    channel_uses: int
    seconds: float
    history: list[dict[str, Any]] = field(repr=False)

    @property
    def nfev(self) -> int:
        """The number of values asked for in all, by SciPy's name."""
        return self.queries + self.evaluation_queries
