"""What several commands share: exit codes, options, and how they complain."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedzo.errors import CannotWrite, UsageError, shown

MOST_SEEDS = 10_000  # each has a folder of its own


class Exit(enum.IntEnum):
    """The exit codes of every command; ``docs/configuration.md`` explains them."""

    DONE = 0
    OWN_CODE = 1  # the user's own code raised an error
    NOTHING_RUN = 2  # bad input
    NO_SUCCESS = 3  # the run diverged, or did not improve on the start
    HALTED = 4  # the run could not continue
    NO_SPACE = 5  # memory or disk space ran out
    INTERRUPTED = 130  # it can be resumed


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


def say(text: str) -> None:
    """Print, if possible: a full disk or a closed pipe must not fail the run."""
    with suppress(OSError, ValueError):
        print(text, flush=True)


def check_seeds(seeds: int | None) -> None:
    """Raise unless ``--seeds`` is a number of runs."""
    if seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {shown(seeds)}: must be a whole number from 1 to {MOST_SEEDS:,}")


def draw_to(out: Path, draw: Callable[[], None]) -> None:
    """Draw a picture; complain in one line where its file cannot be written."""
    try:
        draw()
    except CannotWrite as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError | NotADirectoryError):
            raise UsageError(str(error)) from error  # not a place to write to: bad input
        raise
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from error
    except ValueError as error:  # an unknown format
        raise UsageError(f"cannot write {out}: {error}") from error
    print(out)
