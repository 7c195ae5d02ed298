"""What a server asks devices for, and what they reply.

A round of an algorithm is a generator: it yields a task and is sent the :class:`Replies`. There are
three tasks: :class:`LocalSteps`, :class:`Evaluate` and :class:`Slopes`. A task is plain data, the
same in a thread and on the wire. What a device replies is a pure function of the task, the problem
and the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedzo.core.capabilities import Streamed
from fedzo.core.objective import Objective, returned
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum
from fedzo.errors import NoAnswer

WEIGHTINGS = ("uniform", "size")
AGAIN = 4  # times that a device is asked for a value that it failed to answer
LEAST_POINTS, NUMBERS_AT_ONCE = 64, 1 << 20  # of the points of slopes, in one call


class Update(NamedTuple):
    """What one device replies to a task.

    Attributes
    ----------
    device : int
        The device that replies.
    delta : array or DirectionSum
        Δ_i^t, how far the device's model moved; a :class:`~fedzo.core.updates.DirectionSum` where
        the model is too large for another vector of its size. Empty if the task asked for values.
    weight : float
        Its weight in the average. Weights need not sum to one.
    queries : int
        Number of values F_i(x, ξ) that were evaluated.
    coefficients : array, optional
        Shape (H, b2): Δ_i^t as a sum of the round's directions.
    values : array, optional
        Float64, the numbers that :class:`Evaluate` or :class:`Slopes` asked for.
    eps : float
        Relative precision of the values, as their type tells it; 0 if unknown.
    contributors : int
        Number of devices that the update stands for.
    started : int, optional
        The round whose model the update starts from; the task's own round by default.
    """

    device: int
    delta: Any
    weight: float
    queries: int
    coefficients: Array | None = None
    values: Array | None = None
    eps: float = 0.0
    contributors: int = 1
    started: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What all tasks have in common: the devices, and where their random numbers are drawn.

    Attributes
    ----------
    seed, round, index : int
        The run's seed, the round t, and the number of the task within the round. All three are part
        of the address of every random number that a reply needs.
    devices : sequence of int
        The devices that are asked, sorted.
    """

    seed: int = 0
    round: int = 0
    index: int = 0
    devices: Any = ()  # stored as a tuple

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(map(int, self.devices)))

    def draws(self, device: int) -> Draws:
        """Return the address of a device's random numbers."""
        return Draws(self.seed, Stream.DIRECTIONS, self.round, device, task=self.index)

    def only(self, devices: Sequence[int]) -> Self:
        """Return the task for some of its devices."""
        return replace(self, devices=tuple(devices))

    def reply(self, objective: Objective, device: int) -> Update:
        """Return what a device replies."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LocalSteps(Task):
    """Ask each device for its local steps: the algorithm's ``local``.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm whose ``local`` is run.
    x : array
        Where devices start, shape (d,); shape (n_devices, d) if each device has its own model.
    learning_rate : float
        η in this round.
    rows : mapping of str to array
        Further arrays with one row per device, such as control variates.
    state : optional
        The algorithm's state before the round, for engines whose nodes replay the rounds.
    at_work, buffer : int
        If not 0: keep this many of the devices at work, in their order, and reply when ``buffer``
        of them have, also to the tasks of earlier rounds.
    """

    algorithm: Any
    x: Array
    learning_rate: float = 1.0
    rows: Mapping[str, Array] = field(default_factory=dict)
    state: Any = None
    at_work: int = 0
    buffer: int = 0

    def reply(self, objective: Objective, device: int) -> Update:
        """Return the device's update."""
        update: Update = self.algorithm.local(objective, device, self, self.draws(device))
        return update

    def start(self, device: int) -> Array:
        """Return the model that a device starts from, shape (d,)."""
        return self.x if self.x.ndim == 1 else np.asarray(self.x[self.devices.index(device)])

    @property
    def direction_length(self) -> float:
        """The length of a direction as drawn: 1, or that of d normals, up to 1 / sqrt(2 d)."""
        unit = self.algorithm.estimator.kind in ("orthogonal", "coordinate")
        return 1.0 if unit else math.sqrt(self.x.shape[-1])

    def row(self, name: str, device: int) -> Array:
        """Return a device's row of one of the further arrays."""
        return np.asarray(self.rows[name][self.devices.index(device)])

    def only(self, devices: Sequence[int]) -> LocalSteps:
        """Return the task for some of its devices, with their rows."""
        if self.x.ndim == 1 and not self.rows:
            return replace(self, devices=devices)
        places = [self.devices.index(device) for device in devices]
        x = self.x if self.x.ndim == 1 else self.x[places]
        rows = {name: array[places] for name, array in self.rows.items()}
        return replace(self, devices=devices, x=x, rows=rows)

    def rebuild(self, update: Update) -> Array:
        """Return the Δ_i^t of an update's coefficients, to the bit as the device summed it."""
        assert update.coefficients is not None
        return np.asarray(self.rebuilt(update), update.coefficients.dtype)

    def rebuilt(self, update: Update) -> DirectionSum:
        """Return the same as a lazy sum."""
        assert update.coefficients is not None
        at, own = self.draws(update.device), update.coefficients
        at = at if update.started is None else at._replace(round=update.started)
        total: DirectionSum = self.algorithm.estimator.update(self.x.shape[-1], at, own)
        return total


