"""Signals: Ctrl-C and termination end a run with a checkpoint."""

from __future__ import annotations

import signal
import threading
from typing import Any, Self

from fedzo.runs.result import Progress


class Interrupts:
    """While it is entered, Ctrl-C and a termination raise KeyboardInterrupt.

    It is a callback as well. What a signal raises comes up wherever the interpreter happens to
    be, and compiled code or a user's function may swallow it there; the callback then raises it
    again after the round. A signal that is ignored stays ignored.

    Examples
    --------
    >>> import fedzo, signal
    >>> def deaf(x, device):
    ...     try:
    ...         signal.raise_signal(signal.SIGTERM)
    ...     except KeyboardInterrupt:
    ...         pass
    ...     return x @ x
    >>> with Interrupts() as interrupts:
    ...     result = fedzo.minimize(deaf, [1.0], devices=2, workers=1, callback=interrupts)
    >>> result.message
    'interrupted after round 0'
    """

    def __init__(self) -> None:
        self._came = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the main thread's
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._come)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def __call__(self, _progress: Progress) -> None:
        """Raise what was swallowed."""
        if self._came:
            raise KeyboardInterrupt

    def _come(self, _signal: int, _frame: Any) -> None:
        self._came = True
        raise KeyboardInterrupt
