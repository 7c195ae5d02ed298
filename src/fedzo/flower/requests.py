"""Requests the nodes, and waiting for them: for whom, how long, and what if they do not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedzo.core.engine import DroppedDevice
from fedzo.errors import Halted
from fedzo.flower import reasons, wire
from fedzo.flower.bindings import read_bindings
from fedzo.flower.downlink import Downlink
from fedzo.flower.following import read_behind
from fedzo.flower.reasons import log
from fedzo.flower.registry import NodeRegistry, failure, lost, shown, worded
from fedzo.runs.options import FlowerSettings

# Answers by device: what was found, or the reason why it was not, as a string.
Found = Mapping[int, Any]
Write = Callable[[int, list[int]], RecordDict]
Read = Callable[[RecordDict, list[int]], Found]


class Requests:
    """Sends messages to the nodes of devices and collects the answers.

    Parameters
    ----------
    grid : Grid
        Flower's.
    settings : FlowerSettings
        Whom to wait for, and for how long.
    problem : mapping
        What the run knows of the problem's settings.
    warn : callable
        Told at once who is left out, as a logger is.
    """

    def __init__(
        self,
        grid: Grid,
        settings: FlowerSettings,
        problem: Mapping[str, Any],
        warn: Callable[..., None] = log.warning,
    ) -> None:
        self.grid, self.settings, self._warn = grid, settings, warn
        self.downlink: Downlink | None = None  # where nodes follow the run by themselves
        self.dropped: list[DroppedDevice] = []
        self.sent: list[Message] = []  # of the last round
        self.received: list[Message] = []
        self._ttl = settings.patience + settings.grace
        self.registry = NodeRegistry(grid, self._ttl, read_bindings(settings.bindings), problem)

    def gather(self) -> wire.Hello:
        """Wait for all nodes that are connected, and a quorum of the devices.

        Once the quorum is there, the others are waited for ``grace`` seconds more.
        """
        wait = _Wait(self.settings)
        while True:
            self.registry.look()
            elected, enough = self.registry.elected(), False
            state = "no device has introduced itself"
            if elected is not None:
                problem, there = elected
                needed = self.settings.needed(problem.devices)
                enough = there >= needed
                state = f"{there} of {problem.devices} devices are there, {needed} are needed"
                everyone = there == problem.devices and self.registry.complete
                if everyone or (enough and wait.over()):
                    self.registry.settle(problem)
                    return problem
            for node, reason in list(self.registry.refused.items())[:1]:
                state += f", and node {node} is not taken: {reason}"
            wait.a_moment(enough, state)

    def ask(
        self,
        kind: str,
        devices: Sequence[int],
        content: Write,
        read: Read,
    ) -> dict[int, Any]:
        """Have the nodes of these devices answer; return what was found, by device.

        It waits for everyone; once a quorum has answered, ``grace`` seconds more, and only for
        those who are connected. Who is missing then is left out, and so is who failed. Nodes
        that come back in the meantime are asked (again).
        """
        found: dict[int, Any] = {}
        missing, under_way = dict.fromkeys(devices, "not on any connected node"), _UnderWay()
        need, wait = self.settings.needed(len(devices)), _Wait(self.settings)
        while missing:
            if wait.time_to_look():
                self.registry.look()
                for asked in under_way.without(self.registry):
                    missing.update(dict.fromkeys(asked, "the node was lost"))
            idle = missing.keys() - under_way.devices()
            self._send(kind, self.registry.homes(idle), content, under_way)
            for node, asked, reply in self._replies(kind, under_way):
                answers = self._told(node, asked, reply, read)
                for device in asked:
                    if device not in answers:
                        missing[device] = "the node was lost"
                        continue
                    del missing[device]
                    if not isinstance(answers[device], str):
                        found[device] = answers[device]
                self.leave_out({i: why for i, why in answers.items() if isinstance(why, str)})
            enough = len(devices) - len(missing) >= need
            expected = under_way.asked or self.registry.homes(missing)  # now, or asked again
            if not missing or (enough and (not expected or wait.over())):
                break
            answered = f"{len(devices) - len(missing)} of {len(devices)} devices have answered"
            wait.a_moment(enough, answered, at_work=bool(under_way.asked))
        for node, asked in under_way.asked.values():
            self.registry.drop(node, f"it was silent for the {self.settings.grace:g} s of grace")
            missing.update(dict.fromkeys(asked, "the node did not answer in time"))
        self.leave_out(missing)
        return found

    def leave_out(self, why: Mapping[int, str]) -> None:
        """Do without devices; the log says so at once, the history has the words."""
        for reason in dict.fromkeys(why.values()):
            devices = [i for i, own in why.items() if own == reason]
            who = "device %s is" if len(devices) == 1 else "devices %s are"
            self._warn(f"{who} left out: %s", shown(devices), worded(reason))
            words = reasons.read(reason).words
            self.dropped += [DroppedDevice(device, words) for device in devices]

    def _send(
        self,
        kind: str,
        homes: dict[int, list[int]],
        content: Write,
        under_way: _UnderWay,
    ) -> None:
        messages = [
            Message(content(node, own), node, kind, ttl=self._ttl) for node, own in homes.items()
        ]
        if messages:
            self.sent += messages if kind == wire.TRAIN else []
            ids = self.grid.push_messages(messages)
            for i, (node, own) in zip(ids, homes.items(), strict=True):
                if i:
                    under_way.asked[i] = (node, own)
                else:
                    self.registry.drop(node, "no message can be sent to it")

    def _replies(self, kind: str, under_way: _UnderWay) -> Iterator[tuple[int, list[int], Message]]:
        if not under_way.asked:
            return
        for reply in self.grid.pull_messages(list(under_way.asked)):
            known = under_way.asked.pop(reply.metadata.reply_to_message_id, None)
            if known is not None:  # else it is late, or comes a second time
                self.received += [reply] if kind == wire.TRAIN else []
                yield *known, reply

    def _told(self, node: int, asked: list[int], reply: Message, read: Read) -> Found:
        """Return what a reply says of each device that was asked; nothing: ask again."""
        if lost(reply):
            self.registry.drop(node, "Flower has lost it")
            return {}
        if reply.has_error():
            return dict.fromkeys(asked, failure(reply))
        try:
            refusal = wire.read_refusal(reply.content)
            if refusal is not None:
                return dict.fromkeys(asked, refusal)
            where = read_behind(reply.content)
            if where is not None:
                again = self.downlink is not None and self.downlink.behind(node, where)
                return {} if again else dict.fromkeys(asked, "the node cannot follow the run")
            answers = read(reply.content, asked)
            if self.downlink is not None:
                self.downlink.reached(node)
        except Exception as error:  # whatever a stranger's bytes can make a decoder raise
            return dict.fromkeys(asked, f"the node's answer is malformed: {error}")
        return {i: answers.get(i, "the node did not answer for it") for i in asked}


class _UnderWay:
    """The messages that have not been answered yet: to whom, and about which devices."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[int, list[int]]] = {}

    def devices(self) -> set[int]:
        """Return the devices that an answer is expected for."""
        return {device for _, own in self.asked.values() for device in own}

    def without(self, registry: NodeRegistry) -> list[list[int]]:
        """Give up what was asked of nodes that were dropped; return the devices of each."""
        gone = [i for i, (node, _) in self.asked.items() if node not in registry]
        return [self.asked.pop(i)[1] for i in gone]


