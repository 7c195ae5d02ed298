"""The loop around an algorithm: rounds, evaluation, callbacks, checkpoints, resume."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from fedzo.algorithms import Algorithm, FedZO, RoundInfo
from fedzo.algorithms.adaptive_rate import AdaptiveRate
from fedzo.algorithms.base import Round
from fedzo.algorithms.candidates import Candidates
from fedzo.algorithms.compose import compose, current
from fedzo.core import capabilities as can
from fedzo.core.budget import Meter, spent
from fedzo.core.capabilities import Best
from fedzo.core.engine import Engine, drive
from fedzo.core.files import Config, as_toml, write_atomic
from fedzo.core.importing import call_user
from fedzo.core.machine import deferred_signals
from fedzo.core.objective import Objective
from fedzo.core.tasks import Evaluation, Losses, Task
from fedzo.core.types import Array
from fedzo.core.value_log import Phase
from fedzo.errors import BudgetSpent, Exit, FedzoError, Halted, NonFinite, UsageError
from fedzo.runs.history import HistoryDigest, Record, mean_loss, numeric_metrics
from fedzo.runs.options import RunOptions
from fedzo.runs.result import (
    Callback,
    Noise,
    Progress,
    Result,
    Status,
    always_dropped,
    closing,
    fresh_evaluations,
    listed,
)
from fedzo.runs.store import (
    SUMS,
    Checkpoint,
    RunFolder,
    RunState,
    UpdateLog,
    flatten,
    save_array,
    unflatten,
)
from fedzo.uplinks import Uplink
from fedzo.uplinks.base import RunSetting
from fedzo.uplinks.seeds import secure_mean_loss

T = TypeVar("T")
Running = Generator[Task | Losses, Any, T]  # yields tasks, and returns a T
_PATIENCE = 2  # evaluations without a gain on the chosen start, after which a run ends


@dataclass(frozen=True)
class Job:
    """A run apart from its problem: the parts, the options and the folder.

    ``tables`` is the configuration that ``config.toml`` gets, and that a resume compares with it.
    ``probed`` counts the queries that chose numbers in place of "auto" before the run; ``plan`` may
    then change the job.
    """

    algorithm: Algorithm
    uplink: Uplink
    options: RunOptions
    tables: Config
    run_dir: Path | None = None
    resume: bool = False
    watchers: tuple[Callback, ...] = ()
    probed: int = 0
    plan: Callable[[Job], Job] | None = None

    @property
    def folder(self) -> RunFolder | None:
        """The files of the run, if it has a folder."""
        return None if self.run_dir is None else RunFolder(self.run_dir)

    def check_folder(self) -> None:
        """Raise unless the folder is free for a new run, or holds the run to resume."""
        folder = self.folder
        if folder is None:
            if self.resume:
                words = "resume needs the run_dir of the run to resume"
                raise UsageError(words, code="no-run-dir")
            return
        if self.resume and not folder.has_run():
            raise UsageError(f"{folder.path} does not contain a run to resume", code="no-run")
        folder.check_free()
        if not self.resume:
            folder.check_new()

    @contextmanager
    def held(self, engine: Engine) -> Iterator[None]:
        """Hold the folder, if there is one; on leaving, close the log of values and draw curves."""
        with ExitStack() as stack:
            if (folder := self.folder) is not None:
                stack.enter_context(folder.held())
                stack.callback(folder.draw_curves)
                if engine.meter is not None:
                    stack.callback(engine.meter.log.close)
            yield


class Loop:
    """A run in progress: :meth:`go` continues from the current state to the end.

    Parameters
    ----------
    job : Job
        What to run.
    engine : Engine
        What answers the tasks.
    x0 : array
        The start, shape (dim,).
    problem : Objective, optional
        Decides how a model is copied, compared and shown to the user. By default a model is an
        array that rounds do not change in place, and the best one has the lowest loss.
    """

    def __init__(
        self, job: Job, engine: Engine, x0: Array, problem: Objective | None = None
    ) -> None:
        self.job, self.engine, self.options, self.x0 = job, engine, job.options, x0
        self.folder, self.tables, self.start = job.folder, as_toml(job.tables), digest_of(x0)
        self.exact = problem is None or problem.exact or problem.capability(can.InPlace) is not None
        problem = problem or Objective()
        self.user_view = problem.capability(can.HasUserView)
        self.in_place = problem.capability(can.InPlace)
        self.remembers = problem.capability(can.Remembers)
        self.writes_files = problem.capability(can.WritesFiles)
        self.loads_best = problem.capability(can.LoadsBest) is not None
        chosen = problem.capability(can.HasBestMetric)
        self.best_metric = (chosen and chosen.best_metric) or ""
        self.setting = RunSetting(engine, job.uplink, job.algorithm.coefficients_shape)
        self._held = ExitStack()  # signals, while a model changes in place
        if self.in_place is not None:
            self.setting.commit = self._commit
        self.algorithm = compose(job.algorithm, job.uplink)
        start = Best(self.snapshot(x0), np.inf, 0)
        self.at = RunState(0, self.algorithm.init(x0, self.setting), start, job.probed)
        self.meter = engine.meter or Meter()  # without one, the queries that rounds report
        self.meter.evaluations = job.options.reserved_evaluations
        if engine.meter is not None and self.meter.max_queries is None:
            self.meter.max_queries = job.options.max_queries
        self._memory: Mapping[str, Array] | None = None  # of the problem, before an evaluation
        self.updates: UpdateLog | None = None  # which a receipt is made of
        self.fresh: Noise | None = None  # of fresh evaluations of the best model
        self.confirmed = 0  # their queries
        self.stopped = False  # by a callback or a target: a resumed run may continue
        self.same_end = True  # as an earlier session, which may have asked queries at its end
        self._saved: Any = None  # the round and the records of the last checkpoint
        self._records: list[Record] = []
        self.metered_before = 0  # the meter's count before the run
        self.began = time.perf_counter()

    @property
    def x(self) -> Array:
        """The global model."""
        return self.algorithm.model(self.at.state)

    @property
    def history(self) -> list[Record]:
        """The records of all evaluations."""
        del self._records[self.at.records :]  # an interrupt came before it counted
        return self._records

    @property
    def record(self) -> Record | None:
        """The record of the current round, if it was evaluated."""
        last = self.history[-1] if self.history else None
        return last if last is not None and last["round"] == self.at.round else None

    def to_user(self, x: Array) -> Array:
        """Return a model in the user's variables."""
        return x.copy() if self.user_view is None else self.user_view.to_user(x)

    def memory(self) -> Mapping[str, Array]:
        """Return what the problem has learned, without what an unfinished evaluation added."""
        if self._memory is not None or self.remembers is None:
            return self._memory or {}
        return {name: array.copy() for name, array in self.remembers.memory().items()}

    def scheduled(self, t: int) -> bool:
        """Return whether f is evaluated after t rounds, by the options or for the algorithm."""
        return self.options.evaluates(t) or 0 < self.algorithm.first_step == t

    def snapshot(self, x: Array) -> Array:
        """Return a model that later rounds do not change."""
        return x if self.in_place is None else self.in_place.snapshot(x)

    @property
    def seconds(self) -> float:
        """The duration of the run, before and after a resume."""
        return time.perf_counter() - self.began

    # ------------------------------------------------------------------------ begin and resume

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Begin or resume the run in its folder, which is held; close the watchers on leaving."""
        if (folder := self.folder) is not None:
            # Nothing is written if the checkpoint does not fit.
            checkpoint = folder.load() if self.job.resume else None
            if checkpoint is not None:
                self._resume(folder, checkpoint)
            folder.begin(self.tables, self.engine.meter, new=not self.job.resume)
            if self.loads_best:
                self._begin_receipt(folder)
            if checkpoint is None:
                self.save()  # so that the outcome of the probes survives a kill
        self.metered_before = self.meter.queries - self.at.queries - self._evaluation_queries()
        with closing(*self.job.watchers):
            yield

    def _begin_receipt(self, folder: RunFolder) -> None:
        """Write the start; describe the run, apart from its tables, in the log of its updates."""
        if not folder.start.exists():
            save_array(folder.start, self.x0)
        if self.job.algorithm.coefficients_shape is None:
            return
        run: Record = {"devices": self.setting.devices}
        algorithm = current(self.algorithm, self.at.state)  # with the numbers chosen for "auto"
        if isinstance(algorithm, FedZO):
            run |= {key: getattr(algorithm, key) for key in ("learning_rate", "smoothing")}
        if isinstance(self.algorithm, AdaptiveRate):
            run["adapts"] = self.algorithm.adapts
        self.updates = UpdateLog(folder.updates, run)

    def _resume(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        """Continue from the folder's checkpoint."""
        checkpoint.check_same(folder.checkpoint, self.tables, self.start, self.options.rounds)
        at, had, has = checkpoint.at, budget_of(checkpoint.config), budget_of(self.tables)
        before = checkpoint.config.get("run", {}).get("rounds")
        self.same_end = (before, had) == (self.tables.get("run", {}).get("rounds"), has)
        if had is not None and (has is None or has > had):  # then a search may have more queries
            at = at._replace(last=at.last._replace(done=""))
        self._records = folder.resume_history(at, self.scheduled)
        at = at._replace(digest=HistoryDigest(), records=len(self._records))
        for record in self._records:
            at = at.with_record(record)
        self.at = at._replace(state=unflatten(self.at.state, at.state))
        if self.remembers is not None:
            self.remembers.recall(checkpoint.memory)
        self.began -= checkpoint.seconds
        self.meter.queries = checkpoint.metered

    # -------------------------------------------------------------------------------- rounds

    def go(self) -> Running[tuple[Status, str]]:
        """Yield the tasks of all rounds; return the status and the message."""
        try:
            while (end := (yield from self._reach_end())) is None:
                tasks, before = self._prepare_round(), self.meter.queries
                state, info = yield from tasks
                self._advance(state, info, before)
            return end
        except (Halted, KeyboardInterrupt) as error:
            return (yield from self._halted(error))
        except NonFinite as error:  # the last checkpoint is from before it, and stays
            self._count_unfinished_queries()
            return Status.NON_FINITE, str(error)
        finally:
            self._held.close()

    def _reach_end(self) -> Running[tuple[Status, str] | None]:
        """Evaluate and save on schedule; return the status and message if the run ends here.

        What is evaluated off the schedule is not in the checkpoint: a run that is resumed with
        more rounds has no such evaluation.
        """
        self._reserve()
        if self.scheduled(self.at.round):
            yield from self.evaluate()
        if self.options.saves(self.at.round):
            self.save()
        if self.at.round == self.options.rounds:
            yield from self.evaluate()
        if end := self._end():
            self.save()
            free = not self._leaves_no_trace
            if free or self._evaluation_is_free:
                yield from self.evaluate()
            if free:
                yield from self._confirm()
        return end

    def _prepare_round(self) -> Round[Any]:
        """Return the tasks of the next round."""
        t = self.at.round
        self._reserve()
        self._charge_skipped()
        self.meter.log.begin(t, Phase.ROUND)
        tasks = self.algorithm.round(t, self.at.state, self.setting)
        return tasks if self.updates is None else self.updates.noting(t, tasks)

    def _advance(self, state: Any, info: RoundInfo, before: int) -> None:
        """Take over the state after a round; ``before`` is the meter's count before it."""
        t, noise = self.at.round, self.at.noise
        dropped = self._take_dropped(t + 1)
        if not all_finite(self.algorithm.model(state)):
            raise NonFinite("the model", t + 1)
        most, simulated = self.options.max_queries, self.engine.meter is None
        over = most is not None and self.at.queries + info.queries > most
        if simulated and self.in_place is None and over:
            raise BudgetSpent(spent(most or 0))  # the round does not count
        if self.meter.at_start.size:
            noise = Noise.of_devices(self.meter.at_start[:, None])
        info = info._replace(queries=self._requested(before, info.queries))
        self.at = self.at.moved(state, info, dropped)._replace(noise=noise)
        self._held.close()

    @contextmanager
    def _commit(self) -> Iterator[None]:
        """Defer signals until the round counts: an interrupt never leaves half a step."""
        self._held.enter_context(deferred_signals())
        yield

    def _end(self) -> tuple[Status, str] | None:
        """Return the status and message if the run ends after this round."""
        t, done, target, record = self.at.round, self.at.last.done, self.options.target, self.record
        stops = []
        if self.job.watchers:
            x, queries, seconds = self.to_user(self.x), self.at.queries, self.seconds
            progress = Progress(
                t, self.options.rounds, x, queries, seconds, record, self.meter.left
            )
            stops = [call_user(_stops, watcher, progress) for watcher in self.job.watchers]
        reached = target is not None and record is not None and record["train_loss"] <= target
        self.stopped = True in stops or reached
        if True in stops:
            return Status.STOPPED, f"stopped by the callback after round {t}"
        if reached:
            return Status.STOPPED, f"reached the target {target:g} after round {t}"
        if self._next_exceeds_budget:
            done = spent(self.options.max_queries or 0)
        if (first := self.algorithm.first_step) and not done:
            since = max(first, self.at.best.round)
            gainless = sum(r["round"] > since for r in self.history) >= _PATIENCE
            done = "no gain since the best evaluation" if gainless else ""
        if done:
            return Status.STOPPED, f"{done} after round {t}"
        if t < self.options.rounds:
            return None
        return Status.FINISHED, f"finished {t} round{'s' * (t != 1)}"

    @property
    def _next_exceeds_budget(self) -> bool:
        """Whether a round as costly as the last one exceeds ``max_queries``: it is not begun.

        A round that turns out to exceed it does not count, unless it has changed the model in
        place: so the first one is known. Problems with a meter stop exactly at their own limit,
        inside a round.
        """
        most, next_cost = self.options.max_queries, self.at.last.queries
        if most is None or self.engine.meter is not None:
            return False
        fedzo = self.job.algorithm
        if self.in_place is not None and not self.at.round and isinstance(fedzo, FedZO):
            steps = (fedzo.participants or self.setting.devices) * fedzo.local_steps
            next_cost = steps * fedzo.batch_size * len(fedzo.estimator.stencil[0])
        return self.at.queries + next_cost > most

    @property
    def _leaves_no_trace(self) -> bool:
        """Whether queries at a stop would be missing in a run that resumes."""
        return self.stopped and self.meter.left is not None and self.folder is not None

    def _halted(self, error: Halted | KeyboardInterrupt) -> Running[tuple[Status, str]]:
        """Keep the last complete round, evaluated if possible; count the queries after it."""
        is_spent = isinstance(error, BudgetSpent)
        if is_spent or self._evaluation_is_free:
            with suppress(Halted):  # if no queries are left for the evaluation
                yield from self.evaluate()
        self.save()
        self._count_unfinished_queries()
        if is_spent:
            yield from self._confirm()
        if is_spent and not self.at.round:
            return Status.STALLED, f"{error} before the end of the first round"
        if isinstance(error, KeyboardInterrupt):
            return Status.INTERRUPTED, f"interrupted after round {self.at.round}"
        status = Status.STOPPED if is_spent else Status.HALTED
        return status, f"{error} after round {self.at.round}"

    def _take_dropped(self, t: int) -> list[Record]:
        """Return the devices that were dropped in round t since the last call."""
        dropped = [{"round": t, **one._asdict()} for one in sorted(self.engine.dropped)]
        self.engine.dropped.clear()
        return dropped

    # ---------------------------------------------------------------------------- evaluation

    @property
    def _evaluation_is_free(self) -> bool:
        """Whether the algorithm knows f(x), so that an evaluation takes no queries."""
        return self.algorithm.loss(self.at.state) is not None

    def evaluate(self) -> Running[None]:
        """Add f(x) over all devices and the problem's metrics to the history, once per round."""
        if self.record is not None:
            return
        at, known = self.at, self.algorithm.loss(self.at.state)
        self._memory = self.memory()  # a checkpoint has nothing of half an evaluation
        self.meter.log.begin(at.round, Phase.EVALUATION)
        before, cost, noise = self.meter.queries, 0, at.noise
        if known is None:
            evaluation: Evaluation = yield Losses(self.x)
            cost = self.engine.evaluation_cost
        else:
            evaluation = Evaluation(np.array([known]), {})
        absent = [] if known is not None else [one.device for one in self.engine.dropped]
        # If there are queries for a second evaluation of the start and one of the result.
        affords = self.meter.left is None or self.meter.left >= 3 * self.engine.evaluation_cost
        if affords and not (at.round or self.exact or self.algorithm.measures_noise):
            noise = yield from self._noise(evaluation.losses)
            cost *= 2
        dropped = (*at.dropped, *self._take_dropped(at.round))
        mean = self._mean(evaluation, absent, secure=self.job.uplink.secure and known is None)
        metrics = numeric_metrics(evaluation.metrics, at.costs)
        cost = self._requested(before, cost)
        record: Record = {
            "round": at.round,
            "train_loss": mean,
            **metrics,
            **numeric_metrics(at.last.metrics, at.costs),
            "participants": at.last.participants,
            "queries": at.queries,
            "evaluation_queries": self._evaluation_queries() + cost,
            "uplink_bytes": at.uplink_bytes,
            "downlink_bytes": at.downlink_bytes,
            "channel_uses": at.channel_uses,
            **at.costs,
            "seconds": round(self.seconds, 3),
            **({"dropped": list(dropped)} if dropped else {}),
        }
        # First the disk, then memory, and there in one step: a checkpoint after an interrupt must
        # not count a record that is not on disk. One that it does not count is written again.
        if self.folder is not None:
            self.folder.append(record)
        after = at._replace(records=len(self.history) + 1, noise=noise)
        if self.scheduled(at.round):  # a resumed run has no evaluation off the schedule
            after = after.with_record(record)._replace(best=self._better(record), dropped=())
        self._records.append(record)
        self.at, self._memory = after, None

    def _mean(self, evaluation: Evaluation, absent: list[int], secure: bool) -> float:
        """Return f(x), the mean loss of the devices that replied; raise unless it is finite."""
        wrong = ~np.isfinite(evaluation.losses)
        wrong[absent] = False
        losses = evaluation.losses
        if wrong.any() and not self.at.round and self.algorithm.tracks_best:
            losses = np.where(wrong, np.inf, losses)  # a search may find a point with a value
        elif wrong.any():
            raise NonFinite("the loss", self.at.round, int(np.flatnonzero(wrong)[0]))
        losses = np.delete(losses, absent)
        if not len(losses):
            raise Halted("no device could be evaluated")
        if evaluation.mean is not None:
            return evaluation.mean
        return secure_mean_loss(losses, self.job.uplink.loss_clip) if secure else mean_loss(losses)

    def _noise(self, first: Array) -> Running[Noise]:
        """Evaluate the start again, and return how noisy its mean loss is."""
        dropped = len(self.engine.dropped)
        evaluation: Evaluation = yield Losses(self.x)
        del self.engine.dropped[dropped:]
        there = np.isfinite(first) & np.isfinite(evaluation.losses)
        both = np.array([first[there], evaluation.losses[there]])
        return Noise() if np.array_equal(*both) else Noise.of_devices(both)

    @property
    def _repeats(self) -> int:
        return fresh_evaluations(self.meter, self.engine.evaluation_cost)

    def _confirm(self) -> Running[None]:
        """Evaluate the best model afresh if evaluations are noisy: of many the best is too low."""
        best, meter, cost = self._best_now, self.meter, self.engine.evaluation_cost
        if not (self.at.noise.deviation and best.round):
            return
        meter.reserved = 0
        repeats = self._repeats if meter.left is None else min(self._repeats, meter.left // cost)
        meter.log.begin(self.at.round, Phase.FRESH)
        before, found = meter.queries, np.empty((repeats, self.engine.devices))
        for i in range(repeats):
            evaluation: Evaluation = yield Losses(best.x)
            found[i] = evaluation.losses
        self.confirmed = self._requested(before, repeats * cost)
        if repeats and not self.engine.dropped and np.isfinite(found).all():
            self.fresh = Noise.of_devices(found).pooled(self.at.noise)
        self.engine.dropped.clear()

    def _beats_start(self, best: Best) -> bool:
        """Return whether a noisy result is better than the start, wrong in 2.5 % at most.

        Without fresh evaluations it is the lowest of many values, and each had a chance.
        """
        noise = self.at.noise
        if self.fresh is not None:
            return self.fresh.is_below(noise)
        return noise._replace(mean=best.fun, repeats=1).is_below(noise, self.at.round)

    def _better(self, record: Record | None) -> Best:
        """Return the best evaluated model, including the current one if it has a record."""
        if record is not None and (
            self.algorithm.tracks_best or self._rank(record) < self._best_rank()
        ):
            return Best(self.snapshot(self.x), record["train_loss"], self.at.round)
        return self.at.best

    @property
    def _best_now(self) -> Best:
        return self._better(self.record)

    def _rank(self, record: Mapping[str, Any]) -> tuple[float, float]:
        """Return the sort key of a model, best first: minus the problem's metric, then the loss."""
        return -record.get(self.best_metric, 0.0), record["train_loss"]

    def _best_rank(self) -> tuple[float, float]:
        if not self.best_metric:
            return 0.0, self.at.best.fun
        before = (self._rank(r) for r in self.history if r["round"] < self.at.round)
        return min(before, default=(0.0, np.inf))

    # ------------------------------------------------------------------------------- queries

    def _reserve(self) -> None:
        """Keep queries back for the evaluation of a noisy result."""
        if self.at.noise.deviation:
            self.meter.reserved = self._repeats * self.engine.evaluation_cost

    def _charge_skipped(self) -> None:
        """Charge what an earlier session asked at its end, if this one ends elsewhere."""
        if self.meter.left is not None and not self.same_end:
            phases = [Phase.FRESH, Phase.REPORT]
            phases += [] if self.record is not None else [Phase.EVALUATION]
            skipped = self.meter.log.unread(self.at.round, *phases)
            self.meter.queries += skipped
            self.metered_before += skipped

    def _evaluation_queries(self) -> int:
        return self.history[-1].get("evaluation_queries", 0) if self.history else 0

    def _requested(self, before: int, reported: int) -> int:
        """Return the queries since ``before``: as metered, with retries, or as reported."""
        if self.engine.meter is None:
            self.meter.queries += int(reported)
        return self.meter.queries - before

    def _count_unfinished_queries(self) -> None:
        """Count the queries of an unfinished round or evaluation, if there is a meter.

        A resume repeats an interrupted round, so its checkpoint is written without them.
        """
        counted = self.meter.queries - self.metered_before
        self.at = self.at._replace(queries=counted - self._evaluation_queries())

    # ---------------------------------------------------------------------- checkpoint and end

    def save(self) -> None:
        """Write a checkpoint of the current state, without evaluations off the schedule."""
        at, log, state = self.at, self.meter.log, (self.at.round, self.at.digest)
        if self.folder is None or self._saved == state:
            return
        if self.updates is not None:
            self.updates.write(at.round)
        metered = self.metered_before + at.queries + at.evaluated
        if self.engine.meter is not None and not log.used:  # else a resume finds it in the log
            metered = self.meter.queries
        self.folder.save(
            Checkpoint(
                at=at._replace(state=flatten(at.state)),
                metered=metered,
                seconds=self.seconds,
                config=self.tables,
                start=self.start,
                memory=self.memory(),
            )
        )
        self._saved = state
        log.trim(at.round, evaluated=self.scheduled(at.round) and self.record is not None)

    def close(self, status: Status, message: str) -> Result:
        """Write the models, and return the result."""
        at, best = self.at, self._best_now
        status, message = self._diagnosed(status, message, best)
        error = at.noise.deviation
        if self.fresh is not None:
            best, error = best._replace(fun=self.fresh.mean), self.fresh.error
            if self.fresh.mean > at.noise.mean:  # then the start is the best known model
                best, error = Best(self.x0, at.noise.mean, 0), at.noise.error
        last = self.to_user(self.snapshot(self.x))
        best = best._replace(x=self.to_user(best.x))
        if not self.history:  # the first evaluation failed or was interrupted
            best = best._replace(fun=float("nan"))
        if self.folder is not None:
            self._write_files(self.folder, status, last, best)
        return Result(
            x=best.x,
            fun=best.fun,
            success=status <= Status.STOPPED,
            status=status,
            message=message,
            nit=at.round,
            algorithm=current(self.algorithm, at.state),
            last=last,
            best=best,
            evaluation_queries=self._evaluation_queries() + self.confirmed,
            **{key: getattr(at, key) for key in SUMS},
            seconds=self.seconds,
            history=self.history,
            fun_error=error,
        )

    def _write_files(self, folder: RunFolder, status: Status, last: Array, best: Best) -> None:
        """Write the models, the status, and the files of the problem."""
        folder.save_models(last, best.x)
        write_atomic(folder.mark, status.name.lower().replace("_", "-").encode())
        interrupted = status == Status.INTERRUPTED
        if self.writes_files is not None and (self.history or not interrupted):
            self.meter.log.begin(self.at.round, Phase.REPORT)
            with ExitStack() as stack:
                if interrupted or self._leaves_no_trace:
                    stack.enter_context(self.meter.closed())
                call_user(self.writes_files.write_files, folder.path, best, direct=False)

    def _diagnosed(self, status: Status, message: str, best: Best) -> tuple[Status, str]:
        """Return the status and message of a run, which may have ended without success."""
        if status > Status.STOPPED:
            return status, message
        losses = [record["train_loss"] for record in self.history]
        moved, noise = digest_of(self.x) != self.start, self.at.noise
        if noise.deviation and not (moved and best.round and self._beats_start(best)):
            risen = noise.is_below(noise._replace(mean=losses[-1], repeats=1))
            if self.algorithm.tracks_best or not risen:
                words = ", but no model is better than the start beyond noise"
                return Status.STALLED, message + words
        if self.algorithm.tracks_best:  # a higher loss is noise
            losses, best = losses[-1:], best if moved else best._replace(round=0)
        waits = self.algorithm.tracks_best or not self.algorithm.moves_each_round  # for a better x
        found = self._diagnoses(losses, best, moved or waits)
        end, words = next(found, (None, ""))
        ended = self.at.last.done not in ("", "the budget is spent")  # on its own
        if self.algorithm.tracks_best and not moved and ended and end is Status.STALLED:
            end, words = None, "; the start is already optimal, as far as the search can tell"
        return status if end is None else end, message + words

    def _diagnoses(
        self, losses: list[float], best: Best, moved: bool
    ) -> Iterator[tuple[Status | None, str]]:
        """Yield what a run that ended normally lacks, the gravest first: a status, and a text.

        A status of None means a success with a remark.
        """
        at, devices = self.at, self.engine.devices
        if not losses:
            yield Status.STALLED, ", before anything was evaluated"
        if not (losses and at.round):
            return
        if not at.queries:
            yield Status.HALTED, ", in which no device took part"
        absent = {*(at.silent or ()), *always_dropped(at.round, self.history, at.dropped)}
        missing = f"device {listed(sorted(absent))} was dropped in every round or never evaluated"
        if devices - len(absent) < (quorum := math.ceil(self.engine.quorum * devices)):
            words = f", but without a quorum of {quorum} of {devices} devices: {missing}"
            yield Status.HALTED, words
        if 2 * at.idle > at.round:
            yield Status.STALLED, f", but in {at.idle} of {at.round} no device took part"
        first, last = losses[0], losses[-1]
        better = best.round > 0 and self.best_metric  # what counts has improved, whatever the loss
        if last - first > 0.01 * abs(first) and not better:  # one per cent: noise around a start
            kept = f"; the best, {best.fun:.4g}, is of round {best.round}" if best.round else ""
            yield Status.DIVERGED, f", but the loss rose from {first:.4g} to {last:.4g}{kept}"
        if not moved:
            flat = "μ or the step is below the precision of x, or the loss is flat around it"
            yield Status.STALLED, f", but the model did not move: {flat}"
        if best.round == 0:
            words = f", but no evaluated model is better than the start, {first:.4g}"
            yield Status.STALLED, words
        if absent:
            yield None, f"; {missing}"


def tasks(job: Job, engine: Engine, x0: Array, problem: Objective | None = None) -> Running[Result]:
    """Yield the tasks of a run, from the probes of "auto" to the last evaluation."""
    job.check_folder()
    setting = RunSetting(engine, job.uplink, job.algorithm.coefficients_shape)
    check_parts(job.algorithm, setting, x0)  # before the first query
    with job.held(engine):
        job = yield from choose_numbers(job, setting, x0, problem)
        loop = Loop(job, engine, x0, problem)
        with loop.opened(), _running():
            return loop.close(*(yield from loop.go()))


def choose_numbers(
    job: Job, setting: RunSetting, x0: Array, problem: Objective | None
) -> Running[Job]:
    """Return the job with numbers in place of "auto", if this process has to choose them.

    A resumed run has them in its checkpoint; its configuration still says "auto". Without a
    checkpoint, the probes find the values in the log that were answered before.
    """
    algorithm, folder, meter = job.algorithm, job.folder, setting.engine.meter
    if problem is None or not (isinstance(algorithm, FedZO) and algorithm.automatic):
        return job
    from fedzo.runs.auto import Chosen, automatic, choose, stand_in

    chosen = Chosen(stand_in(algorithm), 0)
    if not (job.resume and folder is not None and os.path.exists(folder.checkpoint)):
        if folder is not None:
            folder.begin(as_toml(job.tables), meter, new=not job.resume)
            job = replace(job, resume=True)
        if meter is not None:
            meter.log.begin(0, Phase.PROBE)
        with _running():
            chosen = yield from choose(algorithm, setting, problem, x0, job.options.rounds)
        setting.engine.dropped.clear()  # of no round
    adapted = automatic(algorithm, chosen.algorithm, problem)
    job = replace(job, algorithm=adapted, probed=chosen.queries)
    with _running():
        return job if job.plan is None else job.plan(job)


def check_parts(algorithm: Algorithm, setting: RunSetting, x0: Array) -> None:
    """Raise unless the parts of a run fit together; "auto" stands for any number."""
    if isinstance(algorithm, FedZO) and algorithm.automatic:
        from fedzo.runs.auto import stand_in

        if setting.uplink.secure:
            text = "uplink.secure: 'auto' needs values, which are not summed; set numbers instead"
            raise UsageError(text, code="no-values")

        algorithm = Candidates(fedzo=cast(FedZO, stand_in(algorithm)))
    compose(algorithm, setting.uplink).init(x0, setting)


@contextmanager
def _running() -> Iterator[None]:
    """Turn errors which say that nothing was run into Halted: from here on, something was."""
    try:
        yield
    except FedzoError as error:
        if error.exit != Exit.NOTHING_RUN:
            raise
        raise Halted(str(error), code=error.code) from error


def run_job(job: Job, engine: Engine, x0: Array, problem: Objective | None = None) -> Result:
    """Run a job on an engine of any kind. See :class:`Loop` for the parameters.

    Examples
    --------
    >>> import fedzo, numpy as np
    >>> from fedzo.core.engine import LocalEngine
    >>> from fedzo.problems import FunctionObjective
    >>> engine = LocalEngine(FunctionObjective(lambda x, i: x @ x, 2, devices=3), seed=0)
    >>> job = Job(fedzo.FedZO(learning_rate=0.1), fedzo.Ideal(), RunOptions(rounds=20), tables={})
    >>> bool(run_job(job, engine, np.ones(2)).fun < 1e-3)
    True
    """
    with engine:
        return drive(tasks(job, engine, x0, problem), engine)


def budget_of(tables: Config) -> int | None:
    """Return the budget of queries that a configuration gives, if any.

    >>> budget_of({"problem": {"max_queries": 30}, "run": {"max_queries": 50}})
    30
    """
    found = (tables.get(table, {}).get("max_queries") for table in ("problem", "run"))
    return next((most for most in found if most is not None), None)


def _stops(watcher: Callback, progress: Progress) -> bool:
    return bool(watcher(progress))


def digest_of(x: Array) -> str:
    """Return a short digest of a model, by which a resumed run recognises its start."""
    return hashlib.sha256(np.ascontiguousarray(x).data).hexdigest()[:16]


def all_finite(x: Array) -> bool:
    """Return whether all numbers of a model are finite, without a temporary of its size.

    >>> all_finite(np.array([1.0, np.inf]))
    False
    """
    flat = x.reshape(-1)
    return all(np.isfinite(flat[i : i + 65536]).all() for i in range(0, flat.size, 65536))
