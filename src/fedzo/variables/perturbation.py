r"""One perturbation for many inputs, in the paper's form or within a budget.

**The paper's form** (section V-A). An input is scaled to z in [-1/2, 1/2]. A perturbation x changes
it to

.. math:: \tfrac12 \tanh(\tanh^{-1} 2z + x) = \tfrac12 \frac{2z + w}{1 + 2zw}, \qquad w = \tanh x,

where the right side is the addition theorem: one tanh per number of x serves all inputs. The result
lies in the range for every x. The input moves by :math:`\tfrac12 w (1 - (2z)^2) / (1 + 2zw)`,
without the cancellation of a difference.

At the ends of the range, tanh⁻¹ is infinite, and no x could move a pixel. So 2z is clipped to
±(1 - 1/510): a quarter of a grey level of 8-bit images, which rounding to bytes removes again, and
enough for the pixel to move. The distortion is measured from there.

**Within a budget** ε, an input becomes clip(z + δ). ε and δ are in units of the input's range, as
usual: 8/255 is eight grey levels of an 8-bit image. Images are rounded to 8 bits, and so is δ. An
optimiser's x is mapped onto the open ball, about equally steeply in both norms:

.. math:: \delta = \varepsilon \tanh x \quad (L_\infty), \qquad
          \delta = \varepsilon\, \frac{u}{\sqrt{1 + \lVert u \rVert^2}}, \quad
          u = x / \sqrt d \quad (L_2).

An x whose numbers are about one lies close to the surface of the ball.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from fedzo.core.files import write_atomic
from fedzo.core.types import Array
from fedzo.core.waves import is_image
from fedzo.errors import InvalidValue, UsageError, check_choice, check_unmasked, require

EDGE = 1 / 510
NORMS = ("inf", "l2")
LEVELS = 255  # steps of an 8-bit image
_IN_CACHE = 16  # inputs at a time


class Distortion(NamedTuple):
    """How far a perturbation moves some inputs, in units of the input's range.

    The L∞ distortion is the largest change of one number of an input. 1/255 is one grey level of an
    8-bit image.
    """

    l2_mean: float
    l2_max: float
    linf_mean: float
    linf_max: float


class MovedInputs(NamedTuple):
    """Inputs under one perturbation, and how far each is moved, in units of the range."""

    inputs: Array  # (n, d), in the input range
    squares: Array  # squared L2, (n,)
    linf: Array  # L∞, (n,)

    @property
    def distortion(self) -> Distortion:
        """The mean and the largest distance."""
        l2 = np.sqrt(self.squares)
        numbers = (l2.mean(), l2.max(), self.linf.mean(), self.linf.max())
        return Distortion(*(float(number) for number in numbers))


@dataclass(frozen=True, eq=False)
class Perturbation:
    """A perturbation, and the range of its inputs.

    Attributes
    ----------
    noise : array
        x in the paper's form, or δ in units of the input's range.
    input_range : (float, float)
        The smallest and the largest number that an input may hold.
    eps : float, optional
        The budget ε in units of the input's range; None: the paper's form.
    norm : str
        The norm of the budget: ``inf`` or ``l2``.

    Examples
    --------
    >>> noise = Perturbation(np.array([0.0, 0.5, -3.0]), input_range=(0.0, 1.0))
    >>> noise.apply(np.array([[0.5, 0.5, 0.5], [0.0, 0.25, 1.0]])).round(3)
    array([[0.5  , 0.731, 0.002],
           [0.001, 0.475, 0.716]], dtype=float32)
    >>> noise.distortion(np.array([[0.5, 0.5, 0.5]])).linf_max.__round__(3)
    0.498

    Within a budget of two grey levels:

    >>> small = noise.project(2 / 255)
    >>> small.noise.round(4), small.apply(np.array([[0.5, 0.5, 0.5]])).round(4)
    (array([ 0.    ,  0.0078, -0.0078], dtype=float32), array([[0.5   , 0.5078, 0.4922]],
    dtype=float32))
    """

    noise: Array  # of an input's shape
    input_range: tuple[float, float] = (0.0, 1.0)
    eps: float | None = None
    norm: str = "inf"

    def __post_init__(self) -> None:
        check_unmasked("noise", self.noise)
        if self.eps is not None:
            check_ball(self.eps, self.norm, self.noise.shape)

    @classmethod
    def within(
        cls, delta: Array, input_range: tuple[float, float], eps: float, norm: str
    ) -> Perturbation:
        """Return the perturbation in the ball nearest to δ, for images in whole grey levels."""
        check_ball(eps, norm, delta.shape)
        delta = projected(delta, eps, norm)
        if is_image(delta.shape):
            delta = in_levels(delta, eps, norm) / np.float32(LEVELS)
        return cls(delta.astype(np.float32), input_range, float(eps), norm)

    def project(self, eps: float, norm: str = "inf") -> Perturbation:
        """Return the nearest perturbation within a budget, which adds the same δ to all inputs.

        In the paper's form, δ is the change of an input in the middle of the range, tanh(x) / 2.
        """
        delta = np.tanh(self.noise) / 2 if self.eps is None else self.noise
        return Perturbation.within(delta, self.input_range, eps, norm)

    def apply(self, inputs: ArrayLike) -> Array:
        """Return the perturbed inputs of a batch within the input range, float32, in its shape."""
        return self.moved(self.rows(inputs)).inputs.reshape(np.shape(inputs))

    def distortion(self, inputs: ArrayLike) -> Distortion:
        """Return how far the inputs of a batch are moved."""
        require(np.size(inputs) > 0, "inputs", "an empty batch", "one input or more")
        return self.moved(self.rows(inputs)).distortion

    def rows(self, inputs: ArrayLike, key: str = "inputs") -> Array:
        """Return a batch as rows for :meth:`moved`; ``key`` names it in an error.

        These are 2z in the paper's form, or else z in [0, 1]: :func:`scaled`, :func:`unit_rows`.
        """
        try:
            check_unmasked("inputs", inputs)
            batch = np.asarray(inputs)
        except ValueError:  # lists of different lengths
            held = "inputs of different shapes"
            raise InvalidValue(key, held, f"all of shape {self.noise.shape}") from None
        fits = batch.ndim >= 2 and batch.shape[1:] in (self.noise.shape, (self.noise.size,))
        allowed = f"a batch of inputs of shape {self.noise.shape}, or flat rows"
        require(fits, key, f"an array of shape {batch.shape}", allowed)
        if self.eps is None:
            return scaled(batch, self.input_range)
        return unit_rows(batch, self.input_range, self.noise.shape)

    def moved(self, rows: Array) -> MovedInputs:
        """Return the inputs of :meth:`rows` under the perturbation, (n, d), and how far each is."""
        if self.eps is not None:
            delta = self.noise.reshape(1, -1)
            moved = add(rows, delta, self.input_range, np.empty_like(rows))
            return MovedInputs(moved, *changes(rows, delta[0]))
        shifts = np.tanh(self.noise.reshape(1, -1).astype(np.float32))
        return MovedInputs(*(found[0] for found in perturbed(rows, shifts, self.input_range)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the perturbation to a file in NumPy's npz format, whatever its name."""
        content = io.BytesIO()
        kept: dict[str, Any] = {"noise": self.noise, "input_range": np.array(self.input_range)}
        if self.eps is not None:
            kept |= {"eps": self.eps, "norm": self.norm}
        np.savez(content, **kept)
        write_atomic(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Perturbation:
        """Read a perturbation that :meth:`save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                low, high = file["input_range"].tolist()
                budget = (file["eps"].item(), file["norm"].item()) if "eps" in file else ()
                return cls(file["noise"], (low, high), *budget)
        except OSError as error:
            message = f"cannot read {path}: {error.strerror or error}"
            raise UsageError(message, code="unreadable") from error
        except Exception as error:  # a damaged zip file may raise anything
            raise UsageError(f"{path} holds no perturbation", code="not-a-perturbation") from error


def check_ball(eps: object, norm: object, shape: tuple[int, ...]) -> None:
    """Raise unless ε and the norm are valid; for images, ε is at least one grey level.

    >>> check_ball(8, "inf", (3, 32, 32))
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: eps = 8: must be a number in (0, 1], in units of the input's range,
    such as 8/255
    """
    check_choice("norm", norm, NORMS)
    number = isinstance(eps, int | float | np.number) and not isinstance(eps, bool)
    most, bounds = (1.0, "in (0, 1]") if norm == "inf" else (math.inf, "above 0")
    fits = number and 0 < float(eps) <= most and math.isfinite(float(eps))  # type: ignore[arg-type]
    require(fits, "eps", eps, f"a number {bounds}, in units of the input's range, such as 8/255")
    if is_image(shape):
        level = float(eps) * LEVELS >= 1 - 1e-6  # type: ignore[arg-type]
        require(level, "eps", eps, "1/255 at least, one grey level, for images")


def inside(points: Array, eps: float, norm: str) -> Array:
    """Return the δ in the ball of each point x, (k, d) -> (k, d) float32.

    >>> inside(np.array([[0.0, 100.0]]), 0.25, "inf")
    array([[0.  , 0.25]], dtype=float32)
    >>> inside(np.array([[3.0, 4.0]]) * np.sqrt(2), 1.0, "l2").round(3)  # 5 / sqrt(1 + 5²) long
    array([[0.588, 0.784]], dtype=float32)
    """
    if norm == "inf":
        delta = np.tanh(points.astype(np.float32, copy=False))
        delta *= np.float32(eps)
        return delta
    u = points.astype(np.float64) / math.sqrt(points.shape[1])
    lengths = np.sqrt(1 + np.square(u).sum(axis=1, keepdims=True))
    return np.asarray(eps * u / lengths, np.float32)


def projected(delta: Array, eps: float, norm: str) -> Array:
    """Return the point of the ball nearest to δ.

    >>> projected(np.array([0.3, -0.04]), 0.1, "inf"), projected(np.array([3.0, -4.0]), 1.0, "l2")
    (array([ 0.1 , -0.04]), array([ 0.6, -0.8]))
    """
    if norm == "inf":
        return delta.clip(-eps, eps)
    return delta * min(1.0, eps / max(float(np.linalg.norm(delta)), 1e-300))


def in_levels(delta: Array, eps: float, norm: str) -> Array:
    """Return δ in whole grey levels, float32, within the ball.

    If rounding leads out of the ball, the levels are clipped (L∞), or δ is shortened (L2).

    >>> in_levels(np.array([0.0301, -0.03, 0.001]), 7.6 / 255, "inf")
    array([ 7., -7.,  0.], dtype=float32)
    """
    levels = delta.astype(np.float64) * LEVELS
    radius = eps * LEVELS + 1e-6  # 8/255 is not exact in binary
    if norm == "inf":
        return np.rint(levels).clip(-math.floor(radius), math.floor(radius)).astype(np.float32)
    while (length := float(np.linalg.norm(np.rint(levels)))) > radius:
        levels *= min(radius / length, 0.999)
    return np.rint(levels).astype(np.float32)


def scaled(inputs: Array, input_range: Sequence[float]) -> Array:
    """Return 2z of a batch of inputs as (n, d) float32, clipped away from the ends of the range.

    >>> scaled(np.array([[0.0, 0.5, 0.75]]), (0, 1)).round(3)
    array([[-0.998,  0.   ,  0.5  ]], dtype=float32)
    """
    low, high = input_range
    doubled = (2 * _checked_rows(inputs, input_range) - (low + high)) / (high - low)
    return doubled.clip(EDGE - 1, 1 - EDGE).astype(np.float32)


def unit_rows(inputs: Array, input_range: Sequence[float], shape: tuple[int, ...]) -> Array:
    """Return a batch of inputs scaled to [0, 1] as (n, d) float32, images rounded to 8 bits.

    >>> 255 * unit_rows(np.array([[[0.0, 25.4]]]), (0, 255), shape=(1, 2))
    array([[ 0., 25.]], dtype=float32)
    """
    low, high = input_range
    rows = (_checked_rows(inputs, input_range) - low) / (high - low)
    return (np.rint(rows * LEVELS) / LEVELS if is_image(shape) else rows).astype(np.float32)


def in_range(rows: Array, input_range: Sequence[float]) -> Array:
    """Return inputs in [0, 1] scaled to their range, float32.

    >>> in_range(np.array([0.0, 0.5, 1.0]), (-1, 3))
    array([-1.,  1.,  3.], dtype=float32)
    """
    if tuple(input_range) == (0, 1):
        return rows.astype(np.float32, copy=False)
    middle, half, bottom, top = _limits(input_range)
    inputs: Array = (middle + half * (2 * rows - 1)).astype(np.float32).clip(bottom, top)
    return inputs


def changes(rows: Array, delta: Array) -> tuple[Array, Array]:
    """Return how far one δ moves inputs in [0, 1]: squared L2 and L∞, each of shape (b,).

    >>> changes(np.array([[0.0, 0.5]]), np.array([-0.25, 0.25]))  # the first number is clipped
    (array([0.0625]), array([0.25]))
    """
    delta, squares, linf = delta.astype(np.float64), np.empty(len(rows)), np.empty(len(rows))
    for start in range(0, len(rows), _IN_CACHE):
        some = slice(start, start + _IN_CACHE)
        # Clip δ itself: the rounding of a sum could exceed the budget.
        moved = np.minimum(delta, 1 - rows[some])
        np.maximum(moved, -rows[some], out=moved)
        linf[some] = np.abs(moved, out=moved).max(axis=1)
        squares[some] = np.square(moved, out=moved).sum(axis=1)
    return squares, linf


def add(
    rows: Array, deltas: Array, input_range: Sequence[float], out: Array, start: int = 0
) -> Array:
    """Write b inputs in [0, 1] under each of k δ, from the ``start``-th of these k b inputs on.

    They are written into ``out``, (n, d) float32, in their range.

    >>> rows, deltas = np.float32([[0.0, 0.5]]), np.float32([[0.5, 0.5], [-0.25, 0.25]])
    >>> add(rows, deltas, (-1, 3), np.empty((1, 2), np.float32), start=1)
    array([[-1.,  2.]], dtype=float32)
    """
    _add(rows, deltas, out, start)
    if tuple(input_range) != (0, 1):
        out[:] = in_range(out, input_range)
    return out


@njit(nogil=True, cache=True, error_model="numpy")
def _add(rows: Any, deltas: Any, out: Any, start: int) -> None:
    zero, one = np.float32(0), np.float32(1)
    for i in range(len(out)):
        row, delta, moved = rows[(start + i) % len(rows)], deltas[(start + i) // len(rows)], out[i]
        for j in range(moved.size):
            moved[j] = min(max(row[j] + delta[j], zero), one)


def _checked_rows(inputs: Array, input_range: Sequence[float]) -> Array:
    """Return a copy of inputs as (n, d) float64; reject numbers outside the range."""
    low, high = input_range
    require(inputs.dtype.kind in "fiu", "inputs", f"an array of {inputs.dtype}", "of numbers")
    inside = bool(np.all((inputs >= low) & (inputs <= high)))  # False for NaN too
    if not inside:
        held = f"numbers from {np.min(inputs):g} to {np.max(inputs):g}"
        raise InvalidValue("inputs", held, f"in the model's input_range, {low:g} to {high:g}")
    return inputs.reshape(len(inputs), math.prod(inputs.shape[1:])).astype(np.float64)


def perturbed(
    angles: Array, shifts: Array, input_range: Sequence[float]
) -> tuple[Array, Array, Array]:
    """Return inputs under each of k perturbations, and their squared L2 and L∞ distances.

    ``angles`` is the result of :func:`scaled`; ``shifts``, (k, d), is tanh of the perturbations.
    The perturbed inputs, (k, b, d), are in their range; the distances are (k, b).
    """
    return _apply(angles, shifts, *_limits(input_range)), *_moved(angles, shifts)


def _limits(input_range: Sequence[float]) -> tuple[Any, Any, Any, Any]:
    """Return the middle and half the width of the range, and the float32 just inside its ends."""
    low, high = input_range
    bottom, top = np.float32(low), np.float32(high)
    bottom = bottom if float(bottom) >= low else np.nextafter(bottom, np.float32(np.inf))
    top = top if float(top) <= high else np.nextafter(top, np.float32(-np.inf))
    return np.float32((low + high) / 2), np.float32((high - low) / 2), bottom, top


@njit(nogil=True, cache=True, error_model="numpy")
def _apply(angles: Any, shifts: Any, middle: Any, half: Any, bottom: Any, top: Any) -> Any:
    """Return each input under each shift, (k, b, d), in the range of the inputs."""
    one = np.float32(1)
    out = np.empty((len(shifts), *angles.shape), np.float32)
    for k in range(shifts.shape[0]):
        w = shifts[k]
        for m in range(len(angles)):
            t, moved = angles[m], out[k, m]
            for j in range(w.size):
                value = middle + half * ((t[j] + w[j]) / (one + t[j] * w[j]))
                moved[j] = min(max(value, bottom), top)  # rounding may exceed the range
    return out


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "nsz", "contract"})
def _moved(angles: Any, shifts: Any) -> Any:
    """Return squared L2 and L∞ of 1/2 w (1 - t^2) / (1 + t w) for each shift and input."""
    squares = np.empty((len(shifts), len(angles)))
    largest = np.empty_like(squares)
    half, one = np.float32(0.5), np.float32(1)
    for k in range(shifts.shape[0]):
        w = shifts[k]
        for m in range(len(angles)):
            t = angles[m]
            total, top = 0.0, np.float32(0)
            for j in range(w.size):
                step = half * w[j] * (one - t[j] * t[j]) / (one + t[j] * w[j])
                total += float(step) * float(step)
                top = max(top, abs(step))
            squares[k, m], largest[k, m] = total, top
    return squares, largest
