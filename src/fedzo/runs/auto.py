r"""Choose numbers for ``learning_rate = "auto"`` and ``smoothing = "auto"`` before a run.

**Smoothing.** A problem can suggest μ; an attack within a budget does. Otherwise μ is that of the
corollaries, :math:`\mu = (d\, b_1 b_2 M H T)^{-1/4}` (see :func:`fedzo.theory.corollary`), which
supposes that f changes over lengths of about 1. It grows by factors of four until differences along
a few directions are eight times the noise. If the rate is measured too, and the best round is
shorter than μ or f does not fall at all, x has smaller units: μ shrinks by sixteen and the
measurement is repeated, as long as f falls further and the noise does not hide the differences.

**Learning rate.** The corollaries' η supposes a curvature of about 1 in any units, and the limit of
the theorems is for the worst case (see ``docs/theory.md``). So the rate is measured. The estimates
of one round at x⁰ give the direction D of a round with η = 1. f is evaluated along D, on other
devices and batches: at a distance of μ first, then twice as far while f falls, or half as far until
it does. The parabola through the start and the last two points has its minimum at η*, the best rate
for one round. The run starts with **half of it**, because noise adds up over many rounds. If f does
not fall at all, as at a minimum, a round like the measured one moves by half of μ. A function in
other units, c f for f, gets the rate η/c, and so the same run.

A problem can state a minimum length of a round, ``min_move``; then the rate is at least that over
the length of D. An attack does, because its loss is often lowest close to x⁰ on any single line.

The probes are tasks of round 0 with separate indices, so they draw other numbers than the run. The
same seed chooses the same numbers. During the run the rate adapts further:
see :class:`fedzo.algorithms.adaptive_rate.AdaptiveRate`.
"""

import math
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedzo.algorithms.adaptive_rate import AdaptiveRate, lowest_at
from fedzo.algorithms.base import Algorithm
from fedzo.algorithms.fedzo import FedZO
from fedzo.algorithms.server_rate import ServerRate
from fedzo.core.budget import Meter
from fedzo.core.capabilities import AutoHints
from fedzo.core.objective import Objective, meter_of
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import Evaluate, LocalSteps, Replies, Task
from fedzo.core.types import Array
from fedzo.core.updates import UpdateMean
from fedzo.errors import BudgetSpent, NonFinite, UsageError
from fedzo.theory.advice import corollary
from fedzo.theory.bounds import Setting
from fedzo.uplinks.base import RunSetting, sample_uniformly

_LINE, _NOISE, _ESTIMATES = 32, 33, 34  # indices of the tasks: the estimates' are from there on
_MOST_ESTIMATES = 16  # of a device; those of a round with more local steps are much alike
_DEVICES = (5, 20)  # at least and at most so many are looked at along the line, if there are
_LOOKS = 32  # at most so often: 2^32 μ is far enough
_BACK = 8  # at most so often: at μ / 256 the differences that gave the direction say nothing
_TRIES = 5  # at most so many measurements: they get to a millionth of the first μ
_ABOVE = 8.0  # a difference stands out if it is so many times the noise
_GROWTH = 8  # at most so often does μ grow by four to get there
_LARGEST = 1e6  # by how much the rate is below the inverse of the slope, and above the least number
_TOO_LARGE = "learning_rate = 'auto': losses are too large; divide them by a constant"
_FLAT = (
    "learning_rate = 'auto': the loss is the same all around x0; "
    "take another x0, a larger smoothing, or a number"
)


T = TypeVar("T")
Probing = Generator[Task, Replies, T]


class Chosen(NamedTuple):
    """An algorithm without "auto" in it, and how many queries that took."""

    algorithm: Any
    queries: int


def stand_in(algorithm: Algorithm, learning_rate: float = 1.0, smoothing: float = 1.0) -> Algorithm:
    """Return the algorithm with these numbers in place of "auto", until others are known.

    >>> stand_in(FedZO(learning_rate="auto", smoothing=0.1)).learning_rate
    1.0
    """
    if not isinstance(algorithm, FedZO):
        return algorithm
    if algorithm.learning_rate == "auto":
        algorithm = replace(algorithm, learning_rate=learning_rate)
    return replace(algorithm, smoothing=smoothing) if algorithm.smoothing == "auto" else algorithm


def automatic(algorithm: FedZO, chosen: FedZO, objective: Objective) -> AdaptiveRate | ServerRate:
    """Return what is run in place of an algorithm with "auto" in it.

    The rate is adapted where it was not the user's own, and where the problem does not know
    itself how far a round should go.
    """
    if algorithm.server.automatic:
        return ServerRate(fedzo=chosen)
    adapts = algorithm.learning_rate == "auto" and objective.capability(AutoHints) is None
    return AdaptiveRate(fedzo=chosen, adapts=adapts)


