"""The loop around an algorithm: rounds, evaluation, callbacks, checkpoints, resume."""

from __future__ import annotations

import hashlib
import math
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np

from fedzo.algorithms import Algorithm, FedZO, RoundInfo
from fedzo.algorithms.adaptive_rate import AdaptiveRate
from fedzo.algorithms.base import Round
from fedzo.algorithms.candidates import Candidates
from fedzo.algorithms.compose import compose, current
from fedzo.core.budget import spent
from fedzo.core.capabilities import (
    Best,
    HasBestMetric,
    HasUserView,
    InPlace,
    LoadsBest,
    Remembers,
    WritesFiles,
)
from fedzo.core.engine import Engine, drive, pack_updates, recorded
from fedzo.core.files import Config, as_toml, write_atomic, writing
from fedzo.core.importing import call_user
from fedzo.core.machine import deferred_signals
from fedzo.core.objective import Objective
from fedzo.core.tasks import Evaluation, Losses, Task, Update
from fedzo.core.types import Array
from fedzo.core.value_log import Phase
from fedzo.errors import BudgetSpent, FedzoWarning, Halted, InvalidValue, NonFinite, UsageError
from fedzo.runs.history import HistoryDigest, Record, mean_loss, numeric_metrics
from fedzo.runs.options import RunOptions
from fedzo.runs.result import Callback, Progress, Result, Status, always_dropped, closing, diagnose
from fedzo.runs.store import Checkpoint, RunFolder, differences, flatten, unflatten
from fedzo.uplinks import Uplink
from fedzo.uplinks.base import RunSetting
from fedzo.uplinks.seeds import secure_mean_loss

T = TypeVar("T")
Running = Generator[Task | Losses, Any, T]  # yields tasks, and returns a T

REPEATS = 4  # fresh evaluations of a noisy result
SHARE = 10  # of a budget: one in so many queries is for them
SUMS = ("queries", "uplink_bytes", "downlink_bytes", "channel_uses")
KEPT = ("costs", "idle", "still", "noise")  # further fields of a checkpoint


@dataclass(frozen=True)
class Job:
    """A run apart from its problem: the parts, the options and the folder.

    ``tables`` is the configuration that ``config.toml`` gets, and that a resume compares with it.
    ``resume`` is "repair" to resume although the history does not fit the checkpoint. ``probed``
    counts the queries that chose numbers in place of "auto" before the run; ``plan`` may then
    change the job.
    """

    algorithm: Algorithm
    uplink: Uplink
    options: RunOptions
    tables: Config
    run_dir: Path | None = None
    resume: bool | Literal["repair"] = False
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
        if self.resume and folder is None:
            raise UsageError("resume needs the run_dir of the run to resume", code="no-run-dir")
        if self.resume and folder is not None and not folder.has_run():
            raise UsageError(f"{folder.path} does not contain a run to resume", code="no-run")
        if folder is not None:
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

    def has_checkpoint(self) -> bool:
        """Return whether the run to resume has a checkpoint."""
        return bool(self.resume and self.folder and os.path.exists(self.folder.checkpoint))


def deviation_of(values: Array) -> float:
    """Return the root of the summed variances of columns, whose squares may be out of range.

    >>> deviation_of(np.array([[1e-300], [3e-300]]))
    1.4142135623730952e-300
    """
    unit = math.ldexp(1.0, math.frexp(float(np.abs(values).max()))[1] - 1)
    variances = (values / unit).var(axis=0, ddof=min(1, len(values) - 1))
    return unit * math.sqrt(float(variances.sum()))


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
    def of_devices(cls, losses: Array) -> Noise:
        """Return the noise of evaluations, shape (repeats, devices)."""
        repeats, devices = losses.shape
        deviation = deviation_of(losses) / devices
        return cls(mean_loss(losses.mean(axis=0)), repeats, deviation, devices * (repeats - 1))

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.deviation / math.sqrt(self.repeats)

    def pooled(self, other: Noise) -> Noise:
        """Return this mean with the deviation of both."""
        freedom = self.freedom + other.freedom
        parts = [math.sqrt(one.freedom / freedom) * one.deviation for one in (self, other)]
        return self._replace(deviation=math.hypot(*parts), freedom=freedom)

    def is_below(self, start: Noise, chances: int = 1) -> bool:
        """Return whether this mean is below another by a t-test at 2.5 %, over all ``chances``."""
        from scipy.special import stdtrit

        limit = float(stdtrit(self.freedom, 1 - 0.025 / chances))
        error = self.deviation * math.sqrt(1 / self.repeats + 1 / start.repeats)
        return start.mean - self.mean > limit * error


