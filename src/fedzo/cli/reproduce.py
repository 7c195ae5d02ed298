"""``fedzo reproduce``: draw figures of the paper, and judge its claims.

Runs that DIR already holds are not repeated, so the same command resumes an interrupted
reproduction.

Examples::

    fedzo reproduce fig3
    fedzo reproduce fig1a table1 --seeds 2
    fedzo reproduce all --scale paper --out results
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedzo.cli.common import BatchProgress, add_parser, check_seeds, say
from fedzo.core.progress import show
from fedzo.errors import UsageError
from fedzo.paper import ALL, FIGURES

if TYPE_CHECKING:
    from fedzo.paper.figure import Figure

SCALES = ("quick", "paper")
MINUTE = 60.0


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "reproduce", __doc__)
    parser.add_argument(
        "figures", nargs="+", metavar="FIGURE", help=f"{', '.join(FIGURES)}, or all (except victim)"
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="quick",
        help="minutes per figure (the default), or the paper's size",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="K", help="number of seeds; that of the scale by default"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reproduction"),
        metavar="DIR",
        help="where runs, pictures, claims and the report go (reproduction by default)",
    )
    parser.set_defaults(command=reproduce, resumes=True)


def reproduce(arguments: argparse.Namespace) -> int:
    """Do the missing runs, draw the figures, judge the claims, and write the report."""
    from fedzo.paper import find_figure
    from fedzo.paper.report import write_report
    from fedzo.paper.reproduce import reproduce as run_figures
    from fedzo.paper.reproduce import words
    from fedzo.runs.callbacks import Interrupts

    check_seeds(arguments.seeds)
    asked = (ALL if name == "all" else (name,) for name in arguments.figures)
    names = dict.fromkeys(name for each in asked for name in each)
    figures = [find_figure(name) for name in names]
    _check_models(figures, arguments.scale)
    _print_time(figures, arguments)
    scale, seeds = arguments.scale, arguments.seeds
    with BatchProgress() as progress, Interrupts():
        judged = run_figures(figures, scale, arguments.out, seeds, report=progress)
    for name, claims in judged.items():
        for claim in claims:
            say(f"{name:<11}{claim['verdict']:<21}{claim['text']}")
            for measured in claim["measured"]:
                say(f"{'':<32}{measured['what']}: {words(measured)}")
    say(str(write_report(arguments.out)))
    return 0


def _check_models(figures: list[Figure], scale: str) -> None:
    """Raise if a figure attacks a network that is not installed."""
    from fedzo.models.loading import shipped

    for figure in figures:
        for tables in figure.tables(scale).values():
            model = tables["problem"].get("model")
            if model is not None and model not in shipped():
                command = f"python tools/train_victim.py {model.rpartition('-')[2]}"
                words = f"{figure.name}: the network {model} is missing; train it with {command}"
                raise UsageError(words, code="missing-model")


def _print_time(figures: list[Figure], arguments: argparse.Namespace) -> None:
    """Print the estimated time if it is long."""
    from fedzo.core.machine import cores
    from fedzo.core.progress import duration
    from fedzo.paper.reproduce import seconds_left

    seconds = seconds_left(figures, arguments.scale, arguments.out, arguments.seeds)
    if seconds >= MINUTE:
        show(f"about {duration(seconds)} without other load (cores: {cores()})")
