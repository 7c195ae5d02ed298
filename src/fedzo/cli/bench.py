"""``fedzo bench``: measure this machine."""

import argparse
from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("bench", help="measure this machine")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.set_defaults(command=bench)


def bench(arguments: argparse.Namespace) -> int:
    """Print times, ratios and memory."""
    from fedzo.cli.measure import run_benchmarks

    run_benchmarks(quick=arguments.quick)
    return 0
