"""One way through: every job becomes a result here, whatever started it and whatever computes it.

:func:`perform` prepares, hands the rounds to an engine and finishes; :func:`drive` is the part in
the middle, over a federation. ``minimize``, ``fedzo run``, tuning, attacks and Flower all go
through here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedzo.algorithms import Algorithm, FedZO
from fedzo.core.capabilities import (
    Closable,
    HasBestMetric,
    HasUserView,
    InPlace,
    LoadsBest,
    WritesFiles,
)
from fedzo.core.federation import Federation, LocalFederation
from fedzo.core.objective import Objective
from fedzo.errors import UsageError
from fedzo.runs.folder import RunFolder
from fedzo.runs.loop import Loop, unchanged
from fedzo.runs.options import RunOptions
from fedzo.runs.result import Callback, Result, closing
from fedzo.runs.tables import Config, as_toml
from fedzo.runs.watchers import Curves
from fedzo.uplinks import Uplink

Array = NDArray[Any]
Drive = Callable[[Federation], Result]


@dataclass(frozen=True)
class Job:
    """What to run, apart from the problem: the parts, the options and where the files go.

    ``tables`` is the configuration to write to ``config.toml`` and to compare on resume.
    """

    algorithm: Algorithm
    uplink: Uplink
    options: RunOptions
    tables: Config
    run_dir: Path | None = None
    resume: bool = False
    repair: bool = False  # resume although the history does not fit the checkpoint
    watchers: tuple[Callback, ...] = ()

    @property
    def folder(self) -> RunFolder | None:
        """The files of the run, if it leaves any."""
        return None if self.run_dir is None else RunFolder(self.run_dir)


# An engine makes the federation of a job, and has the rounds driven over it.
Engine = Callable[[Job, Objective, Drive], Result]


def threads(job: Job, objective: Objective, drive: Drive) -> Result:
    """Drive the rounds over threads of this process."""
    return drive(LocalFederation(objective, job.options.seed, job.options.workers))


def perform(job: Job, objective: Objective, x0: Array, engine: Engine = threads) -> Result:
    """Prepare, run and finish a job on a problem that this process holds."""
    check_folder(job)  # before the first query
    shown, in_place = objective.capability(HasUserView), objective.capability(InPlace)
    chosen, loads = objective.capability(HasBestMetric), objective.capability(LoadsBest)
    with closing(objective.capability(Closable)):
        job, probed = choose_numbers(job, objective, x0)
        result = engine(
            job,
            objective,
            lambda federation: drive(
                job,
                federation,
                x0,
                None if shown is None else shown.to_user,
                probed,
                unchanged if in_place is None else in_place.snapshot,
                None if chosen is None else chosen.best_metric,
            ),
        )
        if loads is not None:
            loads.load_best(result.best)
        result.problem = objective
    writes = objective.capability(WritesFiles)
    if job.run_dir is not None and writes is not None:
        writes.write_files(job.run_dir, result.best)
    return result


def check_folder(job: Job) -> None:
    """Raise unless the folder is free for a new run, or holds the run that is to be resumed."""
    folder = job.folder
    if job.resume and folder is None:
        raise UsageError("resume needs the run_dir of the run to resume")
    if job.resume and folder is not None and not folder.has_run():
        raise UsageError(f"{folder.path} does not contain a run to resume")
    if folder is not None:
        folder.check_free()


def choose_numbers(job: Job, objective: Objective, x0: Array) -> tuple[Job, int]:
    """Return the job with numbers in place of "auto", and how many queries they took.

    A resumed run has them in its checkpoint; the configuration still says "auto".
    """
    if not (isinstance(job.algorithm, FedZO) and job.algorithm.automatic):
        return job, 0
    from fedzo.runs.auto import automatic, choose, stand_in

    chosen, probed = stand_in(job.algorithm), 0
    if not (job.resume and job.folder is not None and os.path.exists(job.folder.checkpoint)):
        with LocalFederation(objective, job.options.seed, job.options.workers) as federation:
            chosen, probed = choose(job.algorithm, federation, x0, job.options.rounds)
    return replace(job, algorithm=automatic(job.algorithm, chosen, objective)), probed


def drive(
    job: Job,
    federation: Federation,
    x0: Array,
    to_user: Callable[[Array], Array] | None = None,
    probed: int = 0,
    snapshot: Callable[[Array], Array] = unchanged,
    best_metric: str | None = None,
) -> Result:
    """Run a job over a federation of any kind.

    ``to_user`` turns the model into what the user knows, if they differ; ``probed`` is how many
    queries were asked before the run; ``snapshot`` copies a model that rounds move in place;
    ``best_metric`` is the metric by which the best model is chosen, if it is not the loss.

    Examples
    --------
    >>> import fedzo, numpy as np
    >>> from fedzo.problems import FunctionObjective
    >>> federation = LocalFederation(FunctionObjective(lambda x, i: x @ x, 2, devices=3), seed=0)
    >>> job = Job(fedzo.FedZO(learning_rate=0.1), fedzo.Ideal(), RunOptions(rounds=20), tables={})
    >>> bool(drive(job, federation, np.ones(2)).fun < 1e-3)
    True
    """
    check_folder(job)
    folder, watchers = job.folder, job.watchers
    if folder is not None:
        watchers = (*watchers, Curves(folder))
    job = replace(job, tables=as_toml(job.tables), watchers=watchers)
    loop = Loop.begin(
        job,
        federation,
        x0,
        to_user=to_user,
        probed=probed,
        snapshot=snapshot,
        best_metric=best_metric,
    )
    with nullcontext() if folder is None else folder.held():
        loop.open(job.resume)
        with closing(*watchers), federation:
            return loop.close(*loop.go())
