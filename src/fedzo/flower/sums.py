"""The server's side of secure sums over Flower: three requests to the nodes of some devices."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from flwr.app import RecordDict

from fedzo.core.fixed_point import grid_mean
from fedzo.core.types import Array
from fedzo.flower import protocol
from fedzo.flower.errors import Malformed, log
from fedzo.flower.protocol import SumReply, SumRequest
from fedzo.flower.registry import Exchange, Found, Requests
from fedzo.flower.secure import NAME, SumServer


class Summed(NamedTuple):
    """A sum over nodes: its mean, the devices in it, their queries, and how many were clipped."""

    mean: Array
    devices: tuple[int, ...] = ()
    queries: int = 0
    clipped: int = 0
    private: bool = False  # differences of losses, in place of coefficients


class SecureSums:
    """Asks the nodes of devices for the sum of their numbers: see :mod:`fedzo.flower.secure`.

    Every sum is one attempt. A node that drops out of it costs its devices; if more than a third
    does, the sum is lost, and all devices are dropped from the round.
    """

    def __init__(self, nodes: Requests) -> None:
        self._nodes, self._last = nodes, 0
        log.warning("secure sums: the server cannot validate the updates of single devices")

    def ask(
        self,
        exchange: Exchange,
        bound: float,
        weights: Mapping[int, float] | None = None,
    ) -> Summed:
        """Return the mean over the devices that reply, of the numbers that a request asks for.

        ``bound`` is that of the numbers of a device: a mean beyond it is not used. All weights are
        one by default.
        """
        self._last = number = max(time.time_ns(), self._last + 1)
        homes, before = self._homes(exchange.devices), len(self._nodes.dropped)
        asked = [device for own in homes.values() for device in own]
        names = {node: self._nodes.registry.key(node)[:NAME] for node in homes}
        server = SumServer(sorted(names.values()))
        begin = SumRequest(number, server.members)
        first = self._exchange(
            protocol.SHARES, homes, lambda *_: protocol.with_sum(RecordDict(), begin)
        )
        server.shares = {names[node]: reply.shares for node, reply in first.items()}
        homes = {node: own for node, own in homes.items() if names[node] in server.present}

        def to_mask(node: int, own: list[int]) -> RecordDict:
            inbox = server.inbox(names[node]) if node in homes else (b"", b"")
            request = SumRequest(number, b"", *inbox, bound)
            return protocol.with_sum(exchange.write(node, own), request)

        enough = len(homes) >= server.least
        second = self._exchange(exchange.kind, homes, to_mask) if enough else dict[int, SumReply]()
        homes = {node: own for node, own in homes.items() if node in second}
        masked = {names[node]: reply.masked for node, reply in second.items()}
        end = SumRequest(number, survivors=server.bits(masked))
        masking, third = len(self._nodes.dropped), dict[int, SumReply]()
        if homes and len(masked) >= server.least:
            third = self._exchange(
                protocol.UNMASK, homes, lambda *_: protocol.with_sum(RecordDict(), end)
            )
            del self._nodes.dropped[masking:]  # their numbers are in the sum
        counted = sorted(device for reply in second.values() for device in reply.devices)
        weight = sum(1 if weights is None else weights[device] for device in counted)
        try:
            total = server.total(masked, {names[node]: own.shares for node, own in third.items()})
            clipped, empty = int(total[-1]), not counted
            mean = total[:-1] if empty else grid_mean(total[:-1], weight, bound)
            (step,) = {reply.step for reply in second.values()}
            if step and not empty:  # noise has no bound
                mean = total[:-1] * (step / len(counted))
            long = not step and np.linalg.norm(mean) > bound * (1 + 1e-6)
            if long or not (0 <= clipped <= len(counted) and 0 <= step < np.inf):
                raise Malformed("it is longer than the numbers of all devices can be: a node lies")
        except (Malformed, ValueError) as error:  # or the nodes use different grids
            known = {absent.device for absent in self._nodes.dropped[before:]}
            lost = [device for device in asked if device not in known]
            self._nodes.leave_out(dict.fromkeys(lost, f"no secure sum: {error}"))
            return Summed(np.zeros(0))
        queries = sum(reply.queries for reply in second.values())
        return Summed(mean, tuple(counted), queries, clipped, step > 0)

    def _homes(self, devices: Iterable[int]) -> dict[int, list[int]]:
        """Return the nodes that take part, and drop the devices of all others."""
        key, wanted = self._nodes.registry.key, list(devices)
        homes = {node: own for node, own in self._nodes.ready(wanted).items() if key(node)}
        away = set(wanted) - {device for own in homes.values() for device in own}
        why = "not on a node that is connected and has [secure]"
        self._nodes.leave_out(dict.fromkeys(sorted(away), why))
        return homes

    def _exchange(
        self, kind: str, homes: dict[int, list[int]], content: Callable[..., RecordDict]
    ) -> dict[int, SumReply]:
        """Return the replies of the nodes to one request."""
        replies, node_of = dict[int, SumReply](), {i: n for n, own in homes.items() for i in own}

        def read(content: RecordDict, asked: list[int]) -> Found:
            reply, failures = protocol.read_sum_reply(content, asked)
            replies[node_of[asked[0]]] = reply
            return {**dict.fromkeys(asked, reply), **failures}

        self._nodes.ask(Exchange(kind, sorted(node_of), content, read))
        return replies