def choose(
    algorithm: FedZO, setting: RunSetting, objective: Objective, x0: Array, rounds: int
) -> Probing[Chosen]:
    """Yield the tasks of the probes; return the algorithm with numbers in place of "auto".

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.core.engine import LocalEngine, drive
    >>> from fedzo.problems import Quadratic
    >>> from fedzo.uplinks import Ideal
    >>> problem = Quadratic(dim=20, devices=5, smoothness=4.0)
    >>> algorithm = FedZO(learning_rate="auto", smoothing="auto", directions=5, local_steps=2)
    >>> with LocalEngine(problem, seed=0) as engine:
    ...     setting = RunSetting(engine, Ideal())
    ...     chosen = drive(choose(algorithm, setting, problem, np.zeros(20), rounds=100), engine)
    >>> bool(0.01 < chosen.algorithm.learning_rate < 0.25), chosen.queries
    (True, ...)
    """
    in_theory = corollary(
        Setting(
            devices=setting.devices,
            dim=setting.dim,
            rounds=max(rounds, 1),
            participants=algorithm.participants,
            batch_size=algorithm.batch_size,
            directions=algorithm.directions,
            local_steps=algorithm.local_steps,
        )
    )
    least, queries = math.inf, 0
    meter, hints = meter_of(objective) or Meter(), objective.capability(AutoHints)
    before = meter.queries
    try:
        if algorithm.smoothing == "auto":
            at = Draws(setting.seed, Stream.DIRECTIONS, task=_NOISE)
            known = None if hints is None else hints.suggest_smoothing(at)
            algorithm = replace(algorithm, smoothing="auto" if known is None else known)
            queries = meter.queries - before
        if algorithm.smoothing == "auto":
            algorithm = replace(algorithm, smoothing=in_theory.smoothing)
            smoothing, least, queries = yield from _visible(algorithm, setting, x0)
            algorithm = replace(algorithm, smoothing=smoothing)
        if algorithm.learning_rate != "auto":
            return Chosen(algorithm, queries)
        min_move = 0.0 if hints is None else hints.min_move
        chosen = yield from _measured(algorithm, setting, min_move, x0, least)
        asked = queries + chosen.queries if meter_of(objective) is None else meter.queries - before
        return chosen._replace(queries=asked)
    except BudgetSpent:
        # The run finds it spent as well, before its first step, and ends in order.
        numbers = in_theory.learning_rate, in_theory.smoothing
        return Chosen(stand_in(algorithm, *numbers), meter.queries - before)
    except NonFinite as error:
        raise UsageError("learning_rate = 'auto': the loss is not finite near x0") from error


def _visible(algorithm: FedZO, setting: RunSetting, x0: Array) -> Probing[tuple[float, float, int]]:
    """Return μ, the least μ whose differences stand out of the noise, and the queries it took.

    Two values at x0 with the same ξ show the noise, and the type of the values their precision.
    μ grows by factors of four until the differences along a few directions are well above both.
    """
    smoothing, queries = algorithm.estimator.smoothing, 0
    count = min(_DEVICES[0], setting.devices)
    devices = sample_uniformly(0, count, setting, task=_NOISE)
    for _ in range(_GROWTH):
        points = _around(algorithm, smoothing, setting.seed, x0)
        replies = yield Evaluate(
            points, algorithm.batch_size, seed=setting.seed, index=_NOISE, devices=devices
        )
        difference, noise = _difference(replies)
        queries += replies.queries
        if not difference or not math.isfinite(difference):  # flat, or too far: nothing is learnt
            return algorithm.estimator.smoothing, 0.0, queries
        if difference >= _ABOVE * noise:
            return smoothing, smoothing * _ABOVE * noise / difference, queries
        smoothing *= 4
    return smoothing, smoothing, queries


def _around(algorithm: FedZO, smoothing: float, seed: int, x0: Array) -> Array:
    """Return x0 twice, and a few points at a distance of μ."""
    estimator = replace(algorithm.estimator, directions=min(algorithm.directions, _DEVICES[0]))
    buffer = estimator.buffer(x0.size, x0.dtype)
    buffer.draw(Draws(seed, Stream.DIRECTIONS, task=_NOISE))
    steps = (smoothing * buffer.scales[:, None]).astype(x0.dtype)
    return np.concatenate([np.stack([x0, x0]), x0 + steps * buffer.rows])


def _difference(replies: Replies) -> tuple[float, float]:
    """Return the root mean square of differences over μ, and of the noise in them."""
    found = []
    for update in replies:
        values = np.asarray(update.values)
        noise = max((values[0] - values[1]) ** 2, 2 * (update.eps * values[0]) ** 2)
        found.append([np.mean((values[2:] - values[0]) ** 2), noise])
    difference, noise = np.sqrt(np.mean(found, axis=0)) if found else (0.0, 0.0)
    return float(difference), float(noise)


