"""The mean, where all directions are of a fixed set: what the server keeps is K sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedzo.algorithms.server.base import Array, Kept, ServerStep
from fedzo.core.estimator import Estimator
from fedzo.core.fixed import SetSum


@dataclass(frozen=True)
class Accumulated(ServerStep):
    r"""The paper's server over a fixed set of directions, as FedKSeed's (:mod:`fedzo.core.fixed`).

    .. math:: a^{t+1} = a^t + \Delta a^t, \qquad x^{t+1} = x^0 + \sum_{j=1}^{K} a_j^{t+1} g_j

    It keeps x^0 and a, in the model's precision. FedZO takes it in place of the mean where it has
    ``fixed_directions`` and hears coefficients; no configuration names it.

    Parameters
    ----------
    estimator : Estimator
        Whose directions they are.

    Examples
    --------
    >>> estimator = Estimator(smoothing=1e-3, directions=1, kind="rademacher", fixed=2)
    >>> step = Accumulated(estimator)
    >>> kept, x = step.init(np.zeros(3)), np.zeros(3)
    >>> for t, moves in enumerate([[[1.0], [0.0]], [[0.25], [0.0]]]):
    ...     x, kept = step.take(t, kept, x, SetSum(estimator, 0, 3, np.array(moves)))
    >>> x, kept[1][:, 0]
    (array([1.25, 1.25, 1.25]), array([1.25, 0.  ]))
    """

    estimator: Estimator

    def init(self, x0: Array) -> Kept:
        """Return x^0 and a = 0."""
        return x0.copy(), np.zeros(self.estimator.set_shape, x0.dtype)

    def take(self, t: int, kept: Kept, x: Array, delta: Any) -> tuple[Array, Kept]:
        """Add the round's sums to those before, and build the model that they make.

        An update that came whole is not of the set: the start moves by it.
        """
        assert isinstance(delta, SetSum)
        start, sums = kept
        if delta.whole is not None:
            start = (start + delta.whole).astype(start.dtype)
        elif not delta.coefficients.any():  # nobody answered
            return x, kept
        sums = delta.added_to(sums)
        made = replace(delta, coefficients=sums).moved(start, x if delta.in_place else None)
        return made, (start, sums)
