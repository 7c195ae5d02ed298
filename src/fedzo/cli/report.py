"""``fedzo report``: one page of a reproduction, or of runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("report", help="one page of a reproduction, or of runs")
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="what --out was, or a folder of runs"
    )
    parser.set_defaults(command=report)


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and print where it is."""
    from fedzo.paper.report import write_report

    print(write_report(arguments.folder))
    return 0
