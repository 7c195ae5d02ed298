"""How much a node lets itself be asked, whatever a message says: checked before any of it is done.

The defaults are on without anybody asking for them. They are wide enough for the examples, and
finite: a message cannot have a node compute for weeks, or fill its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedzo.core.objective import Objective, meter_of
from fedzo.core.tasks import Evaluate, LocalSteps, Slopes, Task
from fedzo.errors import check_counts
from fedzo.flower.ledger import Spent
from fedzo.flower.reasons import Reason, Refused
from fedzo.problems import FunctionObjective


@dataclass(frozen=True)
class Limits:
    """The ``[limits]`` of a node.

    Parameters
    ----------
    queries_per_run, queries_per_day, queries : int
        Values F_i(x, ξ) that may be asked for in one run, in one day (UTC) and in all,
        evaluations included; kept in the node's ledger.
    local_steps, directions, batch_size : int
        H, b2 and b1 of a message, at most. Points that are only evaluated count as directions,
        and so do those of a fixed set.
    devices : int
        How many devices a message may be about, each of them once.
    dim : int
        The largest dimension.
    memory : int
        Bytes that a message may take: what its numbers say is refused beforehand, and on Linux
        no more is given to whatever else the problem needs.
    seconds : int
        How long a message may be worked on; devices that are not done by then are left out.
    records : int
        A device with fewer records than this answers nothing, nor does anybody about a batch of
        fewer.

    Examples
    --------
    >>> Limits(local_steps=0)
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: local_steps = 0: must be a whole number >= 1
    """

    queries_per_run: int = 10**9
    queries_per_day: int = 10**9
    queries: int = 10**12
    local_steps: int = 1000
    directions: int = 10_000
    batch_size: int = 10_000
    devices: int = 10_000
    dim: int = 10**9
    memory: int = 4 * 2**30
    seconds: int = 3600
    records: int = 1

    def __post_init__(self) -> None:
        check_counts(self, *(field.name for field in fields(self)))

    def of_queries(self, objective: Objective) -> Spent:
        """Return the limits of queries; a problem's own ``max_queries`` is one of all runs."""
        meter = meter_of(objective)
        own = None if meter is None else meter.max_queries
        return Spent(
            self.queries_per_run,
            self.queries_per_day,
            self.queries if own is None else min(own, self.queries),
        )

    def check_devices(self, devices: Sequence[int]) -> None:
        """Refuse too many devices, and one that is listed twice."""
        if len(devices) > self.devices:
            raise Refused(Reason.DEVICES, f"{len(devices)} devices, more than {self.devices}")
        if len(set(devices)) < len(devices):
            raise Refused(Reason.DEVICES, "a device is listed twice")

    def check_dimension(self, x: Any, objective: Objective) -> None:
        """Refuse a model of another dimension than the problem's, and one that is too large."""
        if x.shape[-1] != objective.dim or objective.dim > self.dim:
            text = f"x has {x.shape[-1]} numbers, the problem {objective.dim}, the limit {self.dim}"
            raise Refused(Reason.DIMENSION, text)

    def check_start(self, task: Task, objective: Objective) -> None:
        """Refuse a task that starts at, or asks about, points of another dimension."""
        self.check_dimension(where_of(task), objective)

    def check_work(self, task: Task) -> None:
        """Refuse a task that is too much for one message, by its numbers alone."""
        steps, directions, batch = numbers_of(task)
        x = where_of(task)
        memory = directions * (x.shape[-1] * x.itemsize + batch * 8)
        fixed = task.algorithm.fixed_directions or 0 if isinstance(task, LocalSteps) else 0
        for reason, value, limit in (
            (Reason.STEPS, steps, self.local_steps),
            (Reason.DIRECTIONS, directions, self.directions),
            (Reason.DIRECTIONS, fixed, self.directions),
            (Reason.BATCH, batch, self.batch_size),
            (Reason.MEMORY, memory, self.memory),
        ):
            if value > limit:
                raise Refused(reason, f"{reason.value} = {value}, more than {limit}")

    def check_records(self, records: int, whose: str) -> None:
        """Refuse to answer about too few records."""
        if records < self.records:
            raise Refused(Reason.RECORDS, f"{whose} has {records} records, not {self.records}")


def where_of(task: Task) -> Any:
    """Return the point or points that a task is about."""
    if isinstance(task, Evaluate):
        return task.points
    assert isinstance(task, LocalSteps | Slopes)
    return task.x


def numbers_of(task: Task) -> tuple[int, int, int]:
    """Return H, b2 and b1 of a task: one of each where it has none.

    >>> import numpy as np
    >>> from fedzo import FedAvg, FedZO
    >>> x = np.zeros(3)
    >>> numbers_of(LocalSteps(FedZO(), x)), numbers_of(LocalSteps(FedAvg(), x))
    ((5, 20, 25), (5, 1, 25))
    """
    if isinstance(task, Evaluate | Slopes):
        return 1, task.queries(1), task.batch_size
    assert isinstance(task, LocalSteps)
    algorithm = task.algorithm
    return (
        int(getattr(algorithm, "local_steps", 1)),
        int(getattr(algorithm, "directions", 1)),
        int(getattr(algorithm, "batch_size", 1)),
    )


def queries_of(task: Task, objective: Objective, device: int) -> int:
    """Return how many values a device's reply to a task takes at most.

    >>> import numpy as np
    >>> from fedzo import FedZO
    >>> from fedzo.problems import Quadratic
    >>> task = LocalSteps(FedZO(), np.zeros(3))
    >>> queries_of(task, Quadratic(dim=3, devices=2), 0)  # 5 steps x (20 + 1) points x 25 samples
    2625
    """
    steps, points, batch = numbers_of(task)
    if isinstance(task, LocalSteps):
        estimator = getattr(task.algorithm, "estimator", None)
        points = points if estimator is None else len(estimator.stencil[0])
    if isinstance(objective, FunctionObjective):  # a batch of it is one call, whatever b1 is
        batch = 1 + objective.retries
    return steps * points * batch


def evaluation_queries(objective: Objective, device: int) -> int:
    """Return how many values an evaluation of one device takes at most."""
    retries = objective.retries if isinstance(objective, FunctionObjective) else 0
    return objective.size(device) * (1 + retries)
