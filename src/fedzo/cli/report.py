"""``fedzo report``: write one page about a reproduction, or runs.

report.html has curves on axes of your choice, final values, and numbers as CSV.

Examples::

    fedzo report runs
    fedzo report reproduction
"""

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_parser


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "report", __doc__)
    help_text = "the --out of a reproduction, or a folder of runs"
    parser.add_argument("folder", type=Path, metavar="DIR", help=help_text)
    parser.set_defaults(command=report)


def report(arguments: argparse.Namespace) -> int:
    """Write the page, and print its path."""
    from fedzo.paper.report import write_report

    print(write_report(arguments.folder))
    return 0
