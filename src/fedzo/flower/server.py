"""The server's app: run an experiment over the connected nodes.

Flower's run configuration is flat, in kebab case, and has no null. A dotted key stands for a table
and a key of a fedzo configuration, with ``_`` for ``-``: ``algorithm.local-steps`` is the key
``local_steps`` of ``[algorithm]``. An empty string leaves a setting at its default. ``config``
names a configuration to start from, a file or a shipped one. Flower rejects keys that the app does
not declare, without naming them. So the declared key ``set`` takes any others, in the form of
``fedzo run --set``.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedzo.config.experiment import Experiment, merge_changes, parse_overrides
from fedzo.core.files import as_toml
from fedzo.core.objective import Objective
from fedzo.errors import Halted, InvalidValue, UsageError, naming, shown
from fedzo.flower.engine import FlowerEngine
from fedzo.flower.errors import log
from fedzo.problems import PROBLEMS
from fedzo.runs.loop import run_job
from fedzo.runs.result import Progress, Result

APP_KEYS = ("config", "run-dir", "resume", "set")  # for the app, not for the experiment
HELD_BY_NODES = "Flower's nodes hold its problem"


def make_server_app(config: Experiment | None = None) -> ServerApp:
    """Return the ServerApp that runs an experiment.

    The server holds no data and makes no problem. The dimension, the start, the losses and the
    metrics come from the nodes. Two keys of the run's configuration are for the server:
    ``run-dir``, a folder on the server for the run's files, and ``resume``, which continues from
    the checkpoint in that folder.

    Parameters
    ----------
    config : Experiment, optional
        The experiment; by default that of the app's run configuration.

    Examples
    --------
    >>> from flwr.app import Context, RecordDict
    >>> from fedzo.flower import InProcessGrid, make_client_app, make_server_app
    >>> settings = {"config": "quadratic", "run.rounds": 3}
    >>> app = make_client_app({"quadratic": {"devices": 20}})
    >>> grid = InProcessGrid(app, nodes=2, run_config=settings)
    >>> make_server_app()(grid, Context(1, 0, {}, RecordDict(), settings))
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        experiment = config or experiment_of(context.run_config)
        folder = str(context.run_config.get("run-dir", ""))
        resume = context.run_config.get("resume", False)
        if not isinstance(resume, bool):
            raise InvalidValue("resume", resume, "true or false")
        result = run_on(grid, experiment, Path(folder) if folder else None, resume=resume)
        log.info("%s: f(x) = %.6g", result.message, result.fun)
        if not result.success:
            raise Halted(result.message)  # so that Flower lists the run as failed

    return app


def run_on(
    grid: Grid, experiment: Experiment, run_dir: Path | None = None, resume: bool = False
) -> Result:
    """Run an experiment over the nodes of a grid."""
    plain = as_toml({"problem": experiment.tables["problem"]})["problem"]
    problem = {k: v for k, v in plain.items() if k not in ("name", "python_only")}
    engine = FlowerEngine(
        grid,
        experiment.options.seed,
        experiment.uplink,
        experiment.flower,
        {**problem, "seed": experiment.options.data_seed},
    )
    with naming("algorithm"):  # a hyper-parameter that does not fit the nodes' problem
        job = experiment.job(run_dir, resume, log_progress)
        x0 = engine.initial()
        engine.enable_replay(job, x0)
        return run_job(job, engine, x0)


def log_progress(progress: Progress) -> None:
    """Log the round of a run, and its loss after an evaluation."""
    record = progress.record
    loss = "" if record is None else f", f(x) = {record['train_loss']:.6g}"
    log.info("round %d of %d%s", progress.round, progress.rounds, loss)


def experiment_of(run_config: Mapping[str, Any]) -> Experiment:
    """Return the experiment that a run configuration describes.

    >>> settings = {"config": "quadratic", "algorithm.local-steps": 2, "run.target": ""}
    >>> experiment_of(settings).algorithm.local_steps
    2
    >>> experiment_of({**settings, "set": "run.rounds=7 algorithm.directons=3"})
    Traceback (most recent call last):
    fedzo.errors.UsageError: algorithm.directons = 3: unknown key (did you mean 'directions'?); ...
    """
    tables: dict[str, dict[str, Any]] = {}
    for key, value in run_config.items():
        if key in APP_KEYS or value == "":
            continue
        table, dot, name = key.replace("-", "_").partition(".")
        if not dot:
            text = f"{key} = {shown(value)}: must be a table and a key, like run.rounds"
            raise UsageError(text, code="not-table-and-key")
        tables.setdefault(table, {})[name] = value
    pairs = (each.partition("=") for each in shlex.split(str(run_config.get("set", ""))))
    more = parse_overrides(k.replace("-", "_") + equals + v for k, equals, v in pairs)
    if "name" in more.get("problem", {}):
        text = "set: give problem.name as a separate key, because the nodes read it too"
        raise UsageError(text, code="problem-name-in-set")
    tables = merge_changes(tables, more)
    problem = tables.get("problem", {})
    if ":" not in str(problem.get("name")):
        return _resolve(run_config.get("config"), tables)
    # A custom problem of the nodes: the server imports no code of it.
    stand_in = {**tables, "problem": {"name": next(iter(PROBLEMS))}}
    made = _resolve(run_config.get("config"), stand_in)
    described = {**made.tables, "problem": {**problem, "python_only": HELD_BY_NODES}}
    return replace(made, tables=described, problem=_held_by_nodes)


def _resolve(source: Any, tables: Mapping[str, Mapping[str, Any]]) -> Experiment:
    return Experiment.load(str(source), tables) if source else Experiment.resolve(tables)


def _held_by_nodes() -> Objective:
    raise UsageError(HELD_BY_NODES, code="python-only")
