"""A strategy for Flower users: an object whose ``start`` runs the rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedzo.algorithms import Algorithm, FedZO
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, nearest, require
from fedzo.flower.engine import FlowerEngine
from fedzo.flower.errors import log
from fedzo.flower.protocol import vector
from fedzo.flower.registry import device_ranges
from fedzo.flower.server import HELD_BY_NODES, log_progress
from fedzo.runs.loop import Job, run_job
from fedzo.runs.minimize import checked_start
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import describe_job
from fedzo.runs.result import Progress
from fedzo.uplinks import Ideal, Uplink

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Layout:
    """Named arrays as one vector, and back.

    The trained arrays are part of the vector, in their order. The others, such as a count of
    batches, are unchanged.

    Examples
    --------
    >>> arrays = {"weight": np.ones((2, 3), np.float32), "count": np.array(7)}
    >>> layout = Layout.of(ArrayRecord({k: FlowerArray(v) for k, v in arrays.items()}))
    >>> layout.vector().shape, layout.record(np.zeros(6))["weight"].numpy().shape
    ((6,), (2, 3))
    """

    arrays: Mapping[str, Array]
    trained: tuple[str, ...]

    @classmethod
    def of(cls, record: ArrayRecord, trainable: Sequence[str] | None = None) -> Layout:
        """Return the layout of a record.

        ``trainable`` are names or patterns of arrays; by default all arrays of floats.
        """
        arrays = {name: np.asarray(array.numpy()) for name, array in record.items()}
        floats = [name for name, array in arrays.items() if np.issubdtype(array.dtype, np.floating)]
        if not floats:
            raise InvalidValue("initial_arrays", f"{len(arrays)} arrays", "arrays of floats")
        for pattern in trainable or ():
            allowed = f"the name or a pattern of an array of floats{nearest(pattern, floats)}"
            fits = any(fnmatchcase(name, pattern) for name in floats)
            require(fits, "trainable", pattern, allowed)
        wanted = ["*"] if trainable is None else trainable
        trained = (name for name in floats if any(fnmatchcase(name, one) for one in wanted))
        return cls(arrays, tuple(trained))

    def vector(self) -> Array:
        """Return the trained arrays as one vector."""
        return np.concatenate([self.arrays[name].reshape(-1) for name in self.trained])

    def record(self, x: Array) -> ArrayRecord:
        """Return a vector as a record with the same names, shapes and types."""
        made, at = {}, 0
        for name, array in self.arrays.items():
            if name in self.trained:
                own = x[at : at + array.size].reshape(array.shape).astype(array.dtype)
                made[name], at = FlowerArray(np.ascontiguousarray(own)), at + array.size
            else:
                made[name] = FlowerArray(array)
        return ArrayRecord(made)


@dataclass
class StrategyResult(Result):
    """Flower's result, with fedzo's ``success``, ``message`` and dropped devices."""

    success: bool = False
    message: str = ""
    dropped: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class FedzoStrategy:
    """Runs any of fedzo's algorithms in the ``main`` of a ServerApp.

    It has the ``start`` of Flower's strategies, but not their four hooks: the algorithm defines the
    requests of a round and their aggregation, and ``settings`` the times to wait.
    ``evaluate_every`` and ``checkpoint_every`` are those of
    :class:`~fedzo.runs.options.RunOptions`.

    Parameters
    ----------
    algorithm : Algorithm
        ``FedZO()`` by default.
    uplink : Uplink
        ``Ideal()`` by default. With ``Seeds()`` the nodes send coefficients only.
    seed : int
        The seed of all random draws.
    settings : FlowerSettings
        The quorum and the times to wait.
    trainable : sequence of str, optional
        Names, or patterns such as ``"head.*"``, of the arrays that the nodes train. It is needed if
        ``initial_arrays`` has other arrays of floats: frozen layers, statistics of batch norm.
    run_dir : path, optional
        A folder on the server for the run's files.
    resume : bool
        Continue from the checkpoint in ``run_dir``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo import FedZO
    >>> from fedzo.flower import FedzoStrategy, InProcessGrid, make_client_app
    >>> from fedzo.problems import FunctionObjective
    >>> objective = FunctionObjective(lambda x, device: np.sum((x - device) ** 2), 2, devices=3)
    >>> grid = InProcessGrid(make_client_app(lambda context: objective), nodes=3)
    >>> strategy = FedzoStrategy(FedZO(learning_rate=0.05, direction_kind="orthogonal",
    ...                                directions=2))
    >>> result = strategy.start(grid, num_rounds=40)
    >>> result.arrays["x"].numpy().round(2)
    array([1., 1.])
    """

    algorithm: Algorithm = field(default_factory=FedZO)
    uplink: Uplink = field(default_factory=Ideal)
    seed: int = 0
    settings: FlowerSettings = field(default_factory=FlowerSettings)
    evaluate_every: int = 1
    checkpoint_every: int = 1
    trainable: Sequence[str] | None = None
    run_dir: str | os.PathLike[str] | None = None
    resume: bool = False

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> StrategyResult:
        """Run the rounds; return the best arrays and all metrics, whatever happens in the run.

        Parameters
        ----------
        grid : Grid
            The grid of the ServerApp's ``main``.
        initial_arrays : ArrayRecord, optional
            The start: one vector, or a state_dict whose arrays of floats are joined to one vector,
            in their order. The result has the same names and shapes. By default the start of the
            nodes' problem.
        num_rounds : int
            The number of rounds.
        timeout : float, optional
            Seconds to wait for a quorum, in place of ``settings.patience``.
        train_config : ConfigRecord, optional
            Hyper-parameters of the algorithm for this run, such as ``local-steps``; ``lr`` is its
            learning rate. Other keys are ignored with a warning, because a node accepts nothing
            else from a run.
        evaluate_config : ConfigRecord, optional
            Ignored with a warning: a node's own configuration defines its evaluations.
        evaluate_fn : callable, optional
            Evaluates a model on the server, after each evaluation by the nodes.

        Returns
        -------
        StrategyResult
            Flower's result. Its ``success`` is False if the run diverged or lost its quorum, and
            ``message`` says why. ``dropped`` lists devices that did not take part.

        Raises
        ------
        Halted
            No quorum of the devices joined, so nothing was run.
        """
        algorithm = self._with(train_config or {})
        _warn_ignored("evaluate_config", evaluate_config or {})
        log.info("fedzo: %s over %s, seed %s", algorithm, self.uplink, self.seed)
        settings = self.settings if timeout is None else replace(self.settings, patience=timeout)
        engine = FlowerEngine(grid, self.seed, self.uplink, settings)
        result = StrategyResult()

        def watch(progress: Progress) -> None:
            log_progress(progress)
            if progress.record is not None:
                numbers: dict[str, Any] = {
                    k: v for k, v in progress.record.items() if isinstance(v, int | float)
                }
                result.evaluate_metrics_clientapp[progress.round] = MetricRecord(numbers)
                if progress.round:
                    cost = {k: v for k, v in numbers.items() if k in _COST}
                    result.train_metrics_clientapp[progress.round] = MetricRecord(cost)
                found = evaluate_fn and evaluate_fn(progress.round, layout.record(progress.x))
                if found is not None:
                    result.evaluate_metrics_serverapp[progress.round] = found

        options = RunOptions(
            rounds=num_rounds,
            seed=self.seed,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
        )
        problem = {"dim": engine.dim, "devices": engine.devices, "python_only": HELD_BY_NODES}
        tables = describe_job(algorithm, self.uplink, options, problem)
        job = Job(
            algorithm=algorithm,
            uplink=self.uplink,
            options=options,
            tables={**tables, "flower": asdict(self.settings)},
            run_dir=None if self.run_dir is None else Path(self.run_dir),
            resume=self.resume,
            watchers=(watch,),
        )
        engine.restore(job)
        layout = Layout.of(initial_arrays or vector(engine.initial()), self.trainable)
        x0 = checked_start(layout.vector())
        if x0.shape != (engine.dim,):
            allowed = f"{engine.dim} numbers for the nodes' problem; trainable selects arrays"
            raise InvalidValue("initial_arrays", f"{x0.size} numbers", allowed)
        engine.enable_replay(job, x0)
        found = run_job(job, engine, x0)
        result.success, result.message, result.dropped = found.success, found.message, found.dropped
        result.arrays = layout.record(found.x)
        if not found.success:
            log.error("the run is not a success: %s", found.message)
        elif found.dropped:
            absent = device_ranges(one["device"] for one in found.dropped)
            log.warning("%s; devices %s were dropped in some rounds", found.message, absent)
        else:
            log.info("%s", found.message)
        return result

    def _with(self, train_config: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm with the hyper-parameters of a configuration."""
        names = {key: key.replace("-", "_") for key in train_config}
        names = {key: "learning_rate" if name == "lr" else name for key, name in names.items()}
        known = {f.name for f in fields(cast(Any, self.algorithm))} - {"server"}
        _warn_ignored("train_config", [key for key, name in names.items() if name not in known])
        own = {names[key]: value for key, value in train_config.items() if names[key] in known}
        return cast(Algorithm, replace(cast(Any, self.algorithm), **own))


_COST = ("participants", "queries", "uplink_bytes", "downlink_bytes", "channel_uses")


def _warn_ignored(which: str, keys: Collection[str]) -> None:
    if keys:
        log.warning("%s: ignored keys, unknown to fedzo's nodes: %s", which, ", ".join(keys))
