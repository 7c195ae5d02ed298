"""A grid in this process: a ClientApp as a plain callable, without Ray, sockets or processes."""

from __future__ import annotations

import shutil
import sqlite3
import weakref
from collections.abc import Iterable
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

SERVER = 0  # a node id that no node has


class InProcessGrid(Grid):
    """Nodes that answer a message when it is pushed, one after another.

    Messages are serialised and read back on both ways, as Flower does it between hosts. It is
    what tests and debuggers want: a break point in a client's code is reached.

    Parameters
    ----------
    client_app : ClientApp
        What every node runs.
    nodes : int
        How many there are; node i has ``partition-id`` i.
    run_config : mapping, optional
        The run's configuration, as each node sees it.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> InProcessGrid(ClientApp(), nodes=3).get_node_ids()
    [1, 2, 3]
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, run_config: dict[str, Any] | None = None
    ) -> None:
        self.client_app = client_app
        ledgers = f"file:{uuid4().hex}-{{}}?mode=memory&cache=shared"  # gone with the grid
        models = mkdtemp(prefix="fedzo-")
        weakref.finalize(self, shutil.rmtree, models, ignore_errors=True)
        # Flower's own engines set who sends; a message cannot be made without.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={
                    "partition-id": node - 1,
                    "num-partitions": nodes,
                    "ledger": ledgers.format(node),
                    "models": models,
                },
                state=RecordDict(),
                run_config=run_config or {},
            )
            for node in range(SERVER + 1, nodes + 1)
        }
        for context in self.contexts.values():  # a ledger in memory is there while it is open
            ledger = str(context.node_config["ledger"])
            kept = sqlite3.connect(ledger, uri=True, check_same_thread=False)
            weakref.finalize(self, kept.close)
        self._answers: dict[str, Message] = {}
        self._run: Any = None

    @property
    def run(self) -> Any:
        """Return what was set as the run."""
        return self._run

    def set_run(self, run: Any) -> None:
        """Set the run, which nothing here depends on."""
        self._run = run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message, as its constructor makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the nodes' ids, 1, 2, ..."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have the nodes answer; return the messages' ids."""
        ids = []
        for message in messages:
            ids.append(str(uuid4()))
            message.metadata.__dict__["_message_id"] = ids[-1]
            reply = self.answer(travelled(message))
            if reply is not None:
                self._answers[ids[-1]] = travelled(reply)
        return ids

    def answer(self, message: Message) -> Message | None:
        """Return what the node that a message is for replies; None: nothing, for now."""
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self.client_app(message, context)
        except Exception as error:  # as Flower itself does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the answers that there are to these messages."""
        return [self._answers.pop(i) for i in message_ids if i in self._answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and return the answers."""
        return self.pull_messages(self.push_messages(messages))


def travelled(message: Message) -> Message:
    """Return a message as it comes out at the other end: serialised and read back."""
    return message_from_proto(Proto.FromString(message_to_proto(message).SerializeToString()))
