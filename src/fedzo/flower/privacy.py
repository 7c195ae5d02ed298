r"""Differential privacy of each record, on the scalars that leave a node.

An update is made of b2 coefficients per step, and each is a difference of a device's losses. Noise
is added there, to b2 numbers in place of the d numbers of an update:

* the b2 differences F(x + μv_n) - F(x) of each record are clipped together, to the length C. The
  loss of each record in an evaluation is clipped to [-B, B];
* a record counts once, by its name, however often it is in a batch. If a device is one record, such
  as a function or a training, the mean over ξ is clipped, and b1 has no effect;
* a value that is not finite, or that raises, counts as zero: no record can make a mean NaN or send
  an error code;
* normal noise is added to each of the b2 sums. Its standard deviation is z times the largest effect
  of one record.

There are two ways to draw batches, with different neighbouring data sets:

* ``poisson``: each record is in a batch independently with probability q = b1 / n. The batches come
  from a secret of the node, so sampling hides records from the server. Neighbouring data sets
  differ in one record, which counts as zero in one of them (the zero-out form of add-or-remove).
  One record changes a sum by at most C, and the sum is divided by q n;
* ``fixed``: the server knows the batches, and sampling hides nothing. Neighbouring data sets differ
  in the values of one record, which changes the mean over b' records by at most 2C / b'.

Every step and every evaluated loss is then a Gaussian mechanism with the noise multiplier z, over a
sample of the rate q (an evaluation has q = 1). The ledger stores these events. dp-accounting
computes the ε of all of them at δ: exactly if q = 1 everywhere (Balle & Wang 2018; Dong, Roth & Su
2022), else by Rényi differential privacy (Mironov, Talwar & Zhang 2019).

Sums are whole numbers on a grid, :mod:`fedzo.core.fixed_point`, and the noise is OpenDP's discrete
normal (Canonne, Kamath & Steinke 2020). Clipped values are rounded towards zero, so rounding never
increases the effect of a record. Noise from floating-point numbers would reveal records by its low
bits (Mironov 2012).

In a secure sum (:mod:`fedzo.flower.secure`) the server sees no single node, so nodes can share the
noise of a step. With ``honest`` each node adds its part to the sum of its devices, such that the
honest nodes of the smallest sum that any node reveals add z C together. Sums of discrete normals
are discrete normals up to a relative error far below 2^-1000 here (Kairouz, Liu & Steinke 2021).
This needs rounds of one step, whose result is a function of the sum: devices that take further
steps from their own result would depend on less noise.

The number n of a device's records is public. A private node sends no metrics and no gradients, nor
values at points that are not a difference. The time that a reply takes is not protected.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fedzo.core import capabilities as can
from fedzo.core.fixed_point import SLACK, grid_step
from fedzo.core.objective import Objective, ObjectiveWrapper, values_along
from fedzo.core.random import Draws, Stream
from fedzo.core.tasks import LocalSteps
from fedzo.core.types import Array
from fedzo.core.updates import Offset
from fedzo.errors import (
    BudgetSpent,
    MissingExtra,
    UsageError,
    check_choice,
    check_positive,
    require,
)
from fedzo.flower.errors import ErrorCode, Rejected, log
from fedzo.flower.secure import threshold

SAMPLINGS = ("poisson", "fixed")
MOST_NOISE = 1e4  # its noise fits into 64 bits
ORDERS = (*range(2, 64), 128, 256, 512, 1024)  # whole: the others may not converge


class Event(NamedTuple):
    """A kind of release: the noise multiplier z and the sampling rate q."""

    noise: float
    rate: float


Events = Mapping[Event, int]


class Releases(NamedTuple):
    """The number of releases about a device, and their b1; None: over all records."""

    times: int
    batch_size: int | None


class Charge(NamedTuple):
    """What a message releases about the records of a device, for the ledger."""

    records: frozenset[bytes] | None  # a digest of each; None: not known
    sampling: str
    event: Event
    times: int


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The ``[privacy]`` of a node.

    Parameters
    ----------
    epsilon, delta : float
        The privacy budget of each record, over all runs.
    noise : float
        z, the noise of one release relative to the largest effect of one record on it.
    difference_clip : float
        C, the largest length of the differences of one record.
    loss_clip : float
        B, the largest absolute loss of one record.
    sampling : str, optional
        ``poisson``: batches that only this node knows. ``fixed``: those of the run's seed. By
        default ``poisson`` if the problem can evaluate chosen records.
    honest : float, optional
        The share of nodes in a secure sum, in (2/3, 1], of which this node assumes that they add
        their noise and do not collude. Then nodes share the noise of a step, if H = 1, devices
        have equal weights and batches are ``poisson``. By default every node adds all of it.

    Examples
    --------
    Batches of a tenth of the records, which the server does not know, are worth a lot:

    >>> privacy = Privacy(epsilon=8.0, noise=30.0, difference_clip=0.01, loss_clip=5.0)
    >>> [round(privacy.spent(10_000, rate), 1) for rate in (1.0, 0.1)]
    [19.1, 1.4]
    """

    epsilon: float
    noise: float
    difference_clip: float
    loss_clip: float
    delta: float = 1e-5
    sampling: str | None = None
    honest: float | None = None

    def __post_init__(self) -> None:
        if self.honest is not None:
            require(2 / 3 < self.honest <= 1, "honest", self.honest, "a number in (2/3, 1]")
        check_positive(self, "epsilon", "noise", "difference_clip", "loss_clip", "delta")
        require(self.delta < 1, "delta", self.delta, "a number in (0, 1)")
        require(self.noise <= MOST_NOISE, "noise", self.noise, f"at most {MOST_NOISE:g}")
        if self.sampling is not None:
            check_choice("sampling", self.sampling, SAMPLINGS)

    def spent(self, answers: int, rate: float = 1.0) -> float:
        """Return the ε of this number of releases about a record."""
        return self.epsilon_of({Event(self.noise, rate): answers})

    def epsilon_of(self, events: Events) -> float:
        """Return the ε of all events together, by Google's accountant."""
        return _epsilon(frozenset(events.items()), self.delta)

    def check(self, events: Events) -> None:
        """Reject events that come to more than ε."""
        if (epsilon := self.epsilon_of(events)) > self.epsilon:
            text = f"epsilon would be {epsilon:.4g}, more than {self.epsilon:g}"
            raise Rejected(ErrorCode.PRIVACY, text)

    def shares_noise(self, task: LocalSteps, objective: Objective) -> bool:
        """Return whether the nodes of a secure sum share the noise of a task."""
        steps, weighting = task.algorithm.local_steps, task.algorithm.weighting
        one = self.honest is not None and steps == 1 and weighting == "uniform"
        return one and self.sampling_of(objective) == "poisson"

    def part_of_noise(self, members: int, count: int) -> Array:
        """Return a node's part of the noise of a sum over this number of nodes, in grid steps.

        At least t nodes are in a sum, and all but (1 - honest) n of them are honest.

        >>> privacy = Privacy(epsilon=8, noise=1e-30, difference_clip=1, loss_clip=1, honest=0.8)
        >>> [privacy.honest_nodes(members) for members in (3, 5, 10)]
        [3, 3, 5]
        >>> privacy.part_of_noise(10, 2)
        array([0, 0])
        """
        whole = self.noise * self.difference_clip / grid_step(self.difference_clip)
        part = whole / math.sqrt(self.honest_nodes(members))
        return discrete_normals(part, count).astype(np.int64)

    def honest_nodes(self, members: int) -> int:
        """Return the number of nodes whose noise is in every sum over this number of nodes."""
        lying = math.floor((1 - (self.honest or 0)) * members + 1e-9)
        return max(1, threshold(members) - lying)

    def sampling_of(self, objective: Objective) -> str:
        """Return how batches of a problem are drawn; reject a problem that cannot be private.

        >>> from fedzo.problems import Quadratic
        >>> privacy = Privacy(epsilon=8.0, noise=30.0, difference_clip=0.01, loss_clip=5.0)
        >>> privacy.sampling_of(Quadratic())
        'fixed'
        """
        name, taken = type(objective).__name__, objective.capability(can.TakesRecords) is not None
        if not taken and objective.capability(can.NamesRecords) is None:
            text = f"[privacy] needs the names of the records, which {name} does not have: "
            raise Rejected(ErrorCode.NO_RECORDS, text + "give it a method records(batch)")
        if self.sampling == "poisson" and not taken:
            text = f'sampling = "poisson" needs chosen records, which {name} cannot evaluate: '
            raise Rejected(ErrorCode.NO_RECORDS, text + 'use sampling = "fixed"')
        return self.sampling or ("poisson" if taken else "fixed")


