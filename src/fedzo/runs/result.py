"""What a run reports: its progress, and its result."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fedzo.algorithms import Algorithm
from fedzo.core.capabilities import Best, HasStateDict
from fedzo.core.objective import Objective
from fedzo.errors import UsageError

Array = NDArray[Any]


class Status(enum.IntEnum):
    """How a run ended; the first two are successes."""

    FINISHED = 0
    STOPPED = 1  # by a callback, a target, a budget, or because nothing improved any more
    INTERRUPTED = 2
    NON_FINITE = 3
    HALTED = 4  # it could not continue
    DIVERGED = 5  # the loss ended above where it began
    STALLED = 6  # nothing that was evaluated is better than the start


class Progress(NamedTuple):
    """What a callback is shown after each round, and once before the first."""

    round: int
    rounds: int
    x: Array
    queries: int
    seconds: float
    record: Mapping[str, Any] | None  # the history's line, if this round was evaluated


Callback = Callable[[Progress], bool | None]
Callbacks = Callback | Sequence[Callback] | None


@contextmanager
def closing(*things: object) -> Iterator[None]:
    """Close what has a ``close()`` on leaving, also after an error."""
    with ExitStack() as stack:
        for one in reversed(things):
            if hasattr(one, "close"):
                stack.callback(one.close)
        yield


def as_watchers(callback: Callbacks) -> tuple[Callback, ...]:
    """Return one callback, several or none as a tuple."""
    if callback is None:
        return ()
    return (callback,) if callable(callback) else tuple(callback)


@dataclass
class Result:
    """The result of a run; names are SciPy's where SciPy has one.

    Attributes
    ----------
    x : array
        The best model that was evaluated.
    fun : float
        f(x), as evaluated there, over all devices.
    success : bool
        False if the run diverged, did not improve on its start, was interrupted or could not
        continue.
    status, message
        Which of these it was, as a number and in words.
    nit : int
        How many rounds were run.
    algorithm : Algorithm
        What was run, with the numbers that were chosen in place of "auto".
    last : array
        The model after the last round, from which a resumed run continues.
    best : Best
        ``x``, ``fun`` and the round after which they were evaluated.
    queries, evaluation_queries : int
        Values asked for by the optimiser, and by evaluations.
    uplink_bytes, downlink_bytes, channel_uses : int
        What was sent.
    seconds : float
        How long it took.
    history : list
        The records that ``history.jsonl`` holds.
    problem : Objective
        What was minimised, where this process holds it.
    """

    x: Array
    fun: float
    success: bool
    status: Status
    message: str
    nit: int
    algorithm: Algorithm
    last: Array
    best: Best
    queries: int
    evaluation_queries: int
    uplink_bytes: int
    downlink_bytes: int
    channel_uses: int
    seconds: float
    history: list[dict[str, Any]]
    problem: Objective | None = None

    @property
    def nfev(self) -> int:
        """The number of values asked for in all, by SciPy's name."""
        return self.queries + self.evaluation_queries

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a trained torch module, with the parameters that x has.

        As torch's own, it refers to the module's memory, which has x from now on.
        """
        trained = None if self.problem is None else self.problem.capability(HasStateDict)
        if trained is None:
            raise UsageError(
                "state_dict is for results of a TorchProblem: use result.x", code="no-state-dict"
            )
        return trained.state_dict(self.x)

    def __repr__(self) -> str:
        """Return a block to read, a line for each attribute, as SciPy's results print."""
        shown = {
            "message": self.message,
            "success": self.success,
            "status": f"{self.status.name.lower()} ({int(self.status)})",
            "fun": f"{self.fun:.8g}",
            "x": _numbers(self.x),
            "best": f"after round {self.best.round}",
            "nit": self.nit,
            "nfev": self.nfev,
            "queries": f"{self.queries:,} (and {self.evaluation_queries:,} for evaluation)",
            "uplink_bytes": f"{self.uplink_bytes:,}",
            "downlink_bytes": f"{self.downlink_bytes:,}",
            "seconds": f"{self.seconds:.3g}",
        }
        return "\n".join(f"{name:>14}: {value}" for name, value in shown.items())


def _numbers(x: Array) -> str:
    """Return a few numbers of a model on one line."""
    few = " ".join(f"{value:.4g}" for value in x[:6])
    return f"[{few}]" if len(x) <= 6 else f"[{few} ...] ({len(x):,} numbers)"
