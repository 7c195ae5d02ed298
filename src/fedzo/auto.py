r"""``learning_rate = "auto"`` and ``smoothing = "auto"``: for a problem nobody has tried yet.

**Smoothing** is the corollaries': :math:`\mu = (d\, b_1 b_2 M H T)^{-1/4}` (see
:func:`fedzo.theory.corollary`). It asks for no queries.

**The learning rate.** The corollaries' η supposes a curvature of about 1, whatever the units;
with measured constants the theorems' limit is safe for the worst case and far too timid
otherwise (see ``docs/theory.md``). So the rate is measured. A round's worth of estimates at x⁰,
none of which moves x, gives the very direction D that a round would take with η = 1, noise
and all. Along it f is looked at, on other devices and other batches: at a distance of μ
first, then twice as far while f falls, or half as far until it does. The parabola
through the start and the two last points is lowest at the rate η* that is best for one
round. **Half of it** is taken: a single round does not see what noise adds up to over many.
A function in other units, c f for f, gets the rate η/c, and so the same run.

All draws are addressed by rounds that no run gets to. The same seed chooses the same numbers,
and they are what ``config.toml`` of a run holds.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.fedzo import FedZO, LocalSteps
from fedzo.budget import Meter
from fedzo.errors import BudgetSpent, NonFinite, UsageError
from fedzo.federation import LocalFederation, Update
from fedzo.folder import RunFolder
from fedzo.objective import Objective
from fedzo.random import Draws, Stream
from fedzo.theory.advice import corollary
from fedzo.theory.bounds import Setting
from fedzo.uplink.base import Mean, sample_uniformly

Array = NDArray[Any]

_ROUND = (1 << 32) - (1 << 16)  # the first round of the probe: no run gets to it
_DEVICES = (5, 20)  # at least and at most so many are looked at along the line, if there are
_LOOKS = 32  # at most so often: 2^32 μ is far enough
_FLAT = "learning_rate = 'auto': the loss does not fall along its estimated gradient at x0"


class Chosen(NamedTuple):
    """An algorithm without "auto" in it, and how many queries that took."""

    algorithm: Any
    queries: int


def settled(
    algorithm: Any,
    objective: Objective,
    x0: Array,
    *,
    rounds: int,
    seed: int,
    workers: int | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Chosen:
    """Return the algorithm with numbers in place of "auto", if it has any.

    Of a run that has begun in the folder, they are those that its ``config.toml`` holds.
    """
    if not (isinstance(algorithm, FedZO) and algorithm.automatic):
        return Chosen(algorithm, 0)
    if folder is not None and os.path.exists(config := RunFolder(folder).config):
        known = tomllib.loads(config.read_text(encoding="utf-8")).get("algorithm", {})
        keys = [key for key in ("learning_rate", "smoothing") if getattr(algorithm, key) == "auto"]
        if all(isinstance(known.get(key), float) for key in keys):
            return Chosen(replace(algorithm, **{key: known[key] for key in keys}), 0)
    with LocalFederation(objective, seed, workers) as federation:
        return choose(algorithm, federation, x0, rounds)


def choose(algorithm: FedZO, federation: LocalFederation, x0: Array, rounds: int) -> Chosen:
    """Return the algorithm with numbers in place of "auto".

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems.quadratic import Quadratic
    >>> problem = Quadratic(dim=20, devices=5, smoothness=4.0)
    >>> algorithm = FedZO(learning_rate="auto", smoothing="auto", directions=5, local_steps=2)
    >>> with LocalFederation(problem, seed=0) as federation:
    ...     chosen = choose(algorithm, federation, np.zeros(20), rounds=100)
    >>> bool(0.01 < chosen.algorithm.learning_rate < 0.25), chosen.queries
    (True, ...)
    """
    setting = Setting(
        devices=federation.devices,
        dim=federation.dim,
        rounds=max(rounds, 1),
        participants=algorithm.participants,
        batch_size=algorithm.batch_size,
        directions=algorithm.directions,
        local_steps=algorithm.local_steps,
    )
    in_theory = corollary(setting)
    if algorithm.smoothing == "auto":
        algorithm = replace(algorithm, smoothing=in_theory.smoothing)
    if algorithm.learning_rate != "auto":
        return Chosen(algorithm, 0)
    meter = federation.meter or Meter()
    before = meter.queries
    try:
        return _measured(algorithm, federation, x0)
    except BudgetSpent:
        # The run finds it spent as well, before its first step, and ends in order.
        algorithm = replace(algorithm, learning_rate=in_theory.learning_rate)
        return Chosen(algorithm, meter.queries - before)


def _measured(algorithm: FedZO, federation: LocalFederation, x0: Array) -> Chosen:
    """Return the algorithm with the rate that a probe finds."""
    try:
        probe = _Probe(algorithm, federation, x0)
    except NonFinite as error:
        raise UsageError("learning_rate = 'auto': the loss is not finite near x0") from error
    length = float(np.linalg.norm(probe.direction))
    if length == 0:
        raise UsageError(_FLAT)
    best = _lowest(probe.look, algorithm.estimator.smoothing / length)
    return Chosen(replace(algorithm, learning_rate=best / 2), probe.queries)


class _Probe:
    """A line from x0 along which a round would go, and f on it."""

    def __init__(self, algorithm: FedZO, federation: LocalFederation, x0: Array) -> None:
        self.federation, self.x0, self.queries = federation, x0, 0
        self.batch_size = algorithm.batch_size
        total = np.zeros(federation.dim)
        for k in range(algorithm.local_steps):
            t = _ROUND + k
            work = LocalSteps(
                algorithm.estimator, 1.0, algorithm.batch_size, x0, t, federation.seed
            )
            mean = Mean(federation.dim)
            devices = sample_uniformly(_ROUND, algorithm.participants, federation)
            updates = federation.map(work, devices)
            for update in updates:
                mean.add(update)
            self.queries += updates.queries
            total += mean.value()
        self.direction = total.astype(x0.dtype)
        # A look costs an eighth of a round, within limits.
        share = self.queries // (8 * algorithm.batch_size)
        count = min(max(share, _DEVICES[0]), _DEVICES[1], federation.devices)
        self.devices = sample_uniformly(_ROUND + 1, count, federation)

    def look(self, steps: list[float]) -> Array:
        """Return f at steps along the line, on the same devices and batches each time."""
        points = self.x0 + np.array(steps)[:, None].astype(self.x0.dtype) * self.direction
        seed, size = self.federation.seed, self.batch_size

        def work(objective: Objective, device: int) -> Update:
            at = Draws(seed, Stream.BATCHES, _ROUND - 1, device)
            values = objective.values(points, objective.batch(device, size, at))
            return Update(device, np.asarray(values, np.float64).mean(axis=1), 1, values.size)

        mean = Mean(len(steps))
        updates = self.federation.map(work, self.devices)
        for update in updates:
            mean.add(update)
        self.queries += updates.queries
        return mean.value()


def _lowest(look: Callable[[list[float]], Array], guess: float) -> float:
    """Return about where f is lowest on a line on which it falls at first.

    >>> round(_lowest(lambda steps: np.array([(s - 3.0) ** 2 for s in steps]), 0.01), 9)
    3.0
    """
    start, near = look([0.0, guess])
    if not math.isfinite(start):
        raise UsageError("learning_rate = 'auto': the loss is not finite at x0")
    step, lowest = guess, near
    if near < start:  # go on until it rises
        for _ in range(_LOOKS):
            (far,) = look([2 * step])
            if not far < lowest:
                return _vertex(start, step, lowest, far)
            step, lowest = 2 * step, far
        return step
    for _ in range(_LOOKS):  # come back until it is lower
        far, step = lowest, step / 2
        (lowest,) = look([step])
        if lowest < start:
            return _vertex(start, step, lowest, far)
    raise UsageError(_FLAT)


def _vertex(start: float, step: float, lowest: float, far: float) -> float:
    """Return where the parabola through 0, step and 2 step is lowest; step where none fits."""
    if not math.isfinite(far):
        return step / 2
    down, up = lowest - start, far - start  # = a s² + b s at s = 1 and 2 steps
    a, b = (up - 2 * down) / 2, (4 * down - up) / 2
    return float(step * min(max(-b / (2 * a), 0.5), 2.0)) if a > 0 else step
