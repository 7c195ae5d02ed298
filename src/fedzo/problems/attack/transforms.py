"""How x changes inputs: as in the paper, or by a δ within a budget."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedzo.core.types import Array
from fedzo.core.waves import Waves
from fedzo.errors import check_not_negative
from fedzo.variables.perturbation import (
    Perturbation,
    added,
    changes,
    check_ball,
    inside,
    movements,
    perturbed,
    scaled,
    unit_rows,
)


class PerturbedInputs(NamedTuple):
    """Inputs under one perturbation."""

    inputs: Array  # (b, d), in the model's range
    costs: Array  # (b,), added to the loss for distortion
    l2: Array
    linf: Array


@dataclass(frozen=True)
class PaperTransform:
    """The paper's: ½ tanh(tanh⁻¹ 2z + x), and c times the squared distance in the loss."""

    shape: tuple[int, ...]
    input_range: tuple[float, float]
    c: float

    def rows(self, batch: Array) -> Array:
        """Return a batch of inputs as 2z, shape (n, d)."""
        return scaled(batch, self.input_range)

    def query_inputs(self, rows: Array, points: Array) -> tuple[Array, Array]:
        """Return b inputs under each of k points, (k, b, d), and their costs, (k, b).

        The costs are c times the squared distances.
        """
        shifts = np.tanh(points.astype(np.float32, copy=False))
        inputs, squares = perturbed(rows, shifts, self.input_range)
        return inputs, self.c * squares

    def perturbed_inputs(self, rows: Array, x: Array) -> PerturbedInputs:
        """Return the inputs under one x, in the units of the report."""
        inputs, costs = self.query_inputs(rows, x[None])
        shift = np.tanh(x.astype(np.float32, copy=False))[None]
        return PerturbedInputs(inputs[0], costs[0], *movements(rows, shift))

    def perturbation(self, x: Array) -> Perturbation:
        """Return x in the shape of an input."""
        return Perturbation(x.reshape(self.shape), self.input_range)


_OUTWARDS = 4.0  # evaluated perturbations are δ(4x), queries are about δ(x)


@dataclass(frozen=True)
class BudgetTransform:
    """A budget: clip(z + δ), δ in the ball of ε by :func:`fedzo.variables.perturbation.inside`.

    Queries are about δ(x), which can still move both ways. The evaluated perturbation is δ(4x): it
    lies nearly on the surface of the ball, where it is strongest.

    For images, x holds Fourier coefficients in place of pixels, because inputs share waves: see
    :class:`fedzo.server.FourierSign`. Random directions are the same in both.
    """

    shape: tuple[int, ...]
    input_range: tuple[float, float]
    eps: float
    norm: str
    image: tuple[int, ...] = ()  # the shape of images that are given as flat rows

    def rows(self, batch: Array) -> Array:
        """Return a batch of inputs as z in [0, 1], shape (n, d)."""
        return unit_rows(batch, self.input_range, self.shape)

    def query_inputs(self, rows: Array, points: Array) -> tuple[Array, Array]:
        """Return b inputs under each of k points, (k, b, d), and their costs, (k, b): zero.

        The inputs are not rounded: differences below one grey level must show.
        """
        inputs = added(rows, self._deltas(points), self.input_range)
        return inputs, np.zeros(inputs.shape[:2])

    def perturbed_inputs(self, rows: Array, x: Array) -> PerturbedInputs:
        """Return the inputs under one x, in the units of the report: images in 8 bits."""
        delta = self.perturbation(x).noise.reshape(-1)
        (inputs,) = added(rows, delta[None], self.input_range)
        return PerturbedInputs(inputs, np.zeros(len(rows)), *changes(rows, delta))

    def perturbation(self, x: Array) -> Perturbation:
        """Return δ in the shape of an input."""
        delta = self._deltas(_OUTWARDS * x[None]).reshape(self.shape)
        return Perturbation.within(delta, self.input_range, self.eps, self.norm)

    def _deltas(self, points: Array) -> Array:
        return inside(Waves(self.image or self.shape).images(points), self.eps, self.norm)


Transform = PaperTransform | BudgetTransform


def transform_of(
    shape: tuple[int, ...], input_range: tuple[float, float], c: float, eps: float | None, norm: str
) -> Transform:
    """Return the transform: the paper's, unless there is a budget.

    >>> transform_of((2,), (0.0, 1.0), 1.0, 8 / 255, "inf").perturbation(np.ones(2)).noise.round(4)
    array([0.0314, 0.0314], dtype=float32)
    """
    check_ball(1.0 if eps is None else eps, norm, shape)
    check_not_negative("c", c)
    if eps is None:
        return PaperTransform(shape, input_range, c)
    return BudgetTransform(shape, input_range, float(eps), norm)
