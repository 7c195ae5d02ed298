"""What this machine has, and its signals."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Signals that end a program: Ctrl-C, kill, and, on Unix, a terminal that was closed.
ENDING = [one for one in signal.Signals if one.name in ("SIGINT", "SIGTERM", "SIGHUP")]


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system can tell
        return os.cpu_count() or 1


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let signals that end a program wait until the end of the block, in the main thread.

    >>> try:
    ...     with deferred_signals():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("done")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    done
    interrupted
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if signal.getsignal(number) is not None:  # else it is not Python's to restore
                before[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        for signum in came[:1]:
            signal.raise_signal(signum)
