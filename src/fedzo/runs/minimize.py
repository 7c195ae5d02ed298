"""``fedzo.minimize``: the call that runs an algorithm on a problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Unpack

from numpy.typing import ArrayLike, NDArray

from fedzo.algorithms import Adaptive, Algorithm, FedZO
from fedzo.core.objective import Objective
from fedzo.errors import UsageError, nearest, require
from fedzo.problems.function import FunctionOptions
from fedzo.runs.describe import describe_job, describe_problem
from fedzo.runs.inputs import as_objective
from fedzo.runs.job import Job, perform
from fedzo.runs.options import RunKeywords, RunOptions
from fedzo.runs.parts import check_part
from fedzo.runs.result import Callbacks, Result, as_watchers
from fedzo.uplinks import Ideal, Uplink

Array = NDArray[Any]

UNLIMITED = 1_000_000  # rounds


class MinimizeKeywords(RunKeywords, FunctionOptions, total=False):
    """What ``minimize`` takes by keyword beside its own parameters."""


def minimize(
    fun: Callable[[Array, int], Any] | Objective,
    x0: ArrayLike | None = None,
    *,
    devices: int | None = None,
    algorithm: Algorithm | None = None,
    uplink: Uplink | None = None,
    tol: float | None = None,
    callback: Callbacks = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool | Literal["repair"] = False,
    **options: Unpack[MinimizeKeywords],
) -> Result:
    """Minimise f(x) = 1/N sum_i f_i(x) over a federation, from values only.

    Parameters
    ----------
    fun : callable or Objective
        ``fun(x, device) -> float`` with ``device`` in 0, ..., N-1, or an
        :class:`~fedzo.Objective`. It is called from several threads at once unless
        ``workers=1``.
    x0 : array, optional
        Where to start. Its precision, float32 or float64, is the run's. An objective may
        have a start of its own, and else starts at zero.
    devices : int, optional
        N, for a plain function; an objective knows its own.
    algorithm : Algorithm, optional
        By default ``Adaptive()`` for a plain function, which needs no settings and ends by itself,
        and ``FedZO()`` for an objective.
    uplink : Uplink, optional
        ``Ideal()`` by default.
    tol : float, optional
        Of the default for a plain function: it ends when f falls by less than this share of what
        has been gained so far; see :class:`~fedzo.Adaptive`.
    callback : callable or several, optional
        Called with a :class:`~fedzo.Progress` before the first and after each round; the run
        stops when one returns True. What has a ``close()`` is closed when the run has ended.
        ``fedzo.ProgressLine()`` shows round, loss and the time left; ``fedzo.callbacks``
        has more.
    run_dir : path, optional
        Folder for ``config.toml``, ``history.jsonl``, ``checkpoint.npz``, ``model.npy`` and
        ``curves.png``.
    resume : bool or "repair"
        Resume from ``run_dir``'s checkpoint; ``rounds`` counts from the very beginning, so
        100 rounds and then a resume with ``rounds=200`` is the same run as 200 at once.
        "repair" resumes although lines of the history are damaged or lost.
    **options
        How the run goes, see :class:`~fedzo.runs.options.RunOptions`: ``rounds``, ``seed``,
        ``workers``, ``target``, and how often to evaluate and to save. Of a plain function, see
        :class:`~fedzo.FunctionObjective`: ``vectorized``, ``bounds``, ``retries``,
        ``on_failure`` and ``max_queries``. The result's ``x`` lies inside the bounds.

    Examples
    --------
    >>> import numpy as np
    >>> import fedzo
    >>> def distance(x, device):
    ...     return float(np.sum((x - device) ** 2))
    >>> algorithm = fedzo.FedZO(learning_rate=0.05, directions=3, direction_kind="orthogonal")
    >>> result = fedzo.minimize(distance, np.zeros(3), devices=5, rounds=60, algorithm=algorithm)
    >>> result.x.round(1), result.message
    (array([2., 2., 2.]), 'finished 60 rounds')
    >>> result.queries  # 60 rounds x 5 devices x 5 steps x (3 + 1) values
    6000
    """
    plain = algorithm is None and not isinstance(fun, Objective)
    allowed = "omitted, or given to the algorithm: fedzo.Adaptive(tol=...)"
    require(plain or tol is None, "tol", tol, allowed)
    if algorithm is None:
        algorithm = Adaptive(tol=tol or 0.0) if plain else FedZO()
    if isinstance(algorithm, Adaptive):  # it knows when to end
        options.setdefault("rounds", UNLIMITED)
    uplink = Ideal() if uplink is None else uplink
    for table, part in (("algorithm", algorithm), ("uplink", uplink)):
        check_part(table, part)
    run, function = split_options(options)
    objective, start = as_objective(fun, x0, devices, function)
    job = Job(
        algorithm=algorithm,
        uplink=uplink,
        options=run,
        tables=describe_job(algorithm, uplink, run, describe_problem(fun, objective, start)),
        run_dir=None if run_dir is None else Path(run_dir),
        resume=bool(resume),
        repair=resume == "repair",
        watchers=as_watchers(callback),
    )
    return perform(job, objective, start)


def split_options(options: Mapping[str, Any]) -> tuple[RunOptions, FunctionOptions]:
    """Return what is said of the run, and what of a plain function; refuse everything else."""
    of_run = {field.name for field in fields(RunOptions)} - {"data_seed", "modules"}
    of_function = set(FunctionOptions.__annotations__)
    for key, value in options.items():
        if key not in of_run | of_function:
            known = sorted(of_run | of_function)
            raise UsageError(
                f"{key} = {value!r}: unknown option{nearest(key, known)}; "
                f"there are {', '.join(known)}"
            )
    run = {key: value for key, value in options.items() if key in of_run}
    function: Any = {key: value for key, value in options.items() if key in of_function}
    return RunOptions(**run), function
