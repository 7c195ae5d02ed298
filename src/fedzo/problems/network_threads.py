"""Choose torch's number of threads for the passes of a module."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_FIRST = 6  # passes that are timed in turns before a choice
_CHECK, _SELDOM = 64, 4096  # passes between two checks of the other choice, at least and at most
Values = NDArray[np.float64]


@dataclass
class _Passes:
    """The passes of one batch size, with one thread (False) and with several (True)."""

    same: bool = False  # whether both choices return the same bits
    count: int = 0
    seconds: dict[bool, float] = field(default_factory=dict)
    check: int = _CHECK
    next_check: int = _FIRST + _CHECK

    def choose(self) -> bool:
        """Return whether the next pass uses several threads."""
        if self.count < _FIRST:
            return self.count % 2 == 0
        best = min(self.seconds, key=self.seconds.__getitem__)
        if self.count < self.next_check:
            return best
        clear = self.seconds[not best] > 1.5 * self.seconds[best]
        self.check = min(2 * self.check, _SELDOM) if clear else _CHECK
        self.next_check = self.count + self.check
        return not best

    def note(self, several: bool, seconds: float) -> None:
        before = self.seconds.get(several, seconds)
        if self.count < _FIRST:
            self.seconds[several] = min(before, seconds)
        else:  # a pass that another program interrupts does not count as many
            self.seconds[several] = 0.7 * before + 0.3 * min(seconds, 4 * before)
        self.count += 1


class ThreadChoice:
    """Runs passes with one thread or with torch's own number, whichever is quicker at the moment.

    Small modules are quicker with one thread, by far if other programs use the cores: threads wait
    for each other at the end of every operation. The first pass of each batch size is run both
    ways. Only if both return the same bits is there a choice, so that a run does not depend on it.
    The other choice is timed again from time to time. Torch's number is restored after each pass.

    Examples
    --------
    >>> import torch
    >>> ThreadChoice().run(4, lambda: np.ones(4))
    array([1., 1., 1., 1.])
    """

    def __init__(self) -> None:
        self._passes: dict[Hashable, _Passes] = {}

    def run(self, size: Hashable, values: Callable[[], Values]) -> Values:
        """Return ``values()``, a pass of a batch of this size."""
        import torch

        most = torch.get_num_threads()
        if most == 1:
            return values()
        passes = self._passes.get((size, most))
        if passes is None:
            first, again = values(), _with_one_thread(values, most)
            equal = np.array_equal(first, again, equal_nan=True)
            self._passes[size, most] = _Passes(same=equal)
            return first
        several = not passes.same or passes.choose()
        began = time.perf_counter()
        found = values() if several else _with_one_thread(values, most)
        passes.note(several, time.perf_counter() - began)
        return found


def _with_one_thread(values: Callable[[], Values], most: int) -> Values:
    import torch

    torch.set_num_threads(1)
    try:
        return values()
    finally:
        torch.set_num_threads(most)
