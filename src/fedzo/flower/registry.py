"""Who is there: which node answers for which device, as of now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedzo._version import __version__
from fedzo.flower import reasons, wire
from fedzo.flower.fingerprint import directions_checksum
from fedzo.flower.reasons import log, one_line
from fedzo.flower.schema import Malformed


class NodeRegistry:
    """The nodes that have introduced themselves and kept answering.

    A node that connects is greeted, and joins once it has answered. One that
    vanishes or stays silent is dropped and greeted again: its answer brings it back. What
    problem this is, most nodes' introductions say; a node with another one is not taken.
    Where two nodes claim a device, it is the earlier one's until that one is dropped.

    ``bound`` says which devices each node may claim, by its id; None: any. ``settings`` is what
    the run knows of the problem, which a node with other settings refuses. A node whose generator
    draws other directions than the server's is taken, but not for coefficients: ``unlike``.
    """

    def __init__(
        self,
        grid: Grid,
        ttl: float,
        bound: Mapping[int, Collection[int]] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._grid, self._ttl, self._bound = grid, ttl, bound
        self._settings = settings or {}
        self._nodes: dict[int, wire.Hello] = {}
        self._greeted: dict[str, int] = {}
        self.refused: dict[int, str] = {}  # the nodes that were not taken, and why
        self._owners: dict[int, int] = {}  # the node of each device that has one
        self.problem: wire.Hello | None = None  # once it is settled
        self.sizes: dict[int, int] = {}  # of every device heard of so far, as its node reported it

    def look(self) -> None:
        """Bring the list of nodes up to date."""
        present = set(self._grid.get_node_ids())
        for gone in [node for node in self._nodes if node not in present]:
            self.drop(gone, "it has disconnected")
        for gone in self.refused.keys() - present:
            del self.refused[gone]
        known = self._nodes.keys() | set(self._greeted.values()) | self.refused.keys()
        self._greet(sorted(present - known))
        if self._greeted:
            for reply in self._grid.pull_messages(list(self._greeted)):
                node = self._greeted.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:  # else it comes a second time
                    self._admit(node, reply)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    @property
    def complete(self) -> bool:
        """Whether everybody who was greeted has answered."""
        return not self._greeted

    def elected(self) -> tuple[wire.Hello, int] | None:
        """Return the problem that most nodes tell, the earlier of two, and how many hold it.

        How many is in devices.
        """
        votes = Counter(each.shape for each in self._nodes.values() if each.held)
        wanted = max(votes, key=votes.__getitem__, default=None)
        agreed = [each for each in self._nodes.values() if each.shape == wanted]
        return (agreed[0], len(set().union(*(each.held for each in agreed)))) if agreed else None

    def settle(self, problem: wire.Hello) -> None:
        """Take only nodes with this problem from now on."""
        self.problem = problem
        for node, introduction in list(self._nodes.items()):
            if introduction.shape != problem.shape:
                del self._nodes[node]
                self._refuse(node, _another(introduction, problem))
        self.sizes.clear()
        self._deal()

    def drop(self, node: int, reason: str) -> None:
        """Drop a node until it answers a greeting again."""
        if self._nodes.pop(node, None) is not None:
            self._deal()
            log.warning("node %d is dropped: %s", node, one_line(reason))

    def unlike(self, node: int) -> bool:
        """Tell whether a node's generator draws other directions than the server's."""
        return node in self._nodes and self._nodes[node].checksum != directions_checksum()

    def homes(self, devices: Iterable[int]) -> dict[int, list[int]]:
        """Return the nodes that these devices live on, with the devices of each, in order."""
        found: dict[int, list[int]] = {}
        for device in sorted(devices):
            if device in self._owners:
                found.setdefault(self._owners[device], []).append(device)
        return found

    def provides(self, capability: str) -> bool:
        """Return whether the problem of most nodes has a capability, by its name."""
        return 2 * sum(capability in each.offers for each in self._nodes.values()) > len(
            self._nodes
        )

    def _greet(self, nodes: list[int]) -> None:
        said = wire.greeting(self._settings)
        messages = [Message(said, node, wire.HELLO, ttl=self._ttl) for node in nodes]
        if messages:
            ids = self._grid.push_messages(messages)
            self._greeted.update({i: n for i, n in zip(ids, nodes, strict=True) if i})

    def _admit(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise Malformed(failure(reply))
            refusal = wire.read_refusal(reply.content)
            if refusal is not None:
                raise Malformed(worded(refusal))
            introduction = wire.read_hello(reply.content)
            self._check(node, introduction)
        except Malformed as error:
            self._refuse(node, str(error))
            if lost(reply):  # it may come back
                del self.refused[node]
            return
        log.info("node %d has joined with devices %s", node, shown(introduction.held))
        if introduction.checksum != directions_checksum():
            log.warning(
                "node %d draws other directions than the server: it sends updates, never "
                "coefficients",
                node,
            )
        taken = self._owners.keys() & introduction.held
        if taken:
            log.warning("node %d: devices %s are another node's already", node, shown(taken))
        self._nodes[node] = introduction
        self._claim(node, introduction)

    def _check(self, node: int, introduction: wire.Hello) -> None:
        """Raise unless a node is one of this federation, and claims no more than its devices."""
        if introduction.version != __version__:
            raise Malformed(f"it has fedzo {introduction.version}, not {__version__}")
        if self.problem is not None and introduction.shape != self.problem.shape:
            raise Malformed(_another(introduction, self.problem))
        if self._bound is not None:
            if node not in self._bound:
                raise Malformed("no devices are bound to it")
            strange = set(introduction.held) - set(self._bound[node])
            if strange:
                raise Malformed(f"devices {shown(strange)} are not bound to it")

    def _claim(self, node: int, introduction: wire.Hello) -> None:
        for device, size in zip(introduction.held, introduction.sizes, strict=True):
            if self._owners.setdefault(device, node) == node:
                self.sizes[device] = size

    def _deal(self) -> None:
        """Say anew which device is whose."""
        self._owners.clear()
        for node, introduction in self._nodes.items():
            self._claim(node, introduction)

    def _refuse(self, node: int, reason: str) -> None:
        self.refused[node] = one_line(reason)
        log.warning("node %d is not taken: %s", node, self.refused[node])


def _another(introduction: wire.Hello, right: wire.Hello) -> str:
    if (introduction.dim, introduction.devices) == (right.dim, right.devices):
        return f"its problem is another one, {introduction.fingerprint}, not {right.fingerprint}"
    return (
        f"its problem has dim={introduction.dim} and devices={introduction.devices}, "
        f"not {right.dim} and {right.devices}"
    )


def worded(refusal: str) -> str:
    """Return a node's reason for the server's log."""
    words, reference = reasons.read(refusal)
    return f"{words} ({reference} in its log)" if reference else words


def failure(reply: Any) -> str:
    """Return what Flower says of a node that failed; not its text, which may be anything."""
    return f"the node failed, with Flower's error {reply.error.code}"


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
