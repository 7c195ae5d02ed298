"""What a run tells: while it goes, and when it has ended."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

Array = NDArray[Any]


class Status(enum.IntEnum):
    """How a run ended; the first two are successes."""

    FINISHED = 0
    STOPPED = 1
    INTERRUPTED = 2
    NON_FINITE = 3
    HALTED = 4


class Best(NamedTuple):
    """The evaluated model of the lowest loss so far."""

    x: Array
    fun: float
    round: int


class Progress(NamedTuple):
    """What a callback is shown after each round, and once before the first."""

    round: int
    rounds: int
    x: Array
    queries: int
    seconds: float
    record: Mapping[str, Any] | None  # the history's line, if this round was evaluated


Callback = Callable[[Progress], bool | None]


@dataclass
class Result:
    """What came of a run, by SciPy's names where SciPy has one.

    ``x`` is the model after ``nit`` rounds, ``fun`` is f(x) as last evaluated, over all
    devices; ``best`` is the evaluated model of the lowest loss; ``nfev`` is ``queries``.
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
        """The number of values asked for, by SciPy's name."""
        return self.queries
