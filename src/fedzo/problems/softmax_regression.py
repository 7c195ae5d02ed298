r"""Softmax regression, section V-B of the paper.

The model is one weight vector and a bias for each class; x holds them class by class,
``x.reshape(classes, features + 1)``, the bias last: d = 7850 on Fashion-MNIST. The loss is the
cross-entropy, inputs are bytes scaled to [0, 1].

The values of a batch are fast because logits are linear in x. Those of x + s_n v_n are those of x
plus s_n times those of v_n, so the logits of all directions are one matrix product, by BLAS inside
the compiled step. The product is in the precision of the model, usually float32. The change of the
logits is exact to its own size, and losses are float64. So a difference of two losses keeps its
digits however small the step is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64, njit, uint64
from numpy.typing import DTypeLike

from fedzo.core.directions import DirectionBuffer, advance_kernel
from fedzo.core.estimator import scale_slopes
from fedzo.core.objective import Objective, problem_factory
from fedzo.core.random import Draws, integers_kernel, normals_kernel, use_wide_vectors
from fedzo.core.types import Array
from fedzo.data import Dataset
from fedzo.data.splits import load_split


class Batch(NamedTuple):
    """Samples as rows, scaled to [0, 1], each followed by a one for the bias."""

    inputs: Array  # (b1, features + 1)
    labels: Array  # (b1,)
    records: Array  # (b1,), where the samples lie among those of all devices


class Softmax(Objective):
    """Softmax regression over a federation.

    Parameters
    ----------
    data : Dataset
        Training and test images.
    parts : sequence of int arrays
        The training samples of each device.
    dtype : dtype
        Precision of the model and of matrix products.

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo import data
    >>> from fedzo.core.random import Draws, Stream
    >>> mini = data.load("fashion-mnist-mini")
    >>> parts = np.array_split(np.arange(4000), 50)
    >>> problem = Softmax(mini, parts)
    >>> problem.dim, problem.devices, problem.size(0)
    (7850, 50, 80)
    >>> batch = problem.batch(0, 3, Draws(seed=0, stream=Stream.BATCHES))
    >>> problem.values(np.zeros((1, 7850), np.float32), batch).round(4)  # ln(10) at x = 0
    array([[2.3026, 2.3026, 2.3026]])
    """

    exact = True

    def __init__(
        self, data: Dataset, parts: Sequence[Array], dtype: DTypeLike = np.float32
    ) -> None:
        self.data, self.parts, self.dtype = data, parts, np.dtype(dtype)
        self.classes, self.features = len(data.classes), data.train_inputs.shape[1]
        self.dim, self.devices = self.classes * (self.features + 1), len(parts)
        # The samples of a device are adjacent: an epoch over a device is one slice.
        order = np.concatenate(list(parts))
        self._inputs = data.train_inputs[order]
        self._labels = data.train_labels[order].astype(np.int64)
        self._starts = np.concatenate(([0], np.cumsum([len(p) for p in parts])))

    def initial(self) -> Array:
        """Start at zero, as the paper does."""
        return np.zeros(self.dim, self.dtype)

    def size(self, device: int) -> int:
        """Return the number of samples of a device."""
        return int(self._starts[device + 1] - self._starts[device])

    def batch(self, device: int, size: int, draws: Draws) -> Batch:
        """Return samples of a device, independent and uniform (with replacement)."""
        batch = self._empty_batch(size, self.dtype)
        _fill_batch(self._held_by(device), draws.address(), batch)
        return batch

    def records(self, batch: Batch) -> Array:
        """Return the place of each sample among those of all devices, shape (b1,)."""
        return batch.records

    def take(self, device: int, which: Array) -> Batch:
        """Return a batch of chosen samples of a device."""
        chosen = self._starts[device] + which
        batch = self._empty_batch(len(which), self.dtype)._replace(records=chosen)
        batch.inputs[:, :-1] = self._inputs[chosen]
        batch.inputs[:, :-1] *= np.array(1 / 255, self.dtype)
        batch.inputs[:, -1], batch.labels[:] = 1, self._labels[chosen]
        return batch

    def contents(self, device: int) -> Iterable[bytes]:
        """Return the pixels and the label of each sample."""
        inputs, labels = self._all_of(device)
        for pixels, label in zip(inputs, labels, strict=True):
            yield pixels.tobytes() + label.tobytes()

    def _held_by(self, device: int) -> tuple[Array, Array, int, int, Array]:
        """Return the place of a device's samples, and 1/255 in the precision of the problem."""
        unit = np.full(1, 1 / 255, self.dtype)
        return self._inputs, self._labels, self._starts[device], self.size(device), unit

    def _empty_batch(self, size: int, dtype: DTypeLike) -> Batch:
        inputs = np.empty((size, self.features + 1), dtype)
        return Batch(inputs, np.empty(size, np.int64), np.empty(size, np.int64))

    def values(self, points: Array, batch: Batch) -> Array:
        """Return the loss of each sample at each point, (k, d) -> (k, b)."""
        zero = np.zeros(self.dim, points.dtype)
        return self.values_along(zero, points, np.arange(len(points)), np.ones(len(points)), batch)

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Batch
    ) -> Array:
        """Return the losses at x + steps[k] * directions[rows[k]], (k, b)."""
        values = np.empty((len(rows), len(batch.labels)))
        inputs = batch.inputs.astype(x.dtype, copy=False)
        directions = np.ascontiguousarray(directions)  # as BLAS has it
        _cross_entropy(x, directions, rows, steps, inputs, batch.labels, self.classes, values)
        return values

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
        """Take one step on the sphere: see :class:`fedzo.core.capabilities.FusedStep`."""
        batches, directions = addresses
        moves, new_x = np.empty(len(buffer.rows), x.dtype), np.empty_like(x)
        _step(
            self._held_by(batches.device),
            (batches.address(), directions.address()),
            self._empty_batch(size, x.dtype),
            (x, rows, offsets, factor, self.classes),
            (buffer.rows, buffer.scales, moves, delta, start, new_x),
        )
        return moves, new_x, len(rows) * size

    def gradient(self, x: Array, batch: Batch) -> Array:
        """Return the mean gradient over a batch, (d,)."""
        inputs, count, width = batch.inputs, len(batch.labels), self.features + 1
        logits = (inputs @ x.reshape(self.classes, width).T).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        residual = powers / powers.sum(axis=1, keepdims=True)
        residual[np.arange(count), batch.labels] -= 1
        total = residual.astype(self.dtype).T @ inputs
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


