"""The driver of runs: what a run ended with, its exit code, and many runs in worker processes.

Finished runs are not run again, and interrupted ones resume from their checkpoint.
"""

import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedzo.config.experiment import Experiment, Tables
from fedzo.core.files import read_json, write_atomic
from fedzo.core.importing import failure_of, user_error
from fedzo.errors import Exit, Failure, FedzoError, Halted, UsageError, one_line
from fedzo.runs.history import read_history
from fedzo.runs.result import Progress, Result, Status
from fedzo.runs.store import RunFolder

OUTCOME = "outcome.json"  # written into the folder of a run when the run has ended

# Seconds of one core per value: an attack queries a neural network. The cost of custom problems is
# unknown; the estimates of their runs are still in proportion to each other.
_SECONDS = {"attack": 3e-4, "softmax": 7e-7, "quadratic": 1e-6}
_SECONDS_OF_MODEL = {"cifar10-carlini": 1.4e-3}  # instead of the shipped model
_SECONDS_OTHERWISE = 1e-6
_OVERHEAD = 2.0  # seconds for the start of a run, its evaluations and its picture


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
    with this function, also after an interrupt. Without memory or disk space no further run is
    tried.
    """
    waiting = sorted(missing(runs), key=lambda run: -run.work)
    count, finished, work = len(waiting), 0, sum(run.work for run in waiting) or 1.0
    done: dict[Path, float] = {}  # work done, by folder
    failed: dict[Path, Failure] = {}
    doing: dict[Connection, Run] = {}
    context = multiprocessing.get_context("spawn")  # forked threads would not survive
    processes = []

    def give_next_run(connection: Connection) -> None:
        doing.pop(connection, None)
        if waiting:
            run = doing[connection] = waiting.pop(0)
            connection.send((run.experiment.tables, run.experiment.name, run.folder))
        else:
            connection.close()

    try:
        for _ in range(min(workers, count)):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            processes.append(process)
            give_next_run(ours)
        while doing:
            for connection in wait(list(doing)):
                assert isinstance(connection, Connection)
                run = doing[connection]
                share, ended = _receive(connection, run, failed)
                if any(failure.code == Exit.NO_SPACE for failure in failed.values()):
                    raise RunsFailed(failed)
                done[run.folder] = run.work * share
                if ended:
                    finished += 1
                    give_next_run(connection)
                report(sum(done.values()) / work, finished, count)
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join(10)  # time to write a checkpoint
            process.kill()
    return failed


def _receive(connection: Connection, run: Run, failed: dict[Path, Failure]) -> tuple[float, bool]:
    """Read a worker's message: the share of its run that is done, and whether the run has ended."""
    try:
        kind, content = connection.recv()
    except EOFError:
        words = f"the process of {run.folder} was killed; the same command resumes"
        raise Halted(words, code="worker-killed") from None
    if kind == "failed":
        failed[run.folder] = content
    return (float(content), kind == "done") if kind != "failed" else (1.0, True)


# The worker's side.


def _serve(connection: Connection) -> None:
    """Do the runs that arrive through the pipe, until it is closed.

    The worker ignores Ctrl-C: the parent process terminates it. If the parent is killed, the
    worker terminates itself. In both cases the run leaves a checkpoint to resume from.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_follow_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            tables, name, folder = connection.recv()
            try:
                _do_run(tables, name, folder, connection)
            except BaseException as raised:
                error = user_error(raised)
                if isinstance(error, KeyboardInterrupt):
                    raise
                failure = failure_of(error)
                if failure is None:
                    raise
                connection.send(("failed", failure._replace(message=one_line(failure.message))))
            else:
                connection.send(("done", 1.0))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is ending


def _do_run(tables: Tables, name: str, folder: Path, connection: Connection) -> None:
    """Do or resume one run, and write its outcome."""
    last_report = 0.0

    def report(progress: Progress) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > 0.2:
            last_report = time.monotonic()
            connection.send(("at", progress.round / max(1, progress.rounds)))

    experiment = Experiment.resolve(tables, name)
    result = experiment.run(folder, RunFolder(folder).has_run(), report)
    if result.status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    if result.status == Status.HALTED or not result.history:
        raise Halted(result.message)
    last = result.history[-1]["round"]
    outcome = {"status": int(result.status), "round": last, "message": result.message}
    write_atomic(folder / OUTCOME, json.dumps(outcome).encode())


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
