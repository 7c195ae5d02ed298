"""What the run loop asks of an algorithm, and what algorithms share."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from fedzo.algorithms.schedules import Schedule
from fedzo.core.capabilities import HasSizes
from fedzo.core.directions import check_directions
from fedzo.core.estimator import Correction, Estimator, local_steps
from fedzo.core.objective import Objective
from fedzo.core.random import Draws
from fedzo.core.tasks import WEIGHTINGS, LocalSteps, Replies, Task, Update, weight_of
from fedzo.core.types import Array
from fedzo.errors import (
    InvalidValue,
    Parameters,
    UsageError,
    check_choice,
    check_counts,
    check_memory,
    naming,
    require,
)
from fedzo.uplinks.base import Ideal, RunSetting, UplinkInfo


class RoundInfo(NamedTuple):
    """Diagnostics and costs of a round. The next round needs none of them.

    Attributes
    ----------
    participants : int
        Number of devices whose updates the server received.
    queries : int
        Number of values F_i(x, ξ) that were evaluated.
    uplink_bytes, downlink_bytes : int
        Bytes sent to the server, and to the devices.
    channel_uses : int
        Number of symbols that the devices sent over the channel.
    costs : mapping
        Further costs of the uplink by name, whose sums the history has.
    metrics : mapping
        Further numbers for the history.
    done : str
        The reason to end the run after this round; empty to continue.
    """

    participants: int
    queries: int
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    channel_uses: int = 0
    costs: Mapping[str, float] = {}
    metrics: Mapping[str, Any] = {}
    done: str = ""

    @classmethod
    def of(cls, updates: Replies, sent: UplinkInfo) -> RoundInfo:
        """Return the account of a round from the updates that were read, and the uplink's."""
        return cls(participants=updates.count, queries=updates.queries, **sent._asdict())


S = TypeVar("S")
Round = Generator[Task, Replies, tuple[S, RoundInfo]]


