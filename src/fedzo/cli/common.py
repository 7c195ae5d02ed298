"""What several commands share: exit codes, options, progress, and messages about bad input."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from fedzo.core.importing import FULL
from fedzo.core.progress import LiveLine, duration
from fedzo.errors import CannotWrite, MissingExtra, UsageError, shown

if TYPE_CHECKING:
    from fedzo.config.experiment import Experiment

MOST_SEEDS = 10_000  # each has a folder


class BatchProgress(LiveLine):
    """Shows the progress of many runs in one line: runs done, share of the work, time left.

    Without a terminal, it writes a plain line after each twentieth of the work.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(sys.stderr if stream is None else stream)
        self._began, self._twentieth = time.monotonic(), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __call__(self, share: float, done: int, runs: int) -> None:
        """Show the share of the work done, and the number of runs done."""
        seconds = time.monotonic() - self._began
        text = f"{done}/{runs} runs  {share:.0%}"
        if share > 0.01:
            text += f"  {duration(seconds * (1 - share) / share)} left"
        if self.live:
            self.rewrite(text)
        elif int(20 * share) > self._twentieth or done == runs:
            self._twentieth = int(20 * share)
            self.write(text + "\n")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Breaks lines between words only: not after the hyphens of an option."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return fill(text, width).split("\n")


def add_parser(commands: Any, name: str, doc: str | None) -> argparse.ArgumentParser:
    """Add the parser of a command. Its help is a docstring: summary, description, examples."""
    text, _, examples = inspect.cleandoc(doc or "").partition("\n\nExamples::\n")
    about = " ".join(text.split("\n\n")[0].split()).removeprefix(f"``fedzo {name}``: ").rstrip(".")
    more = " ".join(text.partition("\n\n")[2].split())
    whole = fill(f"{about[:1].upper()}{about[1:]}. {more}", 79)
    epilog = "examples:" + examples.replace("\n    ", "\n  ").rstrip()
    shown: dict[str, Any] = {"help": about, "description": whole, "epilog": epilog}
    parser: argparse.ArgumentParser = commands.add_parser(name, formatter_class=_Help, **shown)
    return parser


def fill(text: str, width: int, indent: int = 0) -> str:
    r"""Break a text into lines between words; further lines are indented.

    >>> fill("files  a/: config.toml history.jsonl", 22, indent=7)
    'files  a/: config.toml\n       history.jsonl'
    """
    space = " " * indent
    return textwrap.fill(
        text, width, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that reads a configuration."""
    names = sorted(path.name[:-5] for path in (files("fedzo") / "config" / "shipped").iterdir())
    text = f"a TOML file, the folder of a run, or a shipped name: {', '.join(names)}"
    parser.add_argument("config", metavar="CONFIG", help=text)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="change a setting; may be given several times",
    )


def load(arguments: argparse.Namespace) -> Experiment:
    """Return the experiment of the arguments CONFIG and ``--set``."""
    from fedzo.config.experiment import Experiment, parse_overrides

    return Experiment.load(arguments.config, parse_overrides(arguments.set))


def say(text: str) -> None:
    """Print, if possible: a full disk or a closed pipe must not fail the run."""
    with suppress(OSError, ValueError):
        print(text, flush=True)


def check_seeds(seeds: int | None) -> None:
    """Raise unless ``--seeds`` is a number of runs."""
    if seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        words = f"--seeds {shown(seeds)}: must be a whole number from 1 to {MOST_SEEDS:,}"
        raise UsageError(words, code="bad-seeds")


def draw_to(out: Path, draw: Callable[[], None]) -> None:
    """Draw a picture, and print its path; raise UsageError if its file cannot be written."""
    try:
        draw()
    except CannotWrite as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in FULL:
            raise UsageError(str(error), code=error.code) from error  # bad input
        raise
    except (OSError, ValueError) as error:  # ValueError: an unknown format
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot write {out}: {reason}", code="cannot-write") from error
    print(out)


def add_action(actions: Any, run: Any, folder: Path) -> argparse.ArgumentParser:
    """Add an action on a folder to the parser of a command; its help is its docstring."""
    action = add_parser(actions, run.__name__, run.__doc__)
    action.add_argument("--dir", type=Path, default=folder, help=f"the folder ({folder})")
    action.set_defaults(command=run)
    return action


def prepare(folder: Path | None) -> None:
    """Set what Flower and Numba read when they are imported."""
    if find_spec("flwr") is None:
        raise MissingExtra("a federation needs Flower", "flower")
    if folder is not None:
        from fedzo.flower.allowlist import environment

        os.environ.update(environment(folder.absolute()))