@lru_cache(maxsize=1024)
def _epsilon(events: frozenset[tuple[Event, int]], delta: float) -> float:
    """Return the smaller of two bounds: one without sampling, and one that uses it."""
    from dp_accounting import (
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
        get_epsilon_gaussian,
    )
    from dp_accounting.rdp import RdpAccountant

    total = math.fsum(count / event.noise**2 for event, count in events)
    if not total:
        return 0.0
    plain = float(get_epsilon_gaussian(1 / math.sqrt(total), delta))
    if all(event.rate == 1 for event, _ in events):
        return plain
    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_SPECIAL)
    for (noise, rate), count in sorted(events):
        accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), count)
    return min(plain, float(accountant.get_epsilon(delta)))


def record_digests(objective: Objective, device: int) -> frozenset[bytes] | None:
    """Return a digest of each record of a device, or None if the problem does not know them.

    >>> from fedzo.problems import Quadratic, softmax
    >>> len(record_digests(softmax(devices=50), 3)), record_digests(Quadratic(), 3)
    (80, None)
    """
    known: dict[int, frozenset[bytes] | None]
    known = vars(objective).setdefault("_digests", {})  # once per process
    if device not in known:
        taken = objective.capability(can.TakesRecords)
        contents = None if taken is None else taken.contents(device)
        if contents is not None:
            contents = frozenset(hashlib.blake2b(c, digest_size=16).digest() for c in contents)
        known[device] = contents
    return known[device]


