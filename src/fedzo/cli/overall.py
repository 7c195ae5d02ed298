"""How far many runs are: a reproduction, a sweep."""

from __future__ import annotations

import time
from typing import TextIO

from fedzo.core.progress import LiveLine, duration


class Overall(LiveLine):
    """Shows the runs done, the share of the work and the time left: one line for all.

    Where there is no terminal, a plain line is written at each twentieth of the work.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._began = time.monotonic()
        self._twentieth = 0

    def __call__(self, share: float, done: int, runs: int) -> None:
        """Show that this share of the work, and so many of the runs, are done."""
        seconds = time.monotonic() - self._began
        text = f"{done}/{runs} runs  {share:.0%}"
        if share > 0.01:
            text += f"  {duration(seconds * (1 - share) / share)} left"
        if self.live:
            self.rewrite(text)
        elif int(20 * share) > self._twentieth or done == runs:
            self._twentieth = int(20 * share)
            self.write(text + "\n")
