r"""``learning_rate = "auto"`` and ``smoothing = "auto"``: for a problem nobody has tried yet.

**Smoothing** is what the problem says suits it (an attack within a budget does), or else the
corollaries': :math:`\mu = (d\, b_1 b_2 M H T)^{-1/4}` (see :func:`fedzo.theory.corollary`), or four
times that, and so on, until the differences along a few directions are eight times the noise of the
values. It supposes that f changes over lengths of about 1. Where
the rate is measured too, and a round would best go less far than μ, or f does not fall at
all, x has smaller units: the measurement is made again with a sixteenth of that length, or of
μ, and again, as long as f falls further for it and the noise does not hide the differences.

**The learning rate.** The corollaries' η supposes a curvature of about 1, whatever the units;
with measured constants the theorems' limit is safe for the worst case and far too timid
otherwise (see ``docs/theory.md``). So the rate is measured. A round's worth of estimates at x⁰,
none of which moves x, gives the very direction D that a round would take with η = 1, noise
and all. Along it f is looked at, on other devices and other batches: at a distance of μ
first, then twice as far while f falls, or half as far until it does. The parabola
through the start and the two last points is lowest at the rate η* that is best for one
round. **Half of it** is taken: a single round does not see what noise adds up to over many.
If f does not fall at all, as at a minimum or on the steps of an accuracy, a round that is like
the measured one goes half of μ far.
A function in other units, c f for f, gets the rate η/c, and so the same run.

A problem may know how far a round should go at least, and say so by its ``min_move``: then the rate
is no less than that over the length of D. An attack does: its loss is often lowest close
to x⁰ on any line, and low only where a line from x⁰ does not lead.

All draws are addressed by rounds that no run gets to. The same seed chooses the same numbers. They
are those that a run begins with: see :class:`fedzo.algorithms.automatic.Automatic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.algorithms.automatic import Automatic
from fedzo.algorithms.fedzo import FedZO
from fedzo.core.budget import Meter
from fedzo.core.capabilities import AutoHints
from fedzo.core.federation import LocalFederation
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.core.work import Update, Work
from fedzo.errors import BudgetSpent, NonFinite, UsageError
from fedzo.runs.options import MOST_ROUNDS
from fedzo.theory.advice import corollary
from fedzo.theory.bounds import Setting
from fedzo.uplinks.base import Mean, sample_uniformly

Array = NDArray[Any]

_ROUND = MOST_ROUNDS  # the first round of the probe: no run gets to it
_DEVICES = (5, 20)  # at least and at most so many are looked at along the line, if there are
_LOOKS = 32  # at most so often: 2^32 μ is far enough
_BACK = 8  # at most so often: at μ / 256 the differences that gave the direction say nothing
_TRIES = 5  # at most so many measurements: they get to a millionth of the first μ
_ABOVE = 8.0  # a difference stands out if it is so many times the noise
_GROWTH = 8  # at most so often does μ grow by four to get there
_FLAT = (
    "learning_rate = 'auto': the loss is the same all around x0; "
    "take another x0, a larger smoothing, or a number"
)


class Chosen(NamedTuple):
    """An algorithm without "auto" in it, and how many queries that took."""

    algorithm: Any
    queries: int


def stand_in(algorithm: FedZO) -> FedZO:
    """Return the algorithm with any numbers in place of "auto", until those are known.

    >>> stand_in(FedZO(learning_rate="auto", smoothing=0.1)).learning_rate
    1.0
    """
    numbers: dict[str, Any] = {
        k: 1.0 for k in ("learning_rate", "smoothing") if getattr(algorithm, k) == "auto"
    }
    return replace(algorithm, **numbers)


def automatic(algorithm: FedZO, chosen: FedZO, objective: Objective) -> Automatic:
    """Return what is run in place of an algorithm with "auto" in it.

    The rate is adapted where it was not the user's own, and where the problem does not know
    itself how far a round should go.
    """
    adapts = algorithm.learning_rate == "auto" and objective.capability(AutoHints) is None
    return Automatic(fedzo=chosen, adapts=adapts)


def choose(algorithm: FedZO, federation: LocalFederation, x0: Array, rounds: int) -> Chosen:
    """Return the algorithm with numbers in place of "auto".

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems import Quadratic
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
    in_theory, least, queries = corollary(setting), math.inf, 0
    meter = federation.meter or Meter()
    before = meter.queries
    try:
        if algorithm.smoothing == "auto":
            at = Draws(federation.seed, Stream.DIRECTIONS, _ROUND)
            hints = federation.objective.capability(AutoHints)
            known = None if hints is None else hints.suggest_smoothing(at)
            algorithm = replace(algorithm, smoothing="auto" if known is None else known)
            queries = meter.queries - before
        if algorithm.smoothing == "auto":
            algorithm = replace(algorithm, smoothing=in_theory.smoothing)
            smoothing, least, queries = _visible(algorithm, federation, x0)
            algorithm = replace(algorithm, smoothing=smoothing)
        if algorithm.learning_rate != "auto":
            return Chosen(algorithm, queries)
        chosen = _measured(algorithm, federation, x0, least)
        asked = queries + chosen.queries if federation.meter is None else meter.queries - before
        return chosen._replace(queries=asked)
    except BudgetSpent:
        # The run finds it spent as well, before its first step, and ends in order.
        numbers: dict[str, Any] = {
            "smoothing": in_theory.smoothing,
            "learning_rate": in_theory.learning_rate,
        }
        given = {k: v for k, v in numbers.items() if getattr(algorithm, k) == "auto"}
        algorithm = replace(algorithm, **given)
        return Chosen(algorithm, meter.queries - before)
    except NonFinite as error:
        raise UsageError("learning_rate = 'auto': the loss is not finite near x0") from error


