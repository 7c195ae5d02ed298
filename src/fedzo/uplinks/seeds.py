r"""Seeds and scalars: the same run with a fraction of the bytes.

A FedZO update is a sum of directions, :math:`\Delta_i^t = \sum_k \sum_n c_{k,n}\, g_{k,n}`, and the
directions are named by (seed, round, device, step), which the server knows. So a device sends its
H x b2 coefficients in the model's precision, and the server draws the directions again
(:mod:`fedzo.core.updates`). Both sum in the same order, so the rebuilt update is the device's own
to the bit, and the trajectory is that of the ideal uplink.

In one process the device's own sum is used: nothing is drawn twice.
If all devices share their directions, their coefficients are averaged before anything is drawn. One
update is rebuilt in place of M, and agrees with the mean of M updates to rounding.

With ``secure`` the mean is that of a sum of whole numbers on a grid
(:mod:`fedzo.core.fixed_point`), and of Flower's nodes the server receives this sum only
(:mod:`fedzo.flower.secure`). In one process the same sum is computed without masks, to the same
bits.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedzo.core.fixed_point import grid_mean, to_grid
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum, UpdateMean, as_sum
from fedzo.errors import FedzoWarning, UsageError, check_choice, check_positive
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo, full_power
from fedzo.uplinks.channels import Radio

DOWNLINKS = ("log", "model")

# round, device, H and b2 (4 bytes each), queries and weight (8 each), bytes of a number (1)
HEADER_BYTES = 33


@dataclass(frozen=True)
class Seeds(Uplink):
    """Uniform sampling of M devices that send coefficients, of which the server makes the mean.

    A device that took part a few rounds ago can catch up from the log, all coefficients sent in the
    rounds since: M H b2 numbers per round, or H b2 if directions are shared. A device that was away
    for longer, or never took part, receives the model's d numbers as soon as those are fewer. With
    a fixed set of K directions, K sums are enough for devices that have the start.

    Parameters
    ----------
    downlink : str
        ``log``: log or model, whichever is fewer bytes for each device; ``model``: always the
        model.
    radio : Radio, optional
        Report ``energy``, ``seconds_on_air`` and ``joules``: see :class:`~fedzo.Ideal`.
    secure : bool
        Let the server receive the sum of all devices' coefficients, and of their losses, and
        nothing of a single node. It needs ``shared_directions``, and nodes with ``[secure]``.
        Each mean coefficient then has an error of at most 2^-40 of the bound: ``clip``, divided by
        sqrt(d) for directions that are not unit vectors.
    clip : float
        With ``secure``: a device shortens its update to at most this length. It bounds what a lying
        node can do, which no longer can be validated.
    loss_clip : float
        With ``secure``: a device clips its loss in an evaluation to [-loss_clip, loss_clip].

    Examples
    --------
    >>> import fedzo
    >>> from fedzo.problems import softmax
    >>> algorithm = fedzo.FedZO(participants=20)
    >>> run = dict(algorithm=algorithm, rounds=2)
    >>> ideal = fedzo.minimize(softmax(), uplink=fedzo.Ideal(), **run)
    >>> seeds = fedzo.minimize(softmax(), uplink=fedzo.Seeds(), **run)
    >>> bool((ideal.x == seeds.x).all())
    True
    >>> ideal.uplink_bytes // seeds.uplink_bytes
    72
    """

    downlink: str = "log"
    radio: Radio | None = None
    secure: bool = False
    clip: float = 1000.0
    loss_clip: float = 10_000.0

    wants_coefficients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("downlink", self.downlink, DOWNLINKS)
        check_positive(self, "clip", "loss_clip")

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t = 1/M sum_i Δ_i^t, as the ideal uplink does, and the cost of sending it."""
        task = updates.task
        shared = task is not None and task.algorithm.shared_directions
        fixed = None if task is None else task.algorithm.fixed_directions
        mean, alike, devices = UpdateMean(setting.dim), list[Update](), list[int]()
        sent, numbers, model, one = 0, 0, 0, 0
        for update in updates:
            own = coefficients_of(update)
            if shared:
                alike.append(update)
            else:
                delta = lazy(update, task) if fixed and task is not None else update.delta
                mean.add(delta, update.weight)
            one = HEADER_BYTES + own.nbytes
            wider = 8 * own.size - own.nbytes if self.secure else 0  # numbers of a sum have 64 bits
            sent += update.contributors * (one + wider)
            numbers += update.contributors * own.size
            model = update.delta.nbytes
            devices.append(update.device)
        log = sent
        if alike:
            assert task is not None
            (centre,) = self.compress(alike, task, setting)
            if self.secure:
                devices = list(task.devices)
            log = one
            mean.add(centre.delta)
        sums = fixed if self.downlink == "log" else None
        most = min(model, sums * (model // setting.dim)) if sums else model
        log = log if self.downlink == "log" else 0
        down, caught_up = catch_up(self, t, devices, log, most, setting)
        costs = full_power(self.radio, updates.count, numbers // max(1, updates.count))
        return mean.value(), UplinkInfo(sent, down, numbers, costs, {"caught_up": caught_up})

    def compress(
        self, updates: list[Update], task: LocalSteps, setting: RunSetting
    ) -> list[Update]:
        """Return the mean coefficients as one update if directions are shared."""
        if not updates or not task.algorithm.shared_directions:
            return updates
        if self.secure:
            return [self._sum(updates, task)]
        total, shares = np.zeros(task.algorithm.coefficients_shape), 0.0
        for update in updates:
            total += update.weight * coefficients_of(update).astype(np.float64)
            shares += update.weight
        return [of_all(updates[0], total / shares, task)]

    def bound(self, task: LocalSteps) -> float:
        """Return the largest length of a device's coefficients."""
        return self.clip / task.direction_length

    def _sum(self, updates: list[Update], task: LocalSteps) -> Update:
        """Return the mean of a fixed-point sum; one that stands for many devices is one already."""
        if updates[0].contributors > 1:
            return updates[0]
        total, bound = np.zeros(task.algorithm.coefficients_shape, np.int64), self.bound(task)
        short = list[int]()
        for update in updates:
            own, clipped = to_grid(coefficients_of(update), bound)
            total += int(update.weight) * own
            short += [update.device] * clipped
        warn_clipped(len(short), "updates", "clip", self.clip)
        mean = grid_mean(total, sum(update.weight for update in updates), bound)
        return of_all(updates[0], mean, task)._replace(contributors=len(updates))


def secure_mean_loss(losses: Array, loss_clip: float) -> float:
    """Return the mean of losses as a secure sum has it.

    >>> round(secure_mean_loss(np.array([0.1, 0.2]), loss_clip=8.0), 9)
    0.15
    """
    parts = [to_grid(loss, loss_clip) for loss in losses[:, None]]
    warn_clipped(sum(clipped for _, clipped in parts), "losses", "loss_clip", loss_clip)
    total = np.sum([own for own, _ in parts], axis=0)
    return float(grid_mean(total, len(losses), loss_clip)[0])


def warn_clipped(count: int, what: str, key: str, bound: float) -> None:
    """Warn of numbers that had to be clipped."""
    if count:
        text = f"{count} {what} were clipped to uplink.{key} = {bound:g}; a larger one would keep"
        warnings.warn(f"{text} them as they are", FedzoWarning, stacklevel=2)


def catch_up(
    uplink: Uplink, t: int, devices: list[int], log: int, most: int, setting: RunSetting
) -> tuple[int, int]:
    """Return the bytes that bring the devices to x^t, and how many devices use the log.

    A round of the log has ``log`` bytes, 0 if there is no log. A device for which the log is longer
    than ``most`` bytes (the model, or the sums of a fixed set) receives those. Participants of past
    rounds are not stored: they are a function of the round. Only rounds that are recent enough for
    the log to pay are searched.
    """
    recent = most // log if log else 0
    missing, total, caught_up = set(devices), 0, 0
    for rounds in range(1, min(recent, t) + 1):
        if not missing:
            break
        there = missing & set(uplink.participants(t - rounds, len(devices), setting).tolist())
        total += len(there) * rounds * log
        caught_up += len(there)
        missing -= there
    return total + len(missing) * most, caught_up


def lazy(update: Update, task: LocalSteps) -> DirectionSum:
    """Return the sum of directions that an update's coefficients make, not drawn yet."""
    return replace(task.rebuilt(update), in_place=as_sum(update.delta).in_place)


def coefficients_of(update: Update) -> Array:
    """Return the coefficients of an update; raise if it came without."""
    if update.coefficients is None:
        raise UsageError(
            "the uplink needs updates that are sums of the algorithm's directions, but an update "
            "came without coefficients; use another uplink, such as 'ideal'",
            code="no-coefficients",
        )
    return update.coefficients


def of_all(like: Update, coefficients: Array, task: LocalSteps) -> Update:
    """Return one update that stands for all devices, along the directions that they share."""
    if not task.algorithm.shared_directions:  # of a custom algorithm: ours are checked before a run
        raise UsageError(
            "coefficients of different directions cannot be combined; "
            "set algorithm.shared_directions = true",
            code="directions-not-shared",
        )
    own = like._replace(weight=1, coefficients=coefficients.astype(coefficients_of(like).dtype))
    return own._replace(delta=lazy(own, task))
