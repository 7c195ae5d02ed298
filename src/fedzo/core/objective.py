"""What a problem must answer to: values at points, and nothing else.

An optimiser asks for a batch of a device's randomness and for the loss of points on that
batch. How the values are made, in BLAS, in ONNX Runtime, behind an HTTP endpoint, is the
problem's own business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedzo.core.random import Draws

Array = NDArray[Any]


class Best(NamedTuple):
    """The evaluated model of the lowest loss so far."""

    x: Array
    fun: float
    round: int


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
        :func:`fedzo.core.estimator.scale_slopes`), adds them up into ``delta``, and returns the
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
        a :class:`~fedzo.core.budget.Meter` that counts every query, and may end the run;
    ``reach``
        how far x should go in a round at least, where the problem knows the scale of its x:
        ``learning_rate = "auto"`` goes by it;
    ``point(x)``
        what the optimiser's x is to a person, where that is not x itself: it is what a
        result, a callback and ``model.npy`` get;
    ``write_files(folder, best)``
        writes further files into a run's folder when it has ended, from the :class:`Best` model;
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


def name_of(fun: object) -> str:
    """Name a function, or an object by its class, as ``module:name``."""
    kind = fun if hasattr(fun, "__qualname__") else type(fun)
    return f"{kind.__module__}:{kind.__qualname__}"