class Algorithm(Parameters):
    """Base class of algorithms: a frozen dataclass whose fields are its hyper-parameters.

    A subclass defines :meth:`init`, :meth:`round` and :meth:`local`. What must persist from round
    to round, and only that, is in a state of the algorithm's own: a NamedTuple of arrays, or of
    tuples of arrays. Nothing is stored on ``self``. :meth:`local` is a pure function.

    Attributes
    ----------
    local_steps, directions, batch_size : int
        H, b2 and b1 of a device's work: the size of a request, which a node limits.
    weighting : str
        ``uniform``, or ``size``: devices count by the number of their samples.
    shared_directions : bool
        Whether all devices draw the same directions in a step.
    fixed_directions : int, optional
        K, if the directions of all steps are drawn from a fixed set.
    schedule : Schedule, optional
        How the learning rate changes from round to round.
    coefficients_shape : pair of int, optional
        (H, b2), the shape of an update's coefficients, if updates are sums of directions.
    tracks_best : bool
        Whether the model is always the best that the algorithm knows, by more values than one
        evaluation has. Then a lucky evaluation of an earlier model is not preferred to it.
    measures_noise : bool
        Whether the algorithm finds out by itself whether values are noisy. For any other, the run
        evaluates the start twice.
    first_step : int
        The number of rounds that choose the start, if any do. Then f is evaluated after them, and
        the run ends when later evaluations see no gain.
    moves_each_round : bool
        Whether every round is meant to move the model. A search waits until it has found something
        better.
    """

    local_steps: int = 1
    directions: int = 1
    batch_size: int = 1
    weighting: str = "uniform"
    shared_directions: bool = False
    fixed_directions: int | None = None
    schedule: Schedule | None = None
    tracks_best: ClassVar[bool] = False
    measures_noise: ClassVar[bool] = False
    moves_each_round: ClassVar[bool] = True

    @property
    def coefficients_shape(self) -> tuple[int, int] | None:
        """None by default: updates have no coefficients."""
        return None

    @property
    def first_step(self) -> int:
        """0 by default: no round chooses the start."""
        return 0

    def init(self, x0: Array, setting: RunSetting) -> Any:
        """Return the state before round 0; raise if the parts do not fit together."""
        raise NotImplementedError

    def round(self, t: int, state: Any, setting: RunSetting) -> Round[Any]:
        """Yield the tasks of round t; return the state after it and a :class:`RoundInfo`."""
        raise NotImplementedError

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return one device's reply to :class:`~fedzo.core.tasks.LocalSteps`."""
        raise NotImplementedError

    def model(self, state: Any) -> Array:
        """Return the global model x of a state, shape (d,)."""
        x: Array = state.x
        return x

    def loss(self, state: Any) -> float | None:
        """Return f(x) over all devices if the algorithm has measured it, else None.

        Then the run spends no queries on an evaluation.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class ZerothOrder(Algorithm):
    """What all algorithms that estimate gradients by eq. (2) have in common.

    Parameters
    ----------
    smoothing : float
        μ, how far from x the values are taken.
    batch_size : int
        b1, realisations ξ in an estimate, drawn independently (with replacement).
    directions : int
        b2, directions v in an estimate.
    direction_kind : str
        ``sphere`` (the paper's), ``gaussian``, ``rademacher``, ``orthogonal`` or
        ``coordinate``: see :mod:`fedzo.core.directions`.
    difference : str
        ``forward`` (the paper's) or ``central``: see :mod:`fedzo.core.estimator`.
    """

    smoothing: float | Literal["auto"] = 1e-3
    batch_size: int = 25
    directions: int = 20
    direction_kind: str = "sphere"
    difference: str = "forward"

    def __post_init__(self) -> None:
        check_counts(self, "batch_size")
        _ = self.estimator  # checks μ, b2, the kind and the difference

    @cached_property
    def estimator(self) -> Estimator:
        """Eq. (2) with this algorithm's μ and b2."""
        return Estimator(
            # While μ is not chosen yet, any will do to check the others.
            smoothing=1.0 if self.smoothing == "auto" else self.smoothing,
            directions=self.directions,
            kind=self.direction_kind,
            difference=self.difference,
            shared=self.shared_directions,
            fixed=self.fixed_directions,
        )

    @property
    def coefficients_shape(self) -> tuple[int, int] | None:
        """(H, b2), where H = 1 unless there are local steps."""
        return self.local_steps, self.directions

    @property
    def automatic(self) -> bool:
        """Whether a number has still to be chosen."""
        return self.smoothing == "auto"

    def correction(self, task: LocalSteps, device: int) -> Correction | None:
        """Return what a device's steps add to the estimate, a function of x; None for nothing."""
        return None

    def local(self, objective: Objective, device: int, task: LocalSteps, draws: Draws) -> Update:
        """Return Δ_i^t: H steps of eq. (6) from where the device starts."""
        return local_steps(
            self.estimator,
            objective,
            task.start(device),
            draws,
            learning_rate=task.learning_rate,
            batch_size=self.batch_size,
            steps=self.local_steps,
            weight=weight_of(self.weighting, objective, device),
            correction=self.correction(task, device),
        )

    def check(self, setting: RunSetting) -> None:
        """Raise unless the numbers are chosen, and suit the problem and the uplink."""
        if self.automatic:
            key = "smoothing" if self.smoothing == "auto" else "learning_rate"
            allowed = "a number: 'auto' is for FedZO on a problem of this process"
            raise InvalidValue(f"algorithm.{key}", "auto", allowed)
        check_directions(self.direction_kind, self.directions, setting.dim)
        steps, directions = self.coefficients_shape or (1, self.directions)
        check_memory("directions", directions, 4 * directions * setting.dim)
        check_memory("batch_size", self.batch_size, 8 * self.batch_size * (directions + 1))
        check_memory("local_steps", steps, 4 * steps * directions)


def check_participants(wanted: int | None, setting: RunSetting) -> None:
    """Raise unless the federation has this many devices."""
    if wanted is not None:
        allowed = f"at most the number of devices, {setting.devices}"
        require(wanted <= setting.devices, "participants", wanted, allowed)


def check_weighting(weighting: str, setting: RunSetting | None = None) -> None:
    """Raise unless updates can be weighted in this way, for this problem."""
    check_choice("weighting", weighting, WEIGHTINGS)
    if setting is not None and weighting == "size" and not setting.provides(HasSizes):
        raise InvalidValue("weighting", "size", "'uniform': the problem gives no device sizes")


def check_uplink(
    algorithm: Any, setting: RunSetting, sends: Literal["updates", "values", "nothing"]
) -> None:
    """Raise unless the uplink carries what the devices of an algorithm send."""
    uplink, kind = setting.uplink, type(algorithm).__name__
    name, wrong, code = type(uplink).__name__, "", ""
    if sends == "nothing" and not isinstance(uplink, Ideal):
        wrong, code = f"{kind} sends nothing through the uplink {name}", "uplink-not-used"
    elif sends == "values" and (uplink.secure or not uplink.carries_values):
        wrong, code = f"{kind} needs values, which {name} does not carry", "no-values"
    elif sends == "updates" and uplink.wants_coefficients:
        if algorithm.coefficients_shape is None:
            words = f"{name} sends coefficients of directions, and updates of {kind} have none"
            wrong, code = words, "no-coefficients"
        elif (uplink.wants_shared_directions or uplink.secure) and not algorithm.shared_directions:
            what = "a secure sum" if uplink.secure else name
            words = f"{what} needs the same directions on all devices"
            raise UsageError(
                f"uplink.name: {words}; set algorithm.shared_directions = true",
                code="directions-not-shared",
            )
    if wrong:
        raise UsageError(f"uplink.name: {wrong}; set uplink.name = 'ideal'", code=code)
    with naming("uplink"):
        uplink.check(setting)
