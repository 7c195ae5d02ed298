"""``fedzo data``: list, fetch or show data.

Examples::

    fedzo data list
    fedzo data get fashion-mnist
    fedzo data show softmax
"""

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_config, add_parser, draw_to, fill, load
from fedzo.errors import UsageError


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "data", __doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    add_parser(actions, "list", list_data.__doc__).set_defaults(command=list_data)
    getter = add_parser(actions, "get", get.__doc__)
    getter.add_argument("name", metavar="NAME", help="a name that fedzo data list prints")
    getter.set_defaults(command=get)
    shower = add_parser(actions, "show", show.__doc__)
    add_config(shower)
    shower.add_argument("--out", type=Path, default=Path("split.png"), metavar="FILE")
    shower.set_defaults(command=show)


def list_data(_arguments: argparse.Namespace) -> int:
    """List data sets and their folders.

    Examples::

        fedzo data list
    """
    from fedzo import data

    for entry in data.catalogue():
        where = entry.folder or f"not here: fedzo data get {entry.name}"
        print(fill(f"{entry.name:<20}{entry.about}", 79, 20) + f"\n{'':<20}{where}")
    return 0


def get(arguments: argparse.Namespace) -> int:
    """Fetch a data set into the cache.

    Examples::

        fedzo data get fashion-mnist
    """
    from fedzo import data

    print(f"{arguments.name}: {data.get(arguments.name)}")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Draw the data of each device.

    Examples::

        fedzo data show softmax --out split.png
    """
    from fedzo.plots.figures import draw_partition
    from fedzo.problems import Softmax

    problem = load(arguments).problem()
    if not isinstance(problem, Softmax):
        raise UsageError(f"{arguments.config}: this problem has no data to show", code="no-data")
    labels, classes, out = problem.data.train_labels, problem.data.classes, arguments.out
    draw_to(out, lambda: draw_partition(labels, problem.parts, classes, out))
    return 0
