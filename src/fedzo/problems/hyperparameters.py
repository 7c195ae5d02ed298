r"""Tune hyper-parameters where the data are: a query is a training on one device.

.. math:: F_i(x, \xi) = \text{the score of a training on device i's own data, with the
          hyper-parameters } p(x) \text{ and the seed } \xi

All points of one estimate, eq. (2), are trained with the same seeds, so a difference of scores
shows the effect of the parameters and hardly that of the seed.
"""

import csv
import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fedzo.core.budget import Meter
from fedzo.core.capabilities import Best
from fedzo.core.files import append, write_atomic
from fedzo.core.importing import call_user, ends_run
from fedzo.core.objective import Objective, problem_factory
from fedzo.core.parallel import Calls
from fedzo.core.random import Draws, Stream
from fedzo.core.types import Array
from fedzo.data.splits import load_split
from fedzo.errors import NoAnswer, check_choice, check_count, described, is_number, require
from fedzo.problems.function import OnFailure, as_number, check_takes
from fedzo.variables.space import Float, Kind, Space, Value

TrainAndScore = Callable[[dict[str, Any], int, np.random.Generator], float]
Parallel = Literal["threads", "processes"]
_Key = tuple[str, int, int]  # the parameters, the device and the seed of a training
DEAD = 3  # failed trainings, all of a device so far


class Batch(NamedTuple):
    """A device and the seeds of its trainings."""

    device: int
    seeds: list[int]


