"""Virtual nodes: the nodes of a federation, in this process."""

import logging
import shutil
import sqlite3
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedzo.config.experiment import Experiment
from fedzo.core.machine import cores
from fedzo.core.objective import Objective, meter_of
from fedzo.errors import UsageError
from fedzo.flower.client import make_client_app
from fedzo.flower.engine import FlowerEngine
from fedzo.flower.errors import quiet_log
from fedzo.flower.ledger import Ledger
from fedzo.runs.loop import Job
from fedzo.runs.minimize import Backend, Drive
from fedzo.runs.result import Result

log = logging.getLogger("fedzo")

_SERVER = 0  # an id that no node has
_NO_HURRY = 1e6  # seconds: a virtual node has replied when its message is sent


def simulation(experiment: Experiment) -> Backend:
    """Return the engine that runs an experiment on virtual nodes, by Flower's messages.

    The devices are split over ``experiment.flower.nodes`` nodes. Node and server are one process,
    so nothing is clipped, nodes have no limits, and the logger ``fedzo`` warns once of each
    failure, with its full text.
    """

    def run(job: Job, objective: Objective, drive: Drive) -> Result:
        meter = meter_of(objective)
        if meter is not None and meter.max_queries is not None:
            raise UsageError(
                f"a budget of {meter.max_queries:,} queries needs a single process, but Flower's "
                "nodes are several: limit run.rounds instead",
                code="budget-on-flower",
            )
        app = make_client_app(lambda _: objective, algorithms=[type(job.algorithm)], guarded=False)
        grid = InProcessGrid(app, experiment.flower.nodes or cores())
        settings = replace(experiment.flower, grace=_NO_HURRY, patience=_NO_HURRY, clip=False)
        warn = cache(log.warning)  # once for the same devices and error
        with quiet_log():
            return drive(
                FlowerEngine(grid, job.options.seed, job.uplink, settings, warn=warn, masked=False)
            )

    return run


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
