"""What the run loop asks of an algorithm, and what algorithms share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from numpy.typing import NDArray

from fedzo.core.capabilities import HasSizes
from fedzo.core.directions import check_directions
from fedzo.core.estimator import Estimator
from fedzo.core.federation import Federation, Replies
from fedzo.core.memory import check_memory
from fedzo.core.objective import Objective
from fedzo.core.random import Draws
from fedzo.core.work import Update
from fedzo.errors import InvalidValue, UsageError, check_counts, nearest, one_of, require
from fedzo.uplinks.base import Uplink, UplinkInfo
from fedzo.uplinks.ideal import Ideal

Array = NDArray[Any]


class RoundInfo(NamedTuple):
    """What a round did and cost: diagnostics, nothing that the next round needs.

    Attributes
    ----------
    participants : int
        How many devices' updates were heard.
    queries : int
        How many values F_i(x, ξ) were asked for.
    uplink_bytes, downlink_bytes : int
        What was sent to the server, and to the devices.
    channel_uses : int
        For how many symbols the devices took the channel.
    energy : float or None
        What all devices sent with, in units of one's budget for a round, if that is known.
    metrics : mapping
        Further numbers for the history.
    done : str
        Why there is nothing left to do, in words for people; empty: there is.
    """

    participants: int
    queries: int
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    channel_uses: int = 0
    energy: float | None = None
    metrics: Mapping[str, Any] = {}
    done: str = ""

    @classmethod
    def of(cls, updates: Replies, sent: UplinkInfo) -> RoundInfo:
        """Return the account of a round from the updates that were read, and the uplink's."""
        return cls(participants=updates.count, queries=updates.queries, **sent._asdict())


class ModelState(NamedTuple):
    """The state of an algorithm that carries nothing but the global model."""

    x: Array  # x^t


class Algorithm:
    """An algorithm is a frozen dataclass: its fields are the hyper-parameters of a configuration.

    A subclass defines the four methods below. What must persist from round to round, and only
    that, is in a state of the algorithm's own: a NamedTuple of arrays, or of tuples of arrays.
    Nothing is kept on ``self``, and :meth:`round` and :meth:`local` are pure functions.

    Attributes
    ----------
    shared_directions : bool
        Whether all devices draw the same directions in a step.
    fixed_directions : int, optional
        K, where the directions of all steps are drawn from a fixed set.
    coefficients_shape : pair of int, optional
        (H, b2), the coefficients of an update, where updates are combinations of directions.
    settles : bool
        Whether the model is always the best that the algorithm knows of, by more values than one
        evaluation has: then a lucky evaluation of an earlier one is no reason to go back.
    moves_each_round : bool
        Whether every round is meant to move the model. A search stays where it is until it has
        found something better.
    """

    shared_directions: bool = False
    fixed_directions: int | None = None
    settles: ClassVar[bool] = False
    moves_each_round: ClassVar[bool] = True

    @property
    def coefficients_shape(self) -> tuple[int, int] | None:
        """None, if nothing else is said: no coefficients."""
        return None

    def init(self, x0: Array, federation: Federation, uplink: Uplink) -> Any:
        """Return the state before round 0; raise if the parts cannot work together."""
        raise NotImplementedError

    def round(
        self, t: int, state: Any, federation: Federation, uplink: Uplink
    ) -> tuple[Any, RoundInfo]:
        """Return the state after round t: the server's part."""
        raise NotImplementedError

    def local(self, objective: Objective, device: int, x: Array, at: Draws) -> Update:
        """Return one device's part of a round that starts at x; ``at`` is where it draws."""
        raise NotImplementedError

    def model(self, state: Any) -> Array:
        """Return the global model x of a state."""
        x: Array = state.x
        return x

    def sums(self, state: Any) -> Array | None:
        """Return the coefficients of ``fixed_directions`` that the model is made of, if it is."""
        return None

    def made_of(self, state: Any, sums: Array, seed: int) -> Any:
        """Return the state that other sums would make, from the start that a state has."""
        raise NotImplementedError

    def with_numbers(self, state: Any) -> Algorithm:
        """Return the algorithm with the numbers that it has come to, where it adapts some."""
        return self


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
    def coefficients_shape(self) -> tuple[int, int]:
        """(H, b2), where H = 1 unless there are local steps."""
        return 1, self.directions

    @property
    def automatic(self) -> bool:
        """Whether a number has still to be chosen."""
        return self.smoothing == "auto"

    def check(self, federation: Federation) -> None:
        """Raise unless the numbers are chosen, and suit the problem's dimension."""
        if self.automatic:
            raise UsageError("'auto' is for fedzo.minimize and fedzo run, which choose a number")
        check_directions(self.direction_kind, self.directions, federation.dim)
        steps, directions = self.coefficients_shape
        check_memory("directions", directions, 4 * directions * federation.dim)
        check_memory("batch_size", self.batch_size, 8 * self.batch_size * (directions + 1))
        check_memory("local_steps", steps, 4 * steps * directions)


def check_participants(wanted: int | None, federation: Federation) -> None:
    """Raise unless so many devices can take part in a round."""
    if wanted is not None:
        allowed = f"at most the number of devices, {federation.devices}"
        require(wanted <= federation.devices, "participants", wanted, allowed)


WEIGHTINGS = ("uniform", "size")


def check_weighting(weighting: str, federation: Federation | None = None) -> None:
    """Raise unless updates can be weighted in this way, in this federation."""
    if weighting not in WEIGHTINGS:
        allowed = one_of(WEIGHTINGS) + nearest(weighting, WEIGHTINGS)
        raise InvalidValue("weighting", weighting, allowed)
    if federation is not None and weighting == "size" and not federation.provides(HasSizes):
        raise InvalidValue("weighting", "size", "'uniform': the problem gives no device sizes")


def weight_of(weighting: str, objective: Objective, device: int) -> float:
    """Return a device's share in the average: 1, or the number of its samples."""
    return 1 if weighting == "uniform" else objective.size(device)


def check_no_uplink(name: str, uplink: Uplink) -> None:
    """Raise unless the uplink is the ideal one, for algorithms that do not send through it."""
    if not isinstance(uplink, Ideal):
        allowed = f"one that sends its updates through an uplink, to use {type(uplink).__name__}"
        raise InvalidValue("name", name, allowed)
