"""The server's view of its nodes: which node holds which device, and how to ask them.

:class:`NodeRegistry` admits and drops nodes. :class:`Requests` sends messages to the nodes of
devices, waits for replies, and drops devices that do not reply in time.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode as FlowerCode
from flwr.serverapp import Grid

from fedzo._version import __version__
from fedzo.core.engine import DroppedDevice
from fedzo.errors import FedzoError, Halted, UsageError
from fedzo.flower import protocol
from fedzo.flower.errors import explain, log, short_line
from fedzo.flower.policy import read_bindings
from fedzo.flower.protocol import Hello, directions_checksum
from fedzo.flower.sync import Downlink, read_out_of_sync, synced_round
from fedzo.runs.options import FlowerSettings

# Results by device; a string is the error of a device that failed.
Found = Mapping[int, Any]
Write = Callable[[int, list[int]], RecordDict]
Read = Callable[[RecordDict, list[int]], Found]
Configure = Callable[[list[Message]], Iterable[Message]]
InFlight = dict[str, tuple[Message, "Asked"]]  # messages without a reply
Arrived = tuple[Message, "Asked", Message]  # and with their replies

LOST = "the node was lost"
COUNTED = (protocol.TRAIN, protocol.SHARES, protocol.UNMASK)  # in the bytes of a round
_POLLED = 128  # messages per request for replies
_PAUSE, _LONGEST_PAUSE = 5, 80  # rounds without a request to a node that was silent

_GONE = (
    FlowerCode.NODE_UNAVAILABLE,
    FlowerCode.MESSAGE_UNAVAILABLE,
    FlowerCode.REPLY_MESSAGE_UNAVAILABLE,
)


class NodeRegistry:
    """The nodes that have introduced themselves and reply.

    The server greets every node that connects. The node joins when its introduction arrives. A node
    that disconnects or stays silent is dropped and greeted again. The problem is the one that most
    nodes introduce; nodes with another problem are rejected. If two nodes hold a device, the
    earlier one keeps it until it is dropped.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    ttl : float
        The lifetime of a message in seconds.
    bound : mapping, optional
        The devices that each node may hold, by the node's id. By default a node may hold any.
    settings : mapping, optional
        The run's settings of the problem. A node with other settings rejects the greeting.
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
        self._nodes: dict[int, Hello] = {}
        self._greeted: dict[str, int] = {}  # nodes by the id of the greeting
        self._owners: dict[int, int] = {}  # the node of each device
        self.refused: dict[int, str] = {}  # rejected nodes, and the reasons
        self.problem: Hello | None = None  # set by :meth:`settle`
        self.sizes: dict[int, int] = {}  # samples of every device introduced so far

    def look(self) -> None:
        """Update the list of nodes: drop those that left, greet and admit new ones."""
        present = set(self._grid.get_node_ids())
        for gone in [node for node in self._nodes if node not in present]:
            self.drop(gone, "it has disconnected")
        for gone in self.refused.keys() - present:
            del self.refused[gone]
        known = self._nodes.keys() | set(self._greeted.values()) | self.refused.keys()
        if new := sorted(present - known):
            content = protocol.greeting(self._settings)
            greetings = [Message(content, node, protocol.HELLO, ttl=self._ttl) for node in new]
            pushed = set(self._grid.push_messages(greetings))  # without those that have left
            ids = {each.metadata.message_id: each.metadata.dst_node_id for each in greetings}
            self._greeted.update({i: node for i, node in ids.items() if i in pushed})
        if self._greeted:
            for reply in self._grid.pull_messages(list(self._greeted)):
                node = self._greeted.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:  # else the reply was received before
                    self._admit(node, reply)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def expected(self, problem: Hello) -> int:
        """Return the number of devices of a problem, at least that of all devices that are bound.

        So a node that is alone at the start cannot be a quorum by the claim that N is small.
        """
        return max(problem.devices, len(set().union(*(self._bound or {}).values())))

    @property
    def complete(self) -> bool:
        """Whether every greeted node has replied."""
        return not self._greeted

    def elected(self) -> tuple[Hello, int] | None:
        """Return the problem that most nodes introduce, and how many devices hold it.

        If two problems have as many nodes, the earlier one is elected.
        """
        votes = Counter(each.shape for each in self._nodes.values() if each.held)
        wanted = max(votes, key=votes.__getitem__, default=None)
        agreed = [each for each in self._nodes.values() if each.shape == wanted]
        return (agreed[0], len(set().union(*(each.held for each in agreed)))) if agreed else None

    def settle(self, problem: Hello) -> None:
        """Reject all nodes with another problem, now and later."""
        self.problem = problem
        for node, introduction in list(self._nodes.items()):
            if introduction.shape != problem.shape:
                del self._nodes[node]
                self._reject(node, _difference(introduction, problem))
        self.sizes.clear()
        self._assign_devices()

    def drop(self, node: int, reason: str) -> None:
        """Drop a node until it replies to a greeting again."""
        if self._nodes.pop(node, None) is not None:
            self._assign_devices()
            log.warning("node %d is dropped: %s", node, short_line(reason))

    def key(self, node: int) -> bytes:
        """Return a node's public key for secure sums; empty if it has none."""
        return bytes.fromhex(self._nodes[node].key) if node in self._nodes else b""

    def homes(self, devices: Iterable[int]) -> dict[int, list[int]]:
        """Return the nodes of these devices, with the devices of each in ascending order."""
        found: dict[int, list[int]] = {}
        for device in sorted(devices):
            if device in self._owners:
                found.setdefault(self._owners[device], []).append(device)
        return found

    def provides(self, capability: str) -> bool:
        """Return whether the problem of most nodes has a capability, by its name."""
        votes = sum(capability in each.offers for each in self._nodes.values())
        return 2 * votes > len(self._nodes)

    def _admit(self, node: int, reply: Message) -> None:
        try:
            introduction = self._read(node, reply)
        except FedzoError as error:
            self._reject(node, str(error))
            if is_lost(reply):  # the node may return
                del self.refused[node]
            return
        log.info("node %d has joined with devices %s", node, device_ranges(introduction.held))
        taken = self._owners.keys() & introduction.held
        if taken:
            log.warning("node %d: another node holds devices %s", node, device_ranges(taken))
        self._nodes[node] = introduction
        self._claim(node, introduction)

    def _read(self, node: int, reply: Message) -> Hello:
        """Return the introduction of a node of this federation, or raise."""
        if reply.has_error():
            raise FedzoError(flower_failure(reply))
        refusal = protocol.read_refusal(reply.content)
        if refusal is not None:
            raise FedzoError(str(explain(refusal)))
        introduction = protocol.read_hello(reply.content)
        if introduction.version != __version__:
            raise FedzoError(f"it has fedzo {introduction.version}, not {__version__}")
        if introduction.checksum != directions_checksum():
            raise FedzoError("it draws other directions than the server")
        if self.problem is not None and introduction.shape != self.problem.shape:
            raise FedzoError(_difference(introduction, self.problem))
        if self._bound is not None:
            if node not in self._bound:
                raise FedzoError("no devices are bound to it")
            strange = set(introduction.held) - set(self._bound[node])
            if strange:
                raise FedzoError(f"devices {device_ranges(strange)} are not bound to it")
        return introduction

    def _claim(self, node: int, introduction: Hello) -> None:
        for device, size in zip(introduction.held, introduction.sizes, strict=True):
            if self._owners.setdefault(device, node) == node:
                self.sizes[device] = size

    def _assign_devices(self) -> None:
        """Compute again which node holds each device."""
        self._owners.clear()
        for node, introduction in self._nodes.items():
            self._claim(node, introduction)

    def _reject(self, node: int, reason: str) -> None:
        self.refused[node] = short_line(reason)
        log.warning("node %d is rejected: %s", node, self.refused[node])


