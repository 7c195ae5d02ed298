"""The command ``fedzo``.

A signal that ends it prints one line, also while the package is being imported and while Python
exits: this module lies beside the package and imports very little.
"""

import atexit
import os
import signal
import sys
import warnings
from typing import Any


def start() -> int:
    """Import the command line and run it; return its exit code."""
    usual = (signal.SIG_DFL, signal.default_int_handler)  # a signal may be ignored
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C, kill, a closed terminal
    ours = [n for n in signal.Signals if n.name in names and signal.getsignal(n) in usual]
    came = []

    def handle(handler: Any) -> None:
        for number in ours:
            signal.signal(number, handler)

    def interrupt(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    handle(_end)
    atexit.register(handle, signal.SIG_IGN)  # Python's last steps restore the default: no message
    warnings.formatwarning = lambda message, *_: f"fedzo: warning: {message}\n"
    from fedzo.cli import main

    try:
        try:
            handle(interrupt)
            return main()
        finally:
            handle(_end)
    except BaseException:
        if came:  # a compiled library turns an interrupt of its import into an ImportError
            _end()
        raise


def _end(*_signal: object) -> None:
    """End at once: half an import cannot be left in good order."""
    try:
        os.write(2, b"fedzo: error: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    sys.exit(start())