def _measured(
    algorithm: FedZO, setting: RunSetting, min_move: float, x0: Array, least: float
) -> Probing[Chosen]:
    """Return the algorithm with a measured rate, and with a smaller μ where x has smaller units.

    ``least`` is the lower limit of μ, and ``min_move`` how far a round should go at least.
    """
    found, careful, lowest, queries = None, None, 0.0, 0
    for _ in range(_TRIES):
        probe, smoothing = _Probe(algorithm, setting, x0), algorithm.estimator.smoothing
        yield from probe.measure()
        largest = float(np.abs(probe.direction).max())
        if not largest:  # no two values differ
            break
        length = largest * float(np.linalg.norm(probe.direction / largest))  # squares may overflow
        if not length <= sys.float_info.max / _LARGEST:
            raise UsageError(_TOO_LARGE, code="too-large")
        low = yield from _lowest(probe.look, smoothing / length)
        queries += probe.queries
        if low is not None and low.change < lowest:
            found, lowest = replace(algorithm, learning_rate=low.step / 2), low.change
        elif found is not None:  # the μ before was better
            break
        else:  # nothing falls: to go half of μ far in a round does little harm
            careful = replace(algorithm, learning_rate=smoothing / length / 2)
        went = smoothing if low is None else low.step * length
        if low is not None and went > smoothing:  # μ is small beside what a round does
            break
        if went / 16 < least:
            break
        algorithm = replace(algorithm, smoothing=went / 16)
    found = found or careful
    if found is None:
        raise UsageError(_FLAT, code="flat")
    rate = max(float(found.learning_rate), min_move / length)
    return Chosen(replace(found, learning_rate=rate), queries)


class _Lowest(NamedTuple):
    """Where f is lowest on a line, and how much lower it was seen on the way there."""

    step: float
    change: float


class _Probe:
    """A line from x0 along which a round would go, and f on it."""

    def __init__(self, algorithm: FedZO, setting: RunSetting, x0: Array) -> None:
        self.algorithm, self.setting, self.x0 = algorithm, setting, x0
        self.direction, self.queries = np.zeros_like(x0), 0
        self._devices = np.empty(0)
        self._start: dict[int, float] = {}  # each device's own, from the first look

    def measure(self) -> Probing[None]:
        """Measure the direction of a round with η = 1 from estimates that do not move x."""
        algorithm, setting = self.algorithm, self.setting
        total, steps = np.zeros(setting.dim), min(algorithm.local_steps, _MOST_ESTIMATES)
        one_step = replace(algorithm, learning_rate=1.0, local_steps=1, weighting="uniform")
        devices = sample_uniformly(0, algorithm.participants, setting, task=_ESTIMATES)
        for index in range(_ESTIMATES, _ESTIMATES + steps):
            replies = yield LocalSteps(
                one_step, self.x0, seed=setting.seed, index=index, devices=devices
            )
            mean = UpdateMean(setting.dim)
            for update in replies:
                mean.add(update.delta, update.weight)
            self.queries += replies.queries
            total += np.asarray(mean.value())
        total *= algorithm.local_steps / steps
        self.direction = total.astype(self.x0.dtype)
        # A look costs an eighth of a round, within limits.
        share = self.queries // (8 * algorithm.batch_size)
        count = min(max(share, _DEVICES[0]), _DEVICES[1], setting.devices)
        self._devices = sample_uniformly(0, count, setting, task=_LINE)

    def look(self, steps: list[float]) -> Probing[Array]:
        """Return by how much f is higher than at the first step ever looked at.

        It is evaluated on the same devices and batches each time. A device that does not
        reply is missing in the mean of the differences, and does not move it by its level.
        """
        points = self.x0 + np.array(steps)[:, None].astype(self.x0.dtype) * self.direction
        replies = yield Evaluate(
            points,
            self.algorithm.batch_size,
            seed=self.setting.seed,
            index=_LINE,
            devices=self._devices,
        )
        found = {update.device: np.asarray(update.values) for update in replies}
        self.queries += replies.queries
        if not self._start:
            self._start = {device: float(values[0]) for device, values in found.items()}
        changes = [values - self._start[i] for i, values in found.items() if i in self._start]
        return np.mean(changes, axis=0) if changes else np.full(len(steps), np.nan)


def _lowest(look: Callable[[list[float]], Probing[Array]], guess: float) -> Probing[_Lowest | None]:
    """Return about where f is lowest on a line on which it falls at first, if it does.

    >>> def look(steps):
    ...     yield from ()
    ...     return np.array([(s - 3.0) ** 2 for s in steps])
    >>> try:
    ...     next(_lowest(look, 0.01))
    ... except StopIteration as end:
    ...     print(round(end.value.step, 9))
    3.0
    """
    start, near = yield from look([0.0, guess])
    if not math.isfinite(start):
        raise UsageError("learning_rate = 'auto': the loss is not finite at x0")
    step, lowest = guess, near
    if near < start:  # go on until it rises
        for _ in range(_LOOKS):
            (far,) = yield from look([2 * step])
            if not far < lowest:
                return _Lowest(_vertex(start, step, lowest, far), lowest - start)
            step, lowest = 2 * step, far
        return _Lowest(step, lowest - start)
    for _ in range(_BACK):  # come back until it is lower
        far, step = lowest, step / 2
        (lowest,) = yield from look([step])
        if lowest < start:
            return _Lowest(_vertex(start, step, lowest, far), lowest - start)
    return None


def _vertex(start: float, step: float, lowest: float, far: float) -> float:
    """Return where the parabola through 0, step and 2 step is lowest, within a factor of two."""
    return step * min(max(lowest_at(lowest - start, far - start), 0.5), 2.0)
