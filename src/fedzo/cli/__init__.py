"""The command line, one file per command.

``main`` parses the arguments and runs the command. It turns errors into one line and an exit code.
This room may import every other room, and no room imports it.
"""

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
from fedzo.cli import audit, bench, data, node, plot, report, reproduce, run, sweep, theory
from fedzo.cli.common import Exit
from fedzo.core.importing import user_error
from fedzo.core.progress import show
from fedzo.errors import (
    CannotWrite,
    FedzoError,
    Halted,
    ModelError,
    UsageError,
    UserCodeError,
    one_line,
)

COMMANDS = (run, sweep, reproduce, report, plot, data, theory, bench, audit, node)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    The codes are those of :class:`~fedzo.cli.common.Exit`.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not support the letter η
            stream.reconfigure(errors="replace")
    arguments = None
    try:
        parser = _parser()
        arguments = parser.parse_args(argv)
        if arguments.command is not None:
            return int(arguments.command(arguments))
        parser.print_help()
        return Exit.DONE
    except BaseException as error:
        if arguments is None and isinstance(error, SystemExit):  # after --help
            raise
        return _explain(user_error(error))
    finally:
        _flush()


def _explain(error: BaseException) -> Exit:
    """Print an error in one line, or the traceback of the user's code; raise all other errors."""
    if isinstance(error, FedzoError):
        return _complain(str(error), _code_of(error))
    if isinstance(error, MemoryError):
        return _complain(f"not enough memory: {error}", Exit.NO_SPACE)
    if isinstance(error, KeyboardInterrupt):
        return _complain("interrupted", Exit.INTERRUPTED)
    if _show_own_error(error):
        return Exit.OWN_CODE
    if isinstance(error, OSError):
        code = Exit.NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else Exit.NOTHING_RUN
        where = "" if error.filename is None else f"{error.filename}: "
        return _complain(f"{where}{error.strerror or error}", code)
    raise error


def _complain(message: str, code: Exit) -> Exit:
    """Print an error in one line."""
    lines = "\n".join(one_line(line) for line in message.split("\n"))  # data errors have several
    show(f"fedzo: error: {lines}")
    return code


def _flush() -> None:
    """Flush the output; ignore a closed pipe and a full disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # or Python reports it again when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _code_of(error: FedzoError) -> Exit:
    if isinstance(error, CannotWrite):
        return Exit.NO_SPACE
    if isinstance(error, UserCodeError):
        return Exit.OWN_CODE
    return Exit.HALTED if isinstance(error, Halted | ModelError) else Exit.NOTHING_RUN


def _show_own_error(error: BaseException) -> bool:
    """Print the traceback of an error in the user's code; return False for any other error."""
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
    """Reports errors in one line, as all commands do. Parsers of subcommands inherit this."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which ends with the exit code of bad input."""
        raise UsageError(f"{message} ({self.prog} --help)", code="bad-arguments")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fedzo", description="Federated optimisation from loss values only.")
    parser.add_argument("--version", action="version", version=f"fedzo {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser
