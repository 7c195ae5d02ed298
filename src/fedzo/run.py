"""The loop around an algorithm: rounds, evaluation, callbacks, checkpoints, resume."""

from __future__ import annotations

import hashlib
import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, is_dataclass
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.algorithms import ALGORITHMS, Algorithm, FedZO, RoundInfo
from fedzo.auto import settled
from fedzo.errors import (
    BudgetSpent,
    Halted,
    NonFinite,
    UsageError,
    check_count,
    check_counts,
    nearest,
    require,
)
from fedzo.federation import Federation, LocalFederation
from fedzo.folder import Checkpoint, Config, RunFolder, differences, plain
from fedzo.function import FunctionObjective, FunctionOptions
from fedzo.objective import Objective, name_of, posed
from fedzo.random import check_seed
from fedzo.result import Best, Callback, Progress, Result, Status, closing, listed, together
from fedzo.uplink import UPLINKS, Ideal, Uplink

Array = NDArray[Any]


def minimize(
    fun: Callable[[Array, int], Any] | Objective,
    x0: ArrayLike | None = None,
    *,
    devices: int | None = None,
    algorithm: Algorithm | None = None,
    uplink: Uplink | None = None,
    rounds: int = 100,
    seed: int = 0,
    workers: int | None = None,
    evaluate_every: int = 10,
    checkpoint_every: int = 10,
    target: float | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    config: Config | None = None,
    **options: Unpack[FunctionOptions],
) -> Result:
    """Minimise f(x) = 1/N sum_i f_i(x) over a federation, from values only.

    Parameters
    ----------
    fun : callable or Objective
        ``fun(x, device) -> float`` with ``device`` in 0, ..., N-1, or an
        :class:`~fedzo.objective.Objective`. It is called from several threads at once
        unless ``workers=1``.
    x0 : array, optional
        Where to start. Its precision, float32 or float64, is the run's. An objective may
        have a start of its own, and else starts at zero.
    devices : int, optional
        N, for a plain function; an objective knows its own.
    algorithm : Algorithm, optional
        ``FedZO()`` by default.
    uplink : Uplink, optional
        ``Ideal()`` by default.
    rounds : int
        T, how many rounds to run.
    seed : int
        Names all randomness of the run: the same seed gives the same run, bit for bit.
    workers : int, optional
        Threads; all cores by default. The result does not depend on it.
    evaluate_every : int
        f is evaluated over all devices at rounds 0, k, 2k, ... and at the end.
    checkpoint_every : int
        With a ``run_dir``, a checkpoint is written every so many rounds, and at the end.
    target : float, optional
        The run stops when f, as evaluated, is no larger than this.
    callback : callable or several, optional
        Called with a :class:`Progress` before the first and after each round; the run stops
        when one returns True. What has a ``close()`` is closed when the run has ended.
        ``fedzo.ProgressLine()`` shows round, loss and the time left; :mod:`fedzo.callbacks`
        has more.
    run_dir : path, optional
        Folder for ``config.toml``, ``history.jsonl``, ``checkpoint.npz``, ``model.npy`` and
        ``curves.png``.
    resume : bool
        Go on from ``run_dir``'s checkpoint; ``rounds`` counts from the very beginning, so
        100 rounds and then a resume with ``rounds=200`` is the same run as 200 at once.
    config : mapping, optional
        The configuration to write and to compare on resume; made from the arguments by
        default.
    **options
        Of a plain function: ``vectorized``, ``bounds``, ``retries``, ``on_failure`` and
        ``max_queries``; see :class:`~fedzo.function.FunctionObjective`. The result's ``x`` lies
        inside the bounds.

    Examples
    --------
    >>> import numpy as np
    >>> import fedzo
    >>> def distance(x, device):
    ...     return float(np.sum((x - device) ** 2))
    >>> algorithm = fedzo.FedZO(learning_rate=0.05, directions=3, direction_kind="orthogonal")
    >>> result = fedzo.minimize(distance, np.zeros(3), devices=5, rounds=60, algorithm=algorithm)
    >>> result.x.round(1), result.message
    (array([2., 2., 2.]), 'finished 60 rounds')
    >>> result.queries  # 60 rounds x 5 devices x 5 steps x (3 + 1) values
    6000
    """
    algorithm = FedZO() if algorithm is None else algorithm
    uplink = Ideal() if uplink is None else uplink
    for key, part, kind in (("algorithm", algorithm, "FedZO"), ("uplink", uplink, "Ideal")):
        made = is_dataclass(part) and not isinstance(part, type)
        require(made, key, part, f"an object such as fedzo.{kind}()")
    check_seed("seed", seed)
    known = [*inspect.signature(minimize).parameters, *FunctionOptions.__annotations__]
    for key, value in options.items():
        allowed = f"left out: there is no such setting{nearest(key, known)}"
        require(key in known, key, value, allowed)
    objective, start = posed(fun, x0, devices, options)
    with closing(objective):
        algorithm, probed = settled(
            algorithm, objective, start, rounds=rounds, seed=seed, workers=workers, folder=run_dir
        )
        made_from = {
            "problem": _problem(fun, objective),
            "algorithm": describe(algorithm, "name", ALGORITHMS),
            "uplink": describe(uplink, "kind", UPLINKS),
            "run": {"rounds": rounds, "seed": seed, "evaluate_every": evaluate_every},
        }
        result = drive(
            LocalFederation(objective, seed, workers),
            start,
            algorithm=algorithm,
            uplink=uplink,
            rounds=rounds,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            target=target,
            callback=callback,
            run_dir=run_dir,
            resume=resume,
            point=getattr(objective, "point", None),
            probed=probed,
            # The algorithm as it was settled: a rate that was measured is a number from here on.
            config={**made_from, **(config or {}), "algorithm": made_from["algorithm"]},
        )
    if run_dir is not None and hasattr(objective, "leave"):
        objective.leave(Path(run_dir), result)
    return result


