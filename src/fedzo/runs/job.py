"""One way through: every job becomes a result here, whatever started it and whatever computes it.

:func:`perform` prepares, hands the run to an engine and finishes; :func:`run_job` is the part in
the middle. ``minimize``, ``fedzo run``, tuning, attacks and Flower all go through here.
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
from fedzo.core.engine import Engine, LocalEngine, drive
from fedzo.core.objective import Objective
from fedzo.errors import UsageError
from fedzo.runs.folder import RunFolder
from fedzo.runs.loop import Loop, Running
from fedzo.runs.options import RunOptions
from fedzo.runs.result import Callback, Result, closing
from fedzo.runs.tables import Config, as_toml
from fedzo.runs.watchers import Curves
from fedzo.uplinks import Uplink
from fedzo.uplinks.base import RunSetting

Array = NDArray[Any]
Drive = Callable[[Engine], Result]


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


# Makes the engine of a job, and has it drive the run.
Backend = Callable[[Job, Objective, Drive], Result]


def threads(job: Job, objective: Objective, drive: Drive) -> Result:
    """Drive the rounds over threads of this process."""
    return drive(LocalEngine(objective, job.options.seed, job.options.workers))


def perform(job: Job, objective: Objective, x0: Array, backend: Backend = threads) -> Result:
    """Prepare, run and finish a job on a problem that this process holds."""
    check_folder(job)  # before the first query
    with closing(objective):
        result = backend(job, objective, lambda engine: run_job(job, engine, x0, objective))
        objective.keep(result.best)
        result.problem = objective
    if job.run_dir is not None:
        objective.write_files(job.run_dir, result.best)
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


def choose_numbers(
    job: Job, setting: RunSetting, objective: Objective | None, x0: Array
) -> Running[tuple[Job, int]]:
    """Return the job with numbers in place of "auto", and how many queries they took.

    A resumed run has them in its checkpoint; the configuration still says "auto".
    """
    algorithm = job.algorithm
    if objective is None or not (isinstance(algorithm, FedZO) and algorithm.automatic):
        return job, 0
    from fedzo.runs.auto import Chosen, automatic, choose, stand_in

    chosen = Chosen(stand_in(algorithm), 0)
    if not (job.resume and job.folder is not None and os.path.exists(job.folder.checkpoint)):
        chosen = yield from choose(algorithm, setting, objective, x0, job.options.rounds)
    adapted = automatic(algorithm, chosen.algorithm, objective)
    return replace(job, algorithm=adapted), chosen.queries


def run_job(job: Job, engine: Engine, x0: Array, objective: Objective | None = None) -> Result:
    """Run a job on an engine of any kind.

    ``objective`` is the problem, if this process holds it.

    Examples
    --------
    >>> import fedzo, numpy as np
    >>> from fedzo.problems.function import FunctionObjective
    >>> engine = LocalEngine(FunctionObjective(lambda x, i: x @ x, 2, devices=3), seed=0)
    >>> job = Job(fedzo.FedZO(learning_rate=0.1), fedzo.Ideal(), RunOptions(rounds=20), tables={})
    >>> bool(run_job(job, engine, np.ones(2)).fun < 1e-3)
    True
    """
    check_folder(job)
    folder, watchers = job.folder, job.watchers
    if folder is not None:
        watchers = (*watchers, Curves(folder))
    job = replace(job, tables=as_toml(job.tables), watchers=watchers)
    with closing(*watchers), engine:
        return drive(rounds(job, engine, x0, objective), engine)


def rounds(
    job: Job, engine: Engine, x0: Array, objective: Objective | None = None
) -> Running[Result]:
    """Yield the tasks of a run, from the probes of "auto" to the last evaluation."""
    setting = RunSetting(engine, job.uplink)
    job, probed = yield from choose_numbers(job, setting, objective, x0)
    engine.dropped.clear()  # of no round
    loop = Loop.begin(job, engine, x0, objective, probed)
    with nullcontext() if job.folder is None else job.folder.held():
        loop.open(job.resume)
        return loop.close(*(yield from loop.go()))
