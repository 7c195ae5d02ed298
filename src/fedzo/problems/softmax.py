r"""Softmax regression, section V-B of the paper.

The model is one weight vector and a bias for each class; x holds them class by class,
``x.reshape(classes, features + 1)``, the bias last: d = 7850 on Fashion-MNIST. The loss is the
cross-entropy, inputs are bytes scaled to [0, 1].

How the values of a batch are made quickly: logits are linear in x, so those of
x + s_n v_n are those of x plus s_n times those of v_n, and all directions' logits are one
matrix product. The product is float32 (or the model's precision), but what is added to the
logits of x is exact to its own size, and losses are float64: a difference of two losses
keeps its digits however small the step was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import DTypeLike, NDArray

from fedzo._simd import exp, use_wide_vectors
from fedzo.data import Dataset, load
from fedzo.data.partition import partition as deal
from fedzo.random import Draws, Stream

Array = NDArray[Any]


class Batch(NamedTuple):
    """Samples as the columns of a matrix, with a row of ones for the bias.

    The number of columns is a multiple of 16, the surplus zero: BLAS and the loss kernel
    then work on whole vectors.
    """

    inputs: Array  # (features + 1, columns)
    labels: Array  # (b1,)


class Softmax:
    """Softmax regression over a federation.

    Parameters
    ----------
    data : Dataset
        Training and test images.
    parts : sequence of int arrays
        Which training samples each device holds.
    dtype : dtype
        Precision of the model and of matrix products.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo import data
    >>> from fedzo.random import Draws, Stream
    >>> mini = data.load("fashion-mnist-mini")
    >>> parts = np.array_split(np.arange(4000), 50)
    >>> problem = Softmax(mini, parts)
    >>> problem.dim, problem.devices, problem.size(0)
    (7850, 50, 80)
    >>> batch = problem.batch(0, 3, Draws(seed=0, stream=Stream.BATCHES))
    >>> problem.values(np.zeros((1, 7850), np.float32), batch).round(4)  # ln(10) at x = 0
    array([[2.3026, 2.3026, 2.3026]])
    """

    def __init__(
        self, data: Dataset, parts: Sequence[Array], dtype: DTypeLike = np.float32
    ) -> None:
        self.data, self.parts, self.dtype = data, parts, np.dtype(dtype)
        self.classes, self.features = len(data.classes), data.train_inputs.shape[1]
        self.dim, self.devices = self.classes * (self.features + 1), len(parts)
        # One device's samples lie side by side: an epoch over a device is one slice.
        order = np.concatenate(list(parts))
        self._inputs = data.train_inputs[order]
        self._labels = data.train_labels[order].astype(np.int64)
        self._starts = np.concatenate(([0], np.cumsum([len(p) for p in parts])))

    def initial(self) -> Array:
        """Start at zero, as the paper does."""
        return np.zeros(self.dim, self.dtype)

    def size(self, device: int) -> int:
        """Return how many samples a device holds."""
        return int(self._starts[device + 1] - self._starts[device])

    def batch(self, device: int, size: int, draws: Draws) -> Batch:
        """Return samples of a device, independent and uniform (with replacement)."""
        index = self._starts[device] + draws.integers(self.size(device), size)
        return self._gather(self._inputs, self._labels, index)

    def values(self, points: Array, batch: Batch) -> Array:
        """Return the loss of each sample at each point, (k, d) -> (k, b)."""
        logits = self.logits(points, batch)
        steps = np.ones(len(points))
        return self._losses(np.zeros_like(logits[0]), logits, np.arange(len(points)), steps, batch)

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Batch
    ) -> Array:
        """Return the losses at x + steps[k] * directions[rows[k]], (k, b)."""
        base, change = self.logits(x[None], batch)[0], self.logits(directions, batch)
        return self._losses(base, change, rows, steps, batch)

    def gradient(self, x: Array, batch: Batch) -> Array:
        """Return the mean gradient over a batch, (d,)."""
        count = len(batch.labels)
        residual = _probabilities(self.logits(x[None], batch)[0])  # (classes, columns)
        residual[batch.labels, np.arange(count)] -= 1
        residual[:, count:] = 0
        total = residual.astype(self.dtype) @ batch.inputs.T
        return np.asarray(total.reshape(-1) / count, self.dtype)

    def losses(self, x: Array, devices: Array) -> Array:
        """Return f_i(x), the mean loss over all samples of a device."""
        return np.array([self._score(x, *self._all_of(int(i)))[0] for i in devices])

    def metrics(self, x: Array) -> Mapping[str, float]:
        """Return loss and accuracy on the test set."""
        labels = self.data.test_labels.astype(np.int64)
        loss, accuracy = self._score(x, self.data.test_inputs, labels)
        return {"test_loss": loss, "test_accuracy": accuracy}

    def _all_of(self, device: int) -> tuple[Array, Array]:
        own = slice(self._starts[device], self._starts[device + 1])
        return self._inputs[own], self._labels[own]

    def _gather(self, inputs: Array, labels: Array, index: Array) -> Batch:
        count, columns = len(index), -(-len(index) // 16) * 16
        rows = np.empty((count, self.features), self.dtype)
        _scale_rows(inputs, index, rows)
        out = np.empty((self.features + 1, columns), self.dtype)
        out[:-1, :count] = rows.T
        out[-1, :count] = 1
        out[:, count:] = 0
        return Batch(out, labels[index])

    def logits(self, points: Array, batch: Batch) -> Array:
        """Return the logits of each point, (k, classes, columns).

        One product of a tall matrix, all classes of all points, with the batch. OpenBLAS
        packs large products into its own layout, which does not pay here; products of up
        to a million multiply-adds it works out in place. So the tall matrix is cut into
        equal blocks of that size, if it can be, which ``fedzo bench`` times.
        """
        tall = points.reshape(-1, self.features + 1)
        block = small_block(len(tall), batch.inputs.size)
        products = tall.reshape(-1, block, self.features + 1) @ batch.inputs
        return products.reshape(len(points), self.classes, -1)

    def _losses(
        self, base: Array, change: Array, rows: Array, steps: Array, batch: Batch
    ) -> NDArray[np.float64]:
        out = np.empty((len(rows), len(batch.labels)))
        _cross_entropy(base, change, rows, steps, batch.labels, out)
        return out

    def _score(self, x: Array, inputs: Array, labels: Array) -> tuple[float, float]:
        """Return mean loss and accuracy over many samples, a few hundred at a time."""
        loss, right = 0.0, 0
        weights = x.astype(self.dtype).reshape(self.classes, -1)
        for start in range(0, len(labels), 512):
            some = slice(start, start + 512)
            own = labels[some]
            pixels = inputs[some].astype(self.dtype)
            pixels *= 1 / 255
            logits = (pixels @ weights[:, :-1].T + weights[:, -1]).astype(np.float64)
            top = logits.max(axis=1)
            chosen = logits[np.arange(len(own)), own]
            loss += float(np.sum(np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - chosen))
            right += int(np.count_nonzero(logits.argmax(axis=1) == own))
        return loss / len(labels), right / len(labels)


def softmax(
    data: str = "fashion-mnist-mini",
    data_dir: str | None = None,
    devices: int = 50,
    partition: str = "shards",
    shards_per_device: int = 2,
    concentration: float = 0.5,
    seed: int = 0,
) -> Softmax:
    """Make the problem from a data set's name and a way to deal it out: the [problem] table.

    See :func:`fedzo.data.load` and :func:`fedzo.data.partition.partition`; the defaults are
    the paper's split of the data that ships.

    >>> softmax(devices=10, partition="iid").size(3)
    400
    """
    images = load(data, data_dir)
    parts = deal(
        images.train_labels,
        devices,
        partition,
        Draws(seed, Stream.PARTITION),
        shards_per_device=shards_per_device,
        concentration=concentration,
    )
    return Softmax(images, parts)


def small_block(rows: int, per_row: int, most: int = 1_000_000, least: int = 8) -> int:
    """Return the largest divisor of ``rows`` that keeps a product within ``most``.

    >>> small_block(200, 785 * 32)
    25
    >>> small_block(200, 785 * 512)  # no useful one: leave the product whole
    200
    """
    for block in range(min(rows, most // per_row), least - 1, -1):
        if rows % block == 0:
            return block
    return rows


def _probabilities(logits: Array) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=0).astype(np.float64))
    return np.asarray(powers / powers.sum(axis=0), np.float64)


@njit(nogil=True, cache=True)
def _scale_rows(inputs: Any, index: Any, out: Any) -> None:
    """Copy chosen rows of bytes as numbers in [0, 1]."""
    use_wide_vectors()
    features = inputs.shape[1]
    scale = out.dtype.type(1 / 255)
    source, target = inputs.reshape(-1), out.reshape(-1)
    for m in range(index.size):
        row = source[index[m] * features : (index[m] + 1) * features]
        copy = target[m * features : (m + 1) * features]
        for j in range(features):
            copy[j] = out.dtype.type(row[j]) * scale


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _cross_entropy(base: Any, change: Any, rows: Any, steps: Any, labels: Any, out: Any) -> None:
    """out[k, m] = log sum_c exp z_c - z_label of z = base + steps[k] change[rows[k]], float64.

    All loops run over the samples, which lie side by side. A logit that is not finite makes
    its sample's loss NaN.
    """
    use_wide_vectors()
    classes, columns = base.shape
    z = np.empty((classes, columns))
    top = np.empty(columns)
    total = np.empty(columns)
    for k in range(rows.size):
        step, row = steps[k], rows[k]
        for m in range(columns):
            top[m] = -np.inf
        for c in range(classes):
            for m in range(columns):
                value = float(base[c, m]) + step * float(change[row, c, m])
                z[c, m] = value
                top[m] = max(top[m], value)
        for m in range(columns):
            total[m] = 0.0
        for c in range(classes):
            for m in range(columns):
                total[m] += exp(z[c, m] - top[m])
        for m in range(out.shape[1]):
            out[k, m] = math.log(total[m]) + (top[m] - z[labels[m], m])
