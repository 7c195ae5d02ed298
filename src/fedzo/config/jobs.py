"""The driver of runs: what a run ended with, its exit code, and many runs in worker processes.

Finished runs are not run again, and interrupted ones resume from their checkpoint.
"""

import json
import math
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedzo.config.experiment import Experiment, Tables
from fedzo.core.files import read_json, write_atomic
from fedzo.core.importing import failure_of, user_error
from fedzo.core.parallel import Calls, ProcessEnded
from fedzo.errors import Exit, Failure, FedzoError, Halted, UsageError, one_line
from fedzo.runs.callbacks import Interrupts
from fedzo.runs.history import read_history
from fedzo.runs.result import Result, Status
from fedzo.runs.store import RunFolder

OUTCOME = "outcome.json"  # written into the folder of a run when the run has ended

# Seconds of one core per value: an attack queries a neural network. The cost of custom problems is
# unknown; the estimates of their runs are still in proportion to each other.
_SECONDS = {"attack": 3e-4, "softmax": 7e-7, "quadratic": 1e-6}
_SECONDS_OF_MODEL = {"cifar10-carlini": 1.4e-3}  # instead of the shipped model
_SECONDS_OTHERWISE = 1e-6
_OVERHEAD = 2.0  # seconds for the start of a run, its evaluations and its picture
_LOOK = 0.5  # seconds between two looks at the progress of the runs


class RunsFailed(FedzoError):  # noqa: N818 - reads as the sentence it prints
    """Runs among many failed; the others are done. ``exit`` is the code of the command."""

    code = "run-failed"

    def __init__(self, failed: dict[Path, Failure]) -> None:
        first, why = next(iter(failed.items()))
        super().__init__(f"{first}: {why.message}" + " (and others)" * (len(failed) > 1))
        self.exit = max(failure.code for failure in failed.values())


def code_of(result: Result) -> Exit:
    """Return the exit code of a run that ended with a result."""
    if result.success:
        return Exit.DONE
    ends = {Status.HALTED: Exit.HALTED, Status.INTERRUPTED: Exit.INTERRUPTED}
    return ends.get(result.status, Exit.NO_SUCCESS)


