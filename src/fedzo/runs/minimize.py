"""The calls that run an algorithm: on this machine, or over a federation that somebody made."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Unpack

from numpy.typing import ArrayLike, NDArray

from fedzo.algorithms import ALGORITHMS, Algorithm, FedZO
from fedzo.core.federation import Federation, LocalFederation
from fedzo.core.objective import Objective, name_of
from fedzo.core.random import check_seed
from fedzo.errors import UsageError, nearest, require
from fedzo.problems.function import FunctionObjective, FunctionOptions
from fedzo.runs.auto import settled
from fedzo.runs.folder import Config, RunFolder, plain
from fedzo.runs.inputs import as_objective
from fedzo.runs.loop import Loop
from fedzo.runs.result import Callback, Result, closing, listed, together
from fedzo.uplinks import UPLINKS, Ideal, Uplink

Array = NDArray[Any]


def minimize(
    fun: Callable[[Array, int], Any] | Objective,
    x0: ArrayLike | None = None,
    *,
    devices: int | None = None,
    algorithm: Algorithm | None = None,
    uplink: Uplink | None = None,
    rounds: int = 100,
    seed: int = 0,
    workers: int | None = None,
    evaluate_every: int = 10,
    checkpoint_every: int = 10,
    target: float | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    config: Config | None = None,
    **options: Unpack[FunctionOptions],
) -> Result:
    """Minimise f(x) = 1/N sum_i f_i(x) over a federation, from values only.

    Parameters
    ----------
    fun : callable or Objective
        ``fun(x, device) -> float`` with ``device`` in 0, ..., N-1, or an
        :class:`~fedzo.core.objective.Objective`. It is called from several threads at once
        unless ``workers=1``.
    x0 : array, optional
        Where to start. Its precision, float32 or float64, is the run's. An objective may
        have a start of its own, and else starts at zero.
    devices : int, optional
        N, for a plain function; an objective knows its own.
    algorithm : Algorithm, optional
        ``FedZO()`` by default.
    uplink : Uplink, optional
        ``Ideal()`` by default.
    rounds : int
        T, how many rounds to run.
    seed : int
        Names all randomness of the run: the same seed gives the same run, bit for bit.
    workers : int, optional
        Threads; all cores by default. The result does not depend on it.
    evaluate_every : int
        f is evaluated over all devices at rounds 0, k, 2k, ... and at the end.
    checkpoint_every : int
        With a ``run_dir``, a checkpoint is written every so many rounds, and at the end.
    target : float, optional
        The run stops when f, as evaluated, is no larger than this.
    callback : callable or several, optional
        Called with a :class:`Progress` before the first and after each round; the run stops
        when one returns True. What has a ``close()`` is closed when the run has ended.
        ``fedzo.ProgressLine()`` shows round, loss and the time left; :mod:`fedzo.runs.callbacks`
        has more.
    run_dir : path, optional
        Folder for ``config.toml``, ``history.jsonl``, ``checkpoint.npz``, ``model.npy`` and
        ``curves.png``.
    resume : bool
        Go on from ``run_dir``'s checkpoint; ``rounds`` counts from the very beginning, so
        100 rounds and then a resume with ``rounds=200`` is the same run as 200 at once.
    config : mapping, optional
        The configuration to write and to compare on resume; made from the arguments by
        default.
    **options
        Of a plain function: ``vectorized``, ``bounds``, ``retries``, ``on_failure`` and
        ``max_queries``; see :class:`~fedzo.problems.function.FunctionObjective`. The result's
        ``x`` lies inside the bounds.

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
    algorithm = FedZO() if algorithm is None else algorithm
    uplink = Ideal() if uplink is None else uplink
    for key, part, kind in (("algorithm", algorithm, "FedZO"), ("uplink", uplink, "Ideal")):
        made = is_dataclass(part) and not isinstance(part, type)
        require(made, key, part, f"an object such as fedzo.{kind}()")
    check_seed("seed", seed)
    known = [*inspect.signature(minimize).parameters, *FunctionOptions.__annotations__]
    for key, value in options.items():
        allowed = f"left out: there is no such setting{nearest(key, known)}"
        require(key in known, key, value, allowed)
    objective, start = as_objective(fun, x0, devices, options)
    with closing(objective):
        algorithm, probed = settled(
            algorithm, objective, start, rounds=rounds, seed=seed, workers=workers, folder=run_dir
        )
        made_from = {
            "problem": _problem(fun, objective),
            "algorithm": describe(algorithm, "name", ALGORITHMS),
            "uplink": describe(uplink, "kind", UPLINKS),
            "run": {"rounds": rounds, "seed": seed, "evaluate_every": evaluate_every},
        }
        result = drive(
            LocalFederation(objective, seed, workers),
            start,
            algorithm=algorithm,
            uplink=uplink,
            rounds=rounds,
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            target=target,
            callback=callback,
            run_dir=run_dir,
            resume=resume,
            point=getattr(objective, "point", None),
            probed=probed,
            # The algorithm as it was settled: a rate that was measured is a number from here on.
            config={**made_from, **(config or {}), "algorithm": made_from["algorithm"]},
        )
    if run_dir is not None and hasattr(objective, "write_files"):
        objective.write_files(Path(run_dir), result.best)
    return result


def drive(
    federation: Federation,
    x0: Array,
    *,
    algorithm: Algorithm,
    uplink: Uplink,
    rounds: int,
    config: Config,
    evaluate_every: int = 10,
    checkpoint_every: int = 10,
    target: float | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    point: Callable[[Array], Array] | None = None,
    probed: int = 0,
) -> Result:
    """Run an algorithm over a federation, whoever computes there: see :func:`minimize`.

    ``point`` says what the model is to a person, if that is not the model itself; ``probed``
    is how many queries were asked before the run.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems.function import FunctionObjective
    >>> federation = LocalFederation(FunctionObjective(lambda x, i: x @ x, 2, devices=3), seed=0)
    >>> result = drive(federation, np.ones(2), algorithm=FedZO(learning_rate=0.1),
    ...                uplink=Ideal(), rounds=20, config={})
    >>> bool(result.fun < 1e-3)
    True
    """
    if resume and run_dir is None:
        raise UsageError("resume needs the run_dir of the run to go on with")
    files = None if run_dir is None else RunFolder(run_dir)
    if resume and files is not None and not files.has_run():
        raise UsageError(f"{files.path} holds no run to resume")
    run = Loop.begin(
        federation,
        x0,
        algorithm=algorithm,
        uplink=uplink,
        rounds=rounds,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        target=target,
        callback=together(callback),
        point=point,
        probed=probed,
        config=plain(config),
        files=files,
    )
    with nullcontext() if files is None else files.held():
        run.open(resume)
        with closing(*listed(callback)), federation:
            return run.close(*run.go())


def _problem(fun: object, objective: Objective) -> dict[str, Any]:
    """Return the [problem] table of what no configuration has made."""
    table = {"name": name_of(fun), "dim": objective.dim, "devices": objective.devices}
    if isinstance(objective, FunctionObjective):
        if objective.box is not None:
            table["bounds"] = objective.box.pairs()
        if objective.meter.budget is not None:
            table["max_queries"] = objective.meter.budget
    return table


def describe(part: Any, key: str, known: Mapping[str, type]) -> dict[str, Any]:
    """Return the table of a configuration that would make this algorithm or uplink.

    >>> describe(FedZO(local_steps=2), "name", ALGORITHMS)["local_steps"]
    2
    """
    names = {kind: name for name, kind in known.items()}
    return {key: names.get(type(part), name_of(type(part))), **asdict(part)}
