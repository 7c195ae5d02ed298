"""The server's app: a run of an experiment over whoever is connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedzo.config.experiment import Experiment
from fedzo.core.files import as_toml
from fedzo.errors import Halted, InvalidValue, naming
from fedzo.flower.app_config import experiment_of
from fedzo.flower.federation import FlowerFederation
from fedzo.flower.reasons import log
from fedzo.runs.loop import run_job
from fedzo.runs.result import Progress, Result


def make_server_app(config: Experiment | None = None) -> ServerApp:
    """Return the ServerApp that runs an experiment.

    The server holds no data and makes no problem: the dimension, the start, the losses and the
    metrics come from the nodes. Of the run's configuration it reads ``run-dir``, a folder on
    the server for the run's files, and ``resume``, which resumes from its checkpoint.

    Parameters
    ----------
    config : Experiment, optional
        What to run; None: what the app's run configuration says.

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
        result = run_on(
            grid,
            experiment,
            Path(folder) if folder else None,
            resume=resume,
        )
        log.info("%s: f(x) = %.6g", result.message, result.fun)
        if not result.success:
            raise Halted(result.message)  # so that Flower lists the run as failed

    return app


def run_on(
    grid: Grid, experiment: Experiment, run_dir: Path | None = None, resume: bool = False
) -> Result:
    """Run an experiment over the nodes of a grid."""
    options = experiment.options
    federation = FlowerFederation(
        grid, options.seed, experiment.uplink, experiment.flower, _said(experiment)
    )
    with naming("algorithm"):  # a hyper-parameter that does not fit the nodes' problem
        job, x0 = experiment.job(run_dir, resume, log_progress), federation.initial()
        federation.follow(job, x0)
        return run_job(job, federation, x0)


def log_progress(progress: Progress) -> None:
    """Log how far a run has come."""
    record = progress.record
    loss = "" if record is None else f", f(x) = {record['train_loss']:.6g}"
    log.info("round %d of %d%s", progress.round, progress.rounds, loss)


def _said(experiment: Experiment) -> dict[str, Any]:
    """Return what a run says of the problem's settings."""
    plain = as_toml({"problem": experiment.tables["problem"]})["problem"]
    said = {k: v for k, v in plain.items() if k not in ("name", "python_only")}
    return {**said, "seed": experiment.options.data_seed}
