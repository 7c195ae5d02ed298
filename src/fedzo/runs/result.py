"""What a run reports: its progress, its result, and whether that is a success.

Evaluations may be noisy: then a result is better than the start, or a lucky value.
"""

import enum
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from fedzo.algorithms import Algorithm
from fedzo.core.budget import Meter
from fedzo.core.capabilities import Best, HasStateDict
from fedzo.core.importing import call_user
from fedzo.core.objective import Objective
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, UsageError
from fedzo.runs.history import mean_loss

REPEATS = 4  # fresh evaluations of a noisy result
SHARE = 10  # of a budget: one in so many queries is for them


class Status(enum.IntEnum):
    """How a run ended. The first two are successes."""

    FINISHED = 0
    STOPPED = 1  # by a callback, a target, a budget, or because the loss stopped falling
    INTERRUPTED = 2
    NON_FINITE = 3
    HALTED = 4  # the run could not continue
    DIVERGED = 5  # the last loss is above the first
    STALLED = 6  # no evaluated model is better than the start


class Progress(NamedTuple):
    """The argument of a callback, which is called before the first and after each round."""

    round: int
    rounds: int
    x: Array
    queries: int
    seconds: float
    record: Mapping[str, Any] | None  # of the history, if this round was evaluated
    queries_left: int | None = None  # of max_queries, evaluations included


Callback = Callable[[Progress], bool | None]
Callbacks = Callback | Sequence[Callback] | None


@contextmanager
def closing(*things: object) -> Iterator[None]:
    """Close every object that has a ``close()`` on leaving, also after an error."""
    with ExitStack() as stack:
        for one in reversed(things):
            if hasattr(one, "close"):
                stack.callback(call_user, one.close)
        yield


def as_watchers(callback: Callbacks) -> tuple[Callback, ...]:
    """Return one callback, several or none as a tuple."""
    if callback is None:
        return ()
    several = (callback,) if callable(callback) else callback
    functions = isinstance(several, list | tuple) and all(
        callable(one) and not isinstance(one, type) for one in several
    )
    if not functions:
        raise InvalidValue("callback", callback, "a function of a Progress, or a list of them")
    return tuple(several)


@dataclass
class Result:
    """The result of a run, with the names of SciPy's ``OptimizeResult``.

    Attributes
    ----------
    x : array
        The best evaluated model.
    fun : float
        f(x) over all devices, as evaluated. If evaluations are noisy, the mean of four new
        evaluations of x, as far as the budget allows: the lowest of many noisy values is too low.
    fun_error : float
        The standard error of ``fun``; 0 if evaluations are not noisy. It is that of a single
        evaluation if the run was interrupted, if the budget left no new evaluation, or if a
        callback or the target stopped a run with ``max_queries`` and a folder. Such a run takes no
        queries when it stops, so that a resume ends as if it had not been stopped.
    success : bool
        False if the run diverged, did not improve on its start, was interrupted or could not
        continue, or if fewer devices than a quorum took part. With a quorum it is True, and
        ``dropped`` lists the others.
    status, message
        The cause, as a number and as text.
    nit : int
        The number of rounds.
    algorithm : Algorithm
        The algorithm, with the numbers that were chosen in place of "auto".
    last : array
        The model after the last round, from which a resumed run continues.
    best : Best
        ``x``, ``fun`` and the round after which they were evaluated.
    queries, evaluation_queries : int
        The number of values requested by the optimiser, and by evaluations.
    uplink_bytes, downlink_bytes, channel_uses : int
        The traffic of all rounds.
    seconds : float
        The duration.
    history : list
        The records of ``history.jsonl``.
    problem : Objective
        The problem, if this process holds it. A copy or a pickle of the result is without it: a
        problem may hold a function, threads or a module.
    maxcv : float
        The largest violation of a constraint, if the call had constraints.
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
    maxcv: float | None = None
    fun_error: float = 0.0

    @property
    def nfev(self) -> int:
        """The number of all requested values, by SciPy's name."""
        return self.queries + self.evaluation_queries

    @property
    def dropped(self) -> list[dict[str, Any]]:
        """The devices that did not reply: a ``round``, ``device`` and ``reason`` each."""
        return [one for record in self.history for one in record.get("dropped", ())]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "problem": None}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a trained torch module with x as parameters.

        It refers to the module's memory, as torch's own ``state_dict``. That memory now holds x.
        """
        trained = None if self.problem is None else self.problem.capability(HasStateDict)
        if trained is None:
            raise UsageError(
                "state_dict is for results of a TorchProblem: use result.x", code="no-state-dict"
            )
        return trained.state_dict(self.x)

    def __repr__(self) -> str:
        """Return a line per attribute, as SciPy's results print."""
        shown = {
            "message": self.message,
            "success": self.success,
            "status": f"{self.status.name.lower()} ({int(self.status)})",
            "fun": f"{self.fun:.8g}" + f" (error {self.fun_error:.2g})" * (self.fun_error > 0),
            "x": _first_numbers(self.x),
            "best": f"after round {self.best.round}",
            "nit": self.nit,
            "nfev": self.nfev,
            "queries": f"{self.queries:,} (and {self.evaluation_queries:,} for evaluation)",
            "uplink_bytes": f"{self.uplink_bytes:,}",
            "downlink_bytes": f"{self.downlink_bytes:,}",
            "seconds": f"{self.seconds:.3g}",
        }
        return "\n".join(f"{name:>14}: {value}" for name, value in shown.items())