@dataclass(frozen=True)
class Run:
    """One run and its folder."""

    experiment: Experiment
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the run has ended. Raises if its files are damaged."""
        if not (self.folder / OUTCOME).exists():
            return False
        self.history()  # so that damage is reported before hours of other runs, not after
        self.config()
        return True

    @property
    def work(self) -> float:
        """The estimated time of the run, in seconds of one core."""
        tables = self.experiment.tables
        algorithm, devices = tables["algorithm"], tables["problem"].get("devices", 1)
        # A gradient costs about as much as three values.
        values = algorithm.get("directions", 2) + 1
        steps = algorithm.get("local_steps", 1) * (algorithm.get("participants") or devices)
        if algorithm["name"] == "zone_s":
            steps = 1  # one device per round
        if (h_min := tables["uplink"].get("h_min")) is not None:
            # P(|h| >= h_min) for h of variance one
            steps = algorithm.get("local_steps", 1) * devices * math.exp(-(h_min**2))
        each = steps * values * algorithm.get("batch_size", 1)
        seconds = _SECONDS.get(tables["problem"]["name"], _SECONDS_OTHERWISE)
        seconds = _SECONDS_OF_MODEL.get(tables["problem"].get("model", ""), seconds)
        return float(_OVERHEAD + self.experiment.options.rounds * each * seconds)

    def history(self) -> list[dict[str, Any]]:
        """Return the records of the run; after a divergence the last one is not finite."""
        rounds = self.experiment.options.rounds
        try:
            records = list(read_history(RunFolder(self.folder).history))
            outcome = read_json(self.folder / OUTCOME)
            if outcome["status"] == Status.NON_FINITE:
                end = {"round": rounds, "train_loss": math.inf, "seconds": records[-1]["seconds"]}
                records.append(dict.fromkeys(records[-1], math.nan) | end)
            else:  # a target, a budget or a search may end it early
                rounds = outcome.get("round", rounds)
            whole = records[-1]["round"] == rounds
        except (UsageError, OSError, ValueError, LookupError, TypeError):
            whole = False
        if not whole:
            raise self._damaged()
        return records

    @property
    def share(self) -> float:
        """The share of the rounds up to the last record of a run that is going."""
        try:
            last = RunFolder(self.folder).history.read_text(encoding="utf-8").splitlines()[-1]
            return float(json.loads(last)["round"] / max(1, self.experiment.options.rounds))
        except (OSError, ValueError, LookupError):  # no record yet, or half a line
            return 0.0

    @property
    def status(self) -> str:
        """How the run ended, in a word."""
        return Status(read_json(self.folder / OUTCOME)["status"]).name.lower()

    def config(self) -> str:
        """Return the configuration of the run as TOML."""
        try:
            return RunFolder(self.folder).config.read_text(encoding="utf-8")
        except (OSError, ValueError):
            raise self._damaged() from None

    def _damaged(self) -> UsageError:
        words = f"{self.folder} is damaged: remove it, and it will be run again"
        return UsageError(words, code="damaged-run")


Report = Callable[[float, int, int], None]  # share of the work done, runs done, runs in all


def missing(runs: Iterable[Run]) -> list[Run]:
    """Return the runs that are not finished, without duplicates."""
    distinct = {run.folder: run for run in runs}
    return [run for run in distinct.values() if not run.finished]


def do(runs: Iterable[Run], workers: int, report: Report = lambda *_: None) -> dict[Path, Failure]:
    """Do all runs that are not finished, in worker processes; return those that failed.

    The longest runs start first, so that no core waits long at the end. The worker processes end
    with this function, also after an interrupt; an unfinished run leaves a checkpoint. Without
    memory or disk space no further run is tried.
    """
    waiting = sorted(missing(runs), key=lambda run: -run.work)
    work = sum(run.work for run in waiting) or 1.0
    failed: dict[Path, Failure] = {}
    with closing(Calls(_do_run, workers, processes=True)) as calls:
        tasks = [(run.experiment.tables, run.experiment.name, run.folder) for run in waiting]
        doing = dict(zip(calls.begin(tasks), waiting, strict=True))
        going = set(doing)
        while going:
            done, going = wait(going, _LOOK, FIRST_COMPLETED)
            for future in done:
                folder = doing[future].folder
                try:
                    failure = future.result()
                except ProcessEnded:
                    failure = Failure(Exit.INTERRUPTED, "")
                if failure is not None and failure.code == Exit.INTERRUPTED:
                    words = f"the process of {folder} was killed; the same command resumes"
                    raise Halted(words, code="worker-killed")
                if failure is not None:
                    failed[folder] = failure
            if any(failure.code == Exit.NO_SPACE for failure in failed.values()):
                raise RunsFailed(failed)
            shares = (
                1.0 if f.done() else run.share if f.running() else 0.0 for f, run in doing.items()
            )
            parts = [run.work * share for run, share in zip(waiting, shares, strict=True)]
            report(sum(parts) / work, len(doing) - len(going), len(doing))
    return failed


def _do_run(tables: Tables, name: str, folder: Path) -> Failure | None:
    """Do or resume one run and write its outcome, or return why it failed; in a worker process."""
    try:
        with Interrupts() as interrupts:
            experiment = Experiment.resolve(tables, name)
            result = experiment.run(folder, RunFolder(folder).has_run(), interrupts)
        if result.status == Status.INTERRUPTED:
            raise KeyboardInterrupt
        if result.status == Status.HALTED or not result.history:
            raise Halted(result.message)
        last = result.history[-1]["round"]
        outcome = {"status": int(result.status), "round": last, "message": result.message}
        write_atomic(folder / OUTCOME, json.dumps(outcome).encode())
    except BaseException as raised:
        failure = failure_of(user_error(raised))
        if failure is None:
            raise
        return failure._replace(message=one_line(failure.message))
    return None
