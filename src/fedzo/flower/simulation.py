"""A run on Flower's simulation engine: every node a virtual one, on Ray, on this machine."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.simulation.run_simulation import _run_simulation as run_engine
from flwr.supercore.telemetry import EventType

from fedzo.config.experiment import Experiment
from fedzo.core.files import as_toml
from fedzo.core.machine import cores
from fedzo.core.objective import Objective, meter_of
from fedzo.errors import FedzoError, UsageError
from fedzo.flower import wire
from fedzo.flower.app_config import ProblemOf
from fedzo.flower.client import make_client_app
from fedzo.flower.federation import FlowerFederation
from fedzo.flower.reasons import one_line
from fedzo.runs.loop import Job
from fedzo.runs.minimize import Backend, Drive
from fedzo.runs.result import Result

log = logging.getLogger("fedzo")

_NO_HURRY = 1e6  # seconds: a virtual node does not die, it only waits for its turn

# Ray reads these when it is imported, which is when the engine starts.
_RAY_ENVIRONMENT = {
    # Ray's ports ask for no password, and whoever reaches one can run code. Where it makes no
    # clusters, as on some systems, it listens on 127.0.0.1 only, and so it shall on all.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # the workers are the run, not its background
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what a warning asks for
}

# One core for a node.
_RAY: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"log_to_driver": False},
}


def simulation(experiment: Experiment) -> Backend:
    """Return the engine that runs an experiment on Flower's simulation.

    The devices are dealt out to ``experiment.flower.nodes`` virtual nodes, all of which are
    waited for, whatever ``quorum``, ``grace`` and ``patience`` say. Node and server are the same
    person here: nothing is clipped, nodes have no limits, and a failure is told in full, for the
    first time, by a warning of the logger ``fedzo``.
    """

    def run(job: Job, objective: Objective, drive: Drive) -> Result:
        meter = meter_of(objective)
        if meter is not None and meter.max_queries is not None:
            raise UsageError(
                f"a budget of {meter.max_queries:,} queries is kept within one process, and "
                "Flower's nodes are several: limit run.rounds instead"
            )
        return _on_ray(experiment, job, drive)

    return run


def _on_ray(experiment: Experiment, job: Job, drive: Drive) -> Result:
    """Drive the rounds; the engine has the server's part on a thread of its own.

    An interrupt of this one ends it in order.
    """
    interrupted = threading.Event()
    outcome: list[Result | BaseException] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            federation = FlowerFederation(
                _Watched(grid, interrupted),
                job.options.seed,
                job.uplink,
                replace(experiment.flower, quorum=1.0, patience=_NO_HURRY, clip=False),
                warn=WarnOnce(log.warning),
            )
            outcome.append(drive(federation))
        except BaseException as error:  # to be raised where the caller is
            outcome.append(error)

    client_app = make_client_app(
        ProblemOf(json.dumps(as_toml(job.tables))),
        algorithms=[type(job.algorithm)],
        guarded=False,
    )
    with _quiet(), _noted(interrupted):
        try:
            # What `flwr run` has its simulation process call. Flower's own function for Python is
            # deprecated, and the command takes a packaged app rather than a problem in hand.
            run_engine(
                server_app=app,
                client_app=client_app,
                num_supernodes=experiment.flower.nodes or cores(),
                backend_config=_RAY,
                exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            )
        except KeyboardInterrupt:
            interrupted.set()  # where no signal said so
            _wait_for(outcome)
        except Exception as error:
            if not outcome:
                why = one_line(str(error.__cause__ or error))
                raise FedzoError(f"Flower's simulation engine failed: {why}") from error
    if not outcome:
        raise FedzoError("Flower's simulation engine ended before the run did")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@contextmanager
def _noted(interrupted: threading.Event) -> Iterator[None]:
    """Note an interrupt at once: the engine ends its workers before it lets anybody know.

    What they answer then must not be taken for a round with devices that failed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_for(outcome: list[Any]) -> None:
    """Wait for the end of the run, which has been told to end.

    The engine starts the run some seconds after itself: if not even that has happened, then
    an interrupt has come before.
    """
    deadline = time.monotonic() + 20
    while not outcome:
        if time.monotonic() > deadline:
            raise KeyboardInterrupt
        time.sleep(0.05)


class WarnOnce:
    """Warns of everything for the first time only.

    >>> said = []
    >>> warn = WarnOnce(lambda text, *words: said.append(text % words))
    >>> warn("device %d is left out", 3), warn("device %d is left out", 3), said
    (None, None, ['device 3 is left out'])
    """

    def __init__(self, warn: Callable[..., None]) -> None:
        self._warn, self._said = warn, set[Any]()

    def __call__(self, *words: Any) -> None:
        """Warn, unless these words were said before."""
        if words not in self._said:
            self._said.add(words)
            self._warn(*words)


class _Watched(Grid):
    """A grid whose user is interrupted when the main thread was, or when a node cannot begin.

    The virtual nodes are all there will ever be: one that cannot even make the problem is not
    worth waiting for.
    """

    def __init__(self, grid: Grid, interrupted: threading.Event) -> None:
        self._grid, self._interrupted = grid, interrupted

    @property
    def run(self) -> Any:
        return self._grid.run

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    def create_message(self, *arguments: Any, **keywords: Any) -> Message:
        return self._grid.create_message(*arguments, **keywords)

    def get_node_ids(self) -> Iterable[int]:
        self._check()
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._check()
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._check()
        replies = list(self._grid.pull_messages(message_ids))
        self._check()
        for reply in replies:
            if reply.metadata.message_type == wire.HELLO:
                failed = reply.has_error()
                why = str(reply.error.reason) if failed else wire.read_refusal(reply.content)
                if why is not None:
                    raise FedzoError(f"a virtual node cannot begin: {one_line(why)}")
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self._check()
        return self._grid.send_and_receive(messages, timeout=timeout)

    def _check(self) -> None:
        if self._interrupted.is_set():
            raise KeyboardInterrupt


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the engine's chatter off the terminal.

    Its errors too, which are tracebacks: what they mean is told in the run's own words.
    """
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    engine = logging.getLogger("flwr")
    before = engine.level
    engine.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        engine.setLevel(before)
