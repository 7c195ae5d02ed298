"""Variants of FedZO as wrappers: which of them a run needs, and what is inside."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedzo.algorithms.adaptive_rate import AdaptiveRate
from fedzo.algorithms.base import Algorithm, Round
from fedzo.algorithms.candidates import Candidates
from fedzo.algorithms.fedzo import FedZO, Variant
from fedzo.algorithms.fixed_directions import FixedDirections
from fedzo.algorithms.server.fourier_sign import FourierSign
from fedzo.algorithms.server_rate import ServerRate
from fedzo.core.engine import ReplayEngine, drive
from fedzo.core.tasks import Update
from fedzo.core.types import Array
from fedzo.uplinks.base import RunSetting, Uplink


@dataclass(frozen=True, kw_only=True)
class Scheduled(Variant):
    """An algorithm whose learning rate follows its schedule: :mod:`fedzo.algorithms.schedules`.

    Parameters
    ----------
    fedzo : FedZO or FedAvg
        With a schedule.
    uplink : Uplink
        The uplink, which may need further wrappers.
    """

    fedzo: Any
    uplink: Uplink

    def at(self, t: int) -> Algorithm:
        """Return the algorithm of round t, with its wrappers."""
        plain: Any = replace(self.fedzo, schedule=None)
        factor, server = self.fedzo.schedule.factor(t), plain.server
        holder = server if "learning_rate" in vars(server) else plain
        rated = replace(holder, learning_rate=factor * holder.learning_rate)
        plain = rated if holder is plain else replace(plain, server=rated)
        return compose(plain, self.uplink)

    def init(self, x0: Array, setting: RunSetting) -> Any:
        """Return the state before round 0."""
        return self.at(0).init(x0, setting)

    def round(self, t: int, state: Any, setting: RunSetting) -> Round[Any]:
        """Yield the tasks of round t, with its rate."""
        state, info = yield from self.at(t).round(t, state, setting)
        factor = {"learning_rate_factor": self.fedzo.schedule.factor(t)}
        return state, info._replace(metrics={**info.metrics, **factor})


def compose(algorithm: Algorithm, uplink: Uplink) -> Algorithm:
    """Return the algorithm with the wrappers that its settings and the uplink ask for.

    >>> import fedzo
    >>> fixed = fedzo.FedZO(directions=2, fixed_directions=8)
    >>> type(compose(fixed, fedzo.Seeds())).__name__
    'FixedDirections'
    >>> compose(fixed, fedzo.Ideal()) is fixed
    True
    """
    if algorithm.schedule is not None:
        return Scheduled(fedzo=algorithm, uplink=uplink)
    if isinstance(algorithm, FedZO):
        if algorithm.fixed_directions is not None and uplink.wants_coefficients:
            return FixedDirections(fedzo=algorithm)
        if isinstance(algorithm.server, FourierSign):
            return Candidates(fedzo=algorithm)
        if algorithm.server.automatic:
            return ServerRate(fedzo=algorithm)
    return algorithm


def current(algorithm: Algorithm, state: Any) -> Algorithm:
    """Return the algorithm without wrappers, with its current numbers."""
    if isinstance(algorithm, AdaptiveRate | ServerRate):
        return algorithm.current(state)
    return algorithm.fedzo if isinstance(algorithm, Variant) else algorithm


@dataclass(frozen=True)
class Replay:
    """The parts that define how a log of replies changes the state of a run.

    Parameters
    ----------
    algorithm : Algorithm
        With or without its wrappers.
    uplink : Uplink
        The uplink.
    seed, devices : int
        The run's seed, and N.

    Examples
    --------
    >>> import fedzo
    >>> import numpy as np
    >>> update = Update(0, np.empty(0), 1, 1, np.array([[0.5]]))
    >>> algorithm = fedzo.FedZO(directions=1, local_steps=1, direction_kind="rademacher")
    >>> replay = Replay(algorithm, fedzo.Seeds(), seed=0, devices=1)
    >>> replay.replay(replay.start(np.ones(3)), range(1), [[update]]).x
    array([1.5, 1.5, 0.5])
    """

    algorithm: Algorithm
    uplink: Uplink
    seed: int
    devices: int

    @cached_property
    def composed(self) -> Algorithm:
        """Return the algorithm with the wrappers that the run has."""
        return compose(self.algorithm, self.uplink)

    def start(self, x0: Array) -> Any:
        """Return the state before the first round."""
        return self.composed.init(x0, self.setting(x0))

    def replay(self, state: Any, rounds: range, log: Sequence[list[Update]]) -> Any:
        """Return the state after some rounds; ``log`` has the replies to each of their tasks."""
        setting = self.setting(self.composed.model(state), log)
        for t in rounds:
            state, _ = drive(self.composed.round(t, state, setting), setting.engine)
        return state

    def setting(self, x: Array, log: Sequence[list[Update]] = ()) -> RunSetting:
        """Return the setting of a process that replays this log of replies."""
        engine = ReplayEngine(self.seed, x.size, self.devices, log)
        return RunSetting(engine, self.uplink, self.algorithm.coefficients_shape)
