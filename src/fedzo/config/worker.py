"""A process that does one run after another, as they come through a pipe."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedzo.config.experiment import Experiment, Tables
from fedzo.core.files import write_atomic
from fedzo.errors import FedzoError
from fedzo.runs.result import Progress, Status
from fedzo.runs.store import RunFolder

OUTCOME = "outcome.json"  # what a run's folder holds once the run is over


def serve(connection: Connection) -> None:
    """Do the runs that come through the pipe until it is closed.

    An interrupt from the keyboard goes to the parent, who ends us; should the parent be
    killed, we end ourselves. Either way the run leaves a checkpoint to resume from.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_follow_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            tables, name, folder = connection.recv()
            try:
                do_run(tables, name, folder, connection)
            except (FedzoError, OSError, MemoryError) as error:
                connection.send(("failed", str(error) or type(error).__name__))
            else:
                connection.send(("done", 1.0))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are on our way out


def do_run(tables: Tables, name: str, folder: Path, connection: Connection) -> None:
    """Do one run to its end, however much of it was done before, and note how it ended."""
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
    ended = (Status.FINISHED, Status.NON_FINITE, Status.DIVERGED, Status.STALLED)
    if result.status not in ended:
        raise FedzoError(result.message)
    outcome = {"status": int(result.status), "message": result.message}
    write_atomic(folder / OUTCOME, json.dumps(outcome).encode())


def _end(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
