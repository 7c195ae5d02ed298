r"""A fixed set of K directions: a model is its start and K numbers, however long the run is.

FedKSeed (Qin et al., "Federated Full-Parameter Tuning of Billion-Sized Language Models with
Communication Cost under 18 Kilobytes", ICML 2024) draws the directions of all steps from a fixed
set, here K / b2 groups of the b2 directions that a step takes. What has been heard of a direction
adds up, so all rounds up to now are K sums, one for each direction,

.. math:: x^t = x^0 + \sum_{j=1}^{K} a_j^t\, g_j,

and whoever has the start and the sums has the model: to the bit, since the model is defined by
this very sum, and not by the steps that have led to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedzo.core import streams
from fedzo.core.estimator import Estimator
from fedzo.core.rebuilt import Rebuilt, Term
from fedzo.core.streams import Combination
from fedzo.core.tasks import LocalSteps, Update

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class SetSum:
    """A sum over the directions of a fixed set, known by its coefficients.

    Attributes
    ----------
    estimator : Estimator
        Whose directions they are.
    seed : int
        The run's, which names them.
    dim : int
        d.
    coefficients : array
        One for each direction, (K / b2, b2).
    whole : array, optional
        What is to be added besides: updates that came whole.
    in_place : bool
        Whether the model is a problem's own memory, in which it is to be built.

    Examples
    --------
    >>> estimator = Estimator(smoothing=1e-3, directions=2, kind="rademacher", fixed=4)
    >>> some = SetSum(estimator, 7, 3, np.array([[1.0, 0.0], [0.0, 0.5]]))
    >>> some.moved(np.zeros(3))  # (1, -1, 1) and half of (-1, -1, -1)
    array([ 0.5, -1.5,  0.5])
    """

    estimator: Estimator
    seed: int
    dim: int
    coefficients: Array
    whole: Array | None = None
    in_place: bool = False

    def added_to(self, sums: Array) -> Array:
        """Return the sums of all rounds after this one, in the precision that they have."""
        return np.asarray((sums + self.coefficients).astype(sums.dtype))

    def moved(self, start: Array, out: Array | None = None) -> Array:
        """Return the start plus the sum, in memory that may be given."""
        out = np.empty_like(start) if out is None else out
        used = np.flatnonzero(self.coefficients.any(axis=1))
        places = [self.estimator.of_set(self.seed, int(group)) for group in used]
        coefficients = self.coefficients[used].astype(start.dtype)
        if not places:
            out[:] = start
        elif self.estimator.kind in streams.KINDS:
            kind = self.estimator.kind
            Combination.of(kind, self.dim, places, coefficients).add_to(out, 0, start)
        else:  # of directions that are drawn as a whole
            terms = tuple(Term(at, c[None]) for at, c in zip(places, coefficients, strict=True))
            plain = replace(self.estimator, fixed=None, shared=False)
            out[:] = Rebuilt(plain, self.dim, terms).moved(start)
        return out

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the sum itself, for NumPy."""
        built = self.moved(np.zeros(self.dim, dtype or np.float64))
        return built if self.whole is None else (built + self.whole).astype(built.dtype)


class SetMean:
    """The mean of a stream of updates along fixed directions, uniform or by their weights."""

    def __init__(self, task: LocalSteps, dim: int) -> None:
        self._task, self._dim, self._shares = task, dim, 0.0
        self._estimator: Estimator = task.algorithm.estimator
        self._sums = np.zeros(self._estimator.set_shape)
        self._whole: Array | None = None
        self._in_place = False

    def add(self, update: Update) -> None:
        """Count an update in, by its coefficients if it has some."""
        self._shares += update.weight
        if update.coefficients is None:
            share = update.weight * np.asarray(update.delta, np.float64)
            self._whole = share if self._whole is None else self._whole + share
            return
        at, own = self._task.draws(update.device), update.coefficients.astype(np.float64)
        groups = [self._estimator.group(at._replace(step=k)) for k in range(len(own))]
        np.add.at(self._sums, groups, update.weight * own)
        self._in_place |= isinstance(update.delta, Combination) and update.delta.in_place

    def value(self) -> SetSum:
        """Return the mean; nothing, where nobody sent anything."""
        shares = self._shares or 1
        whole = None if self._whole is None else self._whole / shares
        sums, seed = self._sums / shares, self._task.seed
        return SetSum(self._estimator, seed, self._dim, sums, whole, self._in_place)
