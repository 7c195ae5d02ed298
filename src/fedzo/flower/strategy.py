"""What a Flower user calls a strategy: an object with a ``start`` that runs the rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedzo.algorithms import Algorithm, FedZO
from fedzo.errors import Halted, InvalidValue
from fedzo.flower import wire
from fedzo.flower.app_config import HELD_BY_NODES
from fedzo.flower.federation import FlowerFederation
from fedzo.flower.layout import Layout
from fedzo.flower.reasons import log
from fedzo.flower.server import log_progress
from fedzo.runs.loop import Job, run_job
from fedzo.runs.minimize import checked_start
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import describe_job
from fedzo.runs.result import Progress
from fedzo.uplinks import Ideal, Uplink

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class FedzoStrategy:
    """Any of fedzo's algorithms, to be started in a ServerApp's ``main``.

    It has the ``start`` of Flower's strategies, but not their four hooks: what a round asks
    and how answers are put together is the algorithm's, and waiting follows ``settings``. How often
    it evaluates and saves is said as in :class:`~fedzo.runs.options.RunOptions`.

    Parameters
    ----------
    algorithm : Algorithm
        ``FedZO()`` by default.
    uplink : Uplink
        ``Ideal()`` by default; ``Seeds()`` has the nodes send coefficients only.
    seed : int
        Names all randomness of the run.
    settings : FlowerSettings
        Whom to wait for, and for how long.
    trainable : sequence of str, optional
        Names, or patterns such as ``"head.*"``, of the arrays that the nodes' problem trains, where
        ``initial_arrays`` has others of floats too: frozen layers, the statistics of batch norm.
    run_dir : path, optional
        A folder on the server for the run's files.
    resume : bool
        Resume from ``run_dir``'s checkpoint.

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
    ) -> Result:
        """Run so many rounds.

        Parameters
        ----------
        grid : Grid
            As the ServerApp is given it.
        initial_arrays : ArrayRecord, optional
            Where to start: one vector, or a state_dict, whose arrays of floats are one vector, in
            their order; what is returned has the same names and shapes. Without it, the problem's
            own start, as a node has it.
        num_rounds : int
            How many rounds to run.
        timeout : float, optional
            Seconds that a quorum is waited for, in place of ``settings.patience``.
        train_config : ConfigRecord, optional
            Numbers of the algorithm to be set for this run, by their names, such as
            ``local-steps``; ``lr`` is its learning rate. A node takes nothing else from a run, so
            whatever else is in it is left aside, with a warning.
        evaluate_config : ConfigRecord, optional
            Left aside, with a warning: nodes evaluate as their own configuration says.
        evaluate_fn : callable, optional
            Evaluates a model on the server, after each evaluation by the nodes.

        Raises
        ------
        Halted
            The run could not be finished, so that Flower lists it as failed; ``run_dir`` has
            a checkpoint.
        """
        configured = replace(self, algorithm=self._with(train_config or {}))
        _leave_aside("evaluate_config", evaluate_config or {})
        configured.summary()
        return configured._start(grid, initial_arrays, num_rounds, timeout, evaluate_fn)

    def _with(self, train_config: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm with the numbers that Flower's users put into a configuration."""
        given = {_field(key): (key, value) for key, value in train_config.items()}
        numbers = {f.name for f in fields(cast(Any, self.algorithm))} - {"server"}
        own = {name: value for name, (_, value) in given.items() if name in numbers}
        _leave_aside("train_config", {k: v for name, (k, v) in given.items() if name not in own})
        return cast(Algorithm, replace(cast(Any, self.algorithm), **own))

    def _start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None,
        num_rounds: int,
        timeout: float | None,
        evaluate_fn: EvaluateFn | None,
    ) -> Result:
        settings = self.settings if timeout is None else replace(self.settings, patience=timeout)
        federation = FlowerFederation(grid, self.seed, self.uplink, settings)
        layout = Layout.of(initial_arrays or wire.vector(federation.initial()), self.trainable)
        x0 = checked_start(layout.vector())
        if x0.shape != (federation.dim,):
            right = f"a vector of {federation.dim} numbers, as the nodes' problem has; trainable"
            right += " names the arrays that it is made of"
            raise InvalidValue("initial_arrays", f"{x0.size} numbers", right)
        result = Result()

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
        problem = {
            "dim": federation.dim,
            "devices": federation.devices,
            "python_only": HELD_BY_NODES,
        }
        tables = describe_job(self.algorithm, self.uplink, options, problem)
        job = Job(
            algorithm=self.algorithm,
            uplink=self.uplink,
            options=options,
            tables={**tables, "flower": asdict(self.settings)},
            run_dir=None if self.run_dir is None else Path(self.run_dir),
            resume=self.resume,
            watchers=(watch,),
        )
        federation.follow(job, x0)
        found = run_job(job, federation, x0)
        if not found.success:
            raise Halted(found.message)
        log.info("%s", found.message)
        result.arrays = layout.record(found.x)
        return result

    def summary(self) -> None:
        """Log what will be run."""
        log.info("fedzo: %s over %s, seed %s", self.algorithm, self.uplink, self.seed)


_COST = ("participants", "queries", "uplink_bytes", "downlink_bytes", "channel_uses")


def _field(key: str) -> str:
    """Return what fedzo calls a number of a configuration of Flower's."""
    name = key.replace("-", "_")
    return "learning_rate" if name == "lr" else name


def _leave_aside(which: str, given: Mapping[str, Any]) -> None:
    if given:
        log.warning("%s: %s are not for fedzo's nodes, and left aside", which, ", ".join(given))
