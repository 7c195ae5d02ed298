"""Callbacks: the progress line, early stopping, signals, and trackers of runs.

Each is given to ``minimize(..., callback=...)``, alone or in a list. The trackers write the numbers
of every evaluated round; their libraries are in the extra ``fedzo[track]``.
"""

import csv
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from importlib import import_module
from numbers import Real
from typing import Any, Self, TextIO

from fedzo.core.machine import ENDING
from fedzo.core.progress import LiveLine, duration
from fedzo.errors import (
    MissingExtra,
    UsageError,
    check_count,
    check_not_negative,
    nearest,
    one_of,
    require,
)
from fedzo.runs.result import Progress

__all__ = ["CSV", "EarlyStopping", "MLflow", "ProgressLine", "TensorBoard", "WandB"]


def __dir__() -> list[str]:
    return __all__


class ProgressLine(LiveLine):
    """A callback that shows round, loss, metric, queries per second and the time left.

    On a terminal it rewrites one line, at most ten times per second. Elsewhere it writes a plain
    line at about twenty of the evaluated rounds.

    Parameters
    ----------
    stream : text stream, optional
        Standard error by default.

    Examples
    --------
    >>> import sys, fedzo
    >>> line = fedzo.ProgressLine(sys.stdout)
    >>> result = fedzo.minimize(
    ...     lambda x, device: x @ x, [1.0], devices=2, rounds=10, callback=line)
    round 0/10  train loss 1
    round 10/10  train loss ...  queries/s  0 s left
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(sys.stderr if stream is None else stream)
        self._first: Progress | None = None
        self._begin: int | None = None
        self._record: Mapping[str, Any] = {}
        self._shown = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show the progress of the run."""
        if self._first is None or self._first.round == self._begin:
            self._first = progress  # the clock starts after a round: the first may compile
        self._begin = progress.round if self._begin is None else self._begin
        self._record = progress.record or self._record
        at_end = progress.round == progress.rounds
        if self.live:
            now = time.monotonic()
            if at_end or now - self._shown > 0.1:
                self._shown = now
                self.rewrite(*self._parts(progress))
        elif progress.record is not None:
            # Evaluated rounds that pass a twentieth of the run.
            twentieth = 20 * progress.round // max(progress.rounds, 1)
            if at_end or twentieth >= self._shown:
                self._shown = twentieth + 1
                self.write("  ".join(self._parts(progress)) + "\n")

    def _parts(self, progress: Progress) -> list[str]:
        assert self._first is not None
        parts = [f"round {progress.round}/{progress.rounds}"]
        parts += [
            f"{key.replace('_', ' ')} {self._record[key]:.4g}" for key in headline(self._record)
        ]
        seconds = progress.seconds - self._first.seconds
        rounds = progress.round - self._first.round
        if rounds and seconds > 0:
            speed = (progress.queries - self._first.queries) / seconds
            parts.append(f"{speed:,.3g} queries/s" if speed < 1000 else f"{speed:,.0f} queries/s")
            left = seconds / rounds * (progress.rounds - progress.round)
            before, now = self._first.queries_left, progress.queries_left
            if before is not None and now is not None and now < before:  # the budget may end first
                left = min(left, seconds / (before - now) * now)
            parts.append(f"{duration(left)} left")
        return parts


class EarlyStopping:
    """Stop a run whose evaluations no longer improve.

    Parameters
    ----------
    key : str
        The number of the history to watch.
    patience : int
        The run stops after this many evaluations in a row without an improvement.
    min_delta : float
        The least change that counts as an improvement.
    maximise : bool, optional
        Whether larger is better: by default for keys that end with ``accuracy`` or ``success``.

    Examples
    --------
    >>> import fedzo
    >>> stop = fedzo.callbacks.EarlyStopping(patience=2, min_delta=0.1)
    >>> algorithm = fedzo.FedZO(learning_rate=0.1, directions=1)
    >>> result = fedzo.minimize(lambda x, device: x @ x, [1.0], devices=2, rounds=500,
    ...     algorithm=algorithm, evaluate_every=1, callback=stop)
    >>> result.history[-1]["round"] < 100
    True
    """

    def __init__(
        self,
        key: str = "train_loss",
        patience: int = 5,
        min_delta: float = 0.0,
        *,
        maximise: bool | None = None,
    ) -> None:
        check_count("patience", patience)
        check_not_negative("min_delta", min_delta)
        larger = key.endswith(("accuracy", "success")) if maximise is None else maximise
        self.key, self.patience, self.min_delta = key, patience, min_delta
        self._sign = -1.0 if larger else 1.0
        self._best, self._waited = math.inf, 0

    def __call__(self, progress: Progress) -> bool:
        """Return whether the run should stop."""
        if progress.record is None:
            return False
        numbers = _numbers(progress.record)
        allowed = one_of(numbers) + nearest(self.key, numbers)
        require(self.key in numbers, "key", self.key, allowed)
        found = self._sign * numbers[self.key]
        if self._best - found > self.min_delta:
            self._best, self._waited = found, 0
        else:
            self._waited += 1
        return self._waited >= self.patience

    def close(self) -> None:
        """Forget the run. The next one starts from zero."""
        self._best, self._waited = math.inf, 0


