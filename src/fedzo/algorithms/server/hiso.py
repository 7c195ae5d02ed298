r"""HiSo: directions are stretched by a curvature that is learnt from the scalars."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, ServerStep, check_share
from fedzo.errors import check_positive


@dataclass(frozen=True)
class HiSo(ServerStep):
    r"""Devices look less far where f is steep, by a diagonal H that everybody can follow.

    In round t all directions are :math:`H_t^{-1/2} v`: a device estimates

    .. math:: \tilde g = \frac{1}{b_1 b_2} \sum_{m, n} \frac{d}{\mu} \bigl(
              F_i(x + \mu H_t^{-1/2} v_n, \xi_m) - F_i(x, \xi_m) \bigr) H_t^{-1/2} v_n,

    whose mean is :math:`H_t^{-1} \nabla f_i`, and moves by it. The server takes the mean update and
    learns from its squares, as Adam does, with the root mean square over all numbers for a unit:

    .. math:: x^{t+1} = x^t + \Delta^t, \qquad
              H_{t+1} = (1 - \nu) H_t + \nu \Bigl( \mathrm{diag}\Bigl(
              \frac{(\Delta^t)^2}{\lVert \Delta^t \rVert^2 / d} \Bigr) + \epsilon I \Bigr),
              \qquad H_0 = I.

    Nothing more is sent up than without it: H follows from the updates, and those from the
    coefficients. What a device sends are its moves along v, that is :math:`H_t^{1/2} \Delta_i^t`,
    and this is what an uplink averages, clips or sends through the air.

    In the paper the unit is that of the gradient, and H moves with each of the local steps. The
    server hears neither η nor the single steps, so here the overall size of H stays about 1: the
    learning rate and μ keep their meaning, and other units of f are the same run.

    Parameters
    ----------
    nu : float
        ν in [0, 1), how quickly H forgets.
    floor : float
        ε: no direction is stretched by more than about ε^{-1/2}.

    References
    ----------
    Z. Li, B. Ying, Z. Liu, C. Dong and H. Yang, "Converge Faster, Talk Less: Hessian-Informed
    Federated Zeroth-Order Optimization" (at first "Reconciling Hessian-Informed Acceleration and
    Scalar-Only Communication"), ICLR 2026.

    Examples
    --------
    The squares of (3, 4) are 0.72 and 1.28 in units of their mean, and H is half of that, and of 1:

    >>> step = HiSo(nu=0.5, floor=1e-9)
    >>> x, (h,) = step.apply(0, step.init(np.zeros(2)), np.zeros(2), np.array([3.0, 4.0]))
    >>> x, h.round(6), step.stretch((h,)).round(3)
    (array([3., 4.]), array([0.86, 1.14]), array([1.078, 0.937]))
    """

    nu: float = 0.05
    floor: float = 0.05

    def __post_init__(self) -> None:
        check_share(self, "nu")
        check_positive(self, "floor")

    def init(self, x0: Array) -> Kept:
        """Return H = I, as its diagonal."""
        return (np.ones(x0.shape),)

    def stretch(self, kept: Kept) -> Array:
        """Return the diagonal of H^{-1/2}."""
        return 1 / np.sqrt(kept[0])

    def apply(self, t: int, kept: Kept, x: Array, delta: Array) -> tuple[Array, Kept]:
        """Add the mean update, stretched, and learn from its squares."""
        moved = self.stretch(kept) * delta
        square = np.square(moved)
        mean = float(square.mean())
        h = kept[0]
        if mean > 0:
            h = (1 - self.nu) * h + self.nu * (square / mean + self.floor)
        return (x + moved).astype(x.dtype), (h,)