def _difference(introduction: Hello, right: Hello) -> str:
    if (introduction.dim, introduction.devices) == (right.dim, right.devices):
        return f"it has another problem, {introduction.fingerprint}, not {right.fingerprint}"
    return (
        f"its problem has dim={introduction.dim} and devices={introduction.devices}, "
        f"not {right.dim} and {right.devices}"
    )


def flower_failure(reply: Message) -> str:
    """Return Flower's error code of a reply, without the text, which another machine wrote."""
    return f"the node failed with Flower's error {reply.error.code}"


def is_lost(reply: Message) -> bool:
    """Return whether a reply comes from Flower, because the node or its reply is gone."""
    return bool(reply.has_error() and reply.error.code in _GONE)


def device_ranges(devices: Iterable[int]) -> str:
    """Return a set of devices as text.

    >>> device_ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    numbers = np.unique(np.fromiter(devices, np.int64))
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1)[:20] + 1)
    names = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs if len(run)]
    return ", ".join(names[:20] + ["..."] * (len(names) > 20)) or "none"


def asked_again(silences: Iterable[int]) -> int:
    """Return the first round in which a node is asked that was silent in these rounds.

    The pause is at least 5 rounds. It doubles, up to 80, if the node is silent again soon after.
    Pauses end in rounds divisible by 5, so all nodes that were silent before are asked together,
    and cost two grace periods in ten rounds at most.

    >>> asked_again([]), asked_again([3]), asked_again([3, 10]), asked_again([3, 10, 20])
    (0, 10, 20, 40)
    >>> asked_again([3, 40])  # it had come back
    45
    """
    pause, again = _PAUSE, 0
    for t in sorted(silences):
        pause = min(2 * pause, _LONGEST_PAUSE) if again and t < again + pause else _PAUSE
        again = -(-(t + pause) // pause) * pause
    return again


class Exchange(NamedTuple):
    """A request to the nodes of some devices: what they are sent, and how a reply is read.

    With ``at_work`` the request is asynchronous. So many devices are kept at work, in their given
    order, and the request ends when ``buffer`` of them have replied, also to earlier requests.
    """

    kind: str
    devices: Sequence[int]
    write: Write
    read: Read
    at_work: int = 0
    buffer: int = 0


class Asked(NamedTuple):
    """The receiver of a message, and how its reply is read."""

    node: int
    devices: list[int]
    read: Read
    synced: int | None  # the round that the node reaches by the message
    sent: float  # the time


class Requests:
    """Sends messages to the nodes of devices and collects the replies.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    settings : FlowerSettings
        The quorum and the times to wait.
    problem : mapping
        The run's settings of the problem.
    warn : callable
        Called like a logger when devices are dropped.
    """

    def __init__(
        self,
        grid: Grid,
        settings: FlowerSettings,
        problem: Mapping[str, Any],
        warn: Callable[..., None] = log.warning,
    ) -> None:
        self.grid, self.settings, self._warn = grid, settings, warn
        self.downlink: Downlink | None = None  # set if nodes replay the rounds
        self.dropped: list[DroppedDevice] = []
        self.algorithm = "..."  # the name of the run's, which an error may need
        self.round = 0  # the number of the round that requests are part of
        self._silences: dict[int, set[int]] = {}  # the rounds in which each node was silent
        self.sent: list[Message] = []  # in the last round
        self.received: list[Message] = []
        self._ttl = settings.patience + settings.grace
        self._unread: list[tuple[Message, Asked]] = []  # with replies that were not read yet
        self._at_work: InFlight = {}  # of asynchronous requests
        self._early: deque[Arrived] = deque()  # replies that came before they were needed
        self.registry = NodeRegistry(grid, self._ttl, read_bindings(settings.bindings), problem)

    def gather(self) -> Hello:
        """Wait for all connected nodes and a quorum of the devices.

        When the quorum is there, wait up to ``grace`` seconds for the others.
        """
        wait = Wait(self.settings)
        while True:
            self.registry.look()
            elected, enough = self.registry.elected(), False
            state = "no device has joined"
            if elected is not None:
                problem, there = elected
                expected = self.registry.expected(problem)
                needed = self.settings.needed(expected)
                enough = there >= needed
                state = f"{there} of {expected} devices have joined, {needed} are needed"
                everyone = there == expected and self.registry.complete
                if everyone or (enough and wait.grace_is_over()):
                    self.registry.settle(problem)
                    return problem
            for node, reason in list(self.registry.refused.items())[:1]:
                state += f", and node {node} is rejected: {reason}"
            wait.pause(enough, state)

    def ask(self, exchange: Exchange) -> dict[int, Any]:
        """Ask the nodes of these devices; return the results by device."""
        return self.results(self.replies(exchange))

    def prepare(self, exchange: Exchange) -> list[Message]:
        """Return the messages of a request, for a caller that sends them and has the replies."""
        prepared = self._messages(exchange, self.ready(exchange.devices))
        self._unread = list(prepared)
        return [message for message, _ in prepared]

    def replies(self, exchange: Exchange, configure: Configure = list) -> list[Message]:
        """Send the messages of a request; return the replies, for :meth:`results` to read.

        Wait for all devices. When a quorum has replied, wait up to ``grace`` seconds more, and only
        for connected nodes. Devices that are missing then are dropped from the request. Nodes that
        return in the meantime are asked again. A node that was silent is not asked for some rounds
        (see :func:`asked_again`), unless the quorum needs it. ``configure`` receives the messages
        that are about to be sent, and returns those that are sent.
        """
        if exchange.at_work:
            return self._first_replies(exchange, configure)
        devices, in_flight, found = exchange.devices, InFlight(), list[Message]()
        missing = dict.fromkeys(devices, "not on any connected node")
        need, wait = self.settings.needed(len(devices)), Wait(self.settings)
        paused, slow = self._paused(), {own.node for _, own in self._at_work.values()}
        while missing:
            if wait.time_to_look():
                missing.update(self._lost(in_flight))
            under_way = _devices(in_flight)
            homes = self.registry.homes(missing.keys() - under_way)
            ready = {node: own for node, own in homes.items() if node not in paused}
            hoped = len(devices) - len(missing) + len(under_way) + sum(map(len, ready.values()))
            if hoped < need:
                paused, ready = {}, homes
            for device in self._send(exchange, ready, in_flight, configure):
                del missing[device]
            before = len(in_flight)
            for message, own, reply in self._pull(in_flight):
                self.received += [reply] if exchange.kind in COUNTED else []
                again = self._again(own.node, reply)
                for device in own.devices:
                    if again is None:
                        del missing[device]
                    else:
                        missing[device] = again
                if again is None:
                    found.append(reply)
                    self._unread.append((message, own))
            enough = len(devices) - len(missing) >= need
            expected = in_flight or self.registry.homes(missing).keys() - paused  # now, or again
            waits = any(own.node in slow for _, own in in_flight.values())  # at work since before
            if not missing or (enough and (not expected or (wait.grace_is_over() and not waits))):
                break
            if before - len(in_flight) > _POLLED // 2:  # there may be more replies
                continue
            state = f"{len(devices) - len(missing)} of {len(devices)} devices have replied"
            wait.pause(enough, state, at_work=bool(in_flight))
        self._drop_silent(missing, in_flight, paused)
        return found

    def _first_replies(self, exchange: Exchange, configure: Configure) -> list[Message]:
        """Return the next replies of devices at work, to this request or to earlier ones.

        A device that fails is replaced by the next one. When a quorum of ``buffer`` has replied,
        wait up to ``grace`` seconds more. Devices at work may reply to a later request.
        """
        left, found, done = list(exchange.devices), list[Message](), 0
        need, wait = self.settings.needed(exchange.buffer), Wait(self.settings)
        while done < exchange.buffer:
            if wait.time_to_look():
                self.leave_out(self._lost(self._at_work))
            busy = _devices(self._at_work) | {i for _, own, _ in self._early for i in own.devices}
            there = {i for own in self.registry.homes(left).values() for i in own} - busy
            idle = [i for i in left if i in there][: max(0, exchange.at_work - len(busy) - done)]
            left = [i for i in left if i not in idle]
            self._send(exchange, self.registry.homes(idle), self._at_work, configure)
            self._early += self._pull(self._at_work)
            while self._early and done < exchange.buffer:
                message, own, reply = self._early.popleft()
                self.received.append(reply)
                if self._again(own.node, reply) is None:
                    found.append(reply)
                    self._unread.append((message, own))
                    results = self._results(own, reply).values()
                    done += sum(not isinstance(result, str) for result in results)
                else:
                    left = own.devices + left
            enough = done >= need
            failed = not (there or self._at_work) and len(left) < len(exchange.devices)
            if failed or (enough and wait.grace_is_over()):
                break
            if done < exchange.buffer:
                state = f"{done} of {exchange.buffer} updates have arrived"
                wait.pause(enough, state, at_work=bool(self._at_work))
        return found

    def results(self, replies: Iterable[Message]) -> dict[int, Any]:
        """Return the results of a request by device, from the replies to its messages.

        Devices that fail, and those of replies that the caller has left out, are dropped.
        """
        asked = {message.metadata.message_id: own for message, own in self._unread}
        found, failed, self._unread = dict[int, Any](), dict[int, str](), []
        for reply in replies:
            own = asked.pop(reply.metadata.reply_to_message_id, None)
            if own is None:  # not of this request
                continue
            for device, result in self._results(own, reply).items():
                if isinstance(result, str):
                    failed[device] = result
                else:
                    found[device] = result
        ignored = (device for own in asked.values() for device in own.devices)
        self.leave_out({**failed, **dict.fromkeys(ignored, "no reply was aggregated")})
        return found

    def _drop_silent(
        self, missing: dict[int, str], in_flight: InFlight, paused: Mapping[int, int]
    ) -> None:
        """Drop the devices without a reply, and note which nodes were silent."""
        for node, own in self.registry.homes(missing).items():
            if node in paused:
                why = f"the node was silent: it is asked again in round {paused[node]}"
                missing.update(dict.fromkeys(own, why))
        for _, asked in in_flight.values():
            missing.update(self._silent(asked, self.settings.grace, "grace period"))
        self.leave_out(missing)

    def _silent(self, asked: Asked, seconds: float, period: str) -> dict[int, str]:
        """Drop a node that did not reply in time; return the reason by device."""
        late = f"no reply within the {seconds:g} s {period}"
        self._silences.setdefault(asked.node, set()).add(self.round)
        self.registry.drop(asked.node, late)
        return dict.fromkeys(asked.devices, late)

    def _lost(self, in_flight: InFlight) -> dict[int, str]:
        """Update the list of nodes; return the devices of messages that have no node any more."""
        self.registry.look()
        lost: dict[int, str] = {}
        for i, (_, asked) in list(in_flight.items()):
            if asked.node not in self.registry:
                lost.update(dict.fromkeys(asked.devices, LOST))
            elif time.monotonic() - asked.sent > self._ttl:
                lost.update(self._silent(asked, self._ttl, "lifetime of the message"))
            if not lost.keys().isdisjoint(asked.devices):
                del in_flight[i]
        return lost

    def ready(self, devices: Iterable[int]) -> dict[int, list[int]]:
        """Return the nodes of these devices that are asked now, with the devices of each."""
        self.registry.look()
        paused, homes = self._paused(), self.registry.homes(devices)
        return {node: own for node, own in homes.items() if node not in paused} or homes

    def _paused(self) -> dict[int, int]:
        """Return the nodes that are not asked now, and the rounds in which they are again."""
        again = {node: asked_again(rounds) for node, rounds in self._silences.items()}
        return {node: t for node, t in again.items() if self.round < t}

    def leave_out(self, why: Mapping[int, str]) -> None:
        """Drop devices from the round: log it, and keep the reasons for the history."""
        for reason in dict.fromkeys(why.values()):
            devices = [i for i, own in why.items() if own == reason]
            who = "device %s is" if len(devices) == 1 else "devices %s are"
            explanation = explain(reason, self.algorithm)
            self._warn(f"{who} dropped: %s", device_ranges(devices), str(explanation))
            self.dropped += [DroppedDevice(device, explanation.words) for device in devices]

    def _messages(
        self, exchange: Exchange, homes: Mapping[int, list[int]]
    ) -> list[tuple[Message, Asked]]:
        """Return the messages to these nodes."""
        made, now = [], time.monotonic()
        for node, own in homes.items():
            content = exchange.write(node, own)
            asked = Asked(node, own, exchange.read, synced_round(content), now)
            made.append((Message(content, node, exchange.kind, ttl=self._ttl), asked))
        return made

    def _send(
        self,
        exchange: Exchange,
        homes: Mapping[int, list[int]],
        in_flight: InFlight,
        configure: Configure,
    ) -> list[int]:
        """Send the messages to these nodes; return the devices that ``configure`` leaves out."""
        if not homes:
            return []
        made = self._messages(exchange, homes)
        sent = list(configure([message for message, _ in made]))
        wanted = {id(message) for message in sent}
        if not wanted <= {id(message) for message, _ in made}:
            text = "a hook returned other messages than fedzo's: leave some out, or change them"
            raise UsageError(text, code="messages-replaced")
        without = [own for message, own in made if id(message) not in wanted]
        left_out = [device for own in without for device in own.devices]
        self.leave_out(dict.fromkeys(left_out, "no message was configured for it"))
        self.sent += sent if exchange.kind in COUNTED else []
        pushed = set(self.grid.push_messages(sent)) if sent else set()
        for message, own in made:
            if message.metadata.message_id in pushed and id(message) in wanted:
                in_flight[message.metadata.message_id] = (message, own)
            elif id(message) in wanted:
                self.registry.drop(own.node, "no message can be sent to it")
        return left_out

    def _pull(self, in_flight: InFlight) -> Iterator[Arrived]:
        """Take the messages whose replies have arrived, with these."""
        if not in_flight:
            return
        # Flower looks up each id under a lock that simulated nodes need. So ask for a few messages,
        # oldest first, and put those without a reply at the end: the cost does not grow with N^2.
        some = list(islice(in_flight, _POLLED))
        for i in some:
            in_flight[i] = in_flight.pop(i)
        for reply in self.grid.pull_messages(some):
            known = in_flight.pop(reply.metadata.reply_to_message_id, None)
            if known is not None:  # else it is late, or was received before
                yield *known, reply

    def _again(self, node: int, reply: Message) -> str | None:
        """Return why the node of a reply has to be asked again; None if it has not."""
        if is_lost(reply):
            self.registry.drop(node, "Flower has lost it")
            return LOST
        try:
            position = None if reply.has_error() else read_out_of_sync(reply.content)
        except FedzoError:
            return None
        if position is None or self.downlink is None:
            return None
        again = self.downlink.mark_out_of_sync(node, position)
        return "the node is out of sync" if again else None

    def _results(self, own: Asked, reply: Message) -> Found:
        """Return the result of each device that was asked; a string is an error."""
        if reply.has_error():
            return dict.fromkeys(own.devices, LOST if is_lost(reply) else flower_failure(reply))
        try:
            refusal = protocol.read_refusal(reply.content)
            if refusal is None and read_out_of_sync(reply.content) is not None:
                refusal = "the node cannot replay the run"
            if refusal is not None:
                return dict.fromkeys(own.devices, refusal)
            results = own.read(reply.content, own.devices)
            if own.synced is not None and self.downlink is not None:
                self.downlink.mark_synced(own.node, own.synced)
        except Exception as error:  # a decoder can raise anything on another machine's bytes
            return dict.fromkeys(own.devices, f"the node's reply is malformed: {error}")
        return {i: results.get(i, "the node did not reply for it") for i in own.devices}


def _devices(in_flight: InFlight) -> set[int]:
    """Return the devices of messages without a reply."""
    return {device for _, own in in_flight.values() for device in own.devices}


class Wait:
    """The time spent waiting, with and without a quorum."""

    def __init__(self, settings: FlowerSettings) -> None:
        self._settings, self._began = settings, time.monotonic()
        self._enough_since: float | None = None
        self._look_at = self._warned_at = self._began
        self._pause = 0.002

    def time_to_look(self) -> bool:
        """Return True about once per second, when the list of nodes is to be updated."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + 1
        return True

    def grace_is_over(self) -> bool:
        """Return whether the grace period after the quorum is over."""
        if self._enough_since is None:
            self._enough_since = time.monotonic()
        return time.monotonic() - self._enough_since >= self._settings.grace

    def pause(self, enough: bool, state: str, at_work: bool = False) -> None:
        """Sleep a little longer each time; without a quorum, warn, and finally raise Halted.

        Warn less often while nodes are at work on a reply.
        """
        now = time.monotonic()
        if not enough:
            self._enough_since = None
            limit = self._settings.patience
            if now - self._began >= limit:
                raise Halted(f"no quorum within {limit:g} s: {state}", code="no-quorum")
            if now - self._warned_at >= (60 if at_work else 10):
                left = limit - (now - self._began)
                log.warning("waiting for a quorum, %.0f s at most: %s", left, state)
                self._warned_at = now
        time.sleep(self._pause)
        self._pause = min(1.3 * self._pause, 0.1)
