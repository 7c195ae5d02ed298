"""What one message may cost its node: charged before it is asked, and ended when its time is over.

Every message that asks for values goes through :meth:`Gate.answer`, whatever its type: its queries
and its private answers are reserved in the node's ledger first, and it is given so many seconds and
so much memory.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedzo.core.capabilities import OwnThreads
from fedzo.core.engine import LocalEngine
from fedzo.core.machine import cores
from fedzo.core.objective import Objective, meter_of
from fedzo.flower.node import Node
from fedzo.flower.privacy import Private
from fedzo.flower.reasons import Reason, Refused

Ask = Callable[[Objective, int], Any]

OVERHEAD = 2**28  # bytes that Python and its threads may take besides what a message does


@dataclass(frozen=True)
class Cost:
    """What a device's part of a message takes at most.

    ``queries`` are values F_i(x, ξ); ``answers`` are what differential privacy counts: steps and
    evaluated losses.
    """

    queries: int
    answers: int


@dataclass(frozen=True)
class Gate:
    """One message on its way through a node.

    Parameters
    ----------
    node : Node
        Whose limits, ledger and privacy they are.
    run : str
        Which run the message is of.
    guarded : bool
        Whether limits are kept at all: in a simulation, node and server are the same person.
    """

    node: Node
    run: str
    guarded: bool = True

    def answer(
        self, objective: Objective, devices: Sequence[int], costs: Mapping[int, Cost], ask: Ask
    ) -> Found:
        """Ask each device, a few at a time; return what was found, and who failed.

        ``costs`` says what the devices that live here take; others are left to ``ask``.
        """
        if self.node.privacy is not None:
            answers = {device: cost.answers for device, cost in costs.items()}
            self.node.ledger.reserve_answers(answers, self.node.privacy)
            objective = Private(objective, self.node.privacy, answers)
        found = Found()
        limits = self.node.limits
        with (
            self._charged(objective, costs, found),
            _memory(limits.memory if self.guarded else None),
            LocalEngine(objective, seed=0, workers=1),  # keeps BLAS to one thread
        ):
            found.fill(objective, devices, ask, limits.seconds if self.guarded else None)
        return found

    @contextmanager
    def _charged(
        self, objective: Objective, costs: Mapping[int, Cost], found: Found
    ) -> Iterator[None]:
        """Charge queries before they are asked, and settle it afterwards.

        What was asked is what the problem's own meter says, if it has one, else what the answers
        say, else all that was reserved.
        """
        if not self.guarded:
            yield
            return
        most = sum(cost.queries for cost in costs.values())
        self.node.ledger.reserve(self.run, most, self.node.limits.of_queries(objective))
        meter = meter_of(objective)
        before = 0 if meter is None else meter.queries
        yield  # where it raises, or the process is killed, all of it stays charged
        if meter is None:
            asked = sum(found.queries(i, cost.queries) for i, cost in costs.items())
        else:
            asked = meter.queries - before
            if found.late:  # somebody may still be asking
                asked = max(asked, most)
        if asked != most:
            self.node.ledger.settle(self.run, asked - most)


@contextmanager
def _memory(limit: int | None) -> Iterator[None]:
    """Let this process take so many bytes more than it has, where the system can see to it.

    What a problem takes for its values is its own business, and cannot be told beforehand.
    """
    if limit is None or sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    allowed = 1024 * kilobytes + OVERHEAD + limit
    most = min(n for n in (allowed, *before) if n != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class Found:
    """What the devices of one message have come to, also if it is cut short."""

    def __init__(self) -> None:
        self.answers: dict[int, Any] = {}
        self.failures: dict[int, BaseException] = {}
        self.late = False

    def fill(
        self, objective: Objective, devices: Sequence[int], ask: Ask, seconds: float | None
    ) -> None:
        """Ask the devices on several threads, for so many seconds at most.

        The threads are daemons: a call that hangs cannot be interrupted, but it ends with its
        process, which ends when the message is answered.
        """
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        waiting, lock = list(reversed(devices)), threading.Lock()
        answers, failures = self.answers, self.failures

        def work() -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # a run's loop says it in words
                while True:
                    with lock:
                        if not waiting or time.monotonic() > deadline:
                            return
                        device = waiting.pop()
                    try:
                        answers[device] = ask(objective, device)
                    except BaseException as error:  # SystemExit, too: it may say anything
                        failures[device] = error

        count = 1 if objective.capability(OwnThreads) is not None else min(cores(), len(devices))
        threads = [threading.Thread(target=work, name="fedzo", daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            left = deadline - time.monotonic()
            thread.join(None if seconds is None else max(left, 0.0))
        # From here on nobody else's answer counts: it may come while the reply is written.
        self.answers, self.failures = dict(answers), dict(failures)
        for device in devices:
            if device not in self.answers and device not in self.failures:
                self.late = True
                self.failures[device] = Refused(Reason.SECONDS)

    def queries(self, device: int, most: int) -> int:
        """Return how many values a device has asked for; all that it might have, if unknown."""
        return int(getattr(self.answers.get(device), "queries", most))