@dataclass
class _Batch:
    """A batch of a device, for one release."""

    device: int
    columns: int  # the number of values per point that a reply counts
    divisor: float
    parts: Sequence[Callable[[], Any]]  # make a batch of the inner problem for each record, or one
    names: Sequence[Any] = ()  # of the columns of one batch; none: each part is one record
    fresh: bool = True


@dataclass
class Paid:
    """The releases of a message that the ledger has charged, and the secret of their batches.

    Parameters
    ----------
    charges : mapping
        The charge of each device; None: any number, for experiments in one process.
    secret : bytes
        The node's secret.
    first : int
        The number of releases before these, of all devices and runs. So no two releases have the
        same address, and their samples are independent, as the accountant assumes.
    """

    charges: Mapping[int, Charge] | None
    secret: bytes
    first: int
    _used: Counter[int] = field(default_factory=Counter)
    _drawn: Counter[int] = field(default_factory=Counter)
    _lock: Any = field(default_factory=threading.Lock)

    def use(self, device: int, rate: float) -> None:
        """Count a release; reject one that was not charged."""
        if self.charges is None:
            return
        with self._lock:
            self._used[device] += 1
            charge = self.charges.get(device)
            if charge is None or self._used[device] > charge.times or rate > charge.event.rate:
                text = f"device {device}: a release that was not charged"
                raise Rejected(ErrorCode.PRIVACY, text)

    def key(self, draws: Draws) -> bytes:
        """Return a key for the next batch of a device: HMAC(secret, address)."""
        with self._lock:
            self._drawn[draws.device] += 1
            address = (self.first, self._drawn[draws.device], *draws)
        return hmac.digest(self.secret, repr([int(n) for n in address]).encode(), "sha256")