def _first_numbers(x: Array) -> str:
    """Return the first numbers of a model on one line."""
    few = " ".join(f"{value:.4g}" for value in x[:6])
    return f"[{few}]" if len(x) <= 6 else f"[{few} ...] ({len(x):,} numbers)"


def always_dropped(
    rounds: int, history: Sequence[Mapping[str, Any]], since: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return the devices that were dropped in every round.

    ``since`` lists the devices dropped after the last record of the history.

    >>> always_dropped(2, [{"dropped": [{"round": 1, "device": 7}]}], [{"round": 2, "device": 7}])
    [7]
    """
    absent: dict[int, set[int]] = {}
    listed = (one for record in history for one in record.get("dropped", ()))
    for one in (*listed, *since):
        absent.setdefault(one["device"], set()).add(one["round"])
    every = set(range(1, rounds + 1))
    return sorted(device for device, missed in absent.items() if every <= missed)


def listed(devices: Sequence[int]) -> str:
    """Return the first devices of a list, for a message."""
    return ", ".join(map(str, devices[:5])) + (", ..." if len(devices) > 5 else "")


# ------------------------------------------------------------ the noise of evaluations


class Noise(NamedTuple):
    """The mean of noisy evaluations of one model, and what is known of their noise.

    Examples
    --------
    >>> start = Noise.of_devices(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> start
    Noise(mean=3.5, repeats=2, deviation=0.7071067811865476, freedom=2)
    >>> better = Noise.of_devices(np.array([[0.0, 1.0], [0.2, 1.0]])).pooled(start)
    >>> better.is_below(start)
    True
    """

    mean: float = 0.0
    repeats: int = 0
    deviation: float = 0.0  # of one evaluation; 0 if they are not noisy
    freedom: int = 0  # the degrees of freedom of the deviation

    @classmethod
    def of_devices(cls, losses: Array) -> Self:
        """Return the noise of evaluations, shape (repeats, devices)."""
        repeats, devices = losses.shape
        deviation = deviation_of(losses) / devices
        return cls(mean_loss(losses.mean(axis=0)), repeats, deviation, devices * (repeats - 1))

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.deviation / math.sqrt(self.repeats)

    def pooled(self, other: Self) -> Self:
        """Return this mean with the deviation of both."""
        freedom = self.freedom + other.freedom
        parts = [math.sqrt(one.freedom / freedom) * one.deviation for one in (self, other)]
        return self._replace(deviation=math.hypot(*parts), freedom=freedom)

    def is_below(self, start: Self, chances: int = 1) -> bool:
        """Return whether this mean is below another by a t-test at 2.5 %, over all ``chances``."""
        from scipy.special import stdtrit

        limit = float(stdtrit(self.freedom, 1 - 0.025 / chances))
        error = self.deviation * math.sqrt(1 / self.repeats + 1 / start.repeats)
        return start.mean - self.mean > limit * error


def deviation_of(values: Array) -> float:
    """Return the root of the summed variances of columns, whose squares may be out of range.

    >>> deviation_of(np.array([[1e-300], [3e-300]]))
    1.4142135623730952e-300
    """
    unit = math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - 1)
    variances = (values / unit).var(axis=0, ddof=min(1, len(values) - 1))
    return unit * math.sqrt(float(variances.sum()))


def fresh_evaluations(meter: Meter, cost: int) -> int:
    """Return the number of fresh evaluations of a noisy result: fewer with a small budget.

    >>> fresh_evaluations(Meter(), 10), fresh_evaluations(Meter(200), 10)
    (4, 2)
    """
    if meter.max_queries is None:
        return REPEATS
    return min(REPEATS, math.ceil(meter.max_queries / (SHARE * max(1, cost))))
