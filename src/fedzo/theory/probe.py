"""Values along directions, counted, and how a budget of them is spent."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.errors import InvalidValue

Array = NDArray[Any]

_ROUND = (1 << 32) - 1  # draws are addressed by rounds that no run gets to
_NUMBERS = 1 << 25  # in all directions of a measurement: memory is a few times that
HALVINGS = 10  # of a step that does not lower the loss


class Plan(NamedTuple):
    """How a budget of queries is spent."""

    points: int
    repeats: int
    devices: int
    directions: int
    samples: int

    @property
    def cost(self) -> int:
        """How many values the slopes and the moves between the points take at most."""
        batches = self.devices * self.samples
        slopes = self.points * self.repeats * batches * (2 * self.directions + 1)
        return slopes + (self.points - 1) * batches * (3 + HALVINGS)


def plan_for(objective: Objective, queries: int, evaluations: int) -> Plan:
    """Spend what the evaluations leave: three quarters on slopes, the rest on L."""
    budget = 3 * (queries - evaluations) // 4
    directions = min(32, objective.dim, max(2, _NUMBERS // objective.dim))
    plan = Plan(4, 8, min(20, objective.devices), directions, 8)
    cuts = {"samples": 4, "directions": 8, "devices": 5, "points": 2}
    for floors in (cuts, {"samples": 2, "directions": 2, "devices": 2}):
        for key, floor in floors.items():
            while plan.cost > budget and getattr(plan, key) > floor:
                plan = plan._replace(**{key: max(floor, getattr(plan, key) // 2)})
    if plan.cost > budget:
        raise InvalidValue("queries", queries, f"at least {evaluations + 4 * plan.cost // 3 + 1}")
    while plan.repeats < 32 and plan._replace(repeats=plan.repeats + 2).cost <= budget:
        plan = plan._replace(repeats=plan.repeats + 2)  # two halves, of the same size
    return plan


class Probe:
    """Asks an objective for values along directions, and counts them."""

    def __init__(self, objective: Any, step: float, plan: Plan, seed: int) -> None:
        self.objective, self.step, self.plan, self.seed = objective, step, plan, seed
        self.devices = self.at(Stream.PARTICIPANTS).subset(objective.devices, plan.devices)
        self.queries = 0

    def at(self, stream: Stream, point: int = 0, device: int = 0, step: int = 0) -> Draws:
        """Return the draws of one purpose and place."""
        return Draws(self.seed, stream, _ROUND - point, device, step)

    def batch(self, point: int, device: int, repeat: int, size: int | None = None) -> Any:
        """Return a batch of a device, the same whenever it is asked for."""
        draws = self.at(Stream.BATCHES, point, device, repeat)
        return self.objective.batch(device, size or self.plan.samples, draws)

    def values(self, x: Array, directions: Array, steps: Array, batch: Any) -> Array:
        """Return the values at x + steps[k] directions[k], (k, b), counted."""
        rows = np.arange(len(steps))
        values = self.objective.values_along(x, directions, rows, steps, batch)
        self.queries += values.size
        return np.asarray(values, np.float64)

    def differences(self, x: Array, directions: Array, batch: Any) -> tuple[Array, Array, Array]:
        """Return F(x, ξ), and first and second derivatives along the directions, (k, b)."""
        count, h = len(directions), self.step
        steps = np.repeat([0.0, h, -h], [1, count, count])
        points = np.concatenate((directions[:1], directions, directions))
        values = self.values(x, points, steps, batch)
        base, plus, minus = values[0], values[1 : 1 + count], values[1 + count :]
        return base, (plus - minus) / (2 * h), (plus + minus - 2 * base) / h**2