@dataclass(frozen=True, eq=False)
class Offsets:
    """Points as offsets from a model, which a problem adds part by part while it runs.

    Attributes
    ----------
    x : array
        The model, shape (d,).
    steps : tuple
        An offset has ``add_to(out, start, base)``, as :class:`~fedzo.core.updates.DirectionSum`
        has; None is x itself.
    """

    x: Array
    steps: tuple[Any, ...]

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes of the points as arrays."""
        return len(self) * self.x.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the points, shape (k, d)."""
        points = np.repeat(self.x[None], len(self), axis=0)
        for point, step in zip(points, self.steps, strict=True):
            if step is not None:
                step.add_to(point)
        return points


@dataclass(frozen=True, eq=False)
class Evaluate(Task):
    """Ask each device for its mean loss at some points, all on the same samples of the device.

    Attributes
    ----------
    points : array or Offsets
        Shape (k, d). A reply has k values.
    batch_size : int
        Number of samples per device.
    weighting : str
        ``uniform``, or ``size``: devices count by the number of their samples.
    """

    points: Any
    batch_size: int = 1
    weighting: str = "uniform"

    @property
    def size(self) -> int:
        """Number of values in a reply."""
        return len(self.points)

    @property
    def nbytes(self) -> int:
        """Bytes of the question, as sent to one device."""
        return int(self.points.nbytes)

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Which values of a reply all devices measure, shape (size,)."""
        return np.ones(self.size, bool)

    def queries(self, devices: int) -> int:
        """Return the number of points that this many devices evaluate."""
        return self.size * devices

    def reply(self, objective: Objective, device: int) -> Update:
        """Return the device's values at the points."""
        batch = objective.batch(device, self.batch_size, self.draws(device).on(Stream.BATCHES))
        weight, points = weight_of(self.weighting, objective, device), self.points
        streamed = objective.capability(Streamed) if isinstance(points, Offsets) else None
        if streamed is not None:
            found = np.asarray(streamed.values_streamed(points.x, None, points.steps, batch))
            values = found.mean(axis=1, dtype=np.float64)
            return Update(device, np.empty(0), weight, found.size, values=values)
        array = np.asarray(points)

        def these(some: Array) -> Array:
            return array if some.size == len(array) else array[some]

        values, asked, eps = mean_values(objective, these, len(array), batch)
        return Update(device, np.empty(0), weight, asked, values=values, eps=eps)


