"""``fedzo.tune``: good hyper-parameters for a federation, without moving its data."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np

from fedzo.algorithms import CMA, TPE, FedZO
from fedzo.algorithms.adaptive_rate import SHARE
from fedzo.algorithms.search.base import Search
from fedzo.core.files import read_toml
from fedzo.core.objective import name_of
from fedzo.errors import InvalidValue, UsageError, check_count, nearest, normalises, one_of, require
from fedzo.plots.tuning import draw_trials
from fedzo.problems.function import OnFailure
from fedzo.problems.hyperparameters import Parallel, TrainAndScore, Tuning
from fedzo.runs.history import RESERVED
from fedzo.runs.loop import Job
from fedzo.runs.minimize import perform, split_options
from fedzo.runs.options import UNLIMITED, RunKeywords, RunOptions
from fedzo.runs.registry import describe_job
from fedzo.runs.result import Callbacks, Result, as_watchers
from fedzo.uplinks import Ideal
from fedzo.variables.space import Kind, Space, Value

# Measured by benchmarks/tuning.py --defaults. The rate has the score's units, so it is measured.
TUNER = FedZO(
    learning_rate="auto",
    smoothing=0.3,
    batch_size=1,
    directions=1,
    local_steps=1,
    difference="central",
)

Method = Literal["auto", "tpe", "cma", "fedzo"]


@dataclass
class Tuned:
    """The best evaluated parameters, and how they were found.

    ``score`` is their mean over all devices and evaluation seeds: the best trial is scored again.
    ``queries`` counts all trainings, including evaluations. ``history`` has the parameters of each
    evaluation, and ``trials`` all tried parameters with their mean scores. ``improved`` is False if
    no parameters are better than the start; ``message`` then says so.
    """

    params: dict[str, Value]
    score: float
    queries: int
    improved: bool
    message: str
    history: list[dict[str, Any]] = field(repr=False)
    trials: list[dict[str, Any]] = field(repr=False)
    result: Result = field(repr=False)

    def trials_dataframe(self) -> Any:
        """Return the trials as a pandas.DataFrame, with the columns of ``trials.csv``."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError:
            raise UsageError("trials_dataframe needs pandas: pip install pandas") from None
        problem = self.result.problem
        assert isinstance(problem, Tuning)
        return pd.DataFrame(problem.table())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the score of every trial against each parameter."""
        params, scores = ([trial[key] for trial in self.trials] for key in ("params", "score"))
        draw_trials(params, scores, path)


@normalises
def tune(
    train_and_score: TrainAndScore,
    space: Space | Mapping[str, Kind],
    *,
    devices: int,
    max_queries: int = 400,
    start: Mapping[str, Value] | None = None,
    worst: float | None = None,
    on_failure: OnFailure = "raise",
    evaluation_seeds: int = 1,
    method: Method = "auto",
    algorithm: FedZO | Search | None = None,
    parallel: Parallel = "threads",
    callback: Callbacks = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Unpack[RunKeywords],
) -> Tuned:
    """Find hyper-parameters that do well on all devices, each of which trains on its own data.

    Parameters
    ----------
    train_and_score : callable
        ``train_and_score(params, device, rng) -> float``, **lower is better**; ``params`` is a
        dict, ``device`` in 0, ..., N-1, and all randomness comes from ``rng``.
    space : mapping
        ``{"rate": fedzo.Float(1e-4, 1, log=True), "layers": fedzo.Int(1, 8), ...}``. A
        ``fedzo.Choice(["linear", "rbf"])`` is one of several options. A parameter that exists
        with one option only has ``when=("kernel", "rbf")``.
    devices : int
        N.
    max_queries : int
        The largest number of trainings, including evaluations and the choice of a learning
        rate. fedzo runs as many whole rounds as these allow, and evaluates the last.
    start, worst, on_failure, evaluation_seeds, parallel
        See :class:`~fedzo.problems.Tuning`.
    method : str
        ``auto`` is TPE for fewer than 100 trials per parameter or a space with choices, and
        CMA-ES otherwise or without Optuna. ``tpe``, ``cma`` and ``fedzo`` (local steps from the
        start, see ``docs/black-box.md``) select a method.
    algorithm : FedZO or a search, optional
        An algorithm with custom settings in place of a method: ``fedzo.CMA(sigma=0.3)``.
    callback, run_dir, resume, **options
        See :func:`fedzo.minimize`. By default FedZO is evaluated every third round. A search is
        evaluated at the start and at the end, because its trials are scores. ``workers`` is also
        the number of processes, and ``timeout``, with processes, the longest training in seconds.
        ``rounds`` follows from ``max_queries``.

    Examples
    --------
    >>> import numpy as np, fedzo
    >>> def score(params, device, rng):  # best at a rate of 0.1, and 3 layers
    ...     away = np.log10(params["rate"]) + 1, (params["layers"] - 3) / 4
    ...     return float(np.sum(np.square(away)) + 0.1 * rng.normal() + device)
    >>> space = {"rate": fedzo.Float(1e-4, 1.0, log=True), "layers": fedzo.Int(1, 8)}
    >>> tuned = fedzo.tune(score, space, devices=5, max_queries=300)
    >>> tuned.params["layers"], bool(0.03 < tuned.params["rate"] < 0.3), tuned.queries <= 300
    (3, True, True)
    """
    check_count("max_queries", max_queries)
    check_count("devices", devices)
    require("rounds" not in options, "rounds", options.get("rounds"), "omitted: see max_queries")
    space = space if isinstance(space, Space) else Space(space)
    if algorithm is None:
        algorithm = _algorithm(method, space, max_queries // devices)
    allowed = "a fedzo.FedZO(...) or a search such as fedzo.TPE()"
    require(isinstance(algorithm, FedZO | Search), "algorithm", algorithm, allowed)
    every = UNLIMITED if isinstance(algorithm, Search) else 3
    run, own = split_options({"evaluate_every": every, **options})
    timeout = own.get("timeout")
    if own.get("processes"):
        parallel = "processes"
    taken = sorted(RESERVED & space.parameters.keys())
    require(not taken, "space", taken, "other names: these are reserved for the history")
    problem = Tuning(
        train_and_score,
        space,
        devices,
        start=start,
        worst=worst,
        on_failure=on_failure,
        evaluation_seeds=evaluation_seeds,
        parallel=parallel,
        timeout=timeout,
        workers=run.workers,
        max_queries=max_queries,
        seed=run.seed,
    )
    if worst is None and isinstance(algorithm, Search):
        problem.worst = np.inf  # a trial that failed is never the best
    table = {
        "name": name_of(train_and_score),
        "devices": devices,
        "evaluation_seeds": evaluation_seeds,
        "worst": worst,
        "max_queries": max_queries,
        "python_only": "its training is a function that was given to fedzo.tune",
    }
    described = {name: asdict(kind) for name, kind in space.parameters.items()}

    def planned(job: Job) -> Job:
        """Return the job with the rounds that the budget allows after the probes."""
        probed = job.probed or _probed(job)
        rounds = _rounds(algorithm, problem, max_queries, run, probed)
        options, own = replace(run, rounds=rounds), {**table, "probed": probed}
        tables = {**describe_job(algorithm, job.uplink, options, own), "space": described}
        return replace(job, options=options, tables=tables)

    job = Job(
        algorithm=algorithm,
        uplink=Ideal(),
        options=run,
        tables={},
        run_dir=None if run_dir is None else Path(run_dir),
        resume=resume,
        watchers=as_watchers(callback),
        plan=planned,
    )
    result = perform(planned(job), problem, problem.initial())
    best, found = result.best, space.params(result.best.x)
    improved = found != space.params(problem.initial())
    message = result.message if improved else f"nothing better than the start: {result.message}"
    return Tuned(
        params=found,
        score=best.fun,
        queries=problem.meter.queries,
        improved=improved,
        message=message,
        history=result.history,
        trials=problem.trials,
        result=result,
    )


def _algorithm(method: str, space: Space, trials: int) -> FedZO | Search:
    """Return the algorithm of a method, for this space and number of trials."""
    names = get_args(Method)
    require(method in names, "method", method, one_of(names) + nearest(str(method), names))
    unordered = min(space.levels) < 0
    if method == "auto":
        wanted = unordered or trials < 100 * space.dim
        method = "tpe" if wanted and find_spec("optuna") is not None else "cma"
    if method == "tpe":
        return TPE(batch_size=1, levels=space.levels, conditions=space.conditions)
    if method == "cma":
        return CMA(batch_size=1, levels=space.levels if any(space.levels) else ())
    allowed = "'auto', 'tpe' or 'cma', where the space has a fedzo.Choice"
    require(not unordered, "method", method, allowed)
    return TUNER


def _probed(job: Job) -> int:
    """Return the number of probes of the run that a folder holds."""
    if job.folder is None or not os.path.exists(job.folder.config):
        return 0
    recorded = read_toml(job.folder.config)
    return int(recorded.get("problem", {}).get("probed", 0))


def _rounds(
    algorithm: FedZO | Search, problem: Tuning, budget: int, run: RunOptions, probed: int = 0
) -> int:
    """Return the number of rounds that a budget allows, with an evaluation after the last."""
    if isinstance(algorithm, Search):  # ends on its own
        evaluations = 1 + run.reserved_evaluations
        least = evaluations * problem.evaluation_cost + (algorithm.participants or problem.devices)
        allowed = f"at least {least}, for a trial between evaluations"
        require(budget >= least, "max_queries", budget, allowed)
        return UNLIMITED
    points = algorithm.estimator.stencil[0].size
    devices = algorithm.participants or problem.devices
    cost = devices * algorithm.local_steps * algorithm.batch_size * points
    looks = cost / SHARE if algorithm.automatic else 0.0  # the probes that adapt the rate
    rounds, evaluation = 0, problem.evaluation_cost

    def needed(rounds: int) -> int:
        evaluations = sum(map(run.evaluates, range(rounds))) + 1  # one at the end
        return evaluations * evaluation + rounds * cost + int(rounds * looks)

    while probed + needed(rounds + 1) <= budget:
        rounds += 1
    if rounds == 0:
        least = probed + 2 * evaluation + cost
        allowed = f"at least {least}, for a round between two evaluations"
        raise InvalidValue("max_queries", budget, allowed)
    return rounds