def drive(
    federation: Federation,
    x0: Array,
    *,
    algorithm: Algorithm,
    uplink: Uplink,
    rounds: int,
    config: Config,
    evaluate_every: int = 10,
    checkpoint_every: int = 10,
    target: float | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    point: Callable[[Array], Array] | None = None,
    probed: int = 0,
) -> Result:
    """Run an algorithm over a federation, whoever computes there: see :func:`minimize`.

    ``point`` says what the model is to a person, if that is not the model itself; ``probed``
    is how many queries were asked before the run.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.function import FunctionObjective
    >>> federation = LocalFederation(FunctionObjective(lambda x, i: x @ x, 2, devices=3), seed=0)
    >>> result = drive(federation, np.ones(2), algorithm=FedZO(learning_rate=0.1),
    ...                uplink=Ideal(), rounds=20, config={})
    >>> bool(result.fun < 1e-3)
    True
    """
    if resume and run_dir is None:
        raise UsageError("resume needs the run_dir of the run to go on with")
    files = None if run_dir is None else RunFolder(run_dir)
    if resume and files is not None and not files.has_run():
        raise UsageError(f"{files.path} holds no run to resume")
    run = Loop.begin(
        federation,
        x0,
        algorithm=algorithm,
        uplink=uplink,
        rounds=rounds,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        target=target,
        callback=together(callback),
        point=point,
        probed=probed,
        config=plain(config),
        files=files,
    )
    with nullcontext() if files is None else files.held():
        run.open(resume)
        with closing(*listed(callback)), federation:
            return run.close(*run.go())


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
        self.best = checkpoint.best
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
        before = self._metered()
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
            record["left_out"], self.left_out = self.left_out, []
        self.history.append(record)
        if at.round % self.evaluate_every == 0:
            self.best = self._better()
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
                seconds=self.seconds,
                config=self.config,
                start=self.start,
            )
        )

    def close(self, status: Status, message: str) -> Result:
        """Write what a finished run leaves, and tell what came of it."""
        if self.files is not None:
            from fedzo.plot import draw_runs

            self.files.save_model(self.shown(self.x))
            if self.history:  # none if the very first evaluation failed or was interrupted
                draw_runs([self.files.path], self.files.curves)
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
        return f", but the loss rose from {first:.4g} to {last:.4g}" if last > first else ""

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


def _problem(fun: object, objective: Objective) -> dict[str, Any]:
    """Return the [problem] table of what no configuration has made."""
    table = {"name": name_of(fun), "dim": objective.dim, "devices": objective.devices}
    if isinstance(objective, FunctionObjective):
        if objective.box is not None:
            table["bounds"] = objective.box.pairs()
        if objective.meter.budget is not None:
            table["max_queries"] = objective.meter.budget
    return table


def _metrics(told: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among what a problem or a round tells."""
    numbers = {k: float(v) for k, v in told.items() if isinstance(v, Real | np.number)}
    taken = sorted(RESERVED & numbers.keys())
    if taken:
        raise UsageError(f"metrics may not be called {', '.join(taken)}: the history has these")
    return numbers


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


def describe(part: Any, key: str, known: Mapping[str, type]) -> dict[str, Any]:
    """Return the table of a configuration that would make this algorithm or uplink.

    >>> describe(FedZO(local_steps=2), "name", ALGORITHMS)["local_steps"]
    2
    """
    names = {kind: name for name, kind in known.items()}
    return {key: names.get(type(part), name_of(type(part))), **asdict(part)}
