"""``fedzo bench``: measure this machine.

Prints the time of a round of the paper's softmax experiment, and its queries per second.

Examples::

    fedzo bench --quick
"""

import argparse
from typing import Any

from fedzo.cli.common import add_parser


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "bench", __doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.set_defaults(command=bench)


def bench(arguments: argparse.Namespace) -> int:
    """Print the measurements."""
    from fedzo.cli.measure import run_benchmarks

    run_benchmarks(quick=arguments.quick)
    return 0