class _Wait:
    """How long has been waited, with and without a quorum."""

    def __init__(self, settings: FlowerSettings) -> None:
        self._settings, self._began = settings, time.monotonic()
        self._enough_since: float | None = None
        self._look_at = self._told_at = self._began
        self._pause = 0.002

    def time_to_look(self) -> bool:
        """Tell, about once a second, that it is time to see who is there."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + 1
        return True

    def over(self) -> bool:
        """Tell whether the time of grace after the quorum is over."""
        if self._enough_since is None:
            self._enough_since = time.monotonic()
        return time.monotonic() - self._enough_since >= self._settings.grace

    def a_moment(self, enough: bool, state: str, at_work: bool = False) -> None:
        """Sleep a little, longer and longer; without a quorum, tell so, and halt in the end.

        While nodes are at work on an answer there is less to tell: a round takes its time.
        """
        now = time.monotonic()
        if not enough:
            self._enough_since = None
            limit = self._settings.patience
            if now - self._began >= limit:
                raise Halted(f"no quorum within {limit:g} s: {state}")
            if now - self._told_at >= (60 if at_work else 10):
                left = limit - (now - self._began)
                log.warning("waiting for a quorum, %.0f s at most: %s", left, state)
                self._told_at = now
        time.sleep(self._pause)
        self._pause = min(1.3 * self._pause, 0.2)
