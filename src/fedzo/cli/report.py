"""``fedzo report``: write one page about a reproduction, or about runs."""

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("report", help="write one page about a reproduction, or runs")
    help_text = "the --out of a reproduction, or a folder of runs"
    parser.add_argument("folder", type=Path, metavar="DIR", help=help_text)
    parser.set_defaults(command=report)


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and print its path."""
    from fedzo.paper.report import write_report

    print(write_report(arguments.folder))
    return 0
