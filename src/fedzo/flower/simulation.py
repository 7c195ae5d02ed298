"""Runs without real nodes: on Flower's simulation engine (Ray), or by direct calls.

The workers of a simulation import this module to make their problem. It must not import Flower's
simulation engine on import, or they would wait for themselves.
"""

import json
import logging
import os
import shutil
import signal
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache, partial
from tempfile import mkdtemp
from types import FrameType
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity

from fedzo.config.experiment import Experiment
from fedzo.core.files import as_toml
from fedzo.core.machine import cores
from fedzo.core.objective import Objective, meter_of
from fedzo.errors import FedzoError, UsageError
from fedzo.flower import protocol
from fedzo.flower.client import make_client_app
from fedzo.flower.engine import FlowerEngine
from fedzo.flower.errors import quiet_log, short_line
from fedzo.flower.ledger import Ledger
from fedzo.runs.loop import Job
from fedzo.runs.minimize import Backend, Drive
from fedzo.runs.result import Result

log = logging.getLogger("fedzo")

_SERVER = 0  # an id that no node has
_NO_HURRY = 1e6  # seconds: a virtual node does not fail, it waits for a free core

# Ray reads these on import, when the engine starts.
_RAY_ENVIRONMENT = {
    # Ray's ports need no password, and code sent to one is run. Without clusters, the default on
    # some systems, Ray listens on 127.0.0.1 only. This makes it the default on all.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # the workers are the run, not its background
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as a warning asks
}

# One core per node.
_RAY: dict[str, Any] = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"log_to_driver": False},
}


def simulation(experiment: Experiment) -> Backend:
    """Return the engine that runs an experiment on Flower's simulation.

    The devices are split over ``experiment.flower.nodes`` virtual nodes. The run waits for all of
    them; ``quorum``, ``grace`` and ``patience`` are ignored. Node and server are one process, so
    nothing is clipped, nodes have no limits, and the logger ``fedzo`` warns once of each failure,
    with its full text.
    """

    def run(job: Job, objective: Objective, drive: Drive) -> Result:
        meter = meter_of(objective)
        if meter is not None and meter.max_queries is not None:
            raise UsageError(
                f"a budget of {meter.max_queries:,} queries needs a single process, but Flower's "
                "nodes are several: limit run.rounds instead",
                code="budget-on-flower",
            )
        return _on_ray(experiment, job, drive)

    return run


def _on_ray(experiment: Experiment, job: Job, drive: Drive) -> Result:
    """Drive the rounds: the engine runs the server on another thread.

    An interrupt of this thread ends the run with a checkpoint.
    """
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    interrupted = threading.Event()
    outcome: list[Result | BaseException] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            engine = FlowerEngine(
                cast(Grid, _Watched(grid, interrupted)),
                job.options.seed,
                job.uplink,
                replace(experiment.flower, grace=_NO_HURRY, patience=_NO_HURRY, clip=False),
                warn=cache(log.warning),  # once for the same devices and error
                masked=False,
            )
            outcome.append(drive(engine))
        except BaseException as error:  # raised in the caller's thread
            outcome.append(error)

    client_app = make_client_app(
        partial(_problem, json.dumps(as_toml(job.tables))),
        algorithms=[type(job.algorithm)],
        guarded=False,
    )
    with _quiet(), _noted(interrupted):
        try:
            # The function behind `flwr run`. Flower's public function is deprecated, and the
            # command needs a packaged app.
            _run_simulation(
                server_app=app,
                client_app=client_app,
                num_supernodes=experiment.flower.nodes or cores(),
                backend_config=_RAY,
                exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            )
        except KeyboardInterrupt:
            interrupted.set()  # if there was no signal
            _wait_for(outcome)
        except Exception as error:
            if not outcome:
                why = short_line(str(error.__cause__ or error))
                text = f"Flower's simulation engine failed: {why}"
                raise FedzoError(text, code="simulation") from error
    if not outcome:
        raise FedzoError("Flower's simulation engine ended before the run did", code="simulation")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@contextmanager
