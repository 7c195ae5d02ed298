"""Callbacks that write a run's records where people look at them.

Each is given to ``minimize(..., callback=...)``, alone or in a list, and writes the numbers of an
evaluated round as they come. What they need is in the extra ``fedzo[track]``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from importlib import import_module
from numbers import Real
from typing import Any

from fedzo.errors import MissingExtra
from fedzo.runs.result import Progress


class TensorBoard:
    """Writes scalars for TensorBoard, by its own writer: PyTorch is not needed.

    Parameters
    ----------
    log_dir : path
        Where ``tensorboard --logdir`` looks.

    Examples
    --------
    >>> import tempfile, fedzo
    >>> from fedzo.runs.callbacks import TensorBoard
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = fedzo.minimize(
    ...         lambda x, device: x @ x, [1.0], devices=2, callback=TensorBoard(folder))
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir, self._summary = os.fspath(log_dir), _needed("tensorboard.summary")
        self._writer: Any = None

    def __call__(self, progress: Progress) -> None:
        """Write the record of an evaluated round."""
        if progress.record is None:
            return
        if self._writer is None:
            self._writer = self._summary.Writer(self.log_dir)
        for key, value in _numbers(progress.record).items():
            self._writer.add_scalar(key, value, progress.round)
        self._writer.flush()

    def close(self) -> None:
        """Close the file; another run begins another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MLflow:
    """Logs metrics to an MLflow run of its own.

    Parameters
    ----------
    experiment : str
        The experiment's name; it is made if there is none.
    tracking_uri : str, optional
        A server, or ``sqlite:///file.db``; MLflow's own setting by default.
    run_name : str, optional
        What the run is called.
    params : mapping, optional
        Logged as the run's parameters, such as ``dataclasses.asdict(algorithm)``.
    """

    def __init__(
        self,
        experiment: str = "fedzo",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self._entities = _needed("mlflow.entities")
        self._client = _needed("mlflow.tracking").MlflowClient(tracking_uri=tracking_uri)
        self.experiment, self.run_name, self.params = experiment, run_name, dict(params or {})
        self.run_id: str | None = None  # of the last run
        self._open = False

    def __call__(self, progress: Progress) -> None:
        """Log the record of an evaluated round."""
        if progress.record is None:
            return
        if not self._open:
            self._begin()
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(key, value, now, progress.round)
            for key, value in _numbers(progress.record).items()
        ]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """End the MLflow run; another run begins another."""
        if self._open:
            self._client.set_terminated(self.run_id)
            self._open = False

    def _begin(self) -> None:
        found = self._client.get_experiment_by_name(self.experiment)
        number = (
            self._client.create_experiment(self.experiment)
            if found is None
            else found.experiment_id
        )
        self.run_id = self._client.create_run(number, run_name=self.run_name).info.run_id
        self._open = True
        params = [self._entities.Param(key, str(value)) for key, value in self.params.items()]
        self._client.log_batch(self.run_id, params=params)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return what can be drawn over the rounds."""
    return {k: float(v) for k, v in record.items() if isinstance(v, Real) and k != "round"}


def _needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(str(error), "track") from error