class Private(ObjectiveWrapper):
    """An objective whose differences and losses are clipped and noised.

    Every capability that would release values without clipping and noise is hidden. ``paid`` are
    the releases that the ledger has charged; by default any number, without a ledger.

    Examples
    --------
    The noise of a function, whose device is one record, has the standard deviation z 2B:

    >>> from fedzo.problems import FunctionObjective
    >>> inner = FunctionObjective(lambda x, device: x[0], dim=1, devices=1)
    >>> privacy = Privacy(epsilon=1.0, noise=1e-6, difference_clip=0.5, loss_clip=1.0)
    >>> private = Private(inner, privacy)
    >>> [private.losses(np.array([x]), [0]).round(4) for x in (0.25, 7.0)]
    [array([0.25]), array([1.])]
    """

    passes = (*can.EXECUTION, can.HasSizes, can.InPlace)
    transforms = (can.Streamed,)
    adds = (can.ValuesAlong,)  # values at single points are rejected
    hides = (
        *(can.HasGradient, can.FusedStep, can.NamesRecords, can.TakesRecords),
        *(*can.HINTS, *can.RESULTS),
    )

    def __init__(self, objective: Objective, privacy: Privacy, paid: Paid | None = None) -> None:
        super().__init__(objective)
        self.privacy, self.sampling = privacy, privacy.sampling_of(objective)
        self.paid = paid or Paid(None, secrets.token_bytes(32), 0)
        self.totals: dict[int, Array] | None = None  # sums of steps: noise is added by the node
        self._taken = objective.capability(can.TakesRecords)
        self._told = False

    def charge(self, device: int, releases: Releases) -> Charge:
        """Return what the ledger must charge for releases about a device."""
        event = Event(self.privacy.noise, self._rate(device, releases.batch_size))
        return Charge(record_digests(self.inner, device), self.sampling, event, releases.times)

    def _rate(self, device: int, size: int | None) -> float:
        if size is None or self.sampling == "fixed":
            return 1.0
        return min(1.0, size / max(self.inner.size(device), 1))

    def batch(self, device: int, size: int, draws: Draws) -> _Batch:
        """Return a batch of a device, for one release."""
        if self._taken is None:
            batch = self.inner.batch(device, size, draws)
            return self._named(device, batch)
        count, rate = self.inner.size(device), self._rate(device, size)
        if self.sampling == "fixed":
            which = np.unique(draws.integers(count, size))
            return self._chosen(device, size, which, len(which))
        which = np.arange(count)
        if rate < 1:
            key = self.paid.key(draws._replace(device=device))
            words = np.frombuffer(hashlib.shake_256(key).digest(8 * count), np.uint64)
            which = np.flatnonzero(words < np.uint64(rate * 2.0**64))
        return self._chosen(device, size, which, rate * count)

    def _named(self, device: int, batch: Any) -> _Batch:
        """Return a batch of the inner problem whose columns have names."""
        named = self.inner.capability(can.NamesRecords)
        assert named is not None
        names = list(named.records(batch))
        return _Batch(device, len(names), len(set(names)), [lambda: batch], names)

    def _chosen(self, device: int, columns: int, which: Array, divisor: float) -> _Batch:
        """Return a batch of chosen records, which are evaluated one by one."""
        taken = self._taken
        assert taken is not None
        parts = [partial(taken.take, device, which[i : i + 1]) for i in range(len(which))]
        return _Batch(device, columns, divisor, parts)

    def values(self, points: Array, batch: Any) -> Array:
        """Refuse: only differences and evaluated losses are private."""
        raise Rejected(ErrorCode.PRIVACY, "values at points of a server's choice")

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: _Batch
    ) -> Array:
        """Return values whose differences are clipped, averaged over records and noised."""

        def values(part: Any) -> Array:
            return values_along(self.inner, x, directions, rows, steps, part)

        return self._differences(values, len(rows), bool(steps[0] == 0), batch)

    def values_streamed(
        self, x: Array, walked: Offset, steps: Sequence[Offset], batch: _Batch
    ) -> Array:
        """Return the same of a model whose directions are never held."""
        streamed = self.inner.capability(can.Streamed)
        assert streamed is not None

        def values(part: Any) -> Array:
            return streamed.values_streamed(x, walked, steps, part)

        return self._differences(values, len(steps), steps[0] is None, batch)

    def _differences(
        self, values: Callable[[Any], Array], points: int, forward: bool, batch: _Batch
    ) -> Array:
        """Return values of the same shape whose differences may be told.

        Of forward differences the base comes first, of others the second half is the other side.
        """
        half = 1 if forward else points // 2

        def changes(part: Any) -> Array:
            found = np.asarray(values(part), np.float64)
            return found[1:] - found[:1] if forward else found[:half] - found[half:]

        clip = self.privacy.difference_clip
        rate = self._rate(batch.device, batch.columns)
        means = self._released(changes, points - half, clip, batch, rate)
        zero = np.zeros(half)
        column = np.concatenate((zero, means) if forward else (means, zero))
        return np.repeat(column[:, None], batch.columns, axis=1)

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x) of the devices, each over its records, clipped and noised."""
        return np.array([self._loss(x, int(device)) for device in devices])

    def _loss(self, x: Array, device: int) -> float:
        count, bound = self.inner.size(device), self.privacy.loss_clip

        def values(part: Any) -> Array:
            return np.asarray(self.inner.values(x[None], part), np.float64)

        def whole(part: Any) -> Array:
            return np.asarray(self.inner.losses(x, np.array([device])), np.float64)[None]

        if self._taken is not None:
            batch = self._chosen(device, count, np.arange(count), count)
        elif count <= 1:  # the device is one record, whose loss is the mean over ξ
            batch, values = _Batch(device, 1, 1, [lambda: None]), whole
        else:
            draws = Draws(secrets.randbits(64), Stream.BATCHES, device=device)
            batch = self._named(device, self.inner.batch(device, count, draws))
        return float(self._released(values, 1, bound, batch, rate=1.0)[0])

    def _released(
        self, values: Callable[[Any], Array], count: int, bound: float, batch: _Batch, rate: float
    ) -> Array:
        """Return the noised sum of the clipped columns of all records, over the divisor."""
        if not batch.fresh:
            raise Rejected(ErrorCode.PRIVACY, "a batch is for one release")
        batch.fresh = False
        self.paid.use(batch.device, rate)
        step, total = grid_step(bound), np.zeros(count, object)
        for column in map(_finite, self._columns(values, count, batch)):
            peak = max(float(np.abs(column).max()), bound)  # whose square may overflow
            length = max(peak * float(np.linalg.norm(column / peak)), bound)
            # Rounded towards zero: no longer than the bound, and whole numbers sum up exactly.
            whole = np.trunc(column * (SLACK * bound / length) / step)
            total += whole.astype(np.int64).astype(object)
        if self.totals is not None:
            self.totals[batch.device] = total.astype(np.int64)
            return np.zeros(count)
        effect = bound if self.sampling == "poisson" else 2 * bound
        noise = discrete_normals(self.privacy.noise * effect / step, count)
        return np.array([int(n) for n in total + noise], np.float64) * (step / (batch.divisor or 1))

    def _columns(
        self, values: Callable[[Any], Array], count: int, batch: _Batch
    ) -> Iterator[Array]:
        """Yield one column per record, shape (count,): the mean over columns of the same name."""
        if len(set(batch.names)) > 1:
            found = _finite(values(batch.parts[0]()))
            if found.shape != (count, len(batch.names)):
                text = f"{len(batch.names)} names of records for values of shape {found.shape}"
                raise UsageError(text, code="record-names")
            order: dict[Any, list[int]] = {}
            for column, name in enumerate(batch.names):
                order.setdefault(name, []).append(column)
            yield from (found[:, own].mean(axis=1) for own in order.values())
            return
        failure: BaseException | None = None
        for make in batch.parts:
            try:
                column = _finite(values(make())).reshape(count, -1).mean(axis=1)
            except (Rejected, BudgetSpent):
                raise
            except (Exception, SystemExit) as error:  # an error code would tell of a record
                failure = error
            else:
                yield column
        if failure is not None and not self._told:  # once per message
            self._told = True
            log.error("records count as zero: %s: %s", type(failure).__name__, failure)


class Measured(Objective):
    """A stand-in for a device: the step along these differences is that of the mean of devices."""

    def __init__(self, task: LocalSteps, differences: Array) -> None:
        self.dim, self.devices = task.x.size, 1 + max(task.devices, default=0)
        self._forward, self._differences = task.algorithm.difference == "forward", differences

    def batch(self, device: int, size: int, draws: Draws) -> None:
        """Return nothing: the differences are known."""

    def values(self, points: Array, batch: Any) -> Array:
        """Return values with these differences, shape (k, 1)."""
        own, zero = self._differences, np.zeros(len(points) - len(self._differences))
        return np.concatenate((zero, own) if self._forward else (own, zero))[:, None]


def discrete_normals(deviation: float, count: int) -> Array:
    """Return whole numbers of OpenDP's discrete normal distribution, as Python's integers.

    The randomness is that of the operating system, because the server knows the run's seed.

    >>> discrete_normals(0.0, 3)
    array([0, 0, 0], dtype=object)
    """
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtra("[privacy] needs OpenDP", "flower") from None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=dp.f64)
    return np.array(dp.m.make_gaussian(*space, scale=deviation)([0] * count), object)


def _finite(values: Array) -> Array:
    """Return values with zero in place of what is not finite."""
    return np.where(np.isfinite(values), values, 0.0)
