"""The server's side of secure sums over Flower: three requests to the nodes of some devices."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from flwr.app import RecordDict

from fedzo.core.fixed_point import MOST_WEIGHT, grid_mean
from fedzo.core.types import Array
from fedzo.flower import protocol
from fedzo.flower.errors import Malformed, log
from fedzo.flower.protocol import SumReply, SumRequest
from fedzo.flower.registry import Exchange, Found, Requests
from fedzo.flower.secure import MOST_GROUPED, NAME, SumServer
from fedzo.flower.validation import clipped_sizes


class Summed(NamedTuple):
    """A sum over nodes: its numbers on the grid, the devices in it, and how many were clipped."""

    total: Array
    devices: tuple[int, ...] = ()
    weight: float = 0.0
    queries: int = 0
    clipped: int = 0
    step: float = 0.0  # of the grid of private differences; 0: coefficients or losses

    def mean(self, bound: float) -> Array:
        """Return the mean over the devices; noise on private differences has no bound."""
        if self.step:
            return np.asarray(self.total * (self.step / len(self.devices)))
        return grid_mean(self.total, self.weight, bound)


@dataclass
class _Group:
    """The nodes of one sum by name, their devices, and what they have sent."""

    server: SumServer
    homes: dict[bytes, tuple[int, list[int]]]
    masked: dict[bytes, SumReply] = field(default_factory=dict)
    revealed: dict[bytes, SumReply] = field(default_factory=dict)

    def enough(self, names: Iterable[bytes]) -> dict[int, list[int]]:
        """Return these nodes and their devices, if they are enough for a sum."""
        some = dict(self.homes[name] for name in names)
        return some if len(some) >= self.server.least else {}

    def result(self, bound: float, weights: Mapping[int, float] | None) -> Summed:
        """Return the sum; raise if it cannot be unmasked, or cannot be right."""
        replies = self.masked.values()
        masked = {name: reply.masked for name, reply in self.masked.items()}
        total = self.server.total(masked, {n: reply.shares for n, reply in self.revealed.items()})
        devices = tuple(sorted(device for reply in replies for device in reply.devices))
        weight = sum(1 if weights is None else weights[device] for device in devices)
        if devices and not weight:
            raise Malformed("its devices claim no samples")
        (step,) = {reply.step for reply in replies}
        queries = sum(reply.queries for reply in replies)
        found = Summed(total[:-1], devices, weight, queries, int(total[-1]), step)
        limit = np.inf if step or not devices else bound * (1 + 1e-6)
        right = 0 <= found.clipped <= len(devices) and 0 <= step < np.inf
        if not right or (limit < np.inf and np.linalg.norm(found.mean(bound)) > limit):
            raise Malformed("it is longer than the numbers of all devices can be: a node lies")
        return found


class SecureSums:
    """Asks the nodes of devices for the sum of their numbers: see :mod:`fedzo.flower.secure`.

    Every sum is one attempt, in groups of at most 14 nodes, so that what a node sends does not grow
    with their number. A node that drops out costs its devices. If more than a third of a group
    does, the sum of the group is lost, and its devices are dropped from the round.
    """

    def __init__(self, nodes: Requests) -> None:
        self._nodes, self._last = nodes, 0
        log.warning("secure sums: the server cannot validate the updates of single devices")

    def ask(
        self,
        exchange: Exchange,
        size: int,
        bound: float,
        weights: Mapping[int, float] | None = None,
        most: int = 0,
    ) -> Summed:
        """Return the sum over the devices that reply, of the numbers that a request asks for.

        A device has ``size`` numbers, and ``bound`` is theirs: a mean beyond it is not used. All
        weights are one by default. ``most`` is the largest number of queries that a device may
        report. Every device is in the sum, or dropped.
        """
        self._last = number = max(time.time_ns(), self._last + 1)
        before, wanted = len(self._nodes.dropped), self._light(exchange.devices, weights)
        groups = self._groups(wanted)
        of = {node: (group, name) for group in groups for name, (node, _) in group.homes.items()}

        def begin(node: int, own: list[int]) -> RecordDict:
            request = SumRequest(number, of[node][0].server.members)
            return protocol.with_sum(RecordDict(), request)

        def mask(node: int, own: list[int]) -> RecordDict:
            group, name = of[node]
            request = SumRequest(number, b"", *group.server.inbox(name), bound)
            return protocol.with_sum(exchange.write(node, own), request)

        def unmask(node: int, own: list[int]) -> RecordDict:
            group, _ = of[node]
            request = SumRequest(number, survivors=group.server.bits(group.masked))
            return protocol.with_sum(RecordDict(), request)

        everyone = [dict(group.homes.values()) for group in groups]
        for node, reply in self._exchange(protocol.SHARES, everyone, begin).items():
            group, name = of[node]
            group.server.shares[name] = reply.shares
        ready = [group.enough(group.server.present) for group in groups]
        for node, reply in self._exchange(exchange.kind, ready, mask, most).items():
            group, name = of[node]
            if len(reply.masked) == 8 * (size + 1):  # the last is the number of clipped devices
                group.masked[name] = reply
        masking, alive = len(self._nodes.dropped), [group.enough(group.masked) for group in groups]
        for node, reply in self._exchange(protocol.UNMASK, alive, unmask).items():
            group, name = of[node]
            group.revealed[name] = reply
        del self._nodes.dropped[masking:]  # their numbers are in the sum
        left = dict.fromkeys(wanted, "its node sent no shares or numbers that fit")
        found = list[Summed]()
        for group in groups:
            try:
                result = group.result(bound, weights)
                if found and result.step != found[0].step:
                    raise Malformed("the nodes use different grids")
                found.append(result)
            except (Malformed, ValueError) as error:
                lost = (device for _, own in group.homes.values() for device in own)
                left.update(dict.fromkeys(lost, f"no secure sum: {error}"))
        total = _joined(found) if found else Summed(np.zeros(0))
        done = {*total.devices, *(absent.device for absent in self._nodes.dropped[before:])}
        self._nodes.leave_out({i: why for i, why in left.items() if i not in done})
        return total

    def _light(self, devices: Sequence[int], weights: Mapping[int, float] | None) -> Sequence[int]:
        """Return the devices without those whose claims of samples make a sum too heavy.

        A claim cannot be clipped as in :mod:`fedzo.flower.validation`: the node multiplies by it.
        """
        own = {i: int(weights[i]) for i in devices if i in weights} if weights else {}
        if sum(own.values()) <= MOST_WEIGHT:
            return devices
        clipped = clipped_sizes(own, self._nodes.settings.clip or 5.0)
        heavy = [i for i in own if clipped[i] < own[i]]
        self._nodes.leave_out(dict.fromkeys(heavy, "it claims more samples than fit into a sum"))
        return [i for i in devices if i not in heavy]

    def _groups(self, devices: Iterable[int]) -> list[_Group]:
        """Return the nodes that take part, in groups, and drop the devices of all others."""
        key, wanted = self._nodes.registry.key, list(devices)
        homes = {node: own for node, own in self._nodes.ready(wanted).items() if key(node)}
        away = set(wanted) - {device for own in homes.values() for device in own}
        why = "not on a node that is connected and has [secure]"
        self._nodes.leave_out(dict.fromkeys(sorted(away), why))
        groups = grouped(sorted(homes, key=key))
        named = ({key(node)[:NAME]: (node, homes[node]) for node in group} for group in groups)
        return [_Group(SumServer(list(own)), own) for own in named]

    def _exchange(
        self,
        kind: str,
        groups: Iterable[dict[int, list[int]]],
        content: Callable[..., RecordDict],
        most: int = 0,
    ) -> dict[int, SumReply]:
        """Return the replies of the nodes to one request."""
        homes = {node: own for group in groups for node, own in group.items()}
        replies, node_of = dict[int, SumReply](), {i: n for n, own in homes.items() for i in own}

        def write(node: int, own: list[int]) -> RecordDict:
            if node in homes:
                return content(node, own)
            return protocol.with_sum(RecordDict(), SumRequest(0))  # it came later: it rejects this

        def read(content: RecordDict, asked: list[int]) -> Found:
            reply, failures = protocol.read_sum_reply(content, asked, most)
            replies[node_of[asked[0]]] = reply
            return {**dict.fromkeys(asked, reply), **failures}

        if homes:
            self._nodes.ask(Exchange(kind, sorted(node_of), write, read))
        return replies


def _joined(found: Sequence[Summed]) -> Summed:
    """Return the sum over all groups: whole numbers, so it does not depend on the groups."""
    totals, devices, weights, queries, clipped, steps = zip(*found, strict=True)
    everyone = tuple(sorted(device for own in devices for device in own))
    total = np.sum(totals, axis=0)
    return Summed(total, everyone, sum(weights), sum(queries), sum(clipped), steps[0])


def grouped(nodes: Sequence[int]) -> list[list[int]]:
    """Return nodes in groups of equal size: one, or of 7 to 14 nodes each.

    >>> [len(group) for group in grouped(range(14))], [len(group) for group in grouped(range(45))]
    ([14], [11, 11, 11, 12])
    """
    count = -(-len(nodes) // MOST_GROUPED)
    cuts = [i * len(nodes) // count for i in range(count + 1)] if count else []
    return [list(nodes[a:b]) for a, b in pairwise(cuts)]
