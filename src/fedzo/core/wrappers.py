"""Problems that change how another problem is seen, and what they do with its capabilities."""

from typing import Any, ClassVar, TypeVar, cast

from fedzo.core.objective import Objective
from fedzo.core.random import Draws
from fedzo.core.types import Array

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