def _visible(algorithm: FedZO, federation: LocalFederation, x0: Array) -> tuple[float, float, int]:
    """Return μ, the least μ whose differences stand out of the noise, and the queries it took.

    Two values at x0 with the same ξ tell the noise, and the type of the values their precision.
    μ grows by factors of four until the differences along a few directions are well above both.
    """
    smoothing, queries = algorithm.estimator.smoothing, 0
    devices = sample_uniformly(_ROUND + 1, min(_DEVICES[0], federation.devices), federation)
    for _ in range(_GROWTH):
        difference, noise, asked = _difference(algorithm, smoothing, federation, x0, devices)
        queries += asked
        if not difference or not math.isfinite(difference):  # flat, or too far: nothing is learnt
            return algorithm.estimator.smoothing, 0.0, queries
        if difference >= _ABOVE * noise:
            return smoothing, smoothing * _ABOVE * noise / difference, queries
        smoothing *= 4
    return smoothing, smoothing, queries


def _difference(
    algorithm: FedZO, smoothing: float, federation: LocalFederation, x0: Array, devices: Array
) -> tuple[float, float, int]:
    """Return the root mean square of differences over μ and of the noise in them; and queries."""
    count = min(algorithm.directions, _DEVICES[0])
    estimator, seed = algorithm.estimator, federation.seed

    def work(objective: Objective, device: int) -> Update:
        at = Draws(seed, Stream.DIRECTIONS, _ROUND - 2, device)
        frame = replace(estimator, directions=count).frame(x0.size, x0.dtype)
        frame.draw(estimator.address(at))
        steps = (smoothing * frame.scales[:, None]).astype(x0.dtype)
        points = np.concatenate([np.stack([x0, x0]), x0 + steps * frame.rows])
        batch = objective.batch(device, algorithm.batch_size, at.on(Stream.BATCHES))
        values = np.asarray(objective.values(points, batch))
        precision = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
        means = np.asarray(values, np.float64).mean(axis=1)
        noise = max((means[0] - means[1]) ** 2, 2 * (precision * means[0]) ** 2)
        found = np.array([np.mean((means[2:] - means[0]) ** 2), noise])
        return Update(device=device, delta=found, weight=1, queries=values.size)

    updates = federation.map(work, devices)
    found = [update.delta for update in updates]
    difference, noise = np.sqrt(np.mean(found, axis=0)) if found else (0.0, 0.0)
    return float(difference), float(noise), updates.queries


