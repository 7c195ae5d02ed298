"""The loop around an algorithm: rounds, evaluation, callbacks, checkpoints, resume."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms import Algorithm, RoundInfo
from fedzo.core.federation import Federation
from fedzo.core.objective import Best
from fedzo.errors import (
    BudgetSpent,
    Halted,
    NonFinite,
    UsageError,
    check_count,
    check_counts,
    require,
)
from fedzo.runs.folder import Checkpoint, Config, RunFolder, differences
from fedzo.runs.result import Callback, Progress, Result, Status
from fedzo.uplinks import Uplink

Array = NDArray[Any]

RESERVED = {
    "left_out",
    "round",
    "train_loss",
    "participants",
    "queries",
    "evaluation_queries",
    "uplink_bytes",
    "downlink_bytes",
    "channel_uses",
    "seconds",
}


class Position(NamedTuple):
    """How far a run has come: replaced as a whole, so an interrupt never finds half a round."""

    round: int
    state: Any
    queries: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    channel_uses: int = 0
    last: RoundInfo = RoundInfo(0, 0, 0, 0)

    def moved(self, state: Any, info: RoundInfo) -> Position:
        """Return the position one round on."""
        return Position(
            self.round + 1,
            state,
            self.queries + info.queries,
            self.uplink_bytes + info.uplink_bytes,
            self.downlink_bytes + info.downlink_bytes,
            self.channel_uses + info.channel_uses,
            info,
        )


@dataclass
class Loop:
    """A run under way: :meth:`go` goes on from the present position to an end."""

    federation: Federation
    position: Position
    best: Best  # of the evaluations on schedule: those that a resumed run repeats
    start: str  # a fingerprint of x0
    algorithm: Algorithm
    uplink: Uplink
    rounds: int
    evaluate_every: int
    point: Callable[[Array], Array] | None
    target: float | None = None
    checkpoint_every: int = 10
    callback: Callback | None = None
    config: Config = field(default_factory=dict)
    files: RunFolder | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)  # since the last evaluation
    asked_before: int = 0  # what the meter had counted before the run, if there is one
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def begin(
        cls,
        federation: Federation,
        x0: Array,
        algorithm: Algorithm,
        uplink: Uplink,
        probed: int = 0,
        **settings: Any,
    ) -> Self:
        """Return the run before its first round."""
        position = Position(0, algorithm.init(x0, federation, uplink), probed)
        start = hashlib.sha256(x0.tobytes()).hexdigest()[:16]
        best = Best(x0, np.inf, 0)
        return cls(federation, position, best, start, algorithm, uplink, **settings)

    def __post_init__(self) -> None:
        check_counts(self, "evaluate_every", "checkpoint_every")
        target: Any = self.target
        number = isinstance(target, Real) and float(target) == target  # nan is none
        require(target is None or number, "target", target, "a number")
        check_count("rounds", self.rounds, least=0)

    @property
    def x(self) -> Array:
        """The global model."""
        return self.algorithm.model(self.position.state)

    def shown(self, x: Array) -> Array:
        """Return a model as a person knows it."""
        return x.copy() if self.point is None else self.point(x)

    @property
    def seconds(self) -> float:
        """How long the run has taken, all of its parts together."""
        return time.perf_counter() - self.began

    def open(self, resume: bool) -> None:
        """Find the checkpoint or make the folder; nothing is written if either cannot be."""
        if self.files is not None:
            self._open_folder(self.files, resume)
        if self.federation.meter is not None:
            counted = self.position.queries + self._evaluation_queries()
            self.asked_before = self.federation.meter.queries - counted

    def _open_folder(self, files: RunFolder, resume: bool) -> None:
        if resume:
            self._reopen(files)
        elif files.has_run():
            raise UsageError(
                f"{files.path} already holds a run: resume it or choose another folder"
            )
        files.prepare(self.config)

    def _reopen(self, files: RunFolder) -> None:
        checkpoint = files.load()
        if checkpoint is None:
            files.keep_history(upto=-1, every=1)  # killed before its first checkpoint
            return
        changed = differences(checkpoint.config, self.config)
        if changed or checkpoint.start != self.start:
            what = "; ".join(changed) or "another starting point"
            raise UsageError(f"{files.checkpoint} is of another configuration: {what}")
        if checkpoint.round > self.rounds:
            raise UsageError(
                f"{files.path} has already run {checkpoint.round} rounds, more than {self.rounds}"
            )
        last = RoundInfo(**checkpoint.last)
        state = type(self.position.state)(*checkpoint.state)
        self.position = Position(checkpoint.round, state, **checkpoint.totals, last=last)
        self.best, self.left_out = checkpoint.best, checkpoint.left_out
        self.history = files.keep_history(checkpoint.round, self.evaluate_every)
        self.began -= checkpoint.seconds
        if self.federation.meter is not None:
            self.federation.meter.queries = checkpoint.spent

    def go(self) -> tuple[Status, str]:
        """Run to the end, whichever it is."""
        try:
            status, message = self._loop()
            self.evaluate()  # a callback may have stopped it off the schedule
        except Halted as error:
            status, message = self._halted(error)
        except KeyboardInterrupt:
            self.save()
            self._count_what_was_in_vain()
            status, message = Status.INTERRUPTED, f"interrupted after round {self.position.round}"
        except NonFinite as error:  # the last checkpoint is from before it, and is kept
            self._count_what_was_in_vain()
            status, message = Status.NON_FINITE, str(error)
        return status, message

    def _loop(self) -> tuple[Status, str]:
        while True:
            t = self.position.round
            at_end = t == self.rounds
            if t % self.evaluate_every == 0 or at_end:
                self.evaluate()
            if t % self.checkpoint_every == 0 or at_end:
                self.save()
            if self.callback is not None and self.callback(self._progress()):
                self.save()
                return Status.STOPPED, f"stopped by the callback after round {t}"
            if self._reached():
                self.save()
                return Status.STOPPED, f"reached the target {self.target:g} after round {t}"
            if at_end:
                return Status.FINISHED, f"finished {t} rounds"
            self.step()

    def _halted(self, error: Halted) -> tuple[Status, str]:
        """Keep the last whole round, and count what was asked for in vain after it."""
        self._count_what_was_in_vain()
        self.save()
        status = Status.STOPPED if isinstance(error, BudgetSpent) else Status.HALTED
        return status, f"{error} after round {self.position.round}"

    def _count_what_was_in_vain(self) -> None:
        """Count the queries of a round or an evaluation that came to nothing, if there is a meter.

        An interrupted round is gone on with, so its checkpoint has been written without them.
        """
        counted = self.position.queries + self._evaluation_queries()
        asked = self._asked(self.asked_before, counted)
        self.position = self.position._replace(queries=asked - self._evaluation_queries())

    def step(self) -> None:
        """Do one round."""
        t, state = self.position.round, self.position.state
        before = self._metered()
        state, info = self.algorithm.round(t, state, self.federation, self.uplink)
        self._note_left_out(t + 1)
        if not np.isfinite(self.algorithm.model(state)).all():
            raise NonFinite("the model", t + 1)
        # What a round tells of itself may be anything; the numbers are what is kept.
        info = info._replace(
            metrics=_metrics(info.metrics), queries=self._asked(before, info.queries)
        )
        self.position = self.position.moved(state, info)

    def evaluate(self) -> None:
        """Add f(x) over all devices and the problem's metrics to the history, once a round."""
        at = self.position
        if self._recorded():
            return
        before, pending = self._metered(), list(self.left_out)
        losses = self.federation.losses(self.x)
        absent = [one.device for one in self.federation.left_out]
        self._note_left_out(at.round)
        wrong = ~np.isfinite(losses)
        wrong[absent] = False
        if wrong.any():
            raise NonFinite("the loss", at.round, int(np.flatnonzero(wrong)[0]))
        losses = np.delete(losses, absent)
        if not len(losses):
            raise Halted("no device could be evaluated")
        record: dict[str, Any] = {
            "round": at.round,
            "train_loss": float(losses.mean()),
            **_metrics(self.federation.metrics(self.x)),
            **_metrics(at.last.metrics),
            "participants": at.last.participants,
            "queries": at.queries,
            "evaluation_queries": self._evaluation_queries()
            + self._asked(before, self.federation.evaluation_cost),
            "uplink_bytes": at.uplink_bytes,
            "downlink_bytes": at.downlink_bytes,
            "channel_uses": at.channel_uses,
            "seconds": round(self.seconds, 3),
        }
        if self.left_out:
            record["left_out"] = self.left_out
        self.history.append(record)
        # A resumed run has no evaluation off the schedule: its next one names who is named here.
        self.left_out = pending
        if at.round % self.evaluate_every == 0:
            self.left_out, self.best = [], self._better()
        if self.files is not None:
            self.files.append(record)

    def save(self) -> None:
        """Write a checkpoint of the present position."""
        if self.files is None:
            return
        at = self.position
        counters = ("queries", "uplink_bytes", "downlink_bytes", "channel_uses")
        totals = {key: getattr(at, key) for key in counters}
        self.files.save(
            Checkpoint(
                round=at.round,
                state=tuple(at.state),
                totals=totals,
                spent=self._metered(),
                best=self.best,
                last=at.last._asdict(),
                left_out=self.left_out,
                seconds=self.seconds,
                config=self.config,
                start=self.start,
            )
        )

    def close(self, status: Status, message: str) -> Result:
        """Write what a finished run leaves, and tell what came of it."""
        if self.files is not None:
            from fedzo.plots.curves import draw_curves

            self.files.save_model(self.shown(self.x))
            if self.history:  # none if the very first evaluation failed or was interrupted
                draw_curves({self.files.path.name: [self.history]}, self.files.curves)
        at, best = self.position, self._better()
        return Result(
            x=self.shown(self.x),
            fun=self.history[-1]["train_loss"] if self.history else float("nan"),
            success=status <= Status.STOPPED,
            status=status,
            message=message + self._caveat() if status <= Status.STOPPED else message,
            nit=at.round,
            best=best._replace(x=self.shown(best.x)),
            queries=at.queries,
            evaluation_queries=self._evaluation_queries(),
            uplink_bytes=at.uplink_bytes,
            downlink_bytes=at.downlink_bytes,
            channel_uses=at.channel_uses,
            seconds=self.seconds,
            history=self.history,
        )

    def _caveat(self) -> str:
        """Return what a person must know of a run that has ended as it should."""
        if not self.history:
            return ""
        first, last = (self.history[i]["train_loss"] for i in (0, -1))
        if self.position.round and not self.position.queries:
            return ", in which no device took part"
        rose = last - first > 0.01 * abs(first)  # less than that is noise around a good start
        return f", but the loss rose from {first:.4g} to {last:.4g}" if rose else ""

    def _note_left_out(self, t: int) -> None:
        """Take down who was left out in round t, for the next record of the history."""
        for one in sorted(self.federation.left_out):
            self.left_out.append({"round": t, **one._asdict()})
        self.federation.left_out.clear()

    def _better(self) -> Best:
        """Return the best evaluated model, the present one among them."""
        if self._recorded() and self.history[-1]["train_loss"] < self.best.fun:
            return Best(self.x, self.history[-1]["train_loss"], self.position.round)
        return self.best

    def _evaluation_queries(self) -> int:
        return self.history[-1]["evaluation_queries"] if self.history else 0

    def _metered(self) -> int:
        return 0 if self.federation.meter is None else self.federation.meter.queries

    def _asked(self, before: int, told: int) -> int:
        """Return how many queries there were since: as metered, which sees retries, or as told."""
        return told if self.federation.meter is None else self._metered() - before

    def _reached(self) -> bool:
        """Tell whether the model was evaluated, and is as good as wanted."""
        target = -np.inf if self.target is None else self.target
        return self._recorded() and bool(self.history[-1]["train_loss"] <= target)

    def _recorded(self) -> bool:
        return bool(self.history) and self.history[-1]["round"] == self.position.round

    def _progress(self) -> Progress:
        at = self.position
        record = self.history[-1] if self._recorded() else None
        x = self.shown(self.x)
        return Progress(at.round, self.rounds, x, at.queries, self.seconds, record)


def _metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among what a problem or a round tells."""
    numbers = {k: float(v) for k, v in told.items() if isinstance(v, Real | np.number)}
    taken = sorted(RESERVED & numbers.keys())
    if taken:
        raise UsageError(f"metrics may not be called {', '.join(taken)}: the history has these")
    return numbers
