r"""Seeds and scalars: the same run, a fraction of the bytes.

A FedZO update is a combination of directions, :math:`\Delta_i^t = \sum_k \sum_n c_{k,n}\, g_{k,n}`,
and the directions are named by (seed, round, device, step), which the server knows. So a
device sends its H x b2 coefficients, and the server draws the directions again
(:meth:`fedzo.core.tasks.LocalSteps.rebuild`). The coefficients are those that the device itself
used, in the model's precision, and both sum by the same kernel in the same order:

* the rebuilt update is the device's own **to the bit** on machines whose vector units are
  alike, so the trajectory is that of the ideal uplink, to the bit;
* between unlike machines single products may be rounded differently (fused or not), and the
  two agree to the rounding of the model's precision.

In one process the device's own sum is at hand, and is taken; nothing is drawn twice unless
``verify`` asks for it. Where all devices share their directions, their coefficients are averaged
before anything is drawn: one update is rebuilt in place of M, and agrees with the mean of M updates
to rounding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedzo.core.fixed import SetSum
from fedzo.core.rebuilt import Rebuilt
from fedzo.core.streams import Combination
from fedzo.core.tasks import LocalSteps, Replies, Update
from fedzo.errors import InvalidValue, UsageError, nearest, one_of
from fedzo.uplinks.base import RunSetting, Uplink, UplinkInfo, mean_of, mean_values

Array = NDArray[Any]

DOWNLINKS = ("log", "model")

# round, device, queries, weight, H, b2, bytes of a number: what a message says beside numbers
_HEADER = struct.Struct("<IIQdIIB")


@dataclass(frozen=True)
class Seeds(Uplink):
    """Uniform sampling of M devices that send coefficients; the server hears their mean update.

    On the way down a device that took part a few rounds ago can catch up from the log, all
    coefficients sent in the rounds since: M H b2 numbers a round, or H b2 where directions are
    shared. A device that was away for longer, or never there, takes the model's d numbers, as
    soon as those are fewer; or K sums, where directions are of a fixed set of K and devices have
    the start.

    Parameters
    ----------
    downlink : str
        ``log``: whichever of log and model is fewer bytes, device by device; ``model``:
        always the model.
    verify : bool
        Hear every update as a remote server does, rebuilt from its coefficients, and tell the
        largest difference from what the devices summed: ``rebuild_error`` in the history, 0 where
        all is well. More than rounding ends the run. For those who change local steps or kernels.

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

    wants_coefficients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.downlink not in DOWNLINKS:
            allowed = one_of(DOWNLINKS) + nearest(self.downlink, DOWNLINKS)
            raise InvalidValue("downlink", self.downlink, allowed)

    def aggregate(self, t: int, updates: Replies, setting: RunSetting) -> tuple[Any, UplinkInfo]:
        """Return Δ^t = 1/M sum_i Δ_i^t, as the ideal uplink does, and count what it took."""
        task = updates.task
        shared = task is not None and task.algorithm.shared_directions
        mean, heard, sent, numbers, model, one = mean_of(task, setting.dim), [], 0, 0, 0, 0
        devices, error = [], 0.0
        for summed in updates:
            update, own = summed, summed.coefficients
            if own is None:
                if not sends_updates(setting, update.device):
                    raise UsageError(_NO_COEFFICIENTS)
                own = update.delta
            elif self.verify and task is not None:
                update, difference = _verify(t, summed, task)
                error = max(error, difference)
            if shared and update.coefficients is not None:
                heard.append(update)
            else:
                mean.add(update)
            one = _HEADER.size + own.nbytes
            sent += one
            numbers += own.size
            model = update.delta.nbytes
            devices.append(update.device)
        log = sent
        if heard:
            assert task is not None
            (centre,) = self.essence(heard, task)
            if len(heard) == len(devices):
                log = one
            else:  # besides the updates of devices that draw other directions
                centre = centre._replace(weight=sum(update.weight for update in heard))
            mean.add(centre)
        delta = mean.value()
        most = model
        if isinstance(delta, SetSum) and self.downlink == "log" and devices:
            most = min(model, delta.coefficients.size * (model // setting.dim))
        down, caught_up = self._downlink(t, devices, log, most, setting)
        metrics: dict[str, float] = {"caught_up": caught_up}
        if self.verify:
            metrics["rebuild_error"] = error
        info = UplinkInfo(
            uplink_bytes=sent, downlink_bytes=down, channel_uses=numbers, metrics=metrics
        )
        return delta, info

    def essence(self, updates: list[Update], task: LocalSteps) -> list[Update]:
        """Return the mean coefficients, as one update, where directions are shared."""
        if not updates or not task.algorithm.shared_directions:
            return updates
        total, shares = np.zeros(task.algorithm.coefficients_shape), 0.0
        for update in updates:
            assert update.coefficients is not None
            total += update.weight * update.coefficients.astype(np.float64)
            shares += update.weight
        first = updates[0]
        assert first.coefficients is not None
        return [centred(first, (total / shares).astype(first.coefficients.dtype), task)]

    def aggregate_values(
        self, t: int, updates: Replies, setting: RunSetting
    ) -> tuple[Array, UplinkInfo]:
        """Return the mean of the values: they are scalars already."""
        return mean_values(updates)

    def _downlink(
        self, t: int, devices: list[int], log: int, most: int, setting: RunSetting
    ) -> tuple[int, int]:
        """Return the bytes that bring the devices to x^t, and how many came by the log.

        Whom the log would cost more takes ``most``: the model, or the sums of a fixed set.
        A round of the log is as large as this one. Who was there when is not stored: the
        participants of a round are a function of it, and only rounds that are recent enough
        for the log to pay are looked at.
        """
        recent = most // log if self.downlink == "log" and log else 0
        missing, total, caught_up = set(devices), 0, 0
        for rounds in range(1, min(recent, t) + 1):
            there = missing & set(self.participants(t - rounds, len(devices), setting).tolist())
            total += len(there) * rounds * log
            caught_up += len(there)
            missing -= there
        return total + len(missing) * most, caught_up


def centred(like: Update, coefficients: Array, task: LocalSteps) -> Update:
    """Return one update of all devices, of coefficients along the directions that they share.

    It is built as the devices build theirs.
    """
    delta: Any = like.delta
    if isinstance(delta, Combination):
        delta = replace(delta, coefficients=coefficients.reshape(-1).astype(np.float64))
    else:
        streamed = isinstance(delta, Rebuilt) and delta.streamed
        whole = like._replace(coefficients=coefficients)
        delta = task.rebuilt(whole, streamed)
    return like._replace(delta=delta, weight=1, coefficients=coefficients)


def sends_updates(setting: RunSetting, device: int) -> bool:
    """Return whether a device sends whole updates, since its generator draws other directions.

    Only a setting of several machines has such devices.
    """
    return device in setting.sending_updates


_NO_COEFFICIENTS = (
    "uplink.name = 'seeds': the algorithm's updates have no coefficients; "
    "they must be combinations of its directions"
)


def _verify(t: int, summed: Update, task: LocalSteps) -> tuple[Update, float]:
    """Return the update as its coefficients make it, and how far that is from the device's sum.

    More than rounding means that the algorithm's updates are not combinations of its directions.
    """
    if not isinstance(summed.delta, np.ndarray):  # nothing but its coefficients
        return summed, 0.0
    update = summed._replace(delta=task.rebuild(summed))
    difference = float(np.abs(update.delta - summed.delta).max())
    if difference > 1e-3 * float(np.abs(summed.delta).max()):
        raise UsageError(
            f"uplink.verify: the update of device {summed.device} in round {t + 1} is not the "
            "combination of directions that its coefficients make"
        )
    return update, difference


def encode(t: int, update: Update) -> bytes:
    """Return the message that a device sends: a header, and the coefficients as they are."""
    c = update.coefficients
    assert c is not None
    head = (t, update.device, update.queries, update.weight, *c.shape, c.itemsize)
    return _HEADER.pack(*head) + c.astype(c.dtype.newbyteorder("<")).tobytes()


def decode(message: bytes) -> tuple[int, int, int, float, Array]:
    """Return round, device, queries, weight and coefficients of a message.

    >>> update = Update(3, np.zeros(9), 1.0, 12, np.array([[0.5, -1.0]], np.float32))
    >>> message = encode(7, update)
    >>> len(message), decode(message)
    (41, (7, 3, 12, 1.0, array([[ 0.5, -1. ]], dtype=float32)))
    """
    t, device, queries, weight, steps, directions, size = _HEADER.unpack_from(message)
    numbers = np.frombuffer(message, f"<f{size}", offset=_HEADER.size)
    return t, device, queries, weight, numbers.reshape(steps, directions)