class _Tracker:
    """Base class: opens something at the first evaluation of a run, and closes it at the end."""

    _open: Any = None

    def __call__(self, progress: Progress) -> None:
        """Write the record of an evaluated round."""
        if progress.record is not None:
            self._open = self._begin() if self._open is None else self._open
            self._write(_numbers(progress.record), progress.round)

    def close(self) -> None:
        """Close it. The next run opens another."""
        if self._open is not None:
            self._end()
            self._open = None

    def _begin(self) -> Any:
        return True

    def _write(self, numbers: Mapping[str, float], round: int) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        pass


class CSV(_Tracker):
    """Write the numbers of every evaluated round as a line of a CSV file.

    A resumed run appends its lines.

    Parameters
    ----------
    path : path
        The file. Its columns are the numbers of the first record.

    Examples
    --------
    >>> import tempfile, fedzo
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp(), "run.csv")
    >>> result = fedzo.minimize(
    ...     lambda x, device: x @ x, [1.0], devices=2, callback=fedzo.callbacks.CSV(path))
    >>> path.read_text().splitlines()[0]
    'round,train_loss,participants,queries,...
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def _write(self, numbers: Mapping[str, float], round: int) -> None:
        row: dict[str, float] = {"round": round, **numbers}
        with open(self.path, "a+", newline="", encoding="utf-8") as file:
            file.seek(0)
            lines = list(csv.reader(file))
            if any(line[0] == str(round) for line in lines):
                return  # a resumed run shows the round that it starts from again
            writer = csv.DictWriter(file, lines[0] if lines else list(row), extrasaction="ignore")
            if not lines:
                writer.writeheader()
            writer.writerow(row)


class WandB(_Tracker):
    """Log metrics to a new run of Weights & Biases (``pip install wandb``).

    Parameters
    ----------
    **settings
        Arguments of ``wandb.init``, such as ``project``, ``name``, ``config`` and
        ``mode="offline"``.
    """

    def __init__(self, **settings: Any) -> None:
        try:
            self._library = import_module("wandb")
        except ImportError as error:
            raise UsageError(f"{error}: pip install wandb", code="missing-extra") from error
        self._settings = settings

    def _begin(self) -> Any:
        return self._library.init(**self._settings)

    def _write(self, numbers: Mapping[str, float], round: int) -> None:
        self._open.log(numbers, step=round)

    def _end(self) -> None:
        self._open.finish()


class TensorBoard(_Tracker):
    """Write scalars for TensorBoard. PyTorch is not needed.

    Parameters
    ----------
    log_dir : path
        The folder for ``tensorboard --logdir``.

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

    def _begin(self) -> Any:
        return self._summary.Writer(self.log_dir)

    def _write(self, numbers: Mapping[str, float], round: int) -> None:
        for key, value in numbers.items():
            self._open.add_scalar(key, value, round)
        self._open.flush()

    def _end(self) -> None:
        self._open.close()


class MLflow(_Tracker):
    """Log metrics to a new MLflow run.

    Parameters
    ----------
    experiment : str
        The experiment's name. It is created if it does not exist.
    tracking_uri : str, optional
        A server, or ``sqlite:///file.db``; by default MLflow's own setting.
    run_name : str, optional
        The name of the MLflow run.
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
        self._client = _needed("mlflow.tracking").MlflowClient(tracking_uri=tracking_uri)
        self.experiment, self.run_name, self.params = experiment, run_name, dict(params or {})
        self.run_id: str | None = None  # of the last run

    def _begin(self) -> Any:
        found = self._client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found else self._client.create_experiment(self.experiment)
        self.run_id = self._client.create_run(number, run_name=self.run_name).info.run_id
        for key, value in self.params.items():
            self._client.log_param(self.run_id, key, value)
        return True

    def _write(self, numbers: Mapping[str, float], round: int) -> None:
        for key, value in numbers.items():
            self._client.log_metric(self.run_id, key, value, step=round)

    def _end(self) -> None:
        self._client.set_terminated(self.run_id)


class Interrupts:
    """A context in which Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt: a run saves its state.

    It is also a callback. Compiled code or a user's function may swallow the exception; the
    callback then raises it again after the round. Any error that leaves the context after a signal
    becomes a KeyboardInterrupt. A signal that is ignored stays ignored.

    Examples
    --------
    >>> import fedzo, signal
    >>> def deaf(x, device):
    ...     try:
    ...         signal.raise_signal(signal.SIGTERM)
    ...     except KeyboardInterrupt:
    ...         pass
    ...     return x @ x
    >>> with Interrupts() as interrupts:
    ...     result = fedzo.minimize(deaf, [1.0], devices=2, workers=1, callback=interrupts)
    >>> result.message
    'interrupted after round 0'
    """

    def __init__(self) -> None:
        self._came = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread handles signals
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._come)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._came and isinstance(error, Exception):  # such as of an import of compiled code
            raise KeyboardInterrupt from error

    def __call__(self, _progress: Progress) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._came:
            raise KeyboardInterrupt

    def _come(self, _signal: int, _frame: Any) -> None:
        self._came = True
        raise KeyboardInterrupt


def headline(record: Mapping[str, Any]) -> list[str]:
    """Return the keys of a record that are shown during a run: the loss and a metric.

    >>> headline({"round": 3, "train_loss": 1.0, "test_loss": 1.1, "test_accuracy": 0.6})
    ['train_loss', 'test_accuracy']
    """
    first = ("train_loss", "test_accuracy", "optimality_gap", "attack_success", "heldout_success")
    return [key for key in first if key in record]


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record, without the round."""
    return {k: float(v) for k, v in record.items() if isinstance(v, Real) and k != "round"}


def _needed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(str(error), "track") from error
