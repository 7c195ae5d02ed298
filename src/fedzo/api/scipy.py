"""``fedzo.scipy_method``: fedzo as a method of ``scipy.optimize.minimize``."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import require
from fedzo.runs.callbacks import ProgressLine
from fedzo.runs.minimize import minimize
from fedzo.runs.result import Callback, Progress, as_watchers

_OURS = {"maxiter": "rounds", "maxfev": "max_queries"}  # options of SciPy's own methods


def scipy_method(devices: int | None = None, **settings: Any) -> Callable[..., Any]:
    """Return a ``method`` for :func:`scipy.optimize.minimize`.

    SciPy's ``args``, ``bounds`` (pairs or ``scipy.optimize.Bounds``) and ``callback`` (of either
    kind; it may raise StopIteration) work as for SciPy's own methods. An intermediate result's
    ``fun`` is nan after rounds that were not evaluated. ``constraints`` are those of
    :func:`fedzo.minimize`. Derivatives are rejected, because fedzo does not use them.

    Parameters
    ----------
    devices : int, optional
        N, for a function ``fun(x, device, *args)``. By default there is one device, and the
        function is SciPy's ``fun(x, *args)``.
    **settings
        Further arguments of :func:`fedzo.minimize`. SciPy's ``options`` override them, where
        ``maxiter``, ``maxfev`` and ``disp`` mean ``rounds``, ``max_queries`` and a
        :class:`~fedzo.ProgressLine`.

    Examples
    --------
    >>> import fedzo, scipy.optimize
    >>> method = fedzo.scipy_method(algorithm=fedzo.FedZO(learning_rate=0.05), rounds=50)
    >>> found = scipy.optimize.minimize(
    ...     lambda x, a: float((x[0] - a) ** 2 + x[1] ** 2), [2.0, 1.0], args=(3.0,),
    ...     method=method, bounds=[(0, 2.5), (None, None)])
    >>> found.x.round(2), found.success, found.nit
    (array([2.5, 0. ]), True, 50)
    """

    def method(
        fun: Callable[..., Any],
        x0: Array,
        args: Sequence[Any] = (),
        bounds: Any = None,
        callback: Callable[..., Any] | None = None,
        **options: Any,
    ) -> Any:
        from scipy.optimize import OptimizeResult

        for key in ("jac", "hess", "hessp"):
            given = options.pop(key, None)
            require(given is None, key, given, "omitted: fedzo uses function values only")
        shown = [ProgressLine()] if options.pop("disp", False) else []
        chosen = {**settings, **{_OURS.get(key, key): value for key, value in options.items()}}
        if bounds is not None:
            chosen["bounds"] = bounds
        theirs = [] if callback is None else [_for_scipy(callback, OptimizeResult)]
        chosen["callback"] = [*theirs, *as_watchers(chosen.get("callback")), *shown]
        result = minimize(fun, x0, devices=devices, args=tuple(args), **chosen)
        return OptimizeResult(**vars(result), nfev=result.nfev)

    return method


def _for_scipy(callback: Callable[..., Any], kind: Any) -> Callback:
    """Return a callback that SciPy's is called by: with x, or with an ``intermediate_result``."""
    by_name = set(inspect.signature(callback).parameters) == {"intermediate_result"}

    def call(progress: Progress) -> bool:
        if progress.round == 0:
            return False  # SciPy calls after each iteration only
        try:
            if by_name:
                loss = (progress.record or {}).get("train_loss", np.nan)
                shown = kind(x=progress.x, fun=loss, nit=progress.round, nfev=progress.queries)
                callback(intermediate_result=shown)
            else:
                callback(progress.x)
        except StopIteration:
            return True
        return False

    return call
