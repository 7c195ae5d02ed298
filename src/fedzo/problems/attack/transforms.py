"""How x changes inputs: as in the paper, or by a δ within a budget."""

from dataclasses import dataclass

import numpy as np

from fedzo.core.types import Array
from fedzo.errors import check_not_negative
from fedzo.models.base import Write, copying
from fedzo.variables.perturbation import Perturbation, add, check_ball, inside, perturbed

_OUTWARDS = 4.0  # evaluated perturbations are δ(4x), queries are about δ(x)


@dataclass(frozen=True)
class Transform:
    """The paper's form, ½ tanh(tanh⁻¹ 2z + x), or with a budget ε, clip(z + δ).

    In the paper's form, c times the squared distance is part of the loss.

    Within a budget, δ is in the ball by :func:`fedzo.variables.perturbation.inside`. Queries are
    about δ(x), which can still move both ways. The evaluated perturbation is δ(4x): it lies nearly
    on the surface of the ball, where it is strongest.

    Examples
    --------
    >>> transform = Transform((2,), (0.0, 1.0), eps=8 / 255)
    >>> transform.perturbation(np.ones(2)).noise.round(4)
    array([0.0314, 0.0314], dtype=float32)
    """

    shape: tuple[int, ...]
    input_range: tuple[float, float]
    c: float = 1.0
    eps: float | None = None
    norm: str = "inf"

    def __post_init__(self) -> None:
        check_ball(1.0 if self.eps is None else self.eps, self.norm, self.shape)
        check_not_negative("c", self.c)

    def query_inputs(self, rows: Array, points: Array) -> tuple[Write, Array]:
        """Return what writes b inputs under each of k points, (k b, d), and their costs, (k, b).

        Images are not rounded to 8 bits: differences below one grey level must show.
        """
        if self.eps is None:
            shifts = np.tanh(points.astype(np.float32, copy=False))
            inputs, squares, _ = perturbed(rows, shifts, self.input_range)
            return copying(inputs.reshape(-1, rows.shape[1])), self.c * squares
        deltas = inside(points, self.eps, self.norm)

        def write(out: Array, start: int) -> None:
            add(rows, deltas, self.input_range, out, start)

        return write, np.zeros((len(points), len(rows)))

    def perturbation(self, x: Array) -> Perturbation:
        """Return the perturbation x in the shape of an input: in 8 bits for images within ε."""
        if self.eps is None:
            return Perturbation(x.reshape(self.shape), self.input_range)
        delta = inside(_OUTWARDS * x[None], self.eps, self.norm).reshape(self.shape)
        return Perturbation.within(delta, self.input_range, self.eps, self.norm)
