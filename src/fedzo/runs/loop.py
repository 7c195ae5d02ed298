"""The loop around an algorithm: rounds, evaluation, callbacks, checkpoints, resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedzo.core.capabilities import Best
from fedzo.core.federation import Federation
from fedzo.errors import BudgetSpent, Halted, NonFinite, UsageError
from fedzo.runs.checkpoint import Checkpoint
from fedzo.runs.folder import RunFolder
from fedzo.runs.history import Seal
from fedzo.runs.options import RunOptions
from fedzo.runs.position import Position
from fedzo.runs.records import mean_of, numbers_of
from fedzo.runs.result import Progress, Result, Status
from fedzo.runs.resuming import reopen
from fedzo.runs.states import all_finite, fingerprint, flatten
from fedzo.runs.verdict import always_left_out, shortcoming

if TYPE_CHECKING:
    from fedzo.runs.job import Job

Array = NDArray[Any]


def unchanged(x: Array) -> Array:
    """Return x itself: most problems do not move it in place."""
    return x


@dataclass
class Loop:
    """A run under way: :meth:`go` continues from the present position to the end."""

    job: Job
    federation: Federation
    position: Position
    best: Best  # of the evaluations on schedule: those that a resumed run repeats
    start: str  # a fingerprint of x0
    to_user: Callable[[Array], Array] | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)  # since the last evaluation
    asked_before: int = 0  # what the meter had counted before the run, if there is one
    began: float = field(default_factory=time.perf_counter)
    silent: set[int] | None = None  # the devices that have answered no evaluation
    sealed: Seal = field(default_factory=Seal)  # the history's records on schedule
    snapshot: Callable[[Array], Array] = unchanged
    best_metric: str | None = None  # the metric that makes a model the best, before the loss

    @classmethod
    def begin(
        cls,
        job: Job,
        federation: Federation,
        x0: Array,
        to_user: Callable[[Array], Array] | None = None,
        probed: int = 0,
        snapshot: Callable[[Array], Array] = unchanged,
        **settings: Any,
    ) -> Self:
        """Return the run before its first round."""
        position = Position(0, job.algorithm.init(x0, federation, job.uplink), probed)
        if federation.meter is not None:  # after those of the start and the end
            federation.meter.evaluations = 1 + job.options.evaluates_between
        best = Best(snapshot(x0), np.inf, 0)
        settings["snapshot"] = snapshot
        return cls(job, federation, position, best, fingerprint(x0), to_user, **settings)

    @property
    def options(self) -> RunOptions:
        """How many rounds, what is evaluated and saved when."""
        return self.job.options

    @property
    def files(self) -> RunFolder | None:
        """The run's folder."""
        return self.job.folder

    @property
    def x(self) -> Array:
        """The global model."""
        return self.job.algorithm.model(self.position.state)

    def shown(self, x: Array) -> Array:
        """Return a model as the user knows it."""
        return x.copy() if self.to_user is None else self.to_user(x)

    @property
    def seconds(self) -> float:
        """How long the run has taken, all of its parts together."""
        return time.perf_counter() - self.began

    def open(self, resume: bool) -> None:
        """Load the checkpoint or make the folder; write nothing if that fails."""
        if self.files is not None:
            self._open_folder(self.files, resume)
        if self.federation.meter is not None:
            counted = self.position.queries + self._evaluation_queries()
            self.asked_before = self.federation.meter.queries - counted

    def _open_folder(self, files: RunFolder, resume: bool) -> None:
        if resume:
            reopen(self, files)
        elif files.has_run():
            raise UsageError(
                f"{files.path} already holds a run: resume it or choose another folder"
            )
        files.prepare(self.job.tables)
        if not resume:
            self.save()  # what "auto" has measured, and the queries for it, survive a kill

    def go(self) -> tuple[Status, str]:
        """Run until it ends, and return how it ended."""
        try:
            status, message = self._loop()
            self.evaluate()  # a callback may have stopped it off the schedule
        except Halted as error:
            status, message = self._halted(error)
        except KeyboardInterrupt:
            self.save()
            self._count_unfinished_queries()
            status, message = Status.INTERRUPTED, f"interrupted after round {self.position.round}"
        except NonFinite as error:  # the last checkpoint is from before it, and is kept
            self._count_unfinished_queries()
            status, message = Status.NON_FINITE, str(error)
        return status, message

    def _loop(self) -> tuple[Status, str]:
        while True:
            t = self.position.round
            at_end = t == self.options.rounds
            if self.options.evaluates(t) or at_end:
                self.evaluate()
            if self.options.saves(t):
                self.save()
            if end := self._end(at_end):
                self.save()
                return end
            self.step()

    def _end(self, at_end: bool) -> tuple[Status, str] | None:
        """Return how the run ends after this round, if it does."""
        t, done = self.position.round, self.position.last.done
        if self._stopped_by_watcher():
            return Status.STOPPED, f"stopped by the callback after round {t}"
        if self._reached():
            return Status.STOPPED, f"reached the target {self.options.target:g} after round {t}"
        if done:
            return Status.STOPPED, f"{done} after round {t}"
        return (Status.FINISHED, f"finished {t} round{'s' * (t != 1)}") if at_end else None

    def _stopped_by_watcher(self) -> bool:
        """Show the progress to every watcher; return whether one of them stops the run."""
        progress = self._progress()
        return True in [bool(watcher(progress)) for watcher in self.job.watchers]  # call each

    def _halted(self, error: Halted) -> tuple[Status, str]:
        """Keep the last whole round, evaluated if it can be; count what was asked for after it."""
        if isinstance(error, BudgetSpent):
            with suppress(Halted):  # where nothing is left for that
                self.evaluate()
        self._count_unfinished_queries()
        self.save()
        status = Status.STOPPED if isinstance(error, BudgetSpent) else Status.HALTED
        return status, f"{error} after round {self.position.round}"

    def _count_unfinished_queries(self) -> None:
        """Count the queries of a round or an evaluation that was cut short, if there is a meter.

        An interrupted round is done again on resume, so its checkpoint was written without them.
        """
        counted = self.position.queries + self._evaluation_queries()
        asked = self._asked(self.asked_before, counted)
        self.position = self.position._replace(queries=asked - self._evaluation_queries())

    def step(self) -> None:
        """Do one round."""
        t, state = self.position.round, self.position.state
        before = self._metered()
        state, info = self.job.algorithm.round(t, state, self.federation, self.job.uplink)
        self._note_left_out(t + 1)
        if not all_finite(self.job.algorithm.model(state)):
            raise NonFinite("the model", t + 1)
        # A round may report anything; only numbers go into the history.
        info = info._replace(
            metrics=numbers_of(info.metrics), queries=self._asked(before, info.queries)
        )
        self.position = self.position.moved(state, info, self._stayed(self.position.state, state))

    def _stayed(self, before: Any, after: Any) -> bool:
        """Return whether a round has left the model as it was, though it was to move it."""
        if self._stays_until_better():
            return False
        x, moved = (self.job.algorithm.model(state) for state in (before, after))
        # One that is moved in place is not there any more as it was.
        return not np.may_share_memory(x, moved) and np.array_equal(x, moved)

    def _stays_until_better(self) -> bool:
        """Return whether to stay is to have found nothing better, rather than to stand still."""
        return self.job.algorithm.settles or not self.job.algorithm.moves_each_round

    def evaluate(self) -> None:
        """Add f(x) over all devices and the problem's metrics to the history, once a round."""
        at = self.position
        if self._recorded():
            return
        before, pending = self._metered(), list(self.left_out)
        losses = self.federation.losses(self.x)
        absent = [device.device for device in self.federation.left_out]
        self.silent = set(absent) if self.silent is None else self.silent & set(absent)
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
            "train_loss": mean_of(losses),
            **numbers_of(self.federation.metrics(self.x)),
            **numbers_of(at.last.metrics),
            "participants": at.last.participants,
            "queries": at.queries,
            "evaluation_queries": self._evaluation_queries()
            + self._asked(before, self.federation.evaluation_cost),
            "uplink_bytes": at.uplink_bytes,
            "downlink_bytes": at.downlink_bytes,
            "channel_uses": at.channel_uses,
            **({} if at.energy is None else {"energy": at.energy}),
            "seconds": round(self.seconds, 3),
        }
        if self.left_out:
            record["left_out"] = self.left_out
        self.history.append(record)
        # A resumed run has no evaluation off the schedule: its next one names who is named here.
        self.left_out = pending
        if self.options.evaluates(at.round):
            self.left_out, self.best = [], self._better()
            self.sealed.add(record)
        if self.files is not None:
            self.files.append(record)

    def save(self) -> None:
        """Write a checkpoint of the present position."""
        if self.files is None:
            return
        at = self.position
        self.files.save(
            Checkpoint(
                round=at.round,
                state=flatten(at.state),
                totals=at.totals,
                spent=self._metered(),
                best=self.best,
                last=at.last._asdict(),
                left_out=self.left_out,
                seconds=self.seconds,
                config=self.job.tables,
                start=self.start,
                records=self.sealed.count,
                digest=self.sealed.digest(),
            )
        )

    def close(self, status: Status, message: str) -> Result:
        """Write the models, and return the result."""
        at, best, last = self.position, self._better(), self.shown(self.snapshot(self.x))
        best = best._replace(x=self.shown(best.x))
        if not self.history:  # the very first evaluation failed or was interrupted
            best = best._replace(fun=float("nan"))
        if self.files is not None:
            self.files.save_models(last, best.x)
        status, message = self._verdict(status, message)
        return Result(
            x=best.x,
            fun=best.fun,
            success=status <= Status.STOPPED,
            status=status,
            message=message,
            nit=at.round,
            algorithm=self.job.algorithm.with_numbers(at.state),
            last=last,
            best=best,
            queries=at.queries,
            evaluation_queries=self._evaluation_queries(),
            uplink_bytes=at.uplink_bytes,
            downlink_bytes=at.downlink_bytes,
            channel_uses=at.channel_uses,
            seconds=self.seconds,
            history=self.history,
        )

    def _verdict(self, status: Status, message: str) -> tuple[Status, str]:
        """Return the status and message of a run, checked for success where it ended normally."""
        at, best = self.position, self._better()
        found = None
        if status <= Status.STOPPED:
            losses = [record["train_loss"] for record in self.history]
            moved = fingerprint(self.x) != self.start
            if self.job.algorithm.settles:  # noise is no rise
                losses, best = losses[-1:], best if moved else best._replace(round=0)
            moved = moved or self._stays_until_better()
            found = shortcoming(
                at.round,
                at.queries,
                at.idle,
                at.still,
                losses,
                best,
                moved,
                silent=sorted(self.silent or ()),
                left_out=always_left_out(at.round, self.history, self.left_out),
            )
        end, words = found or (None, "")
        return status if end is None else end, message + words

    def _note_left_out(self, t: int) -> None:
        """Note the devices left out in round t, for the next record of the history."""
        for absent in sorted(self.federation.left_out):
            self.left_out.append({"round": t, **absent._asdict()})
        self.federation.left_out.clear()

    def _better(self) -> Best:
        """Return the best evaluated model, the present one included."""
        if self._recorded() and (
            self.job.algorithm.settles or self._rank(self.history[-1]) < self._best_rank()
        ):
            return Best(self.snapshot(self.x), self.history[-1]["train_loss"], self.position.round)
        return self.best

    def _rank(self, record: Mapping[str, Any]) -> tuple[float, float]:
        """Return the key that orders models, the best first: minus the metric, then the loss."""
        return -record.get(self.best_metric or "", 0.0), record["train_loss"]

    def _best_rank(self) -> tuple[float, float]:
        if not self.best_metric:
            return 0.0, self.best.fun
        best = (self.best.round, self.best.fun)
        kept = (r for r in self.history if (r["round"], r["train_loss"]) == best)
        return next(map(self._rank, kept), (0.0, self.best.fun))

    def _evaluation_queries(self) -> int:
        return self.history[-1].get("evaluation_queries", 0) if self.history else 0

    def _metered(self) -> int:
        return 0 if self.federation.meter is None else self.federation.meter.queries

    def _asked(self, before: int, reported: int) -> int:
        """Return the queries since ``before``: as metered, retries included, or as reported."""
        return int(reported) if self.federation.meter is None else self._metered() - before

    def _reached(self) -> bool:
        """Return whether the model was evaluated and meets the target."""
        target = -np.inf if self.options.target is None else self.options.target
        return self._recorded() and bool(self.history[-1]["train_loss"] <= target)

    def _recorded(self) -> bool:
        return bool(self.history) and self.history[-1]["round"] == self.position.round

    def _progress(self) -> Progress:
        at = self.position
        record = self.history[-1] if self._recorded() else None
        x = self.shown(self.x)
        return Progress(at.round, self.options.rounds, x, at.queries, self.seconds, record)
