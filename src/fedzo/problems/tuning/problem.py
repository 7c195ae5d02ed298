r"""Tuning hyper-parameters where the data are: a query is a training.

.. math:: F_i(x, \xi) = \text{the score of a training on device i's own data, with the
          hyper-parameters } p(x) \text{ and the seed } \xi

All points of one estimate, eq. (2), are trained with the same seeds: what a difference sees
is what the parameters do, and hardly what the seed does.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedzo.core.budget import Meter
from fedzo.core.capabilities import Best
from fedzo.core.files import write_atomic
from fedzo.core.objective import Objective
from fedzo.core.random import Draws, Stream
from fedzo.errors import NoAnswer, UsageError, check_count, nearest, one_of, require
from fedzo.problems.function import OnFailure, as_number, check_on_failure, check_takes
from fedzo.variables.space import Kind, Space, Value

Array = NDArray[Any]
TrainAndScore = Callable[[dict[str, Any], int, np.random.Generator], float]
Parallel = Literal["threads", "processes"]


class Batch(NamedTuple):
    """A device and the seeds of its trainings."""

    device: int
    seeds: list[int]


class Training(NamedTuple):
    """What a training was given, and its score."""

    params: dict[str, Value]
    device: int
    score: float


class Tuning(Objective):
    """f(x) = the mean over devices of the score that hyper-parameters reach there.

    Parameters
    ----------
    train_and_score : callable
        ``train_and_score(params, device, rng) -> float``: trains on the device's own data and
        returns a score, **lower is better**, such as the loss on the device's own held-out
        part. All its randomness comes from ``rng``, so that a seed names a training.
    space : Space or mapping
        What is tuned: a name and a :class:`~fedzo.variables.space.Float`,
        :class:`~fedzo.variables.space.Int` or :class:`~fedzo.variables.space.Choice` each.
    devices : int
        N.
    start : mapping, optional
        The parameters to start at; the middle of the space by default.
    evaluation_seeds : int
        f is evaluated by so many trainings a device, each with a seed of its own that stays
        the same throughout.
    worst : float, optional
        Scores above it, and those that are not finite, count as this: what no model at all
        would reach is a good choice. Without it, a device whose score is not finite is left
        out of the round.
    on_failure : str
        What comes of a training that raises: ``raise`` ends the run, by the training's own
        exception; ``leave_out`` takes it as a score that is not finite.
    parallel : str
        ``threads``: devices are trained side by side, which pays if the training releases the
        GIL. ``processes``: single trainings are, in processes of their own; the function must
        be one that pickle can send there. The result depends on neither.
    workers : int, optional
        How many processes; all cores by default.
    max_queries : int, optional
        How many trainings there may be, evaluations included.
    seed : int
        Names the evaluations' randomness.

    Examples
    --------
    >>> def score(params, device, rng):  # some training: noisy, the best rate differs by device
    ...     return (np.log10(params["rate"]) + 2 + 0.1 * device) ** 2 + 0.01 * rng.normal()
    >>> import fedzo
    >>> problem = Tuning(score, {"rate": fedzo.Float(1e-4, 1.0, log=True)}, devices=2)
    >>> bool(problem.losses(np.zeros(1), np.arange(2)).max() < 0.1)
    True
    >>> problem.metrics(np.zeros(1))
    {'rate': 0.01}
    """

    meter: Meter

    def __init__(
        self,
        train_and_score: TrainAndScore,
        space: Space | Mapping[str, Kind],
        devices: int,
        *,
        start: Mapping[str, Value] | None = None,
        evaluation_seeds: int = 1,
        worst: float | None = None,
        on_failure: OnFailure = "raise",
        parallel: Parallel = "threads",
        workers: int | None = None,
        max_queries: int | None = None,
        seed: int = 0,
    ) -> None:
        for key, count in (("devices", devices), ("evaluation_seeds", evaluation_seeds)):
            check_count(key, count)
        check_on_failure(on_failure)
        allowed = "a function of (params, device, rng)"
        check_takes("train_and_score", train_and_score, 3, allowed)
        if worst is not None:
            require(_is_finite(worst), "worst", worst, "a finite number")
        ways = get_args(Parallel)
        require(parallel in ways, "parallel", parallel, one_of(ways) + nearest(parallel, ways))
        self.function, self.devices = train_and_score, devices
        self._train = partial(_train, train_and_score, on_failure == "leave_out")
        self.space = space if isinstance(space, Space) else Space(space)
        self.dim, self.evaluation_seeds = self.space.dim, evaluation_seeds
        self.worst, self.meter = worst, Meter(max_queries)
        self.scale = self.space.lengths()
        self._start = np.zeros(self.dim) if start is None else self.space.point(start)
        self._seed, self._workers = seed, workers
        self._sent = _pickled(self._train) if parallel == "processes" else None
        self._pool: ProcessPoolExecutor | None = None
        self.trainings: list[Training] = []

    @property
    def evaluation_cost(self) -> int:
        """How many trainings one evaluation takes."""
        return self.devices * self.evaluation_seeds

    def initial(self) -> Array:
        """Start at the given parameters, or in the middle."""
        return self._start.copy()

    def batch(self, device: int, size: int, draws: Draws) -> Batch:
        """Return fresh seeds, one for each realisation."""
        return Batch(device, _seeds(draws, size))

    def values(self, points: Array, batch: Batch) -> Array:
        """Return the score of each point's parameters with each seed, (k, d) -> (k, b)."""
        every = [self.space.params(u) for u in points]
        tasks = [(params, batch.device, seed) for params in every for seed in batch.seeds]
        return self._scores(tasks).reshape(len(points), len(batch.seeds))

    def losses(self, x: Array, devices: Array) -> Array:
        """Return each device's mean score over the evaluation's seeds."""
        at = Draws(self._seed, Stream.PROBLEM)
        params = self.space.params(x)
        tasks = [
            (params, int(i), seed)
            for i in devices
            for seed in _seeds(at._replace(device=int(i)), self.evaluation_seeds)
        ]
        return np.asarray(self._scores(tasks).reshape(len(devices), -1).mean(axis=1))

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return the parameters."""
        return self.space.params(x)

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the best parameters that were evaluated, and their score, to ``best.json``."""
        told = {"params": self.space.params(best.x), "score": best.fun, "round": best.round}
        write_atomic(folder / "best.json", (json.dumps(told, indent=1) + "\n").encode())

    def close(self) -> None:
        """End the processes; they come back when they are needed."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _scores(self, tasks: Sequence[tuple[dict[str, Value], int, int]]) -> Array:
        """Train, as often as the budget allows, and return the scores."""
        granted = self.meter.take(len(tasks))
        if self._sent is None:
            found = [self._train(*task) for task in tasks[:granted]]
        else:
            self._pool = self._pool or _processes(self._workers, self._sent)
            found = list(self._pool.map(_train_here, tasks[:granted]))
        self.meter.require(granted, len(tasks))
        scores = np.array([one.score for one in found])
        for (params, device, _), score in zip(tasks, scores.tolist(), strict=True):
            self.trainings.append(Training(params, device, score))
        if self.worst is not None:
            return np.where(scores < self.worst, scores, self.worst)
        if not np.isfinite(scores).all():
            wrong = int(np.flatnonzero(~np.isfinite(scores))[0])
            params, device, _ = tasks[wrong]
            why = f" ({found[wrong].failure})" if found[wrong].failure else ""
            raise NoAnswer(f"the score on device {device} is not finite with {params}{why}")
        return scores


def _seeds(draws: Draws, count: int) -> list[int]:
    """Return 64-bit seeds, a function of the address alone."""
    return [int(word) for word in draws.words(2 * count).view(np.uint64)]


class _Trained(NamedTuple):
    score: float
    failure: str = ""  # the exception, of a training that raised one


def _train(
    function: TrainAndScore, forgive: bool, params: dict[str, Value], device: int, seed: int
) -> _Trained:
    try:
        score = function(dict(params), device, np.random.default_rng(seed))
        return _Trained(as_number("train_and_score", score))
    except Exception as error:
        if not forgive:
            raise
        return _Trained(np.nan, f"{type(error).__name__}: {error}")


def _is_finite(number: Any) -> bool:
    return isinstance(number, Real) and bool(np.isfinite(float(number)))


# --- in processes: the function is sent once, and then only what to train.


def _pickled(function: Callable[..., _Trained]) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:  # pickle's own, and what an object's own methods may raise
        raise UsageError(
            f"train_and_score cannot be sent to processes ({error}): define it at the top of a "
            "module, or take parallel = 'threads'"
        ) from error


def _processes(workers: int | None, sent: bytes) -> ProcessPoolExecutor:
    # Spawned, not forked: threads are running, and a fork would copy their locks.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, spawn, initializer=_receive, initargs=(sent,))


_RECEIVED: list[Callable[..., _Trained]] = []


def _receive(sent: bytes) -> None:
    _RECEIVED[:] = [pickle.loads(sent)]


def _train_here(task: tuple[dict[str, Value], int, int]) -> _Trained:
    return _RECEIVED[0](*task)