@problem_factory
def softmax(
    data: str = "fashion-mnist-mini",
    data_dir: str | None = None,
    devices: int = 50,
    partition: str = "shards",
    shards_per_device: int = 2,
    concentration: float = 0.5,
    seed: int = 0,
) -> Softmax:
    """Make the problem from the name of a data set and a partition: the [problem] table.

    See :func:`fedzo.data.load` and :func:`fedzo.data.partition`. The defaults are the partition of
    the paper and the shipped data.

    >>> softmax(devices=10, partition="iid").size(3)
    400
    """
    images, parts = load_split(
        data, data_dir, devices, partition, shards_per_device, concentration, seed
    )
    return Softmax(images, parts)


@njit(cache=True)  # too short to be worth giving up the GIL
def _fill_batch(own: Any, address: Any, batch: Any) -> None:
    """Draw samples of a device: bytes become numbers in [0, 1], followed by a one per image.

    The numbers are rounded to the precision of the problem, also in a batch of another one.
    """
    use_wide_vectors()
    images, labels, start, count, unit = own
    features, width = images.shape[1], batch.inputs.shape[1]
    integers_kernel(batch.records, count, address)
    batch.records[:] += start
    scale = unit[0]
    source, target = images.reshape(-1), batch.inputs.reshape(-1)
    for m in range(batch.records.size):
        i = batch.records[m]
        batch.labels[m] = labels[i]
        row = source[i * features : (i + 1) * features]
        copy = target[m * width : m * width + features]
        for j in range(features):
            copy[j] = unit.dtype.type(row[j]) * scale
        target[m * width + features] = 1


@njit(nogil=True, cache=True, error_model="numpy")
def _step(own: Any, addresses: Any, batch: Any, points: Any, moved: Any) -> None:
    use_wide_vectors()  # here too: the kernels are inlined into this function
    x, which, offsets, factor, classes = points
    rows, scales, moves, delta, start, new_x = moved
    _fill_batch(own, addresses[0], batch)
    normals_kernel(rows, scales, addresses[1])  # their squared norms, at first
    scales[:] = 1 / np.sqrt(scales)
    values = np.empty((which.size, batch.labels.size))
    steps = offsets * scales[which]
    _cross_entropy(x, rows, which, steps, batch.inputs, batch.labels, classes, values)
    scale_slopes(values, offsets[0] == 0, scales, factor, moves)  # 0: the base, of forward ones
    advance_kernel(moves, rows, delta, start, new_x)


@njit(inline="always")
def exp(x: Any) -> Any:
    """e^x for float64 x <= 0, relative error below 1e-15; below -700 the result is e^-700.

    e^x = 2^k e^r with |r| <= ln(2)/2, and e^r is its Taylor polynomial of degree 13. NaN
    stays NaN.
    """
    x = x if not x < -700.0 else -700.0
    # Adding 1.5 * 2^52 rounds to the nearest integer and leaves it in the low bits.
    k = (x * 1.4426950408889634 + 6755399441055744.0) - 6755399441055744.0
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = float64(1 / 6227020800)
    p = p * r + 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * np.uint64(uint64(int64(k) + int64(1023)) << uint64(52)).view(np.float64)


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
def _cross_entropy(
    x: Any, directions: Any, rows: Any, steps: Any, inputs: Any, labels: Any, classes: Any, out: Any
) -> None:
    """out[k, m] = log sum_c exp z_c - z_label, z the logits at x + steps[k] directions[rows[k]].

    Logits are products in the model's precision, the rest is float64. All loops run over
    the samples, which lie side by side. NaN and +inf among the logits make the loss NaN.
    """
    use_wide_vectors()
    length, columns = x.size // classes, labels.size
    base = np.dot(x.reshape(classes, length), inputs.T)
    change = np.dot(directions.reshape(-1, length), inputs.T)
    z = np.empty((classes, columns))
    top = np.empty(columns)
    total = np.empty(columns)
    for k in range(rows.size):
        step, first = steps[k], rows[k] * classes
        top[:] = -np.inf
        total[:] = 0
        for c in range(classes):
            for m in range(columns):
                value = float(base[c, m]) + step * float(change[first + c, m])
                z[c, m] = value
                top[m] = max(top[m], value)
        for c in range(classes):
            for m in range(columns):
                total[m] += exp(z[c, m] - top[m])
        for m in range(labels.size):
            out[k, m] = math.log(total[m]) + (top[m] - z[labels[m], m])
