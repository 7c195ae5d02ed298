"""What several commands share: exit codes, options, and how they complain."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from fedzo.errors import UsageError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that reads a configuration."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file, or a name that ships")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change a setting; may be given several times",
    )


def check_seeds(seeds: int | None) -> None:
    """Raise unless ``--seeds`` is a number of runs."""
    if seeds is not None and seeds < 1:
        raise UsageError(f"--seeds {seeds}: must be a whole number >= 1")


def draw_to(out: Path, draw: Callable[[], None]) -> None:
    """Draw a picture; complain in one line where its file cannot be written."""
    try:
        draw()
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    except ValueError as error:  # a format that nobody draws
        raise UsageError(f"cannot write {out}: {error}") from error
    print(out)
