"""What a problem must answer to: values at points, and nothing else.

An optimiser asks for a batch of a device's randomness and for the loss of points on that
batch. How the values are made, in BLAS, in ONNX Runtime, behind an HTTP endpoint, is the
problem's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedzo.errors import InvalidValue, UsageError, check_count, require
from fedzo.function import FunctionObjective, FunctionOptions
from fedzo.random import Draws

Array = NDArray[Any]


@runtime_checkable
class Objective(Protocol):
    """f(x) = 1/N sum_i f_i(x) with f_i(x) = E[F_i(x, ξ)], eq. (1), seen through its values.

    ``dim`` is d and ``devices`` is N. Besides the three methods here an objective may have

    ``values_along(x, directions, rows, steps, batch)``
        the (k, b) values at the k points x + steps[k] * directions[rows[k]], without the
        points ever being built: for a linear model that is one matrix product.
        ``directions`` is lent: it is overwritten after the call.
    ``step(x, frame, rows, offsets, factor, at, size, delta, start)``
        a whole step on the sphere in one go, for compiled problems that need no GIL for it:
        draws a batch and the frame by the address ``at``, takes the values at
        x + offsets[k] * v[rows[k]], makes the moves factor * scale * sum of differences (see
        :func:`fedzo.estimator.scale_slopes`), adds them up into ``delta``, and returns the
        moves, start + delta and the number of values;
    ``gradient(x, batch)``
        the mean gradient over a batch, for first-order baselines;
    ``metrics(x)``
        further numbers to record at an evaluation, such as a test accuracy;
    ``initial()``
        where to start when the caller does not say, else at zero;
    ``constants()``
        L, gap, sigma_g, sigma_h, c_g and c_h of the paper's assumptions, where they are known;
    ``size(device)``
        how many samples a device holds, for averages weighted by size;
    ``evaluation_cost``
        how many values one evaluation takes, if not one for each sample that a device holds;
    ``meter``
        a :class:`~fedzo.budget.Meter` that counts every query, and may end the run;
    ``reach``
        how far x should go in a round at least, where the problem knows the scale of its x:
        ``learning_rate = "auto"`` goes by it;
    ``point(x)``
        what the optimiser's x is to a person, where that is not x itself: it is what a
        result, a callback and ``model.npy`` get;
    ``leave(folder, result)``
        writes further files into a run's folder when it has ended;
    ``close()``
        lets go of what is held for a run, such as processes, when it has ended.

    A problem that cannot answer for one device, for now, raises
    :class:`~fedzo.errors.NoAnswer`: the round goes on without that device.
    """

    dim: int
    devices: int

    def batch(self, device: int, size: int, draws: Draws) -> Any:
        """Return ``size`` independent realisations ξ of a device's randomness."""
        ...

    def values(self, points: Array, batch: Any) -> Array:
        """Return F_i(x_k, ξ_m) of each point and each realisation: (k, d) -> (k, b)."""
        ...

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the given devices, each over all that it holds."""
        ...


def missing(candidate: object) -> str:
    """Word what an object lacks to be an :class:`Objective`."""
    needed = ("dim", "devices", "batch", "values", "losses")
    lacks = [name for name in needed if not hasattr(candidate, name)]
    return f": it lacks {', '.join(lacks)}" if lacks else ": it is a class, not an object of it"


def size_of(objective: Objective, device: int) -> int:
    """Return how many samples a device holds, 1 if the objective has no notion of samples."""
    size = getattr(objective, "size", None)
    return int(size(device)) if size is not None else 1


def initial_of(objective: Objective) -> Array:
    """Return where a run starts when nobody says: the objective's own point, or zero."""
    initial = getattr(objective, "initial", None)
    return np.asarray(initial()) if initial is not None else np.zeros(objective.dim)


def metrics_of(objective: Objective, x: Array) -> Mapping[str, float]:
    """Return the objective's own metrics at x, if it has any."""
    metrics = getattr(objective, "metrics", None)
    return metrics(x) if metrics is not None else {}


def posed(
    fun: Callable[[Array, int], Any] | Objective,
    x0: ArrayLike | None,
    devices: int | None,
    options: FunctionOptions,
) -> tuple[Objective, Array]:
    """Return a function or objective as an objective, and where to start, checked to agree."""
    if isinstance(fun, Objective):
        if options:
            key, value = next(iter(options.items()))
            raise InvalidValue(key, value, "left out: it is for plain functions, not an Objective")
        if devices not in (None, fun.devices):
            raise InvalidValue("devices", devices, f"left out, or the objective's {fun.devices}")
        for key, count in (("dim", fun.dim), ("devices", fun.devices)):
            try:
                check_count(key, count)
            except InvalidValue as error:
                raise UsageError(f"{name_of(fun)}: {error}") from error
        start = checked_start(initial_of(fun) if x0 is None else x0)
        if x0 is None and start.size != fun.dim:
            raise UsageError(
                f"{name_of(fun)}: initial() has {start.size} numbers, dim is {fun.dim}"
            )
        allowed = f"of the objective's dimension, {fun.dim}"
        require(start.size == fun.dim, "x0", f"an array of {start.size}", allowed)
        return fun, start
    if not callable(fun) or isinstance(fun, type):
        raise UsageError(f"{name_of(fun)} is neither a function nor an Objective{missing(fun)}")
    if x0 is None:
        raise InvalidValue("x0", None, "given: a function has no starting point of its own")
    if devices is None:
        raise InvalidValue("devices", None, "given: a function does not tell how many there are")
    check_count("devices", devices)
    start = checked_start(x0)
    objective = FunctionObjective(fun, start.size, devices, **options)
    return objective, objective.enter(start)


def checked_start(x0: ArrayLike) -> Array:
    """Return a copy of a starting point, in float32 or float64, checked to be a finite vector."""
    start = np.array(x0)  # a copy: nobody else writes to it
    if start.dtype not in (np.float32, np.float64):
        require(start.dtype.kind in "biuf", "x0", x0, "an array of real numbers")
        start = start.astype(np.float64)
    shape = f"an array of shape {start.shape}"
    require(start.ndim == 1 and start.size > 0, "x0", shape, "one-dimensional and not empty")
    require(bool(np.isfinite(start).all()), "x0", "an array", "finite")
    return start


def name_of(fun: object) -> str:
    """Name a function, or an object by its class, as ``module:name``."""
    kind = fun if hasattr(fun, "__qualname__") else type(fun)
    return f"{kind.__module__}:{kind.__qualname__}"
