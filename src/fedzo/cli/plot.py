"""``fedzo plot``: draw the curves of runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import draw_to


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("plot", help="draw the curves of runs")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the picture (curves.png)")
    parser.set_defaults(command=plot)


def plot(arguments: argparse.Namespace) -> int:
    """Draw the curves of the runs in one picture."""
    from fedzo.plots.curves import draw_curves
    from fedzo.runs.folder import read_runs

    alone = arguments.runs[0] if len(arguments.runs) == 1 else Path()
    out = arguments.out or alone / "curves.png"
    runs = read_runs(arguments.runs)
    draw_to(out, lambda: draw_curves(runs, out))
    return 0
