"""A plain function, ``fun(x)`` or ``fun(x, device)``, as an objective."""

import inspect
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedzo.core.budget import Meter
from fedzo.core.importing import call_user, ends_run
from fedzo.core.objective import Objective, returned
from fedzo.core.parallel import Calls
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.value_log import RecordedFailure
from fedzo.errors import (
    CannotWrite,
    Halted,
    InvalidValue,
    NoAnswer,
    NotANumber,
    UsageError,
    check_choice,
    check_count,
    described,
    real_array,
    require,
    shown,
)
from fedzo.variables.bounds import Bounds, Box, LogScale

OnFailure = Literal["raise", "leave_out"]
UNBOUNDED = -1e100  # no function with a minimum has values below this


class FunctionOptions(TypedDict, total=False):
    """Options of a plain function: see :class:`FunctionObjective`."""

    vectorized: bool
    bounds: Bounds | None
    scale: str | Sequence[str]
    x_scale: ArrayLike | None
    args: tuple[Any, ...]
    retries: int
    on_failure: OnFailure
    max_queries: int | None
    processes: bool
    timeout: float | None


class FunctionObjective(Objective):
    """An objective from a plain function.

    The randomness of the function is unknown. So a batch is one realisation whatever its size, and
    b1 has no effect.

    Parameters
    ----------
    fun : callable
        ``fun(x, device) -> float`` with x of shape (d,) and ``device`` in 0, ..., N-1, or, if
        ``devices`` is omitted, ``fun(x) -> float``. It may overwrite x. It may return an array of
        one number. A value of -inf, or below -1e100, ends the run: f is unbounded below.
    dim : int
        d.
    devices : int, optional
        N. By default there is one device, and the function does not receive it.
    vectorized : bool
        The function takes points of shape (k, d) in place of x, and returns values of shape (k,).
    bounds : sequence of pairs or scipy.optimize.Bounds, optional
        (low, high) of each number in x, None for an open end. The function is evaluated inside
        them only, by a smooth change of variables: see :class:`~fedzo.variables.bounds.Box`.
    scale : str or sequence of str
        ``linear``, or ``log`` for numbers over decades, which the optimiser sees as logarithms.
        One word for all of x, or one per number.
    x_scale : float or array, optional
        The typical length of each number in x (on a logarithmic scale: in decades), as in SciPy.
        By default that of the bounds.
    args : tuple
        Further arguments of the function: ``fun(x, device, *args)``, or ``fun(x, *args)``.
    retries : int
        How often the function is called again if it raises or returns a non-finite value.
    on_failure : str
        If the function still fails: ``raise`` ends the run with its exception, or as a non-finite
        run; ``leave_out`` drops the device from the round, and the history names it.
    max_queries : int, optional
        The largest number of calls, evaluations and retries included.
    workers : int
        The number of points of a device that are evaluated side by side, where that is quicker. A
        function that is ``vectorized`` takes all points at once.
    processes : bool
        Call the function in ``workers`` processes, for Python code that holds the GIL. pickle must
        be able to send the function there.
    timeout : float, optional
        The longest duration of a call in seconds; a longer one fails. Needs processes.

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
        fun: Callable[..., Any],
        dim: int,
        devices: int | None = None,
        *,
        vectorized: bool = False,
        bounds: Bounds | None = None,
        scale: str | Sequence[str] = "linear",
        x_scale: ArrayLike | None = None,
        args: tuple[Any, ...] = (),
        retries: int = 0,
        on_failure: OnFailure = "raise",
        max_queries: int | None = None,
        workers: int | None = 1,
        processes: bool = False,
        timeout: float | None = None,
    ) -> None:
        if devices is not None:
            check_count("devices", devices)
        check_count("retries", retries, least=0)
        require(isinstance(vectorized, bool), "vectorized", vectorized, "True or False")
        check_choice("on_failure", on_failure, get_args(OnFailure))
        require(isinstance(args, tuple), "args", args, "a tuple, such as (1.0,)")
        self.federated, more = devices is not None, ", *args" if args else ""
        allowed = f"a function of (x, device{more}), or of (x{more}) without devices"
        if not self.federated:
            allowed = f"a function of (x{more}), or of (x, device{more}) with devices=N"
        also = f"; args has {len(args)}" if args else ""
        check_takes("fun", fun, 1 + self.federated + len(args), allowed + also)
        self.fun, self.dim, self.devices = fun, dim, devices or 1
        self.vectorized, self.retries, self.on_failure = vectorized, retries, on_failure
        self.args = args
        self.logarithm = None if scale == "linear" else LogScale(scale, dim)
        self.box = None if bounds is None else Box(bounds, dim)
        if self.box is not None and self.logarithm is not None:
            self.box = Box(self.logarithm.bounds(self.box.pairs()), dim)
        self.scale = self._lengths(x_scale)
        self.meter = Meter(max_queries)
        self.calls = Calls(partial(call_user, fun), workers, processes, timeout)

    def to_user(self, x: Array) -> Array:
        """Return the argument of the function for the optimiser's x: a point inside the bounds."""
        x = x.copy() if self.box is None else self.box.decode(x)
        return x if self.logarithm is None else self.logarithm.decode(x)

    def encode(self, x: Array) -> Array:
        """Return the optimiser's x of a starting point inside the bounds."""
        if self.logarithm is not None:
            x = self.logarithm.encode("x0", x)
        return x if self.box is None else self.box.encode(x)

    def _lengths(self, x_scale: ArrayLike | None) -> Array | None:
        """Return the typical lengths of the optimiser's x, NaN where unknown."""
        if x_scale is not None:
            lengths = real_array("x_scale", x_scale).astype(np.float64)
            right = lengths.shape in ((), (self.dim,)) and bool((lengths > 0).all())
            finite = right and bool(np.isfinite(lengths).all())
            require(finite, "x_scale", x_scale, f"a number > 0, or {self.dim} of them")
            return np.full(self.dim, lengths)
        lengths = np.full(self.dim, np.nan) if self.box is None else self.box.lengths()
        if self.logarithm is not None:  # a decade, where there are no bounds
            lengths = np.where(self.logarithm.chosen & np.isnan(lengths), 1.0, lengths)
        return None if np.isnan(lengths).all() else lengths

    def batch(self, device: int, size: int, draws: Draws) -> int:
        """Return the device: a plain function has no other randomness."""
        return device

    def records(self, batch: int) -> list[int]:
        """Return the device: it is one record."""
        return [batch]

    def values(self, points: Array, batch: int) -> Array:
        """Return the function's value at each point, (k, 1)."""
        return self._values(points, batch)[:, None]

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the given devices."""
        return np.concatenate([self._values(x[None], int(i)) for i in devices])

    def _values(self, points: Array, device: int) -> Array:
        if self.vectorized:
            return self._answers(points, device)
        count, began = len(points), time.perf_counter()
        beside = self.calls.worth(count) and self._affords(count)
        try:
            if not beside and self._simple:
                return self._in_turn(points, device)
            return self._one_by_one(points, device, beside)
        finally:
            self.calls.trial.note(beside, count, time.perf_counter() - began)

    @property
    def _simple(self) -> bool:
        """Whether a failure ends the run, and no value is logged."""
        return not self.retries and self.on_failure == "raise" and not self.meter.log.active

    def _one_by_one(self, points: Array, device: int, beside: bool) -> Array:
        """Return the value of each point, of which calls begin side by side if ``beside``."""
        begun: dict[int, Future[Any]] = {}
        if beside:
            new = [k for k in range(len(points)) if not self.meter.log.knows(device, k)]
            tasks = [(x, *self._own(device)) for x in self.to_user(points[new])]
            begun = dict(zip(new, self.calls.begin(tasks), strict=True))
        answers: list[Array] = []
        try:
            for k, x in enumerate(points):
                answers.append(self._answers(x[None], device, begun.pop(k, None)))
        except NoAnswer as error:
            error.answered = np.array(answers).reshape(-1, 1)
            raise
        finally:
            for future in begun.values():  # the first failure decides
                future.cancel()
        return np.concatenate(answers)

    def _in_turn(self, points: Array, device: int) -> Array:
        """Call the function for one point after another, as :meth:`_answers` without retries."""
        wanted, done = len(points), 0
        granted = self.meter.take(wanted)
        values, own = np.empty(granted), self._own(device)
        try:
            for done, x in enumerate(self.to_user(points[:granted])):
                values[done] = as_number("fun", self.calls(x, *own))
        except BaseException:
            self.meter.give_back(granted - done - 1)
            raise
        self._check_bounded(points, values)
        self.meter.require(granted, wanted)
        return values

    def _affords(self, count: int) -> bool:
        """Return whether the budget lasts, whatever the other devices ask for meanwhile."""
        left = self.meter.left
        if left is None or (self.devices == 1 and left >= count):
            return True
        return left >= 2 * count * self.devices * (1 + self.retries)

    def _own(self, device: int) -> tuple[Any, ...]:
        """Return the arguments of the function after x."""
        return (device, *self.args) if self.federated else self.args

    def close(self) -> None:
        """End the threads and processes; a later call starts new ones."""
        self.calls.close()

    def _answers(self, points: Array, device: int, begun: Future[Any] | None = None) -> Array:
        """Call the function, and again up to ``retries`` times while it fails.

        ``begun`` is the first call, if it has begun.
        """
        failure: Exception | None = None
        for attempt in range(1 + self.retries):
            continues = attempt < self.retries or self.on_failure == "leave_out"
            begun = None if attempt else begun
            try:
                values = self._ask(points, device, continues, begun)
            except (Halted, UsageError, CannotWrite):
                raise
            except RecordedFailure as error:
                failure, reason = error, str(error)
            except Exception as error:
                if ends_run(error):
                    raise
                failure, reason = error, described(error)
            else:
                finite = np.isfinite(values)
                if finite.all():
                    break
                failure, reason = None, f"the function returned {values[~finite][0]}"
        else:
            if self.on_failure == "leave_out":
                raise NoAnswer(reason) from failure
            if failure is not None:
                raise failure
        self._check_bounded(points, values)
        return values  # perhaps not finite: the estimator reports the round

    def _ask(
        self, points: Array, device: int, continues: bool, begun: Future[Any] | None = None
    ) -> Array:
        """Call the function once, for as many values as the budget allows.

        ``continues`` says whether the run continues after a failure.
        """
        wanted, values = len(points), np.empty(0)
        granted = self.meter.take(wanted)
        if granted:
            some = self.to_user(points[:granted])
            ask = partial(self._call, some, device, begun)
            values = self.meter.log.answer(device, some, ask, continues)
        self.meter.require(granted, wanted)
        return values

    def _check_bounded(self, points: Array, values: Array) -> None:
        """Raise if a value shows that there is no minimum."""
        if (values < UNBOUNDED).any():
            lowest = int(np.nanargmin(values))
            at = np.array2string(self.to_user(points[lowest]), precision=4, threshold=6)
            raise Halted(f"f is unbounded below: fun returned {values[lowest]:.4g} at x = {at}")

    def _call(self, points: Array, device: int, begun: Future[Any] | None) -> Array:
        if not self.vectorized:
            own = (points[0], *self._own(device))
            value = self.calls(*own) if begun is None else begun.result()
            return np.array([as_number("fun", value)])
        found = self.calls(points, *self._own(device))
        return returned("fun", found, (len(points),)).astype(np.float64)


def as_number(key: str, value: Any) -> float:
    """Return the value of a user's function as a float.

    >>> as_number("fun", np.array([[0.5]]))
    0.5
    >>> as_number("fun", None)
    Traceback (most recent call last):
    fedzo.errors.NotANumber: fun returned None, not a number
    """
    if isinstance(value, float):
        return float(value)
    try:
        if isinstance(value, str | bytes) or np.ma.is_masked(value):  # whose item() is 0
            raise TypeError
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, OverflowError) as error:
        raise NotANumber(f"{key} returned {shown(value)}, not a number") from error


def check_takes(key: str, fun: Callable[..., Any], count: int, allowed: str) -> None:
    """Raise unless a function accepts ``count`` arguments; functions without signature pass.

    >>> check_takes("fun", lambda x: x, 2, "a function of (x, device)")
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: fun = '<lambda>(x)': must be a function of (x, device)
    """
    require(callable(fun), key, fun, allowed)
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # as for some builtins
        return
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        name = getattr(fun, "__name__", key)
        raise InvalidValue(key, f"{name}{signature}", allowed) from error
