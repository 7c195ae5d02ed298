"""Who is there: which node answers for which device, as of now."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedzo.flower import wire
from fedzo.flower.schema import Malformed

log = logging.getLogger("flwr")  # the logger that Flower prints, and sends to `flwr log`


class Roll:
    """The nodes that have introduced themselves and kept answering.

    A node that connects is greeted, and is on the roll once it has answered. One that
    vanishes or stays silent is struck off and greeted anew: its answer brings it back. The
    first introduction says what problem this is; a node with another one is not taken.
    Where two nodes claim a device, it is the earlier one's until that one is struck off.
    """

    def __init__(self, grid: Grid, ttl: float) -> None:
        self._grid, self._ttl = grid, ttl
        self._nodes: dict[int, wire.Hello] = {}
        self._greeted: dict[str, int] = {}
        self._strangers: set[int] = set()
        self.problem: wire.Hello | None = None  # as the first node told it
        self.sizes: dict[int, int] = {}  # of every device heard of so far

    def look(self) -> None:
        """Bring the roll up to date."""
        present = set(self._grid.get_node_ids())
        for gone in [node for node in self._nodes if node not in present]:
            self.strike(gone, "it has disconnected")
        self._strangers &= present
        known = self._nodes.keys() | set(self._greeted.values()) | self._strangers
        self._greet(sorted(present - known))
        if self._greeted:
            for reply in self._grid.pull_messages(list(self._greeted)):
                self._admit(self._greeted.pop(reply.metadata.reply_to_message_id), reply)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def strike(self, node: int, reason: str) -> None:
        """Take a node off the roll until it answers a greeting again."""
        if self._nodes.pop(node, None) is not None:
            log.warning("node %d is off the roll: %s", node, reason)

    def homes(self, devices: Iterable[int]) -> dict[int, list[int]]:
        """Return the nodes that these devices live on, with the devices of each, in order."""
        owner: dict[int, int] = {}
        for node, told in self._nodes.items():
            for device in told.held:
                owner.setdefault(device, node)
        found: dict[int, list[int]] = {}
        for device in sorted(devices):
            if device in owner:
                found.setdefault(owner[device], []).append(device)
        return found

    def offers(self, method: str) -> bool:
        """Tell whether every node's objective has this optional method."""
        return all(method in told.offers for told in self._nodes.values())

    def _greet(self, nodes: list[int]) -> None:
        messages = [Message(RecordDict(), node, wire.HELLO, ttl=self._ttl) for node in nodes]
        if messages:
            ids = self._grid.push_messages(messages)
            self._greeted.update({i: n for i, n in zip(ids, nodes, strict=True) if i})

    def _admit(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise Malformed(f"it answered with an error: {reply.error.reason}")
            told = wire.read_hello(reply.content)
            problem = self.problem or told
            if (told.dim, told.devices) != (problem.dim, problem.devices):
                raise Malformed(
                    f"its problem has dim={told.dim} and devices={told.devices}, not "
                    f"{problem.dim} and {problem.devices}"
                )
        except Malformed as error:
            log.warning("node %d is not taken: %s", node, error)
            if not lost(reply):
                self._strangers.add(node)
            return
        self.problem = problem
        self._nodes[node] = told
        self.sizes.update(zip(told.held, told.sizes, strict=True))
        log.info("node %d is on the roll with devices %s", node, shown(told.held))


def lost(reply: Any) -> bool:
    """Tell whether a reply says that its node is gone, rather than what the node said."""
    from flwr.common.constant import ErrorCode

    gone = (
        ErrorCode.NODE_UNAVAILABLE,
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    )
    return bool(reply.has_error() and reply.error.code in gone)


def shown(devices: Iterable[int]) -> str:
    """Word a set of devices.

    >>> shown([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and runs[-1][-1] == device - 1:
            runs[-1][1:] = [device]
        else:
            runs.append([device])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"
