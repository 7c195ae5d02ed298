"""``fedzo.minimize``, and :func:`perform`, which runs every job on a problem of this process.

``fedzo run``, tuning and attacks use :func:`perform` too. Flower's server, which holds no problem,
uses :func:`fedzo.runs.loop.run_job`.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedzo.algorithms import CMA, LBFGS, TPE, Adaptive, Algorithm, FedZO
from fedzo.algorithms.search.base import Search
from fedzo.algorithms.search.constrained import FEASIBLE, Constrained, Constraints
from fedzo.algorithms.server import Adam
from fedzo.core.capabilities import Closable, HasStateDict, InPlace, LoadsBest, LogsTrainings
from fedzo.core.engine import Engine, LocalEngine, drive
from fedzo.core.importing import call_user
from fedzo.core.objective import Objective, check_objective, meter_of, name_of
from fedzo.core.types import Array
from fedzo.errors import (
    InvalidValue,
    UsageError,
    check_choice,
    check_count,
    nearest,
    normalised,
    real_array,
    require,
    type_hints,
)
from fedzo.problems.function import FunctionObjective, FunctionOptions
from fedzo.runs.loop import Job, run_job, tasks
from fedzo.runs.options import UNLIMITED, RunKeywords, RunOptions
from fedzo.runs.registry import ALGORITHMS, check_part, describe_job, describe_problem
from fedzo.runs.result import Callbacks, Result, as_watchers, closing
from fedzo.uplinks import Ideal, Uplink

Drive = Callable[[Engine], Result]
# Makes the engine of a job, and calls Drive with it.
Backend = Callable[[Job, Objective, Drive], Result]


class MinimizeKeywords(RunKeywords, FunctionOptions, total=False):
    """The further keywords of ``minimize``."""


def minimize(
    fun: Callable[..., Any] | Objective,
    x0: ArrayLike | None = None,
    *,
    devices: int | None = None,
    method: str | None = None,
    algorithm: Algorithm | None = None,
    uplink: Uplink | None = None,
    tol: float | None = None,
    constraints: Any = (),
    callback: Callbacks = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Unpack[MinimizeKeywords],
) -> Result:
    """Minimise f(x) = 1/N sum_i f_i(x) over a federation, from values only.

    Parameters
    ----------
    fun : callable or Objective
        ``fun(x) -> float``, or, with ``devices=N``, ``fun(x, device) -> float`` with ``device`` in
        0, ..., N-1, or an :class:`~fedzo.Objective`. With several devices it is called from
        several threads at once unless ``workers=1``.
    x0 : array, optional
        The start. The result has its precision, float32 or float64, and so have the points of
        FedZO. Searches, such as the default one, ask at float64 points. By default an
        objective starts at its ``initial()``, which is zero unless the objective defines it.
    devices : int, optional
        N, for a plain function ``fun(x, device)``. An objective has its own.
    method : str, optional
        The name of an algorithm with its default settings: "adaptive", "cma", "lbfgs", "tpe",
        "fedzo", or another name that ``[algorithm]`` knows.
    algorithm : Algorithm, optional
        An algorithm with custom settings, in place of ``method``. By default ``Adaptive()`` for a
        plain function, which needs no settings and ends on its own; for a module Adam at the
        server with a measured rate (:func:`default_algorithm`); else ``FedZO()``.
    uplink : Uplink, optional
        ``Ideal()`` by default.
    tol : float, optional
        For the default algorithm of a plain function: the run ends when f falls by less than
        this share of its decrease so far; see :class:`~fedzo.Adaptive`.
    constraints : LinearConstraint, NonlinearConstraint, dict or several
        As for :func:`scipy.optimize.minimize`; for plain functions and searches such as the
        default. They are functions of x alone, cost no queries, and are satisfied to 1e-6 by an
        augmented Lagrangian (:mod:`fedzo.algorithms.search.constrained`). The result's ``maxcv``
        is the largest violation; ``success`` is False if it is larger than 1e-6.
    callback : callable or several, optional
        Called with a :class:`~fedzo.Progress` before the first and after each round. The run
        stops when a callback returns True. At the end, each callback that has a ``close()`` is
        closed. ``fedzo.ProgressLine()`` shows round, loss and the time left; ``fedzo.callbacks``
        has more.
    run_dir : path, optional
        Folder for ``config.toml``, ``history.jsonl``, ``checkpoint.npz``, ``model.npy`` and
        ``curves.png``.
    resume : bool
        Resume from the checkpoint in ``run_dir``. ``rounds`` counts from the beginning: 100
        rounds and a resume with ``rounds=200`` are the same run as 200 rounds at once. Only
        ``smoothing="auto"`` is chosen for the ``rounds`` of the first call.
    **options
        The options of the run, see :class:`~fedzo.runs.options.RunOptions`: ``rounds``, ``seed``,
        ``workers``, ``target``, and how often to evaluate and to save. The options of a plain
        function, see :class:`~fedzo.FunctionObjective`: ``vectorized``, ``bounds``, ``retries``,
        ``on_failure``, ``timeout`` and ``max_queries``. The result's ``x`` lies inside the bounds.
        An objective that does not count its own queries takes ``max_queries``, too.
        ``workers=8`` also evaluates the points of one device side by side, on threads where that
        is quicker. ``workers="processes"`` or ``("processes", 8)`` does so in processes, for Python
        code that holds the GIL and for ``timeout``. The result does not depend on the workers.

    Returns
    -------
    Result
        Under noise ``success`` is True only if fresh values of ``x`` are below those of the start
        by a t-test at 2.5 %. So a run from the optimum of a noisy function reports no success: it
        cannot be told from a flat one. A budget below one round gives no success either.

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
    >>> result = fedzo.minimize(lambda x: float(np.sum((x - 3) ** 2)), [0.0, 1.0])
    >>> result.x.round(4), result.success
    (array([3., 3.]), True)
    """
    algorithm = by_name(method, algorithm)
    devices = normalised("devices", devices, int | None)
    tol = normalised("tol", tol, float | None)
    run_dir = normalised("run_dir", run_dir, str | None)
    resume = normalised("resume", resume, bool)
    plain = algorithm is None and not isinstance(fun, Objective)
    if tol is not None and (plain or algorithm == Adaptive()):
        algorithm = Adaptive(tol=tol)
    else:
        allowed = "omitted, or given to the algorithm: fedzo.Adaptive(tol=...)"
        require(tol is None, "tol", tol, allowed)
    if algorithm is None:
        algorithm = Adaptive() if plain else default_algorithm(fun)
    if ends_alone(algorithm, options.get("max_queries")):
        options.setdefault("rounds", UNLIMITED)
    uplink = Ideal() if uplink is None else uplink
    for table, part in (("algorithm", algorithm), ("uplink", uplink)):
        check_part(table, part)
    run, function = split_options(options)
    if isinstance(fun, Objective) and meter_of(fun) is None:  # others count their own queries
        run = replace(run, max_queries=function.pop("max_queries", None))
    objective, start = as_objective(fun, x0, devices, function, run.workers)
    tables = describe_job(algorithm, uplink, run, describe_problem(fun, objective, start))
    limits = None
    if not isinstance(constraints, list | tuple) or constraints:
        limits, algorithm = _constrained(constraints, objective, algorithm, start)
    job = Job(
        algorithm=algorithm,
        uplink=uplink,
        options=run,
        tables=tables,
        run_dir=None if run_dir is None else Path(run_dir),
        resume=resume,
        watchers=as_watchers(callback),
    )
    if x0 is None and resume:
        # A module that has been trained since: without its start the checkpoint does not fit.
        with suppress(OSError, ValueError, EOFError, TypeError):
            if job.folder is not None and objective.capability(LoadsBest) is not None:
                np.copyto(start, np.load(job.folder.start), casting="no")
    result = perform(job, objective, start)
    if limits is not None:
        result.maxcv = limits.violation(result.x)
        if result.maxcv > FEASIBLE:
            result.success = False
            result.message += f", but a constraint is violated by {result.maxcv:.3g}"
    return result


def _constrained(
    given: Any, objective: Objective, algorithm: Algorithm, start: Array
) -> tuple[Constraints, Constrained]:
    """Return the constraints, and the search that satisfies them."""
    allowed = "omitted: they are for plain functions, and for searches such as the default"
    if not (isinstance(objective, FunctionObjective) and isinstance(algorithm, Search)):
        raise InvalidValue("constraints", given, allowed)
    limits = Constraints(given, objective.to_user(start))
    own: Any = {key: getattr(algorithm, key) for key in ("participants", "weighting")}
    return limits, Constrained(
        inner=algorithm, constraints=limits, to_user=objective.to_user, **own
    )


def by_name(method: str | None, algorithm: Algorithm | None) -> Algorithm | None:
    """Return the algorithm that a name stands for, or the given one.

    >>> by_name("adaptive", None)
    Adaptive(batch_size=25, participants=None, weighting='uniform', tol=0.0)
    """
    if method is None:
        return algorithm
    require(algorithm is None, "method", method, "omitted, because algorithm is given")
    check_choice("method", method, ALGORITHMS)
    return ALGORITHMS[method]()


def default_algorithm(objective: Any) -> FedZO:
    """Return the default algorithm of an objective: the paper's, or for a module one that learns.

    A module is trained by Adam at the server, whose rate is measured
    (:mod:`fedzo.algorithms.server_rate`), along ±1 directions, about 100 per round over all
    participants. Each weight is perturbed by 0.001.

    >>> from fedzo.problems import Quadratic
    >>> default_algorithm(Quadratic(dim=3, devices=2)) == FedZO()
    True
    """
    if objective.capability(HasStateDict) is None:
        return FedZO()
    participants = min(objective.devices, 10)
    return FedZO(
        local_steps=1,
        participants=participants,
        batch_size=16,
        directions=max(10, 100 // participants),
        smoothing=1e-3 * math.sqrt(objective.dim),
        direction_kind="rademacher",
        server=Adam(learning_rate="auto"),
    )


def ends_alone(algorithm: Algorithm, max_queries: int | None) -> bool:
    """Return whether a run needs no number of rounds to end."""
    if isinstance(algorithm, Adaptive | LBFGS | CMA):
        return True
    return isinstance(algorithm, TPE) and max_queries is not None


def split_options(options: Mapping[str, Any]) -> tuple[RunOptions, FunctionOptions]:
    """Return the options of the run, and those of a plain function; reject any others."""
    options = dict(options)
    workers = options.get("workers")
    given = workers if isinstance(workers, list | tuple) and len(workers) == 2 else (workers, None)
    if isinstance(given[0], str) and given[0] == "processes":
        options |= {"processes": True, "workers": given[1]}
    only_tables = {"data_seed", "modules", "max_queries"}
    run_keys = {field.name for field in fields(RunOptions)} - only_tables
    function_keys = set(FunctionOptions.__annotations__)
    known = sorted(run_keys | function_keys)
    for key, value in options.items():
        if key not in known:
            raise UsageError(
                f"{key} = {value!r}: unknown option{nearest(key, known)}; "
                f"there are {', '.join(known)}",
                code="unknown-option",
            )
    hints = type_hints(MinimizeKeywords)
    options = {key: normalised(key, value, hints[key]) for key, value in options.items()}
    run = {key: value for key, value in options.items() if key in run_keys}
    function: Any = {key: value for key, value in options.items() if key in function_keys}
    return RunOptions(**run), function


def as_objective(
    fun: Callable[..., Any] | Objective,
    x0: ArrayLike | None,
    devices: int | None,
    options: FunctionOptions,
    workers: int | None = None,
) -> tuple[Objective, Array]:
    """Return a function or objective as an objective, and the start, checked to fit together."""
    if not isinstance(fun, Objective):
        # Points of one device are side by side only if that is asked for: fun may not expect it.
        beside = workers or (None if options.get("processes") else 1)
        return _of_function(fun, x0, devices, options, beside)
    check_objective(fun, "fun is")
    for key, value in options.items():
        allowed = "omitted: it is for plain functions, and fun is an Objective"
        raise InvalidValue(key, value, allowed)
    if devices not in (None, fun.devices):
        raise InvalidValue("devices", devices, f"{fun.devices}, as in the objective, or omitted")
    for key, count in (("dim", fun.dim), ("devices", fun.devices)):
        try:
            check_count(key, count)
        except InvalidValue as error:
            raise UsageError(f"{name_of(fun)}: {error}", code="invalid-objective") from error
    given = None if x0 is None else checked_start(x0)
    if given is not None:
        allowed = f"of the objective's dimension, {fun.dim}"
        require(given.size == fun.dim, "x0", f"an array of {given.size}", allowed)
        if fun.capability(InPlace) is None:
            return fun, given
    # A model that rounds change in place is the problem's own memory: not copied.
    in_place = fun.capability(InPlace) is not None
    found = call_user(fun.initial)
    start = found if in_place else checked_start(found)
    if start.size != fun.dim:
        message = f"{name_of(fun)}: initial() has {start.size} numbers, dim is {fun.dim}"
        raise UsageError(message, code="invalid-objective")
    if given is not None:
        start[:] = given
    return fun, start


def _of_function(
    fun: Callable[..., Any],
    x0: ArrayLike | None,
    devices: int | None,
    options: FunctionOptions,
    workers: int | None,
) -> tuple[FunctionObjective, Array]:
    if not callable(fun) or isinstance(fun, type):
        what = "a class" if isinstance(fun, type) else f"an object of type {type(fun).__name__}"
        raise UsageError(
            f"fun is {what}, {name_of(fun)}: it must be a function of (x) or (x, device), or an "
            "object of a subclass of fedzo.Objective",
            code="not-a-function",
        )
    if x0 is None:
        raise InvalidValue("x0", None, "given: a function has no start")
    start = checked_start(x0)
    objective = FunctionObjective(fun, start.size, devices, workers=workers, **options)
    return objective, objective.encode(start)


def checked_start(x0: ArrayLike) -> Array:
    """Return a copy of a start, shape (dim,), in float32 or float64; raise unless it is finite.

    A number is a start of one dimension, as in SciPy.
    """
    start: Array = np.atleast_1d(real_array("x0", x0))
    shape = f"an array of shape {start.shape}"
    require(start.ndim == 1 and start.size > 0, "x0", shape, "one-dimensional and not empty")
    require(bool(np.isfinite(start).all()), "x0", "an array", "finite")
    return start


def perform(job: Job, objective: Objective, x0: Array, backend: Backend | None = None) -> Result:
    """Run a job on a problem, over threads of this process or by another engine."""
    job.check_folder()  # before the first query
    if job.run_dir is not None and (logs := objective.capability(LogsTrainings)) is not None:
        logs.log_to(job.run_dir / "trials.jsonl", bool(job.resume))
    with closing(objective.capability(Closable)):
        if backend is None:
            with LocalEngine(objective, job.options.seed, job.options.workers) as engine:
                result = drive(tasks(job, engine, x0, objective), engine)
        else:
            result = backend(job, objective, lambda engine: run_job(job, engine, x0, objective))
        if (loads := objective.capability(LoadsBest)) is not None:
            call_user(loads.load_best, result.best)
        result.problem = objective
    return result