def _measured(algorithm: FedZO, federation: LocalFederation, x0: Array, least: float) -> Chosen:
    """Return the algorithm with a measured rate, and with a smaller μ where x has smaller units.

    ``least`` is what μ may not fall below.
    """
    found, careful, lowest, queries = None, None, 0.0, 0
    for _ in range(_TRIES):
        probe, smoothing = _Probe(algorithm, federation, x0), algorithm.estimator.smoothing
        length = float(np.linalg.norm(probe.direction))
        if not length:  # no two values differ
            break
        low = _lowest(probe.look, smoothing / length)
        queries += probe.queries
        if low is not None and low.change < lowest:
            found, lowest = replace(algorithm, learning_rate=low.step / 2), low.change
        elif found is not None:  # the μ before was better
            break
        else:  # nothing falls: to go half of μ far in a round does little harm
            careful = replace(algorithm, learning_rate=smoothing / length / 2)
        reach = smoothing if low is None else low.step * length
        if low is not None and reach > smoothing:  # μ is small beside what a round does
            break
        if reach / 16 < least:
            break
        algorithm = replace(algorithm, smoothing=reach / 16)
    found = found or careful
    if found is None:
        raise UsageError(_FLAT)
    if (hints := federation.objective.capability(AutoHints)) is not None:
        found = replace(found, learning_rate=max(found.learning_rate, hints.min_move / length))
    return Chosen(found, queries)


class _Lowest(NamedTuple):
    """Where f is lowest on a line, and how much lower it was seen on the way there."""

    step: float
    change: float


class _Probe:
    """A line from x0 along which a round would go, and f on it."""

    def __init__(self, algorithm: FedZO, federation: LocalFederation, x0: Array) -> None:
        self.federation, self.x0, self.queries = federation, x0, 0
        self.batch_size = algorithm.batch_size
        total = np.zeros(federation.dim)
        one_step = replace(algorithm, learning_rate=1.0, local_steps=1, weighting="uniform")
        for k in range(algorithm.local_steps):
            work = Work(one_step, x0, _ROUND + k, federation.seed)
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
        self._start: dict[int, float] = {}  # each device's own, from the first look

    def look(self, steps: list[float]) -> Array:
        """Return by how much f is higher than at the first step ever looked at.

        It is looked at on the same devices and batches each time. A device that does not
        answer is missing in the mean of the differences, and does not move it by its level.
        """
        points = self.x0 + np.array(steps)[:, None].astype(self.x0.dtype) * self.direction
        seed, size = self.federation.seed, self.batch_size

        def work(objective: Objective, device: int) -> Update:
            at = Draws(seed, Stream.BATCHES, _ROUND - 1, device)
            values = objective.values(points, objective.batch(device, size, at))
            means = np.asarray(values, np.float64).mean(axis=1)
            return Update(device=device, delta=means, weight=1, queries=values.size)

        updates = self.federation.map(work, self.devices)
        found = {update.device: update.delta for update in updates}
        self.queries += updates.queries
        if not self._start:
            self._start = {device: float(values[0]) for device, values in found.items()}
        changes = [values - self._start[i] for i, values in found.items() if i in self._start]
        return np.mean(changes, axis=0) if changes else np.full(len(steps), np.nan)


def _lowest(look: Callable[[list[float]], Array], guess: float) -> _Lowest | None:
    """Return about where f is lowest on a line on which it falls at first, if it does.

    >>> low = _lowest(lambda steps: np.array([(s - 3.0) ** 2 for s in steps]), 0.01)
    >>> round(low.step, 9)
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
                return _Lowest(_vertex(start, step, lowest, far), lowest - start)
            step, lowest = 2 * step, far
        return _Lowest(step, lowest - start)
    for _ in range(_BACK):  # come back until it is lower
        far, step = lowest, step / 2
        (lowest,) = look([step])
        if lowest < start:
            return _Lowest(_vertex(start, step, lowest, far), lowest - start)
    return None


def _vertex(start: float, step: float, lowest: float, far: float) -> float:
    """Return where the parabola through 0, step and 2 step is lowest; step where none fits."""
    if not math.isfinite(far):
        return step / 2
    down, up = lowest - start, far - start  # = a s² + b s at s = 1 and 2 steps
    a, b = (up - 2 * down) / 2, (4 * down - up) / 2
    return float(step * min(max(-b / (2 * a), 0.5), 2.0)) if a > 0 else step