class RunState(NamedTuple):
    """How far a run is: replaced as a whole, so that an interrupt never finds half a round.

    ``best``, ``digest``, ``silent`` and ``evaluated`` are of the evaluations on schedule, which a
    resumed run repeats.
    """

    round: int
    state: Any
    best: Best
    queries: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    channel_uses: int = 0
    costs: Mapping[str, float] = {}  # further sums, by the uplink's names
    idle: int = 0  # rounds without participants
    still: int = 0  # rounds with participants that left the model unchanged
    last: RoundInfo = RoundInfo(participants=0, queries=0)
    records: int = 0  # of the history, also off schedule
    digest: HistoryDigest = HistoryDigest()
    silent: frozenset[int] | None = None  # devices that replied to no evaluation
    dropped: tuple[Record, ...] = ()  # devices, since the last evaluation
    evaluated: int = 0  # queries of evaluations
    noise: Noise = Noise()  # of evaluations, as measured at the start

    def moved(
        self, state: Any, info: RoundInfo, dropped: Iterable[Record] = (), still: bool = False
    ) -> RunState:
        """Return the run state after one more round."""
        # A round may count in NumPy's integers. Of its metrics only numbers enter the history.
        counts: dict[str, Any] = {k: int(getattr(info, k)) for k in (*SUMS, "participants")}
        info = info._replace(**counts, metrics=numeric_metrics(info.metrics))
        sums: dict[str, Any] = {key: getattr(self, key) + counts[key] for key in SUMS}
        costs = numeric_metrics(info.costs)
        sums["costs"] = {**self.costs, **{k: self.costs.get(k, 0.0) + v for k, v in costs.items()}}
        sums["idle"] = self.idle + (info.participants == 0)
        sums["still"] = self.still + (still and info.participants > 0)
        sums["dropped"] = (*self.dropped, *dropped)
        return self._replace(round=self.round + 1, state=state, last=info, **sums)

    @property
    def totals(self) -> dict[str, Any]:
        """The sums over all rounds so far, for a checkpoint."""
        return {key: getattr(self, key) for key in (*SUMS, *KEPT)}


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
        self.job, self.engine, self.options = job, engine, job.options
        self.exact = problem is None or problem.exact or problem.capability(InPlace) is not None
        problem = problem or Objective()
        self.user_view, self.in_place = problem.capability(HasUserView), problem.capability(InPlace)
        self.remembers = problem.capability(Remembers)
        self.writes_files = problem.capability(WritesFiles)
        self.loads_best = problem.capability(LoadsBest) is not None
        replays = job.algorithm.coefficients_shape is not None and job.folder is not None
        self.logs_updates = self.loads_best and replays
        self._updates: dict[int, Any] = {}  # of the rounds since the checkpoint
        self._parts: Record = {}  # what a replay of them needs
        chosen = problem.capability(HasBestMetric)
        self.best_metric = (chosen and chosen.best_metric) or ""
        self.tables = as_toml(job.tables)
        self.setting = RunSetting(engine, job.uplink, job.algorithm.coefficients_shape)
        self._held = ExitStack()  # signals, while a model changes in place
        if self.in_place is not None:
            self.setting.commit = self._commit
        self.algorithm = compose(job.algorithm, job.uplink)
        start = Best(self.snapshot(x0), np.inf, 0)
        self.at = RunState(0, self.algorithm.init(x0, self.setting), start, job.probed)
        if engine.meter is not None:
            engine.meter.evaluations = job.options.reserved_evaluations
            if engine.meter.max_queries is None:
                engine.meter.max_queries = job.options.max_queries
        self.x0, self.start = x0, digest_of(x0)
        self.fresh: Noise | None = None  # of fresh evaluations of the best model
        self.confirmed = 0  # their queries
        self.stopped = False  # by a callback or a target: a resumed run may continue
        self._saved = -1  # the round of the last checkpoint
        self._records: list[Record] = []
        self.metered_before = 0  # the meter's count before the run, if there is a meter
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

    def to_user(self, x: Array) -> Array:
        """Return a model in the user's variables."""
        return x.copy() if self.user_view is None else self.user_view.to_user(x)

    def scheduled(self, t: int) -> bool:
        """Return whether f is evaluated after t rounds, by the options or for the algorithm."""
        return self.options.evaluates(t) or self.algorithm.evaluates(t)

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
        folder, meter = self.job.folder, self.engine.meter
        if folder is not None:  # nothing is written if the checkpoint does not fit
            if self.job.resume:
                self._resume(folder)
            self._parts = self._described()
            folder.begin(self.tables, meter, new=not self.job.resume)
            if self.loads_best and not folder.start.exists():
                with writing(folder.start) as file:
                    np.save(file, self.x0)
            if not self.job.has_checkpoint():
                self.save()  # so that the outcome of the probes survives a kill
        if meter is not None:
            counted = self.at.queries + self._evaluation_queries()
            self.metered_before = meter.queries - counted
        with closing(*self.job.watchers):
            yield

    def _resume(self, folder: RunFolder) -> None:
        """Continue from the folder's checkpoint."""
        checkpoint = folder.load()
        if checkpoint is None:  # killed before its first checkpoint, and before its first record
            if folder.history.exists() and folder.history.stat().st_size:
                message = f"{folder.path} has a history, but no checkpoint to resume from"
                raise UsageError(message, code="no-checkpoint")
            return
        self._check_same(folder, checkpoint)
        last = RoundInfo(**checkpoint.last)
        had, has = (
            tables.get("problem", {}).get("max_queries")
            for tables in (checkpoint.config, self.tables)
        )
        if had is not None and (has is None or has > had):
            last = last._replace(done="")  # a search may have ended for lack of queries
        state = unflatten(self.at.state, checkpoint.state)
        self.at = RunState(
            checkpoint.round,
            state,
            checkpoint.best,
            **{**checkpoint.totals, "noise": Noise(*checkpoint.totals["noise"])},
            last=last,
            dropped=tuple(checkpoint.dropped),
        )
        if self.remembers is not None:
            self.remembers.recall(checkpoint.memory)
        self._read_history(folder, checkpoint)
        self.began -= checkpoint.seconds
        if self.engine.meter is not None:
            self.engine.meter.queries = checkpoint.metered

    def _check_same(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        """Raise unless the checkpoint has this configuration and start, and is not past its end."""
        changed = differences(checkpoint.config, self.tables)
        if changed or checkpoint.start != self.start:
            what = "; ".join(changed) or "another starting point"
            message = f"{folder.checkpoint} is of another configuration: {what}"
            raise UsageError(message, code="other-configuration")
        if checkpoint.round > self.options.rounds:
            raise UsageError(
                f"{folder.path} has already run {checkpoint.round} rounds, "
                f"more than {self.options.rounds}",
                code="already-run",
            )

    def _read_history(self, folder: RunFolder, checkpoint: Checkpoint) -> None:
        """Read the records up to the checkpoint; with "repair", those that can be read."""
        lenient = self.job.resume == "repair"
        upto = (
            checkpoint.round
            if lenient
            else folder.check_history(checkpoint, self.algorithm.evaluates)
        )
        self._records = folder.trim_history(upto, self.scheduled, lenient)
        digest, silent = HistoryDigest(), self.at.silent
        for record in self._records:
            digest = digest.with_record(record)
            missing = [d for d in record.get("dropped", ()) if d["round"] == record["round"]]
            absent = frozenset(one["device"] for one in missing)
            silent = absent if silent is None else silent & absent
        evaluated = self._records[-1].get("evaluation_queries", 0) if self._records else 0
        self.at = self.at._replace(
            records=len(self._records), digest=digest, silent=silent, evaluated=evaluated
        )
        found = (digest.count, digest.digest())
        if lenient and found != (checkpoint.records, checkpoint.digest):
            counts = f"{checkpoint.records} records were written, {digest.count} are used"
            warnings.warn(f"{folder.history} was repaired: {counts}", FedzoWarning, stacklevel=2)

    # -------------------------------------------------------------------------------- rounds

    def go(self) -> Running[tuple[Status, str]]:
        """Yield the tasks of all rounds; return the status and the message."""
        try:
            while (end := (yield from self._reach_end())) is None:
                tasks = self._prepare_round()
                before = self._metered()
                state, info = yield from tasks
                self._advance(state, info, before)
            return end
        except Halted as error:
            return (yield from self._halted(error))
        except KeyboardInterrupt:
            if self.algorithm.loss(self.at.state) is not None:  # then it takes no queries
                yield from self.evaluate()
            self.save()
            self._count_unfinished_queries()
            return Status.INTERRUPTED, f"interrupted after round {self.at.round}"
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
        if self.scheduled(self.at.round):
            yield from self.evaluate()
        if self.options.saves(self.at.round):
            self.save()
        if self._at_end:
            yield from self.evaluate()
        if end := self._end():
            self.save()
            free = not self._leaves_no_trace
            if free or self.algorithm.loss(self.at.state) is not None:
                yield from self.evaluate()
            if free:
                yield from self._confirm()
        return end

    def _prepare_round(self) -> Round[Any]:
        """Return the tasks of the next round; keep queries back for a noisy result."""
        meter = self.engine.meter
        self._charge_skipped()
        self._begin(Phase.ROUND)
        if meter is not None and self.at.noise.deviation:
            meter.reserved = self._repeats * self.engine.evaluation_cost
        tasks = self.algorithm.round(self.at.round, self.at.state, self.setting)
        return self._logged(tasks) if self.logs_updates else tasks

    def _logged(self, tasks: Round[Any]) -> Round[Any]:
        """Pass the tasks of a round on, and hold the replies for a receipt of the run."""
        replies: list[list[Update]] = []
        outcome = yield from recorded(tasks, replies)
        self._updates[self.at.round] = pack_updates(replies)
        return outcome

    def _described(self) -> Record:
        """Return what a replay needs besides the replies: N, and the numbers chosen for "auto"."""
        parts, algorithm = {"devices": self.setting.devices}, current(self.algorithm, self.at.state)
        if isinstance(algorithm, FedZO):
            parts |= {key: getattr(algorithm, key) for key in ("learning_rate", "smoothing")}
        if isinstance(self.algorithm, AdaptiveRate):
            parts["adapts"] = self.algorithm.adapts
        return parts

    def _advance(self, state: Any, info: RoundInfo, before: int) -> None:
        """Take over the state after a round; ``before`` is the meter's count before it."""
        t = self.at.round
        dropped = self._take_dropped(t + 1)
        if not all_finite(self.algorithm.model(state)):
            raise NonFinite("the model", t + 1)
        info = info._replace(queries=self._requested(before, info.queries))
        meter, most = self.engine.meter, self.options.max_queries
        simulated = meter is None and self.in_place is None
        if simulated and most is not None and self.at.queries + info.queries > most:
            raise BudgetSpent(spent(most))  # the round does not count
        moved = self.at.moved(state, info, dropped, self._unchanged(self.at.state, state))
        if meter is not None and meter.at_start.size:
            moved = moved._replace(noise=Noise.of_devices(meter.at_start[:, None]))
        self.at = moved
        self._held.close()

    @contextmanager
    def _commit(self) -> Iterator[None]:
        """Defer signals until the round counts: an interrupt never leaves half a step."""
        self._held.enter_context(deferred_signals())
        yield

    @property
    def _at_end(self) -> bool:
        return self.at.round == self.options.rounds

    def _end(self) -> tuple[Status, str] | None:
        """Return the status and message if the run ends after this round."""
        t, done, target = self.at.round, self.at.last.done, self.options.target
        record = self.history[-1] if self._recorded() else None
        stops = []
        if self.job.watchers:
            left = None if self.engine.meter is None else self.engine.meter.left
            x, queries, seconds = self.to_user(self.x), self.at.queries, self.seconds
            progress = Progress(t, self.options.rounds, x, queries, seconds, record, left)
            stops = [call_user(_stops, watcher, progress) for watcher in self.job.watchers]
        reached = target is not None and record is not None and record["train_loss"] <= target
        self.stopped = True in stops or reached
        if True in stops:
            return Status.STOPPED, f"stopped by the callback after round {t}"
        if reached:
            return Status.STOPPED, f"reached the target {target:g} after round {t}"
        if self._next_exceeds_budget:
            done = spent(self.options.max_queries or 0)
        done = done or self.algorithm.ends((r["round"] for r in self.history), self.at.best.round)
        if done:
            return Status.STOPPED, f"{done} after round {t}"
        return (Status.FINISHED, f"finished {t} round{'s' * (t != 1)}") if self._at_end else None

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
        meter = self.engine.meter
        limited = meter is not None and meter.left is not None and self.job.folder is not None
        return self.stopped and limited

    def _halted(self, error: Halted) -> Running[tuple[Status, str]]:
        """Keep the last complete round, evaluated if possible; count the queries after it."""
        is_spent = isinstance(error, BudgetSpent)
        if is_spent or self.algorithm.loss(self.at.state) is not None:
            with suppress(Halted):  # if no queries are left for the evaluation
                yield from self.evaluate()
        self.save()
        self._count_unfinished_queries()
        if is_spent:
            yield from self._confirm()
        if is_spent and not self.at.round:
            return Status.STALLED, f"{error} before the end of the first round"
        status = Status.STOPPED if is_spent else Status.HALTED
        return status, f"{error} after round {self.at.round}"

    def _unchanged(self, before: Any, after: Any) -> bool:
        """Return whether a round left the model unchanged, of an algorithm that moves it."""
        if self._waits_for_better:
            return False
        x, moved = (self.algorithm.model(state) for state in (before, after))
        # A model that is changed in place cannot be compared with the one before.
        return not np.may_share_memory(x, moved) and np.array_equal(x, moved)

    @property
    def _waits_for_better(self) -> bool:
        """Whether the model moves only when the algorithm finds a better one."""
        return self.algorithm.tracks_best or not self.algorithm.moves_each_round

    def _take_dropped(self, t: int) -> list[Record]:
        """Return the devices that were dropped in round t since the last call."""
        dropped = [{"round": t, **one._asdict()} for one in sorted(self.engine.dropped)]
        self.engine.dropped.clear()
        return dropped

    # ---------------------------------------------------------------------------- evaluation

    def evaluate(self) -> Running[None]:
        """Add f(x) over all devices and the problem's metrics to the history, once per round."""
        at = self.at
        if self._recorded():
            return
        self._begin(Phase.EVALUATION)
        before, known = self._metered(), self.algorithm.loss(at.state)
        changes: dict[str, Any] = {}
        if known is None:
            evaluation: Evaluation = yield Losses(self.x)
            absent = [device.device for device in self.engine.dropped]
            silent = frozenset(absent) if at.silent is None else at.silent & set(absent)
        else:
            evaluation, absent = Evaluation(np.array([known]), {}), []
            silent = (at.silent or frozenset()) & {one["device"] for one in at.dropped}
        losses = evaluation.losses
        cost = 0 if known is not None else self.engine.evaluation_cost
        if not (at.round or self.exact or self.algorithm.measures_noise) and self._affords_noise:
            changes["noise"] = yield from self._noise(losses)
            cost *= 2
        dropped = (*at.dropped, *self._take_dropped(at.round))
        wrong = ~np.isfinite(losses)
        wrong[absent] = False
        if wrong.any() and not at.round and self.algorithm.tracks_best:
            losses = np.where(wrong, np.inf, losses)  # a search may find a point with a value
        elif wrong.any():
            raise NonFinite("the loss", at.round, int(np.flatnonzero(wrong)[0]))
        losses = np.delete(losses, absent)
        if not len(losses):
            raise Halted("no device could be evaluated")
        mean, uplink = evaluation.mean, self.job.uplink
        if mean is None:
            secure = uplink.secure and known is None
            mean = secure_mean_loss(losses, uplink.loss_clip) if secure else mean_loss(losses)
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
        if self.job.folder is not None:
            self.job.folder.append(record)
        changes |= {"records": len(self.history) + 1, "silent": silent}
        if self.scheduled(at.round):  # a resumed run has no evaluation off the schedule
            changes |= {
                "best": self._better(record),
                "digest": at.digest.with_record(record),
                "dropped": (),
                "evaluated": record["evaluation_queries"],
            }
        self._records.append(record)
        self.at = at._replace(**changes)

    def _noise(self, first: Array) -> Running[Noise]:
        """Evaluate the start again, and return how noisy its mean loss is."""
        dropped = len(self.engine.dropped)
        evaluation: Evaluation = yield Losses(self.x)
        del self.engine.dropped[dropped:]
        there = np.isfinite(first) & np.isfinite(evaluation.losses)
        both = np.array([first[there], evaluation.losses[there]])
        return Noise() if np.array_equal(*both) else Noise.of_devices(both)

    @property
    def _affords_noise(self) -> bool:
        """Whether there are queries for a second evaluation of the start and one of the result."""
        meter = self.engine.meter
        left = None if meter is None else meter.left
        return left is None or left >= 3 * self.engine.evaluation_cost

    @property
    def _repeats(self) -> int:
        """The number of fresh evaluations of a noisy result: fewer with a small budget."""
        meter, cost = self.engine.meter, max(1, self.engine.evaluation_cost)
        if meter is None or meter.max_queries is None:
            return REPEATS
        return min(REPEATS, math.ceil(meter.max_queries / (SHARE * cost)))

    def _confirm(self) -> Running[None]:
        """Evaluate the best model afresh if evaluations are noisy: of many the best is too low."""
        best, meter = self._best_now, self.engine.meter
        if not (self.at.noise.deviation and best.round):
            return
        repeats, cost = self._repeats, self.engine.evaluation_cost
        if meter is not None:
            meter.reserved = 0
            repeats = repeats if meter.left is None else min(repeats, meter.left // cost)
        self._begin(Phase.FRESH)
        before, found = self._metered(), np.empty((repeats, self.engine.devices))
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
        return self._better(self.history[-1] if self._recorded() else None)

    def _rank(self, record: Mapping[str, Any]) -> tuple[float, float]:
        """Return the sort key of a model, best first: minus the problem's metric, then the loss."""
        return -record.get(self.best_metric, 0.0), record["train_loss"]

    def _best_rank(self) -> tuple[float, float]:
        if not self.best_metric:
            return 0.0, self.at.best.fun
        best = (self.at.best.round, self.at.best.fun)
        same = (r for r in self.history if (r["round"], r["train_loss"]) == best)
        return next(map(self._rank, same), (0.0, self.at.best.fun))

    def _recorded(self) -> bool:
        return bool(self.history) and self.history[-1]["round"] == self.at.round

    # ------------------------------------------------------------------------------- queries

    def _begin(self, phase: Phase) -> None:
        """Begin a phase of the value log."""
        if self.engine.meter is not None:
            self.engine.meter.log.begin(self.at.round, phase)

    def _charge_skipped(self) -> None:
        """Charge what an earlier session asked at its end, and which this one does not ask."""
        meter = self.engine.meter
        if meter is not None and meter.log.active and meter.left is not None:
            phases = [Phase.FRESH, Phase.REPORT]
            phases += [] if self._recorded() else [Phase.EVALUATION]
            skipped = meter.log.unread(self.at.round, *phases)
            meter.queries += skipped
            self.metered_before += skipped

    def _evaluation_queries(self) -> int:
        return self.history[-1].get("evaluation_queries", 0) if self.history else 0

    def _metered(self) -> int:
        return 0 if self.engine.meter is None else self.engine.meter.queries

    def _requested(self, before: int, reported: int) -> int:
        """Return the queries since ``before``: as metered, with retries, or as reported."""
        return int(reported) if self.engine.meter is None else self._metered() - before

    def _count_unfinished_queries(self) -> None:
        """Count the queries of an unfinished round or evaluation, if there is a meter.

        A resume repeats an interrupted round, so its checkpoint is written without them.
        """
        evaluations = self._evaluation_queries()
        counted = self._requested(self.metered_before, self.at.queries + evaluations)
        self.at = self.at._replace(queries=counted - evaluations)

    # ---------------------------------------------------------------------- checkpoint and end

    def save(self) -> None:
        """Write a checkpoint of the current state, unless it was evaluated off the schedule."""
        on_schedule = self.scheduled(self.at.round)
        if self.job.folder is None or (self._saved == self.at.round and not on_schedule):
            return
        if done := sorted(t for t in self._updates if t < self.at.round):
            rounds = [self._updates.pop(t) for t in done]
            self.job.folder.append_updates(self._parts, done[0], rounds)
        meter, metered = self.engine.meter, self._metered()
        if meter is not None and meter.log.used:  # a resume counts again what it finds in the log
            metered = self.metered_before + self.at.queries + self.at.evaluated
        self.job.folder.save(
            Checkpoint(
                round=self.at.round,
                state=flatten(self.at.state),
                totals=self.at.totals,
                metered=metered,
                best=self.at.best,
                last=self.at.last._asdict(),
                dropped=list(self.at.dropped),
                seconds=self.seconds,
                config=self.tables,
                start=self.start,
                records=self.at.digest.count,
                digest=self.at.digest.digest(),
                memory={} if self.remembers is None else self.remembers.memory(),
            )
        )
        self._saved = self.at.round
        if meter is not None:
            meter.log.trim(self.at.round, evaluated=on_schedule and self._recorded())

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
        if self.job.folder is not None:
            self.job.folder.save_models(last, best.x)
            write_atomic(self.job.folder.mark, status.name.lower().replace("_", "-").encode())
            interrupted = status == Status.INTERRUPTED
            if self.writes_files is not None and (self.history or not interrupted):
                self._begin(Phase.REPORT)
                with ExitStack() as stack:
                    if self.engine.meter is not None and (interrupted or self._leaves_no_trace):
                        stack.enter_context(self.engine.meter.closed())
                    folder = self.job.folder.path
                    call_user(self.writes_files.write_files, folder, best, direct=False)
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
        found = diagnose(
            self.at.round,
            self.at.queries,
            self.at.idle,
            self.at.still,
            losses,
            best,
            moved or self._waits_for_better,
            {
                *(self.at.silent or ()),
                *always_dropped(self.at.round, self.history, self.at.dropped),
            },
            math.ceil(self.engine.quorum * self.engine.devices),
            self.engine.devices,
        )
        end, words = found or (None, "")
        ended = self.at.last.done not in ("", "the budget is spent")  # on its own
        if self.algorithm.tracks_best and not moved and ended and end is Status.STALLED:
            end, words = None, "; the start is already optimal, as far as the search can tell"
        return status if end is None else end, message + words


def tasks(job: Job, engine: Engine, x0: Array, problem: Objective | None = None) -> Running[Result]:
    """Yield the tasks of a run, from the probes of "auto" to the last evaluation."""
    job.check_folder()
    setting = RunSetting(engine, job.uplink, job.algorithm.coefficients_shape)
    loop = None if needs_numbers(job, problem) else Loop(job, engine, x0, problem)
    if loop is None:
        check_parts(job.algorithm, setting, x0)  # before the first query
    with job.held(engine):
        if loop is None:
            job = yield from choose_numbers(job, setting, x0, problem)
            loop = Loop(job, engine, x0, problem)
        with loop.opened():
            with _running():
                end = yield from loop.go()
            return loop.close(*end)


def needs_numbers(job: Job, problem: Objective | None) -> bool:
    """Return whether "auto" is in the place of numbers that this process has to choose."""
    return problem is not None and isinstance(job.algorithm, FedZO) and job.algorithm.automatic


def choose_numbers(
    job: Job, setting: RunSetting, x0: Array, problem: Objective | None
) -> Running[Job]:
    """Return the job with numbers in place of "auto".

    A resumed run has them in its checkpoint; its configuration still says "auto". Without a
    checkpoint, the probes find the values in the log that were answered before.
    """
    algorithm, folder, meter = job.algorithm, job.folder, setting.engine.meter
    if not needs_numbers(job, problem):
        return job
    from fedzo.runs.auto import Chosen, automatic, choose, stand_in

    assert problem is not None and isinstance(algorithm, FedZO)  # noqa: PT018
    chosen = Chosen(stand_in(algorithm), 0)
    if not job.has_checkpoint():
        if folder is not None:
            folder.begin(as_toml(job.tables), meter, new=not job.resume)
            job = replace(job, resume=job.resume or True)
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
    except (UsageError, InvalidValue) as error:
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
