"""``fedzo reproduce`` and ``fedzo report``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from fedzo.errors import UsageError
from fedzo.paper import FIGURES

SCALES = ("quick", "paper")


def add_commands(commands: Any) -> None:
    """Add the two commands to the command line's parser."""
    again = commands.add_parser(
        "reproduce",
        help="reproduce figures of the paper, judge its claims",
        description="Run what figures show, draw them and judge the paper's claims. What DIR has "
        "of the runs is not done again, so an interrupted reproduction goes on where it stopped.",
    )
    again.add_argument("figures", nargs="+", metavar="FIGURE", help=f"{', '.join(FIGURES)}, or all")
    again.add_argument(
        "--scale",
        choices=SCALES,
        default="quick",
        help="minutes a figure (the default), or the paper's own size",
    )
    again.add_argument(
        "--seeds", type=int, metavar="K", help="how many; the scale's own by default"
    )
    again.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction"),
        metavar="DIR",
        help="where runs, pictures, claims and the report go (reproduction by default)",
    )
    again.set_defaults(command=_reproduce)

    report = commands.add_parser("report", help="one page of a reproduction, or of runs")
    report.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="what --out was, or a folder of runs",
    )
    report.set_defaults(command=_report)


def _reproduce(arguments: argparse.Namespace) -> int:
    from fedzo.paper import find_figure
    from fedzo.paper.progress import Overall
    from fedzo.paper.reproduce import reproduce, words
    from fedzo.report import write_report

    if arguments.seeds is not None and arguments.seeds < 1:
        raise UsageError(f"--seeds {arguments.seeds}: must be a whole number >= 1")
    names = FIGURES if "all" in arguments.figures else tuple(dict.fromkeys(arguments.figures))
    figures = [find_figure(name) for name in names]
    before = signal.signal(signal.SIGTERM, _interrupt)
    line = Overall(sys.stderr)
    try:
        judged = reproduce(figures, arguments.scale, arguments.out, arguments.seeds, report=line)
    finally:
        line.close()
        signal.signal(signal.SIGTERM, before)
    for name, claims in judged.items():
        for claim in claims:
            print(f"{name:<11}{claim['verdict']:<15}{claim['text']}")
            for measured in claim["measured"]:
                print(f"{'':<26}{measured['what']}: {words(measured)}")
    print(write_report(arguments.out))
    return 0


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def _report(arguments: argparse.Namespace) -> int:
    from fedzo.report import write_report

    print(write_report(arguments.folder))
    return 0
