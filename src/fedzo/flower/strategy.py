"""A strategy for Flower users: fedzo's algorithms by the hooks of Flower's strategies."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedzo.algorithms import Algorithm, FedZO
from fedzo.algorithms.compose import compose
from fedzo.core.tasks import LocalSteps, Losses, Slopes, Task
from fedzo.core.types import Array
from fedzo.errors import InvalidValue, UsageError
from fedzo.flower.engine import FlowerEngine
from fedzo.flower.errors import log
from fedzo.flower.protocol import vector
from fedzo.flower.registry import device_ranges
from fedzo.flower.schema import Layout
from fedzo.flower.server import HELD_BY_NODES, log_progress
from fedzo.runs.history import mean_loss
from fedzo.runs.loop import Job, Running, tasks
from fedzo.runs.minimize import checked_start
from fedzo.runs.options import FlowerSettings, RunOptions
from fedzo.runs.registry import describe_job
from fedzo.runs.result import Progress
from fedzo.uplinks import Ideal, Uplink
from fedzo.uplinks.base import RunSetting

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class StrategyResult(Result):
    """Flower's result, with fedzo's ``success``, ``message`` and dropped devices."""

    success: bool = False
    message: str = ""
    dropped: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class FedzoStrategy(Strategy):
    """Runs any of fedzo's algorithms in the ``main`` of a ServerApp.

    :meth:`start` calls the four hooks of Flower's strategies for each request to the nodes, so a
    subclass may extend them. A hook calls that of this class, and may

    * leave out messages of ``configure_train`` and ``configure_evaluate``: the devices of their
      nodes are dropped from the round;
    * leave out replies in ``aggregate_train`` and ``aggregate_evaluate``, with the same effect;
    * change the metrics that these return.

    The arrays that ``aggregate_train`` returns cannot be replaced in :meth:`start`, because nodes
    and a resumed run compute the same ones. They can in Flower's own loop, ``Strategy.start``,
    which wrappers of strategies use: see docs/operate.md for its limits. With secure sums, the
    messages of a request depend on each other: ``configure_*`` is not called, and ``aggregate_*``
    is called without replies. ``evaluate_every`` and ``checkpoint_every`` are those of
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
    _run: _Run | None = field(default=None, init=False, repr=False)

    def summary(self) -> None:
        """Log the algorithm, the uplink and the seed."""
        log.info("fedzo: %s over %s, seed %s", self.algorithm, self.uplink, self.seed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask nodes for a round's updates."""
        run = self._run
        if run is None or (isinstance(run, _FlowerRun) and server_round == 1):
            run = self._run = self._run_by_flower(arrays, config, grid)
        if isinstance(run, _FlowerRun):
            run.begin_round(arrays)
        return run.messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the arrays after the round, its participants and queries."""
        run = self._running()
        found = run.answer(replies)
        metrics = MetricRecord({"participants": found.count, "queries": found.queries})
        run.arrays = run.layout.record(run.x)
        return run.arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages that ask all nodes for the losses of their devices."""
        run = self._running()
        if isinstance(run, _FlowerRun):
            run.evaluate(arrays)
        return run.messages()

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the record of the evaluation; None if it was not for the history."""
        run = self._running()
        run.record = None
        run.answer(replies)
        return None if run.record is None else MetricRecord(run.record)

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
        self.summary()
        settings = self.settings if timeout is None else replace(self.settings, patience=timeout)
        engine = FlowerEngine(grid, self.seed, self.uplink, settings)
        result = StrategyResult()

        def watch(progress: Progress) -> None:
            log_progress(progress)
            if progress.record is None:
                return
            run.record = {k: v for k, v in progress.record.items() if isinstance(v, int | float)}
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
        layout, x0 = self._layout(engine, initial_arrays)
        engine.enable_replay(job, x0)
        generator = tasks(job, engine, x0)
        run = self._run = _Run(engine, layout, x0, generator)
        try:
            with closing(generator):
                self._drive(run, grid, (train_config, evaluate_config), result)
        finally:
            self._run = None
        found = run.result
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

    def _drive(
        self, run: _Run, grid: Grid, configs: tuple[ConfigRecord | None, ...], result: Result
    ) -> None:
        """Answer the tasks of a run by the hooks."""
        training, evaluating = (config or ConfigRecord() for config in configs)
        run.step(None)
        while (task := run.task) is not None:
            t, evaluates = run.round, isinstance(task, Losses)
            hook = self.configure_evaluate if evaluates else self.configure_train
            arrays, config = run.layout.record(run.x), evaluating if evaluates else training
            try:
                replies = run.replies(partial(hook, t, arrays, config, grid))
            except BaseException as error:
                run.throw(error)
                continue
            if evaluates:
                metrics = self.aggregate_evaluate(t, replies)
                kept = result.evaluate_metrics_clientapp
            else:
                found, metrics = self.aggregate_train(t, replies)
                kept = result.train_metrics_clientapp
                if found is not None and found is not run.arrays and found != run.arrays:
                    text = (
                        "aggregate_train returned other arrays than fedzo's: change the server "
                        "optimizer instead, or run Flower's loop, Strategy.start"
                    )
                    raise UsageError(text, code="arrays-replaced")
            if run.task is task:
                name = "aggregate_evaluate" if evaluates else "aggregate_train"
                raise UsageError(f"{name} has to call that of FedzoStrategy", code="no-super")
            if metrics is not None:
                kept.setdefault(t, MetricRecord()).update(metrics)

    def _running(self) -> _Run:
        if self._run is None:
            raise UsageError("configure_train has not begun a run", code="no-run")
        return self._run

    def _layout(
        self, engine: FlowerEngine, initial_arrays: ArrayRecord | None
    ) -> tuple[Layout, Array]:
        """Return the layout of the model, and the start."""
        layout = Layout.of(initial_arrays or vector(engine.initial()), self.trainable)
        x0 = checked_start(layout.vector())
        if x0.shape != (engine.dim,):
            allowed = f"{engine.dim} numbers for the nodes' problem; trainable selects arrays"
            raise InvalidValue("initial_arrays", f"{x0.size} numbers", allowed)
        return layout, x0

    def _run_by_flower(self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> _FlowerRun:
        """Return a run whose rounds Flower's own loop asks for."""
        if "clipping_norm" in config:
            text = "fedzo's nodes have no mods that clip: use a wrapper that clips on the server"
            raise UsageError(text, code="no-mods")
        if type(self.uplink) is not Ideal:
            raise _not_by_flower("aggregates whole models, as uplink.name = 'ideal' does")
        algorithm = self._with({k: v for k, v in config.items() if k != "server-round"})
        if isinstance(algorithm, FedZO) and (algorithm.automatic or algorithm.fixed_directions):
            raise _not_by_flower("has no probes for 'auto', and takes no fixed_directions")
        self.summary()
        engine = FlowerEngine(grid, self.seed, self.uplink, self.settings)
        layout, x0 = self._layout(engine, arrays)
        types = {array.dtype for array in layout.arrays.values()}
        if len(layout.trained) < len(layout.arrays) or len(types) > 1:
            raise _not_by_flower("changes all arrays: train them all, in one type of floats")
        return _FlowerRun(engine, layout, x0, compose(algorithm, self.uplink))

    def _with(self, train_config: Mapping[str, Any]) -> Algorithm:
        """Return the algorithm with the hyper-parameters of a configuration."""
        names = {key: key.replace("-", "_") for key in train_config}
        names = {key: "learning_rate" if name == "lr" else name for key, name in names.items()}
        known = {f.name for f in fields(cast(Any, self.algorithm))} - {"server"}
        _warn_ignored("train_config", [key for key, name in names.items() if name not in known])
        own = {names[key]: value for key, value in train_config.items() if names[key] in known}
        return cast(Algorithm, replace(cast(Any, self.algorithm), **own))


def _warn_ignored(which: str, keys: Collection[str]) -> None:
    if keys:
        log.warning("%s: ignored keys, unknown to fedzo's nodes: %s", which, ", ".join(keys))


def _not_by_flower(what: str) -> UsageError:
    text = f"Flower's own loop, which wrappers use, {what}; or call FedzoStrategy.start"
    return UsageError(text, code="flower-loop")


class _Run:
    """A run between two hooks: its next task, and the model."""

    def __init__(
        self, engine: FlowerEngine, layout: Layout, x: Array, generator: Running[Any] | None = None
    ) -> None:
        self.engine, self.layout, self.x = engine, layout, x
        self.generator: Any = generator
        self.task: Task | Losses | None = None
        self.result: Any = None
        self.record: dict[str, Any] | None = None  # of the last evaluation
        self.arrays: ArrayRecord | None = None  # after the last round
        self.sent: Task | Losses | None = None  # the task that nodes were asked last
        self.sending: list[Message] = []

    @property
    def round(self) -> int:
        """The number of the round that the task is part of."""
        return self.task.round + 1 if isinstance(self.task, Task) else self.engine.nodes.round

    def messages(self) -> list[Message]:
        """Return the messages of the task that are about to be sent."""
        return self.sending

    def replies(self, configure: Callable[[], Iterable[Message]]) -> list[Message]:
        """Send the messages of the task, as configured; return the replies."""
        self.sent = self.task
        if self.engine.sums is not None or self.task is None:
            return []

        def configured(messages: list[Message]) -> Iterable[Message]:
            self.sending = messages
            return configure()

        return self.engine.nodes.replies(self.engine.exchange(self.task), configured)

    def answer(self, replies: Iterable[Message]) -> Any:
        """Answer the task by the nodes' replies, and go on to the next one."""
        if self.task is None or self.task is not self.sent:
            text = "aggregate_train and aggregate_evaluate of FedzoStrategy are for one call each"
            raise UsageError(f"{text} per request", code="aggregated-twice")
        secure = self.engine.sums is not None
        answer = self.engine.ask(self.task) if secure else self.engine.answer(self.task, replies)
        self.step(answer)
        return answer

    def step(self, answer: Any) -> None:
        """Go on to the next task."""
        self._go(self.generator.send, answer)

    def throw(self, error: BaseException) -> None:
        """Raise an error where the run waits for an answer."""
        self._go(self.generator.throw, error)

    def _go(self, resume: Callable[[Any], Any], argument: Any) -> None:
        try:
            self.task = resume(argument)
        except StopIteration as end:
            self.task, self.result = None, end.value
        if isinstance(self.task, Losses | LocalSteps | Slopes) and self.task.x.ndim == 1:
            self.x = self.task.x


class _FlowerRun(_Run):
    """A run whose rounds Flower's own loop asks for; it may change the model in between."""

    def __init__(self, engine: FlowerEngine, layout: Layout, x: Array, algorithm: Any) -> None:
        super().__init__(engine, layout, x)
        self._setting = RunSetting(engine, engine.uplink, algorithm.coefficients_shape)
        self._algorithm, self._state = algorithm, algorithm.init(x, self._setting)
        self._next = 0  # the number of the next round

    def begin_round(self, arrays: ArrayRecord) -> None:
        """Start the next round from these arrays."""
        self.x = Layout.of(arrays).vector()
        if "x" not in self._state._fields:
            raise _not_by_flower("changes the model, which a search cannot use")
        state = self._state._replace(x=self.x)
        self.generator = self._algorithm.round(self._next, state, self._setting)
        self.step(None)
        task = self.task
        if not isinstance(task, LocalSteps) or task.x.ndim != 1 or task.rows:
            raise _not_by_flower("sends nodes the model and a plain task only")

    def evaluate(self, arrays: ArrayRecord) -> None:
        """Make the evaluation of these arrays the next task."""
        self.x = Layout.of(arrays).vector()
        self.task = Losses(self.x)

    def messages(self) -> list[Message]:
        """Return the messages of the task."""
        assert self.task is not None
        self.sent = self.task
        return self.engine.nodes.prepare(self.engine.exchange(self.task, self.layout))

    def answer(self, replies: Iterable[Message]) -> Any:
        """Answer the task by the nodes' replies."""
        if isinstance(self.task, Losses):
            found = self.engine.answer(self.task, replies)
            losses = found.losses[np.isfinite(found.losses)]
            self.record = (
                {"train_loss": mean_loss(losses), **found.metrics} if len(losses) else None
            )
            return found
        answer = super().answer(replies)
        if self.task is not None:
            raise _not_by_flower(
                f"has one task per round: {type(self._algorithm).__name__} has more"
            )
        self._state, _ = self.result
        self.x, self._next = self._algorithm.model(self._state), self._next + 1
        return answer