@dataclass(frozen=True, eq=False)
class Slopes(Task):
    r"""Ask for the slopes :math:`(F_i(x + h_j e_j) - F_i(x)) / h_j` along the coordinates at x.

    By default each device measures only its own share of the coordinates, so a gradient takes d + N
    values of the whole federation in place of N (d + 1). A reply holds F_i(x), the slopes of the
    device's own coordinates (others zero), which coordinates these are, and, with ``everyone``, the
    slopes of all coordinates. Means of such replies are the federation's: a mean slope is divided
    by the mean of the third part.

    Attributes
    ----------
    x, steps : array
        The point and h, shape (d,). The slope of a coordinate with h = 0 is not measured.
    everyone : bool
        Every device measures every coordinate.
    central : bool
        Measure :math:`(F_i(x + h_j e_j) - F_i(x - h_j e_j)) / 2 h_j` instead.
    turn : int
        By how many places the shares are passed on. In N turns every device has every coordinate.
    batch_size, weighting
        See :class:`Evaluate`.

    Examples
    --------
    >>> owners(device=1, devices=2, dim=5)
    array([False,  True, False,  True, False])
    >>> owners(device=1, devices=2, dim=5, turn=1)
    array([ True, False,  True, False,  True])
    >>> owners(device=4, devices=6, dim=3)  # more devices than coordinates
    array([False,  True, False])
    """

    x: Array
    steps: Array
    everyone: bool = False
    central: bool = False
    turn: int = 0
    batch_size: int = 1
    weighting: str = "uniform"

    @property
    def size(self) -> int:
        """Number of values in a reply."""
        return 1 + (2 + self.everyone) * self.x.size

    @property
    def nbytes(self) -> int:
        """Bytes of the question, as sent to one device: x, h and three numbers."""
        return int(self.x.nbytes + self.steps.nbytes + 3 * self.x.itemsize)

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """Which values of a reply all devices measure: not the slopes of a device's own share."""
        numbers = np.arange(self.size)
        return np.asarray((numbers == 0) | (numbers > 2 * self.x.size))

    def queries(self, devices: int) -> int:
        """Return the number of points that this many devices evaluate."""
        count, sides = int(np.count_nonzero(self.steps)), 1 + self.central
        each = devices * count if self.everyone else max(count, devices)
        return devices + sides * each

    def own(self, device: int, devices: int) -> NDArray[np.bool_]:
        """Return which coordinates a device measures for the others, shape (d,)."""
        own = owners(device, devices, self.x.size, self.turn) & (self.steps != 0)
        return np.asarray(own)

    def reply(self, objective: Objective, device: int) -> Update:
        """Return the device's loss and slopes."""
        batch = objective.batch(device, self.batch_size, self.draws(device).on(Stream.BATCHES))
        own = self.own(device, objective.devices)
        asked = np.flatnonzero(self.steps if self.everyone else own)
        moved = np.concatenate([asked, asked]) if self.central else asked
        moves = self.steps[moved]
        moves[len(asked) :] *= -1

        def these(some: Array) -> Array:
            points = np.repeat(self.x[None], some.size, axis=0)
            sides = some[some > 0] - 1  # the first point is x
            points[np.flatnonzero(some), moved[sides]] += moves[sides]
            return points

        # As one array the points would be as large as a Hessian.
        block = max(LEAST_POINTS, NUMBERS_AT_ONCE // self.x.size)
        values, queries, eps = mean_values(objective, these, 1 + len(moved), batch, block)
        ahead, behind = values[1 : 1 + len(asked)], values[1 + len(asked) :]
        rise = (ahead - behind) / 2 if self.central else ahead - values[0]
        slopes = np.zeros(self.x.size)
        slopes[asked] = rise / self.steps[asked]
        own &= np.isfinite(slopes)
        every = [slopes] if self.everyone else []
        numbers = [values[:1], np.where(own, slopes, 0.0), own.astype(float), *every]
        weight = weight_of(self.weighting, objective, device)
        return Update(device, np.empty(0), weight, queries, values=np.concatenate(numbers), eps=eps)


class Losses(NamedTuple):
    """Ask all devices for their loss over all of their data, for an evaluation of the run."""

    x: Array


class Evaluation(NamedTuple):
    """What an engine replies to :class:`Losses`."""

    losses: Array  # (N,) f_i(x), anything for dropped devices
    metrics: Mapping[str, float]
    mean: float | None = None  # of the devices that replied, if single losses are not known


class Replies(Iterator[Update]):
    """A stream of updates in device order that counts them; ``task`` is the request.

    >>> replies = Replies([Update(0, np.zeros(2), 1, queries=3), Update(4, np.ones(2), 1, 5)])
    >>> [update.device for update in replies], replies.count, replies.queries
    ([0, 4], 2, 8)
    """

    def __init__(self, updates: Iterable[Update], task: Any = None) -> None:
        self._updates, self.task = iter(updates), task
        self.count = 0
        self.queries = 0

    def __next__(self) -> Update:
        update = next(self._updates)
        self.count += update.contributors
        self.queries += update.queries
        return update

    def close(self) -> None:
        """Stop the work on replies that were not read."""
        if isinstance(self._updates, Generator):
            self._updates.close()


def owners(device: int, devices: int, dim: int, turn: int = 0) -> NDArray[np.bool_]:
    """Return which coordinates a device measures, shape (dim,): every N-th, or one if N > d."""
    coordinates = np.arange(dim)
    if devices > dim:
        return np.asarray(coordinates == (device + turn) % dim)
    return np.asarray((coordinates + turn) % devices == device)


def weight_of(weighting: str, objective: Objective, device: int) -> float:
    """Return a device's weight in the average: 1, or the number of its samples."""
    return 1 if weighting == "uniform" else objective.size(device)


def mean_values(
    objective: Objective,
    points: Callable[[Array], Array],
    count: int,
    batch: Any,
    block: int | None = None,
) -> tuple[Array, int, float]:
    """Return the mean loss over a batch at each point, the number of values and their precision.

    ``points`` returns the points with some of the numbers 0, ..., count - 1, at most ``block`` at a
    time. A point at which the device fails is asked ``AGAIN`` more times, then its mean is NaN. A
    device that fails all these times before it has answered once does not reply at all.
    """
    means, eps, asked = np.full(count, np.nan), 0.0, 0
    missing, failures = np.arange(count), 0
    while missing.size:
        some = missing[:block]
        try:
            found = objective.values(points(some), batch)
            values = returned(f"{type(objective).__name__}.values", found, (len(some), -1))
        except NoAnswer as error:
            failures += 1
            if error.answered is None or (failures > AGAIN and np.isnan(means).all()):
                raise
            values = np.asarray(error.answered)
            given_up = values.size == 0 and failures > AGAIN
            failures = failures * (not given_up) if values.size == 0 else 1
        else:
            given_up = False
        if values.dtype.kind == "f":
            eps = float(np.finfo(values.dtype).eps)
        done, asked = len(values), asked + values.size
        single = values.ndim == 2 and values.shape[1] == 1  # as of a function
        means[some[:done]] = values[:, 0] if single else np.asarray(values, float).mean(axis=1)
        missing = missing[done + given_up :]
    return means, asked, eps
