"""Many runs: several at a time, each in a process of its own and kept as a run folder.

What is done already is not done again, and what is half done resumes from its checkpoint.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedzo.config.experiment import Experiment
from fedzo.config.worker import OUTCOME, serve
from fedzo.core.files import read_json
from fedzo.errors import UsageError
from fedzo.runs.history import read_history
from fedzo.runs.result import Status
from fedzo.runs.store import RunFolder

# Seconds of one core for a value: an attack asks a neural network. What a user's own problem
# takes is unknown; its runs are still in proportion to each other.
_VALUE = {"attack": 3e-4, "softmax": 7e-7, "quadratic": 1e-6}
_VALUE_OF_MODEL = {"cifar10-carlini": 1.4e-3}  # where it is not the one that ships
_ELSE = 1e-6
_AROUND = 2.0  # seconds for a run's start, its evaluations and its picture


@dataclass(frozen=True)
class Run:
    """One run and its folder."""

    experiment: Experiment
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether it has been done; raises if it has, and what it left is damaged."""
        if not (self.folder / OUTCOME).exists():
            return False
        self.history()  # so that damage is reported before hours of other runs, not after
        self.config()
        return True

    @property
    def work(self) -> float:
        """About how many seconds of one core it takes: its values, and what is around them."""
        tables = self.experiment.tables
        algorithm, devices = tables["algorithm"], tables["problem"].get("devices", 1)
        # A gradient costs about what three values do.
        values = algorithm.get("directions", 2) + 1
        steps = algorithm.get("local_steps", 1) * (algorithm.get("participants") or devices)
        if algorithm["name"] == "zone_s":
            steps = 1  # one device a round
        if tables["uplink"]["name"] == "aircomp":  # who has |h| >= h_min, of variance one
            steps = algorithm["local_steps"] * devices * math.exp(-(tables["uplink"]["h_min"] ** 2))
        each = steps * values * algorithm.get("batch_size", 1)
        value = _VALUE.get(tables["problem"]["name"], _ELSE)
        value = _VALUE_OF_MODEL.get(tables["problem"].get("model", ""), value)
        return float(_AROUND + self.experiment.options.rounds * each * value)

    def history(self) -> list[dict[str, Any]]:
        """Return its records; one that diverged ends in a last record without a finite number."""
        rounds = self.experiment.options.rounds
        try:
            records = list(read_history(RunFolder(self.folder).history))
            status = read_json(self.folder / OUTCOME)["status"]
            if status == Status.NON_FINITE:
                end = {"round": rounds, "train_loss": math.inf, "seconds": records[-1]["seconds"]}
                records.append(dict.fromkeys(records[-1], math.nan) | end)
            whole = records[-1]["round"] == rounds
        except (UsageError, OSError, ValueError, LookupError, TypeError):
            whole = False
        if not whole:
            raise self._damaged()
        return records

    def config(self) -> str:
        """Return its configuration as text."""
        try:
            return RunFolder(self.folder).config.read_text(encoding="utf-8")
        except (OSError, ValueError):
            raise self._damaged() from None

    def _damaged(self) -> UsageError:
        return UsageError(f"{self.folder} is damaged: remove it, and it will be run again")


Report = Callable[[float, int, int], None]  # share of the work done, runs done, runs in all


def missing(runs: Iterable[Run]) -> list[Run]:
    """Return those runs that are not done yet, each once."""
    distinct = {run.folder: run for run in runs}
    return [run for run in distinct.values() if not run.finished]


def do(runs: Iterable[Run], workers: int, report: Report = lambda *_: None) -> None:
    """Do those runs that are not done yet, in processes of their own.

    The largest come first, so that no core waits long at the end. Whatever ends this
    function, an interrupt or a run that failed, ends the processes.
    """
    waiting = sorted(missing(runs), key=lambda run: -run.work)
    if waiting:
        _Pool(waiting, report).go(min(workers, len(waiting)))


class _Pool:
    def __init__(self, runs: Sequence[Run], report: Report) -> None:
        self.report, self.all = report, len(runs)
        self.waiting, self.finished = list(runs), 0
        self.work = sum(run.work for run in runs) or 1.0
        self.done: dict[Path, float] = {}  # work done, by folder
        self.doing: dict[Connection, Run] = {}
        self.processes: list[Any] = []

    def go(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # forked threads would not survive
        try:
            for _ in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs,), daemon=True)
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                self.processes.append(process)
                self._give(ours)
            while self.doing:
                for connection in wait(list(self.doing)):
                    assert isinstance(connection, Connection)
                    self._hear(connection)
        except BaseException:
            for process in self.processes:
                process.terminate()
            raise
        finally:
            for process in self.processes:
                process.join(10)  # a polite end writes a checkpoint
                process.kill()

    def _give(self, connection: Connection) -> None:
        """Hand a worker its next run, or let it go."""
        self.doing.pop(connection, None)
        if not self.waiting:
            connection.close()
            return
        run = self.waiting.pop(0)
        self.doing[connection] = run
        connection.send((run.experiment.tables, run.experiment.name, run.folder))

    def _hear(self, connection: Connection) -> None:
        """Read a worker's message: how far it is, that it is done, or what went wrong."""
        run = self.doing[connection]
        try:
            kind, content = connection.recv()
        except EOFError:
            raise UsageError(f"the process of {run.folder} was killed") from None
        if kind == "failed":
            raise UsageError(f"{run.folder}: {content}")
        self.done[run.folder] = run.work * float(content)
        if kind == "done":
            self.finished += 1
            self._give(connection)
        self.report(sum(self.done.values()) / self.work, self.finished, self.all)
