"""``fedzo.tune``: good hyper-parameters for a federation, without moving its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from fedzo.algorithms import CMA, TPE, FedZO
from fedzo.algorithms.automatic import SHARE
from fedzo.algorithms.searching import Search
from fedzo.core.files import read_toml
from fedzo.core.objective import name_of
from fedzo.errors import InvalidValue, check_count, require
from fedzo.problems.function import OnFailure
from fedzo.problems.tuning.problem import Parallel, TrainAndScore, Tuning
from fedzo.runs.job import Job, choose_numbers, perform
from fedzo.runs.loop import RESERVED
from fedzo.runs.minimize import UNLIMITED, describe_job, split_options
from fedzo.runs.options import RunKeywords, RunOptions
from fedzo.runs.result import Callbacks, Result, as_watchers, closing
from fedzo.uplinks import Ideal
from fedzo.variables.space import Float, Int, Space, Value

# Measured by benchmarks/tuning.py --defaults. The rate has the score's units: nobody can know it.
TUNER = FedZO(
    learning_rate="auto",
    smoothing=0.3,
    batch_size=1,
    directions=1,
    local_steps=1,
    difference="central",
)


@dataclass
class Tuned:
    """The best parameters that were evaluated, and how they were found.

    ``score`` is their mean over all devices and the evaluation's seeds; ``queries`` counts all
    trainings, evaluations among them; ``history`` has the parameters of each evaluation.
    """

    params: dict[str, Value]
    score: float
    queries: int
    history: list[dict[str, Any]] = field(repr=False)
    result: Result = field(repr=False)


def tune(
    train_and_score: TrainAndScore,
    space: Space | Mapping[str, Float | Int],
    *,
    devices: int,
    max_queries: int = 400,
    start: Mapping[str, Value] | None = None,
    worst: float | None = None,
    on_failure: OnFailure = "raise",
    evaluation_seeds: int = 1,
    algorithm: FedZO | Search | Literal["auto"] = TUNER,
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
        ``{"rate": fedzo.Float(1e-4, 1, log=True), "layers": fedzo.Int(1, 8), ...}``.
    devices : int
        N.
    max_queries : int
        How many trainings there may be, evaluations and the choice of a learning rate
        included: as many whole rounds are run as these allow, and the last is evaluated.
    start, worst, on_failure, evaluation_seeds, parallel
        See :class:`~fedzo.problems.tuning.problem.Tuning`.
    algorithm : FedZO, a search or "auto"
        The default is for noisy problems of few dimensions: see ``docs/black-box.md``. A search is
        one of ``fedzo.TPE()``, ``fedzo.CMA()`` and ``fedzo.Adaptive()``; "auto" takes TPE while
        there are fewer than 100 points to ask for each parameter, and CMA-ES from there on.
    callback, run_dir, resume, **options
        See :func:`fedzo.minimize`; an evaluation every third round by default. ``workers`` is the
        number of processes, too, and ``rounds`` follows from ``max_queries``.

    Examples
    --------
    >>> import numpy as np, fedzo
    >>> def score(params, device, rng):  # best at a rate of 0.1, and 3 layers
    ...     away = np.log10(params["rate"]) + 1, (params["layers"] - 3) / 4
    ...     return float(np.sum(np.square(away)) + 0.1 * rng.normal() + device)
    >>> space = {"rate": fedzo.Float(1e-4, 1.0, log=True), "layers": fedzo.Int(1, 8)}
    >>> tuned = fedzo.tune(score, space, devices=5, max_queries=300)
    >>> tuned.params["layers"], round(float(np.log10(tuned.params["rate"])), 1), tuned.queries
    (3, -1.0, 295)
    """
    check_count("max_queries", max_queries)
    require("rounds" not in options, "rounds", options.get("rounds"), "omitted: see max_queries")
    chosen: dict[str, Any] = {"evaluate_every": 3, **options}
    run, _ = split_options(chosen)
    space = space if isinstance(space, Space) else Space(space)
    if algorithm == "auto":
        few = max_queries < 100 * space.dim * devices
        algorithm = TPE(batch_size=1) if few else CMA(batch_size=1)
    allowed = "a fedzo.FedZO(...), a search such as fedzo.TPE(), or 'auto'"
    require(isinstance(algorithm, FedZO | Search), "algorithm", algorithm, allowed)
    taken = sorted(RESERVED & space.parameters.keys())
    require(not taken, "space", taken, "other names: the history has these")
    problem = Tuning(
        train_and_score,
        space,
        devices,
        start=start,
        worst=worst,
        on_failure=on_failure,
        evaluation_seeds=evaluation_seeds,
        parallel=parallel,
        workers=run.workers,
        max_queries=max_queries,
        seed=run.seed,
    )
    job = Job(
        algorithm=algorithm,
        uplink=Ideal(),
        options=replace(run, rounds=_rounds(algorithm, problem, max_queries, run)),
        tables={},
        run_dir=None if run_dir is None else Path(run_dir),
        resume=resume,
        watchers=as_watchers(callback),
    )
    with closing(problem):
        job, probed = choose_numbers(job, problem, problem.initial())
    probed = probed or _probed(job)
    run = replace(run, rounds=_rounds(algorithm, problem, max_queries, run, probed))
    described = {name: asdict(kind) for name, kind in space.parameters.items()}
    table = {
        "name": name_of(train_and_score),
        "devices": devices,
        "evaluation_seeds": evaluation_seeds,
        "worst": worst,
        "max_queries": max_queries,
        "probed": probed,
        "python_only": "its training is a function that was given to fedzo.tune",
    }
    tables = {**describe_job(algorithm, job.uplink, run, table), "space": described}
    result = perform(replace(job, options=run, tables=tables), problem, problem.initial())
    best = result.best
    return Tuned(space.params(best.x), best.fun, problem.meter.queries, result.history, result)


def _probed(job: Job) -> int:
    """Return how many queries the run that has begun in a folder asked before its first round."""
    if job.folder is None or not os.path.exists(job.folder.config):
        return 0
    recorded = read_toml(job.folder.config)
    return int(recorded.get("problem", {}).get("probed", 0))


def _rounds(
    algorithm: FedZO | Search, problem: Tuning, budget: int, run: RunOptions, probed: int = 0
) -> int:
    """Return how many rounds a budget is enough for, with an evaluation after the last."""
    if isinstance(algorithm, Search):  # it ends by itself
        return UNLIMITED
    points = algorithm.estimator.stencil[0].size
    devices = algorithm.participants or problem.devices
    cost = devices * algorithm.local_steps * algorithm.batch_size * points
    looks = cost / SHARE if algorithm.automatic else 0.0  # those by which it adapts
    rounds, evaluation = 0, problem.evaluation_cost

    def needed(rounds: int) -> int:
        return _evaluations(rounds, run) * evaluation + rounds * cost + int(rounds * looks)

    while probed + needed(rounds + 1) <= budget:
        rounds += 1
    if rounds == 0:
        least = probed + 2 * evaluation + cost
        allowed = f"at least {least}, for a round between two evaluations"
        raise InvalidValue("max_queries", budget, allowed)
    return rounds


def _evaluations(rounds: int, run: RunOptions) -> int:
    """Return how many evaluations so many rounds have, one of them at the end."""
    return sum(map(run.evaluates, range(rounds))) + 1
