"""The command line, one file a command.

``main`` parses the arguments, runs the command and turns what went wrong into one line and an exit
code. This is the top of the house: it may import every room, and no room imports it.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from fedzo._version import __version__
from fedzo.cli import bench, data, node, plot, report, reproduce, run, sweep, theory
from fedzo.cli.common import Exit
from fedzo.core.progress import show
from fedzo.errors import CannotWrite, FedzoError, Halted, ModelError, UsageError, one_line

COMMANDS = (run, sweep, reproduce, report, plot, data, theory, bench, node)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    The codes are those of :class:`~fedzo.cli.common.Exit`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know the letter η
            stream.reconfigure(errors="replace")
    try:
        parser = _parser()
        arguments = parser.parse_args(argv)
        if arguments.command is not None:
            return int(arguments.command(arguments))
        parser.print_help()
        return Exit.DONE
    except (Exception, KeyboardInterrupt) as error:
        return _explain(error)
    finally:
        _flush()


def _explain(error: BaseException) -> Exit:
    """Say in one line what went wrong, or show the user's own code where it did; else raise."""
    if isinstance(error, FedzoError):
        code = _code_of(error)
    elif isinstance(error, MemoryError):
        return _complain(f"not enough memory: {error}", Exit.NO_SPACE)
    elif isinstance(error, KeyboardInterrupt):
        return _complain("interrupted", Exit.INTERRUPTED)
    elif _show_own_error(error):
        code = Exit.OWN_CODE
    elif isinstance(error, OSError):
        code = Exit.NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else Exit.NOTHING_RUN
        where = "" if error.filename is None else f"{error.filename}: "
        return _complain(f"{where}{error.strerror or error}", code)
    else:
        raise error
    return code if code == Exit.OWN_CODE else _complain(str(error), code)


def _complain(message: str, code: Exit) -> Exit:
    """Say in one line what went wrong, if anybody can read it."""
    lines = "\n".join(one_line(line) for line in message.split("\n"))  # data errors have several
    show(f"fedzo: error: {lines}")
    return code


def _flush() -> None:
    """Have the output written; a reader who has had enough, or a full disk, changes nothing."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # or Python complains of it at its own end
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _code_of(error: FedzoError) -> Exit:
    if isinstance(error, CannotWrite):
        return Exit.NO_SPACE
    return Exit.HALTED if isinstance(error, Halted | ModelError) else Exit.NOTHING_RUN


def _show_own_error(error: BaseException) -> bool:
    """Show an error that came out of the user's own code, from there on; False if it did not."""
    from fedzo.core.importing import own_traceback

    own = own_traceback(error)
    if own is None:
        return False
    show("".join(traceback.format_exception(type(error), error, own)), end="")
    last = traceback.extract_tb(own, limit=1)[0]
    where = f"{last.filename}, line {last.lineno}, in {last.name}"
    show(f"fedzo: error: {type(error).__name__} in your own code: {where}")
    return True


class Parser(argparse.ArgumentParser):
    """Complains as everything else does: in one line. Its subcommands' parsers are of its kind."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and end with the exit code of bad input."""
        raise UsageError(f"{message} ({self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fedzo", description="Federated optimisation from loss values only.")
    parser.add_argument("--version", action="version", version=f"fedzo {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser
