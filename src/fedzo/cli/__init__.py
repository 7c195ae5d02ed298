"""The command line, one file a command.

``main`` parses the arguments, runs the command and turns what went wrong into one line and an exit
code. This is the top of the house: it may import every room, and no room imports it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from fedzo._version import __version__
from fedzo.cli import bench, data, plot, report, reproduce, run, theory
from fedzo.cli.common import Exit
from fedzo.errors import CannotWrite, FedzoError, Halted, ModelError

COMMANDS = (run, reproduce, report, plot, data, theory, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    The codes are those of :class:`~fedzo.cli.common.Exit`.
    """
    arguments = _parser().parse_args(argv)
    try:
        code = int(arguments.command(arguments))
        sys.stdout.flush()
        return code
    except FedzoError as error:
        print(f"fedzo: error: {error}", file=sys.stderr)
        return _code_of(error)
    except MemoryError as error:
        print(f"fedzo: error: not enough memory: {error}", file=sys.stderr)
        return Exit.NO_SPACE
    except KeyboardInterrupt:
        print("fedzo: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OWN_CODE
    except Exception as error:
        if not _show_own_error(error):
            raise
        return Exit.OWN_CODE


def _code_of(error: FedzoError) -> int:
    if isinstance(error, CannotWrite):
        return Exit.NO_SPACE
    return Exit.HALTED if isinstance(error, Halted | ModelError) else Exit.NOTHING_RUN


def _show_own_error(error: Exception) -> bool:
    """Show an error that came out of the user's own code, from there on; False if it did not."""
    from fedzo.core.importing import own_traceback

    own = own_traceback(error)
    if own is None:
        return False
    traceback.print_exception(type(error), error, own)
    last = traceback.extract_tb(own, limit=1)[0]
    where = f"{last.filename}, line {last.lineno}, in {last.name}"
    print(f"fedzo: error: {type(error).__name__} in your own code: {where}", file=sys.stderr)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedzo", description="Federated optimisation from loss values only."
    )
    parser.add_argument("--version", action="version", version=f"fedzo {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser
