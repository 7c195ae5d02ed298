"""What is said aside, on standard error: where that is closed or full, nothing fails."""

from __future__ import annotations

import sys
from contextlib import suppress


def tell(text: str, end: str = "\n") -> None:
    """Write to standard error, if anybody can read it.

    >>> import contextlib, sys
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     tell("fetching 3 MB")
    fetching 3 MB
    """
    if sys.stderr is not None:  # print would take standard output for it
        with suppress(OSError, ValueError):
            print(text, end=end, file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Return whether standard error is a terminal, on which a line can be rewritten."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False
