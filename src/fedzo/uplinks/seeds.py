r"""Seeds and scalars: the same run with a fraction of the bytes.

A FedZO update is a sum of directions, :math:`\Delta_i^t = \sum_k \sum_n c_{k,n}\, g_{k,n}`, and the
directions are named by (seed, round, device, step), which the server knows. So a device sends its
H x b2 coefficients in the model's precision, and the server draws the directions again
(:mod:`fedzo.core.updates`). Both sum in the same order, so the rebuilt update is the device's own
to the bit, and the trajectory is that of the ideal uplink.

In one process the device's own sum is used: nothing is drawn twice unless ``verify`` requests it.
If all devices share their directions, their coefficients are averaged before anything is drawn. One
update is rebuilt in place of M, and agrees with the mean of M updates to rounding.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.core.types import Array
from fedzo.core.updates import DirectionSum, UpdateMean, as_sum
from fedzo.errors import UsageError, check_choice
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo, check_radio, full_power
from fedzo.uplinks.channels.radio import Radio

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
    verify : bool
        Rebuild every update from its coefficients, as a remote server does, and record the largest
        difference from the devices' own sums: ``rebuild_error`` in the history, which should be 0.
        More than rounding stops the run. For those who change local steps or kernels.
    radio : Radio, optional
        Report ``energy``, ``seconds_on_air`` and ``joules``: see :class:`~fedzo.Ideal`.

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
    verify: bool = False
    radio: Radio | None = None

    wants_coefficients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_choice("downlink", self.downlink, DOWNLINKS)
        check_radio(self.radio)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t = 1/M sum_i Δ_i^t, as the ideal uplink does, and the cost of sending it."""
        task = updates.task
        shared = task is not None and task.algorithm.shared_directions
        fixed = None if task is None else task.algorithm.fixed_directions
        mean, alike, devices = UpdateMean(setting.dim), list[Update](), list[int]()
        sent, numbers, model, one, error = 0, 0, 0, 0, 0.0
        for update in updates:
            own = update.coefficients
            if own is None:  # from a node that draws other directions
                if update.device not in setting.sending_updates:
                    raise UsageError(_NO_COEFFICIENTS, code="no-coefficients")
                own = update.delta
                mean.add(update.delta, update.weight)
            else:
                delta = update.delta
                if task is not None and self.verify:
                    delta, difference = _verify(t, update, task)
                    error = max(error, difference)
                if shared:
                    alike.append(update)
                else:
                    delta = lazy(update, task) if fixed and task is not None else delta
                    mean.add(delta, update.weight)
            one = HEADER_BYTES + own.nbytes
            sent += one
            numbers += own.size
            model = update.delta.nbytes
            devices.append(update.device)
        log = sent
        if alike:
            assert task is not None
            (centre,) = self.compress(alike, task, setting)
            if len(alike) == len(devices):
                log = one
                mean.add(centre.delta)
            else:
                mean.add(centre.delta, sum(update.weight for update in alike))
        most = model
        if fixed and self.downlink == "log":
            most = min(model, fixed * (model // setting.dim))
        log = log if self.downlink == "log" else 0
        down, caught_up = catch_up(self, t, devices, log, most, setting)
        metrics: dict[str, float] = {"caught_up": caught_up}
        if self.verify:
            metrics["rebuild_error"] = error
        costs = full_power(self.radio, len(devices), numbers // max(1, len(devices)))
        info = UplinkInfo(sent, down, numbers, costs, metrics)
        return mean.value(), info

    def compress(
        self, updates: list[Update], task: LocalSteps, setting: RunSetting
    ) -> list[Update]:
        """Return the mean coefficients as one update if directions are shared."""
        if not updates or not task.algorithm.shared_directions:
            return updates
        total, shares = np.zeros(task.algorithm.coefficients_shape), 0.0
        for update in updates:
            assert update.coefficients is not None
            total += update.weight * update.coefficients.astype(np.float64)
            shares += update.weight
        return [of_all(updates[0], total / shares, task)]


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


def of_all(like: Update, coefficients: Array, task: LocalSteps) -> Update:
    """Return one update that stands for all devices, along the directions that they share."""
    assert like.coefficients is not None
    own = like._replace(weight=1, coefficients=coefficients.astype(like.coefficients.dtype))
    return own._replace(delta=lazy(own, task))


_NO_COEFFICIENTS = (
    "the seeds uplink needs updates that are sums of the algorithm's directions, but an update "
    "came without coefficients; use another uplink, such as 'ideal'"
)


def _verify(t: int, update: Update, task: LocalSteps) -> tuple[Any, float]:
    """Return the rebuilt update, and its largest difference from the device's own sum.

    More than rounding means that the algorithm's updates are not sums of its directions.
    """
    if as_sum(update.delta).draws:  # the device sends nothing but its coefficients
        return update.delta, 0.0
    rebuilt = task.rebuild(update)
    difference = float(np.abs(rebuilt - update.delta).max())
    if difference > 1e-3 * float(np.abs(update.delta).max()):
        raise UsageError(
            f"uplink.verify: the update of device {update.device} in round {t + 1} differs from "
            f"the sum that its coefficients make by {difference:.3g}",
            code="not-a-sum-of-directions",
        )
    return rebuilt, difference
