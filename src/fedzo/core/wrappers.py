"""Problems that change how another problem is seen, and what they do with its capabilities."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, cast

from fedzo.core import capabilities as can
from fedzo.core.objective import Objective, values_along
from fedzo.core.random import Draws
from fedzo.core.types import Array
from fedzo.core.updates import Offset

C = TypeVar("C")


class ObjectiveWrapper(Objective):
    """A problem seen through another one, ``inner``.

    A subclass declares every protocol of :mod:`fedzo.core.capabilities` in exactly one of four
    tuples. A test fails for a protocol that is not declared, and the wrapper hides it: a fused step
    that bypasses a wrapper would return values that the wrapper must change.

    Attributes
    ----------
    passes : tuple of protocols
        Those of the inner problem are returned unchanged.
    transforms : tuple of protocols
        The wrapper implements them if the inner problem does.
    adds : tuple of protocols
        The wrapper implements them, whatever the inner problem has.
    hides : tuple of protocols
        The wrapper does not have them.
    """

    passes: ClassVar[tuple[type[Any], ...]] = ()
    transforms: ClassVar[tuple[type[Any], ...]] = ()
    adds: ClassVar[tuple[type[Any], ...]] = ()
    hides: ClassVar[tuple[type[Any], ...]] = ()

    def __init__(self, inner: Objective) -> None:
        self.inner, self.dim, self.devices = inner, inner.dim, inner.devices

    def capability(self, kind: type[C]) -> C | None:
        """Return the implementation that the declarations allow, or None."""
        if kind in self.adds:
            return cast(C, self)
        found = self.inner.capability(kind) if kind in self.passes + self.transforms else None
        return cast(C, self) if found is not None and kind in self.transforms else found

    def batch(self, device: int, size: int, draws: Draws) -> Any:
        """Return a batch of the inner problem."""
        return self.inner.batch(device, size, draws)

    def initial(self) -> Array:
        """Return the start of the inner problem."""
        return self.inner.initial()

    def size(self, device: int) -> int:
        """Return the number of samples of a device."""
        return self.inner.size(device)


class ScaledObjective(ObjectiveWrapper):
    r"""A problem in scaled coordinates around x: F_i(x + s y) as a function of y.

    A step along a direction v in y is a step along s v in x. So an algorithm that does not know s
    takes steps along scaled directions.

    Parameters
    ----------
    inner : Objective
        F.
    x : array
        The model at y = 0, shape (d,).
    factors : array
        s, one factor per number, shape (d,).

    Examples
    --------
    >>> import numpy as np
    >>> from fedzo.problems import FunctionObjective
    >>> square = FunctionObjective(lambda x, device: x @ x, dim=2, devices=1)
    >>> scaled = ScaledObjective(square, np.array([1.0, 0.0]), np.array([2.0, 0.5]))
    >>> scaled.values(np.array([[0.0, 0.0], [1.0, 2.0]]), scaled.batch(0, 1, None))  # (1,0), (3,1)
    array([[ 1.],
           [10.]])
    """

    passes = (*can.EXECUTION, can.NamesRecords, can.TakesRecords, can.HasSizes)
    transforms = (can.Streamed,)
    adds = (can.ValuesAlong,)
    # The directions of a fused step are not scaled, and y is not the memory of the problem.
    hides = (can.HasGradient, can.FusedStep, can.InPlace, *can.HINTS, *can.RESULTS)

    def __init__(self, inner: Objective, x: Array, factors: Array) -> None:
        super().__init__(inner)
        self.x, self.factors = x, factors.astype(x.dtype)

    def values(self, points: Array, batch: Any) -> Array:
        """Return the values at x + s y."""
        return self.inner.values(self.x + self.factors * points, batch)

    def values_along(
        self, x: Array, directions: Array, rows: Array, steps: Array, batch: Any
    ) -> Array:
        """Return the values along scaled directions."""
        start, scaled = self.x + self.factors * x, self.factors * directions
        return values_along(self.inner, start, scaled, rows, steps, batch)

    def values_streamed(
        self, x: Array, walked: Offset, steps: Sequence[Offset], batch: Any
    ) -> Array:
        """Return the values along scaled directions that are never held.

        At y = 0 the inner problem is given the array x itself, which may be its own memory.
        """
        inner = self.inner.capability(can.Streamed)
        assert inner is not None
        start = self.x + self.factors * x if x.any() else self.x
        return inner.values_streamed(
            start, self._scaled(walked), [self._scaled(step) for step in steps], batch
        )

    def _scaled(self, some: Offset) -> Offset:
        return None if some is None else replace(some, factors=self.factors)