class Training(NamedTuple):
    """A training: its parameters, device, seed and score, and the reason if it failed."""

    params: dict[str, Value]
    device: int
    seed: int
    score: float = np.nan
    failure: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from others."""
        return repr(self.params), self.device, self.seed


class Tuning(Objective):
    """f(x) = the mean score of hyper-parameters over all devices.

    Parameters
    ----------
    train_and_score : callable
        ``train_and_score(params, device, rng) -> float``: trains on the device's own data and
        returns a score, **lower is better**, such as the loss on the device's own held-out
        part. All its randomness must come from ``rng``, so that a seed repeats a training.
    space : Space or mapping
        The tuned parameters: a name and a :class:`~fedzo.variables.space.Float`,
        :class:`~fedzo.variables.space.Int` or :class:`~fedzo.variables.space.Choice` each.
    devices : int
        N.
    start : mapping, optional
        The parameters to start at; the middle of the space by default.
    evaluation_seeds : int
        The number of trainings per device and evaluation. Their seeds are the same in all
        evaluations.
    worst : float, optional
        The score of trainings that fail, and of those with a higher or non-finite score; the score
        of guessing is a good choice. Without it, a device with a non-finite score is dropped from
        the round. :func:`fedzo.tune` does not return parameters for which a training failed, except
        on a device where all trainings fail: after three of them it is dropped.
    on_failure : str
        If a training raises: ``raise`` ends the run with its exception; ``leave_out`` counts it as
        a non-finite score, that is as ``worst`` if given.
    parallel : str
        ``threads``: train several devices at once, which helps if the training releases the GIL.
        ``processes``: run each training in another process; pickle must be able to send the
        function there. The result is the same.
    timeout : float, optional
        The longest duration of a training in seconds; a longer one fails. Needs processes.
    workers : int, optional
        The number of processes; all cores by default.
    max_queries : int, optional
        The largest number of trainings, evaluations included.
    seed : int
        The seed of evaluations.

    Examples
    --------
    >>> def score(params, device, rng):  # a noisy training, whose best rate differs by device
    ...     return (np.log10(params["rate"]) + 2 + 0.1 * device) ** 2 + 0.01 * rng.normal()
    >>> import fedzo
    >>> problem = Tuning(score, {"rate": fedzo.Float(1e-4, 1.0, log=True)}, devices=2)
    >>> bool(problem.losses(np.zeros(1), np.arange(2)).max() < 0.1)
    True
    >>> problem.metrics(np.zeros(1))
    {'rate': 0.01}
    """

    meter: Meter
    exact = True

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
        timeout: float | None = None,
        workers: int | None = None,
        max_queries: int | None = None,
        seed: int = 0,
    ) -> None:
        check_count("devices", devices)
        check_count("evaluation_seeds", evaluation_seeds)
        check_choice("on_failure", on_failure, get_args(OnFailure))
        check_choice("parallel", parallel, get_args(Parallel))
        allowed = "a function of (params, device, rng)"
        check_takes("train_and_score", train_and_score, 3, allowed)
        require(worst is None or is_number(worst), "worst", worst, "a finite number")
        self.function, self.devices = train_and_score, devices
        self._forgives = on_failure == "leave_out"
        self._train = partial(_train, train_and_score, self._forgives)
        self.space = space if isinstance(space, Space) else Space(space)
        self.dim, self.evaluation_seeds = self.space.dim, evaluation_seeds
        self.worst, self.meter = worst, Meter(max_queries)
        self.scale = self.space.lengths()
        self._start = np.zeros(self.dim) if start is None else self.space.point(start)
        self._seed = seed
        self._calls = Calls(self._train, workers, parallel == "processes", timeout)
        self._known: dict[_Key, Training] = {}  # in order
        self._counted: dict[_Key, int] = {}  # by the meter, and in which round
        self._resumed: list[_Key] = []  # as logged by an earlier part of the run
        self._log: Path | None = None
        self._logged = 0  # of the trainings
        self._round = -1  # the latest one
        self._lock = threading.Lock()

    @property
    def evaluation_cost(self) -> int:
        """The number of trainings per evaluation."""
        return self.devices * self.evaluation_seeds

    def initial(self) -> Array:
        """Start at the given parameters, or in the middle."""
        return self._start.copy()

    def batch(self, device: int, size: int, draws: Draws) -> Batch:
        """Return one new seed per realisation; in round 0 those of the evaluation of the start.

        So the first trial of a search, the start, costs nothing after its evaluation.
        """
        self._round = max(self._round, draws.round)
        if draws.round == draws.step == 0:
            draws = Draws(self._seed, Stream.PROBLEM, device=device)
        return Batch(device, _seeds(draws, size))

    def records(self, batch: Batch) -> list[int]:
        """Return the device for each training: the device is one record."""
        return [batch.device] * len(batch.seeds)

    def values(self, points: Array, batch: Batch) -> Array:
        """Return the score of each point's parameters with each seed, (k, d) -> (k, b)."""
        every = [self.space.params(u) for u in points]
        tasks = [Training(params, batch.device, seed) for params in every for seed in batch.seeds]
        return self._scores(tasks).reshape(len(points), len(batch.seeds))

    def losses(self, x: Array, devices: Array) -> Array:
        """Return the mean score of each device over the seeds of evaluations."""
        at = Draws(self._seed, Stream.PROBLEM)
        params = self.space.params(x)
        tasks = [
            Training(params, int(i), seed)
            for i in devices
            for seed in _seeds(at._replace(device=int(i)), self.evaluation_seeds)
        ]
        return np.asarray(self._scores(tasks).reshape(len(devices), -1).mean(axis=1))

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return the parameters."""
        return self.space.params(x)

    def write_files(self, folder: Path, best: Best) -> None:
        """Write the best evaluated parameters to ``best.json``, and all to ``trials.csv``.

        The log is put in order: that of the search, not that in which threads have ended.
        """
        found = {"params": self.space.params(best.x), "score": best.fun, "round": best.round}
        write_atomic(folder / "best.json", (json.dumps(found, indent=1) + "\n").encode())
        table, text = self.table(), io.StringIO(newline="")
        writer = csv.DictWriter(text, list(table[0]) if table else [])
        writer.writeheader()
        writer.writerows(table)
        write_atomic(folder / "trials.csv", text.getvalue().encode())
        if self._log is not None and self._round >= 0:
            with self._lock:
                self._sort()
                write_atomic(self._log, self._lines(0).encode())
                self._logged = len(self._known)

    def _sort(self) -> None:
        """Order the trainings by trial, device and seed, those of the latest round apart.

        That round may not be complete, and a resume takes the first ones for the counted ones.
        """
        order = {params: i for i, (params, _, _) in reversed(list(enumerate(self._known)))}

        def place(key: _Key) -> tuple[bool, int, int, int]:
            params, device, seed = key
            late = self._counted.get(key, self._round) >= self._round
            return late, order[params], device, seed

        self._known = {key: self._known[key] for key in sorted(self._known, key=place)}

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The tried parameters in order, with their mean score and number of trainings."""
        found: dict[str, list[Training]] = {params: [] for params, _, _ in self._known}
        for key in sorted(self._known):  # threads end in any order
            found[key[0]].append(self._known[key])
        return [
            {
                "params": every[0].params,
                "score": float(np.mean([one.score for one in every])),
                "trainings": len(every),
                "failed": sum(bool(one.failure) for one in every),
            }
            for every in found.values()
        ]

    def table(self) -> list[dict[str, Any]]:
        """Return a row per trial, with the same columns in all."""
        rows = []
        for number, trial in enumerate(self.trials):
            params = {f"params_{name}": trial["params"].get(name) for name in self.space.parameters}
            counts = {key: trial[key] for key in ("score", "trainings", "failed")}
            rows.append({"number": number, **counts, **params})
        return rows

    def log_to(self, path: Path, resume: bool) -> None:
        """Write each training to a file when it ends; with ``resume``, first read it."""
        self._log, self.meter.log.used = path, True
        if resume and path.exists():
            for line in path.read_bytes().splitlines():
                with suppress(ValueError, TypeError):  # cut off by a kill, or damaged: train again
                    one = Training(**json.loads(line))
                    self._known[one.key] = one
            self._resumed, self._logged = list(self._known), len(self._known)

    def close(self) -> None:
        """End the processes; a later training starts new ones."""
        self._calls.close()

    def _scores(self, tasks: Sequence[Training]) -> Array:
        """Train as many tasks as the budget allows, and return the scores.

        A seed repeats a training, so a known one is not done again.
        """
        if self._resumed:  # the meter has counted those before the checkpoint
            self._counted.update(dict.fromkeys(self._resumed[: self.meter.queries], -1))
            self._resumed = []
        wanted = {task.key: task for task in tasks}
        new = [key for key in wanted if key not in self._counted]
        granted = self.meter.take(len(new))
        self._counted.update(dict.fromkeys(new[:granted], self._round))
        unknown = [wanted[key] for key in new[:granted] if key not in self._known]
        try:
            for one in self._trained(unknown):
                failure = one.failure or ("" if np.isfinite(one.score) else "not finite")
                capped = self.worst is not None and not one.score < self.worst
                score = self.worst if capped and self.worst is not None else one.score
                self._note(one._replace(score=score, failure=failure))
        except BaseException:  # a resumed run asks again for those that were not answered
            lost = [key for key in new[:granted] if key not in self._known]
            for key in lost:
                self._counted.pop(key, None)
            self.meter.give_back(len(lost))
            raise
        self.meter.require(granted, len(new))
        done = [self._known[task.key] for task in tasks]
        for one in done:
            if not np.isfinite(one.score) and (self.worst is None or self._is_dead(one.device)):
                why = "" if one.failure == "not finite" else f" ({one.failure})"
                text = f"the score on device {one.device} is not finite with {one.params}{why}"
                raise NoAnswer(text)
        return np.array([one.score for one in done])

    def _is_dead(self, device: int) -> bool:
        """Return whether the trainings of a device have failed, all and in several rounds."""
        counted = [key for key, round in self._counted.items() if round < self._round]
        scores = [self._known[key].score for key in counted if key[1] == device]
        return len(scores) >= DEAD and not np.isfinite(scores).any()

    def _trained(self, tasks: Sequence[Training]) -> Iterator[Training]:
        """Yield the trainings with their outcomes, in order."""
        if not self._calls.processes:
            yield from map(self._train, tasks)
            return
        futures = self._calls.begin([(task,) for task in tasks])
        for task, future in zip(tasks, futures, strict=True):
            try:
                yield future.result()
            except BaseException as error:
                if self._forgives and isinstance(error, TimeoutError):
                    yield task._replace(failure=f"TimeoutError: {error}")
                    continue
                for other in futures:
                    other.cancel()
                raise

    def _note(self, training: Training) -> None:
        """Keep a training, and write it to the log once the run has a folder."""
        with self._lock:
            self._known[training.key] = training
            if self._log is not None and self._log.with_name("config.toml").exists():
                append(self._log, self._lines(self._logged))
                self._logged = len(self._known)

    def _lines(self, first: int) -> str:
        """Return a line of JSON per training, from the first one wanted on."""
        some = islice(self._known.values(), first, None)
        return "".join(json.dumps(one._asdict(), default=repr) + "\n" for one in some)


