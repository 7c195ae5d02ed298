"""A plain function, ``fun(x, device) -> float``, made into an objective."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from fedzo.core.budget import Meter
from fedzo.core.objective import Objective
from fedzo.core.random import Draws
from fedzo.errors import (
    Halted,
    InvalidValue,
    NoAnswer,
    UsageError,
    check_count,
    nearest,
    one_of,
    require,
)
from fedzo.variables.bounds import Bounds, Box

Array = NDArray[Any]
OnFailure = Literal["raise", "leave_out"]


class FunctionOptions(TypedDict, total=False):
    """What can be said of a plain function: see :class:`FunctionObjective`."""

    vectorized: bool
    bounds: Bounds | None
    retries: int
    on_failure: OnFailure
    max_queries: int | None


class FunctionObjective(Objective):
    """An objective made of a plain function.

    The function has no randomness that we know of, so a batch is one realisation whatever
    size is asked for, and b1 plays no part.

    Parameters
    ----------
    fun : callable
        ``fun(x, device) -> float`` with x (d,) and ``device`` in 0, ..., N-1; what it is given
        is its own to overwrite. An array of one number is a number, too.
    dim, devices : int
        d and N.
    vectorized : bool
        The function is ``fun(points, device)`` of (k, d) points and answers with k values.
    bounds : sequence of pairs or scipy.optimize.Bounds, optional
        (low, high) of each number in x, None for an open end. The function is asked inside
        them only, by a smooth change of variables: see :class:`~fedzo.variables.bounds.Box`.
    retries : int
        How many times the function is asked again where it raises, or where its value is not
        finite.
    on_failure : str
        What comes of a function that still fails: ``raise`` ends the run, by the function's
        own exception or as a run that is not finite; ``leave_out`` leaves the device out of
        the round, and the history names it.
    max_queries : int, optional
        How many times the function may be asked, evaluations and retries included.

    Examples
    --------
    >>> import numpy as np
    >>> objective = FunctionObjective(lambda x, device: float(x @ x) + device, dim=3, devices=2)
    >>> objective.values(np.eye(3), objective.batch(1, 1, draws=None))
    array([[2.],
           [2.],
           [2.]])
    """

    meter: Meter

    def __init__(
        self,
        fun: Callable[[Array, int], Any],
        dim: int,
        devices: int,
        *,
        vectorized: bool = False,
        bounds: Bounds | None = None,
        retries: int = 0,
        on_failure: OnFailure = "raise",
        max_queries: int | None = None,
    ) -> None:
        check_count("devices", devices)
        check_count("retries", retries, least=0)
        if max_queries is not None:
            check_count("max_queries", max_queries)
        require(isinstance(vectorized, bool), "vectorized", vectorized, "True or False")
        check_on_failure(on_failure)
        check_takes("fun", fun, 2, "a function of (x, device), device in 0, ..., N-1")
        self.fun, self.dim, self.devices = fun, dim, devices
        self.vectorized, self.retries, self.on_failure = vectorized, retries, on_failure
        self.box = None if bounds is None else Box(bounds, dim)
        self.meter = Meter(max_queries)

    def point(self, u: Array) -> Array:
        """Return what the function is given for the optimiser's u: a point inside the bounds."""
        return u.copy() if self.box is None else self.box.decode(u)

    def encode(self, x: Array) -> Array:
        """Return the optimiser's u of a starting point, which lies inside the bounds."""
        return x if self.box is None else self.box.encode(x)

    def batch(self, device: int, size: int, draws: Draws) -> int:
        """Return the device: it is all that a plain function needs to know."""
        return device

    def values(self, points: Array, batch: int) -> Array:
        """Return the function's value at each point, (k, 1)."""
        return self._values(points, batch)[:, None]

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the given devices."""
        return np.concatenate([self._values(x[None], int(i)) for i in devices])

    def _values(self, points: Array, device: int) -> Array:
        if self.vectorized:
            return self._answers(points, device)
        return np.concatenate([self._answers(x[None], device) for x in points])

    def _answers(self, points: Array, device: int) -> Array:
        """Ask the function, and ask again while it fails and may."""
        failure: Exception | None = None
        for _ in range(1 + self.retries):
            try:
                values = self._ask(points, device)
            except (Halted, UsageError):
                raise
            except Exception as error:
                failure, reason = error, f"{type(error).__name__}: {error}"
            else:
                failure, reason = None, f"the function returned {_worst(values)}"
                if np.isfinite(values).all():
                    return values
        if self.on_failure == "leave_out":
            raise NoAnswer(reason) from failure
        if failure is not None:
            raise failure
        return values  # not finite: the estimator says in which round

    def _ask(self, points: Array, device: int) -> Array:
        """Ask the function once, for as many values as the budget still has."""
        wanted = len(points)
        granted = self.meter.take(wanted)
        values = self._call(self.point(points[:granted]), device) if granted else np.empty(0)
        self.meter.require(granted, wanted)
        return values

    def _call(self, points: Array, device: int) -> Array:
        if not self.vectorized:
            return np.array([as_number("fun", self.fun(points[0], device))])
        values = np.asarray(self.fun(points, device), np.float64)
        if values.shape != (len(points),):
            raise UsageError(f"fun returned the shape {values.shape}, not {(len(points),)}")
        return values


def _worst(values: Array) -> float:
    return float(values[~np.isfinite(values)][:1].sum())


def as_number(key: str, value: Any) -> float:
    """Return what a user's function returned as a number, if it is one.

    >>> as_number("fun", np.array([[0.5]]))
    0.5
    >>> as_number("fun", None)
    Traceback (most recent call last):
    TypeError: fun returned None, not a number
    """
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{key} returned {reprlib.repr(value)}, not a number") from error


def check_on_failure(on_failure: str) -> None:
    """Raise unless it is known what shall come of a function that fails."""
    ways = get_args(OnFailure)
    allowed = one_of(ways) + nearest(on_failure, ways)
    require(on_failure in ways, "on_failure", on_failure, allowed)


def check_takes(key: str, fun: Callable[..., Any], count: int, allowed: str) -> None:
    """Raise unless a function can be called with so many arguments, if it tells what it takes.

    >>> check_takes("fun", lambda x: x, 2, "a function of (x, device)")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: fun = '<lambda>(x)': must be a function of (x, device)
    """
    require(callable(fun), key, fun, allowed)
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # of some builtins nobody knows
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        name = getattr(fun, "__name__", key)
        raise InvalidValue(key, f"{name}{signature}", allowed) from error
