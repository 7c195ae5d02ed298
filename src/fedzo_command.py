"""The command ``fedzo``.

An interrupt prints one line, also while the package is being imported: this module lies beside the
package and imports very little.
"""

import os
import signal
import sys
import warnings


def start() -> int:
    """Import the command line and run it; return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, _end)
    warnings.formatwarning = lambda message, *_: f"fedzo: warning: {message}\n"
    from fedzo.cli import main

    try:
        signal.signal(signal.SIGINT, before)
        return main()
    except KeyboardInterrupt:  # in the moment before main or after it
        return _end()


def _end(*_signal: object) -> int:
    """End at once: half an import cannot be left in good order."""
    try:
        os.write(2, b"fedzo: error: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    sys.exit(start())
