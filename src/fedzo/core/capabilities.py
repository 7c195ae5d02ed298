"""What some problems can do besides :class:`~fedzo.core.objective.Objective`: one protocol each.

``objective.capability(HasGradient)`` returns an object with the methods of that protocol, or None.
A problem has a capability if it defines all members of the protocol, and their values are neither
None nor False.

All protocols are in this file, below every room, because every wrapper of a problem declares for
each of them whether it passes, transforms or hides it: see
:class:`fedzo.core.objective.ObjectiveWrapper`.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedzo.core.batching import QueryBatcher
from fedzo.core.budget import Meter
from fedzo.core.directions import DirectionBuffer
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.updates import Offset


class Best(NamedTuple):
    """The best evaluated model: that of the lowest loss, or of the highest ``best_metric``."""

    x: Array
    fun: float
    round: int


# ------------------------------------------------------------------------------------------ values


class HasGradient(Protocol):
    """Has a gradient, for first-order baselines such as :class:`fedzo.FedAvg`."""

    def gradient(self, x: Array, batch: Any) -> Array:
        """Return the mean gradient over a batch, shape (d,)."""


class ValuesAlong(Protocol):
    """Evaluates points along directions without building them, such as by one matrix product."""

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
    ) -> Array:
        """Return the values at the k points x + steps[k] * directions[rows[k]], shape (k, b).

        ``directions`` is overwritten after the call.
        """


class FusedStep(Protocol):
    """Takes a whole step along directions on the sphere in one compiled call."""

    def fused_step(
        self,
        x: Array,
        buffer: DirectionBuffer,
        rows: Array,
        offsets: Array,
        factor: float,
        addresses: tuple[Draws, Draws],
        size: int,
        delta: Array,
        start: Array,
    ) -> tuple[Array, Array, int]:
        """Return the coefficients of ``buffer.rows``, start + delta, and the number of values.

        Draw a batch and the buffer at their two addresses, and evaluate the points
        x + offsets[k] * v[rows[k]]. The coefficients are factor * scale * sum of differences
        (:func:`fedzo.core.estimator.scale_slopes`); ``delta`` is advanced by them in place.
        """


class Streamed(Protocol):
    """Evaluates points without holding their directions: for large models."""

    def values_streamed(
        self, x: Array, walked: Offset, steps: Sequence[Offset], batch: Any
    ) -> Array:
        """Return the values at the k points x + walked + steps[k], shape (k, b).

        None stands for zero.
        """


class NamesRecords(Protocol):
    """Knows which data record each column of a batch is: for privacy per record."""

    def records(self, batch: Any) -> Sequence[Any] | Array:
        """Return one hashable name per column of ``values(points, batch)``.

        Two columns have the same name if and only if they evaluate the same record. If a device is
        one record, as for a plain function, all columns have one name. A column depends on no other
        record of the batch, and no record makes ``values`` raise: it is NaN instead.
        """


class TakesRecords(Protocol):
    """Evaluates chosen records of a device: for batches that only the node knows.

    Records are numbered 0, ..., size(device) - 1. Private nodes evaluate them one by one, so that a
    record has no effect on the values of others.
    """

    def take(self, device: int, which: Array) -> Any:
        """Return the batch of the records with these numbers."""

    def contents(self, device: int) -> Iterable[bytes] | None:
        """Return what each record holds, for a fingerprint of the data; None if that is not known.

        The same records have the same contents on every device and in every process.
        """


class HasSizes(Protocol):
    """Says how many samples each device holds: for weights by size."""

    def size(self, device: int) -> int:
        """Return the number of samples of a device."""


# ----------------------------------------------------------------------------------- the execution


class Metered(Protocol):
    """Counts its queries itself, retries included, and may limit them."""

    meter: Meter


class BatchesQueries(Protocol):
    """Joins the queries of several devices into one call of the model.

    Devices then work in parallel. The steps of a round before the end of a query budget are used,
    because which queries were answered does not depend on threads.
    """

    batcher: QueryBatcher


class OwnThreads(Protocol):
    """Uses all cores itself, so one thread at a time must evaluate it."""

    own_threads: bool


class HasEvaluationCost(Protocol):
    """Says how many values an evaluation takes, if that is not one per sample."""

    @property
    def evaluation_cost(self) -> int:
        """The number of values per evaluation of all devices."""


class Closable(Protocol):
    """Holds resources during a run, such as processes."""

    def close(self) -> None:
        """Release the resources; the problem may acquire them again."""


# ------------------------------------------------------------------------------- hints for numbers


class HasScale(Protocol):
    """Knows the typical length of each number in x; adaptive algorithms start from it."""

    scale: Array | None


class AutoHints(Protocol):
    """Helps to choose ``learning_rate = "auto"`` and ``smoothing = "auto"``."""

    min_move: float  # the Euclidean length that a round should move x by at least

    def suggest_smoothing(self, draws: Draws) -> float | None:
        """Return a suitable μ, or None to have it measured."""


class HasConstants(Protocol):
    """Knows constants of the paper's assumptions."""

    def constants(self) -> Mapping[str, float]:
        """Return those of L, gap, sigma_g, sigma_h, c_g and c_h that are known."""


# --------------------------------------------------------------------------- the model and results


class InPlace(Protocol):
    """Owns the memory of x, which rounds change in place."""

    in_place: bool

    def snapshot(self, x: Array) -> Array:
        """Return a copy of x that later rounds do not change."""


class HasUserView(Protocol):
    """Shows users another vector than the optimiser's x, such as a point inside bounds."""

    def to_user(self, x: Array) -> Array:
        """Return what a result and ``model.npy`` hold for x; never x itself, unless in place."""


class HasBestMetric(Protocol):
    """Chooses the best model by a metric: the largest, ties broken by the loss."""

    best_metric: str | None


class LoadsBest(Protocol):
    """Holds a model that ends up with the best parameters of a run."""

    def load_best(self, best: Best) -> None:
        """Load the best model of a finished run."""


class HasStateDict(Protocol):
    """Trains a torch module."""

    def state_dict(self, x: Array) -> dict[str, Any]:
        """Return the module's state with the parameters x."""


class Remembers(Protocol):
    """Has learned something in evaluations that its files need; checkpoints hold it."""

    def memory(self) -> Mapping[str, Array]:
        """Return what to hold."""

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Take over what a checkpoint holds."""


class LogsTrainings(Protocol):
    """Has its own log of values: see :class:`fedzo.problems.Tuning`."""

    def log_to(self, path: Path, resume: bool) -> None:
        """Write each training to a file when it ends; with ``resume``, first read it."""


class WritesFiles(Protocol):
    """Adds files to the folder of a run."""

    def write_files(self, folder: Path, best: Best) -> None:
        """Write further files into the folder of a finished run."""


# Wrappers declare these protocols together.
EXECUTION = (Metered, BatchesQueries, OwnThreads, HasEvaluationCost, Closable)
HINTS = (HasScale, AutoHints, HasConstants)
RESULTS = (
    HasUserView,
    HasBestMetric,
    LoadsBest,
    HasStateDict,
    Remembers,
    LogsTrainings,
    WritesFiles,
)


@cache
def members(kind: type[Any]) -> frozenset[str]:
    """Return the names of the methods and attributes of a protocol.

    >>> sorted(members(InPlace))
    ['in_place', 'snapshot']
    """
    names = {*vars(kind), *inspect.get_annotations(kind)}
    return frozenset(name for name in names if not name.startswith("_"))
