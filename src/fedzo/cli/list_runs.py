"""``fedzo list``: list runs with status, loss, queries and age.

The newest is the first. A run that was killed or interrupted can be resumed with
fedzo run RUN_DIR --resume.

Examples::

    fedzo list
    fedzo list sweeps/quadratic
"""

import argparse
import time
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_parser
from fedzo.core.progress import aligned, duration
from fedzo.errors import UsageError

HEADINGS = ("run", "status", "round", "loss", "queries", "age")


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "list", __doc__)
    default, text = Path("runs"), "the folder to search (runs)"
    parser.add_argument("folder", nargs="?", type=Path, default=default, metavar="DIR", help=text)
    parser.set_defaults(command=list_runs)


def list_runs(arguments: argparse.Namespace) -> int:
    """Print one line per run."""
    from fedzo.runs.store import RunFolder

    top: Path = arguments.folder
    if not top.is_dir():
        words = f"{top} is not a folder: fedzo run CONFIG makes runs, or name another folder"
        raise UsageError(words, code="no-folder")
    found = [RunFolder(mark.parent) for mark in top.rglob(RunFolder(top).mark.name)]
    runs = sorted((run for run in found if run.has_run()), key=lambda run: -run.changed)
    if not runs:
        raise UsageError(f"{top} holds no runs", code="no-run")
    rows = [HEADINGS, *(_row(run, top) for run in runs)]
    print(*aligned(rows, right=2), sep="\n")
    return 0


def _row(run: Any, top: Path) -> tuple[str, ...]:
    """Return the cells of a run; those of damaged files are '?'."""
    from fedzo.core.files import read_toml
    from fedzo.runs.history import read_history

    try:
        rounds = read_toml(run.config)["run"]["rounds"]
        records = list(read_history(run.history))
        last = records[-1] if records else {"round": 0}
        loss = f"{last['train_loss']:.6g}" if records else "-"
        cells = (f"{last['round']}/{rounds}", loss, f"{last.get('queries', 0):,}")
    except (UsageError, LookupError, TypeError):
        cells = ("?", "?", "?")
    name = str(run.path.relative_to(top)) if run.path != top else run.path.resolve().name
    return name, run.status, *cells, duration(time.time() - run.changed)
