"""``fedzo data``: list, fetch or show data."""

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_config, draw_to, load
from fedzo.errors import UsageError


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("data", help="list, fetch or show data")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="list data sets and their folders").set_defaults(
        command=list_data
    )
    getter = actions.add_parser("get", help="fetch a data set into the cache")
    getter.add_argument("name", metavar="NAME")
    getter.set_defaults(command=get)
    shower = actions.add_parser("show", help="draw the data of each device")
    add_config(shower)
    shower.add_argument("--out", type=Path, default=Path("split.png"), metavar="FILE")
    shower.set_defaults(command=show)


def list_data(_arguments: argparse.Namespace) -> int:
    """Print the data sets and their folders."""
    from fedzo import data

    for entry in data.catalogue():
        where = entry.folder or f"not here: fedzo data get {entry.name}"
        print(f"{entry.name:<20}{entry.about}\n{'':<20}{where}")
    return 0


def get(arguments: argparse.Namespace) -> int:
    """Fetch a data set, and print its folder."""
    from fedzo import data

    print(f"{arguments.name}: {data.get(arguments.name)}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Draw the data of each device."""
    from fedzo.plots.figures import draw_partition
    from fedzo.problems import Softmax

    problem = load(arguments).problem()
    if not isinstance(problem, Softmax):
        raise UsageError(f"{arguments.config}: this problem has no data to show", code="no-data")
    labels, classes, out = problem.data.train_labels, problem.data.classes, arguments.out
    draw_to(out, lambda: draw_partition(labels, problem.parts, classes, out))
    return 0