def _noted(interrupted: threading.Event) -> Iterator[None]:
    """Note an interrupt at once: the engine ends its workers before it raises.

    Their last replies must not look like a round with failed devices.
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
    """Wait for the interrupted run to end.

    The engine starts the run after some seconds. An interrupt before that has no run to wait for.
    """
    deadline = time.monotonic() + 20
    while not outcome:
        if time.monotonic() > deadline:
            raise KeyboardInterrupt
        time.sleep(0.05)


class _Watched:
    """A grid that raises if the main thread was interrupted, or if a node cannot make its problem.

    No other nodes will connect, so there is no use in waiting for a quorum.
    """

    def __init__(self, grid: Grid, interrupted: threading.Event) -> None:
        self._grid, self._interrupted = grid, interrupted

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
            if reply.metadata.message_type == protocol.HELLO:
                failed = reply.has_error()
                why = str(reply.error.reason) if failed else protocol.read_refusal(reply.content)
                if why is not None:
                    text = f"a virtual node cannot make the problem: {short_line(why)}"
                    raise FedzoError(text, code="cannot-begin")
        return replies

    def _check(self) -> None:
        if self._interrupted.is_set():
            raise KeyboardInterrupt


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the engine's log, errors too: the run reports them without tracebacks."""
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with quiet_log():
        yield


def _problem(tables: str, context: Context) -> Objective:
    """Return the problem of a resolved configuration, given as JSON."""
    return _resolved(tables)


@lru_cache(maxsize=1)
def _resolved(tables: str) -> Objective:  # once per process
    return Experiment.resolve(json.loads(tables)).problem()


class InProcessGrid(Grid):
    """A grid in this process: nodes that reply when a message is pushed, one after another.

    Messages are serialised and read back in both directions, as between hosts. It is for tests and
    debuggers: a break point in a client's code is reached.

    Parameters
    ----------
    client_app : ClientApp
        The app of every node.
    nodes : int
        The number of nodes; node i has ``partition-id`` i.
    run_config : mapping, optional
        The run's configuration.
    node_config : mapping, optional
        Keys of every node's configuration, such as ``{"tasks": ["local_steps", "evaluate"]}``.
    secure : bool
        Let the nodes take part in secure sums with each other, and in nothing else.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> InProcessGrid(ClientApp(), nodes=3).get_node_ids()
    [1, 2, 3]
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int,
        run_config: dict[str, Any] | None = None,
        node_config: Mapping[str, Any] | None = None,
        secure: bool = False,
    ) -> None:
        self.client_app = client_app
        ledgers = f"file:{uuid4().hex}-{{}}?mode=memory&cache=shared"  # deleted with the grid
        models = mkdtemp(prefix="fedzo-")
        weakref.finalize(self, shutil.rmtree, models, ignore_errors=True)
        # Flower's own engines set the sender, which every message needs.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, _SERVER, 1
        self.contexts: dict[int, Context] = {}
        for node in range(_SERVER + 1, nodes + 1):
            ledger = ledgers.format(node)
            config: dict[str, Any] = {"partition-id": node - 1, "num-partitions": nodes}
            config |= {"ledger": ledger, "models": models, **(node_config or {})}
            self.contexts[node] = Context(1, node, config, RecordDict(), run_config or {})
            # A ledger in memory exists while it is open.
            connection = sqlite3.connect(ledger, uri=True, check_same_thread=False)
            weakref.finalize(self, connection.close)
            Ledger(ledger).create()
        if secure:
            own = [Ledger(str(c.node_config["ledger"])) for c in self.contexts.values()]
            keys: Any = [ledger.member().key.hex() for ledger in own]
            for context in self.contexts.values():
                context.node_config["secure.peers"] = keys
        self._answers: dict[str, Message] = {}
        self._run: Any = None

    @property
    def run(self) -> Any:
        """Return the run that was set."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Set the run, which is not used here."""
        self._run = run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes' ids, 1, 2, ..."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let the nodes reply; return the ids of the messages."""
        ids = []
        for message in messages:
            ids.append(str(uuid4()))
            message.metadata.__dict__["_message_id"] = ids[-1]
            reply = self.answer(travelled(message))
            if reply is not None:
                self._answers[ids[-1]] = travelled(reply)
        return ids

    def answer(self, message: Message) -> Message | None:
        """Return the reply of the node that a message is for; None if there is no reply yet."""
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self.client_app(message, context)
        except Exception as error:  # as Flower itself does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages."""
        return [self._answers.pop(i) for i in message_ids if i in self._answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))


def travelled(message: Message) -> Message:
    """Serialise a message and read it back."""
    return message_from_proto(Proto.FromString(message_to_proto(message).SerializeToString()))
