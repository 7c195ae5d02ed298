"""The command line, one file per command.

``main`` parses the arguments and runs the command. It turns errors into one line and an exit code.
This room may import every other room, and no room imports it.
"""

import argparse
import io
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from shutil import get_terminal_size
from typing import Any, NoReturn

from fedzo._version import __version__
from fedzo.cli.common import fill
from fedzo.core.importing import failure_of, own_traceback, user_error
from fedzo.core.progress import LiveLine, show
from fedzo.errors import Exit, FedzoError, UsageError, nearest, one_line

COMMANDS = "run list_runs plot report sweep reproduce theory audit receipt data bench node server"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    The codes are those of :class:`~fedzo.errors.Exit`.
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
        words = sys.argv[1:] if argv is None else argv
        return _explain(
            user_error(error), words if arguments is not None and arguments.resumes else ()
        )
    finally:
        _flush()


def _explain(error: BaseException, again: Sequence[str]) -> Exit:
    """Print an error in one line, or the traceback of the user's code; raise all other errors.

    ``again`` is the command that resumes what was interrupted, if there is one.
    """
    failure = failure_of(error)
    if failure is None:
        raise error
    if failure.code == Exit.CLOSED_PIPE:  # nobody reads it
        return failure.code
    own = None if isinstance(error, FedzoError | KeyboardInterrupt) else own_traceback(error)
    if own is not None:
        show("".join(traceback.format_exception(type(error), error, own)), end="")
    if again and isinstance(error, KeyboardInterrupt):
        show(f"to resume: {shlex.join(['fedzo', *again])}")
    # Errors about data have several lines.
    lines = "\n".join(one_line(line) for line in failure.message.split("\n"))
    wide = get_terminal_size().columns - 1 if LiveLine(sys.stderr).live else len(lines) + 20
    show("\n".join(fill(line, wide) for line in f"fedzo: error: {lines}".split("\n")))
    return failure.code


def _flush() -> None:
    """Flush the output; ignore a closed pipe and a full disk."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):  # or Python reports it again when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, as all commands do. Parsers of subcommands inherit this."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and raise UsageError for what is left: a subcommand's help lists what it takes."""
        found, extras = super().parse_known_args(args, namespace)
        if extras:
            known = nearest(extras[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {shlex.join(extras)}{known}")
        return found, extras

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which ends with the exit code of bad input."""
        if wrong := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += nearest(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        raise UsageError(f"{message} ({self.prog} --help)", code="bad-arguments")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fedzo",
        description="Federated optimisation from loss values only.",
        epilog="example: fedzo run softmax; then fedzo list, and fedzo COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"fedzo {__version__}")
    parser.set_defaults(command=None, resumes=False)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS.split():
        import_module(f"fedzo.cli.{command}").add_command(commands)
    return parser