def _seeds(draws: Draws, count: int) -> list[int]:
    """Return 64-bit seeds that depend on the address only."""
    return [int(word) for word in draws.words(2 * count).view(np.uint64)]


def _train(function: TrainAndScore, forgive: bool, task: Training) -> Training:
    """Return a training with its score, or with its failure."""
    rng = np.random.default_rng(task.seed)
    try:
        score = call_user(function, dict(task.params), task.device, rng)
        return task._replace(score=as_number("train_and_score", score))
    except Exception as error:
        if not forgive or ends_run(error):
            raise
        return task._replace(failure=described(error))


# ------------------------------------------------------------------------- the shipped example

SPACE = {
    "learning_rate": Float(1e-3, 10.0, log=True),
    "momentum": Float(0.0, 0.98),
    "regularisation": Float(1e-6, 1.0, log=True),
}


@dataclass
class Classifier:
    """Softmax regression by SGD on the images of a device, at a quarter of their resolution.

    The score is the mean cross-entropy on the quarter of the images that is held out.

    Parameters
    ----------
    images, labels : sequences of arrays
        Those of each device, pixels in [0, 1].
    classes : int
        The number of classes.
    epochs, batch_size : int
        Those of a training.
    """

    images: list[Array]
    labels: list[Array]
    classes: int
    epochs: int = 2
    batch_size: int = 25

    def __call__(self, params: dict[str, Any], device: int, rng: np.random.Generator) -> float:
        """Train on three quarters of the images of a device; return the loss on the last."""
        from scipy.special import softmax

        images, labels = self.images[device], self.labels[device]
        train = 3 * len(labels) // 4
        weights: Array = np.zeros((images.shape[1], self.classes), np.float32)
        speed: Array = np.zeros_like(weights)
        rate, momentum = np.float32(params["learning_rate"]), np.float32(params["momentum"])
        shrink = np.float32(params["regularisation"])
        ones = np.eye(self.classes, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # at a large rate
            for _ in range(self.epochs):
                order = rng.permutation(train)
                for start in range(0, train, self.batch_size):
                    some = order[start : start + self.batch_size]
                    inputs = images[some]
                    residual = softmax(inputs @ weights, axis=1) - ones[labels[some]]
                    slope = inputs.T @ residual / np.float32(len(some)) + shrink * weights
                    speed = momentum * speed - rate * slope
                    weights += speed
            chances = softmax(images[train:] @ weights, axis=1)
            right = chances[np.arange(len(chances)), labels[train:]]
            return float(-np.log(np.maximum(right, np.float32(1e-7))).mean())


@problem_factory
def tuning(
    data: str = "fashion-mnist-mini",
    data_dir: str | None = None,
    devices: int = 10,
    partition: str = "dirichlet",
    shards_per_device: int = 2,
    concentration: float = 0.5,
    evaluation_seeds: int = 1,
    parallel: Parallel = "threads",
    max_queries: int | None = None,
    seed: int = 0,
) -> Tuning:
    """Make the shipped example; the parameters are the keys of the [problem] table.

    >>> problem = tuning(devices=4)
    >>> problem.dim, problem.evaluation_cost
    (3, 4)
    >>> problem.space.params(problem.initial())
    {'learning_rate': 0.1, 'momentum': 0.49, 'regularisation': 0.001}
    """
    images, parts = load_split(
        data, data_dir, devices, partition, shards_per_device, concentration, seed
    )
    side = round(images.train_inputs.shape[1] ** 0.5)
    inputs, labels = [], []
    for device, part in enumerate(parts):
        # In a random order, so that both parts have the same distribution.
        own = part[Draws(seed, Stream.PROBLEM, device=device).permutation(len(part))]
        pixels = images.train_inputs[own].reshape(-1, side // 4, 4, side // 4, 4)
        inputs.append(pixels.mean(axis=(2, 4)).reshape(len(own), -1).astype(np.float32) / 255)
        labels.append(images.train_labels[own])
    classes = len(images.classes)
    return Tuning(
        Classifier(inputs, labels, classes),
        SPACE,
        devices,
        evaluation_seeds=evaluation_seeds,
        worst=float(np.log(classes)),  # the score of guessing
        parallel=parallel,
        max_queries=max_queries,
        seed=seed,
    )
