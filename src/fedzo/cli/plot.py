"""``fedzo plot``: draw the curves of runs.

Several runs, or folders of seeds, are drawn in one picture.

Examples::

    fedzo plot runs/softmax
    fedzo plot runs/a runs/b --label 'H = 5' 'H = 20' --x queries --out h.pdf
    fedzo plot runs/air --x joules --y train_loss test_accuracy --logx
"""

import argparse
from pathlib import Path
from typing import Any

from fedzo.cli.common import add_parser, draw_to
from fedzo.errors import InvalidValue, UsageError

SHORT = {"rounds": "round", "bytes": "uplink_bytes"}  # other words for keys of a history


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "plot", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--x",
        default="rounds",
        metavar="KEY",
        help="the quantity on the x axis: rounds, bytes, or any number of history.jsonl, such as "
        "queries, channel_uses, energy, seconds_on_air or joules (rounds)",
    )
    parser.add_argument(
        "--y", nargs="+", metavar="METRIC", help="the quantities to draw: keys of history.jsonl"
    )
    parser.add_argument("--logx", action="store_true", help="logarithmic x axis")
    parser.add_argument(
        "--logy",
        action="store_true",
        default=None,
        help="logarithmic y axis, even where it does not span decades",
    )
    parser.add_argument("--label", nargs="+", help="a name for each RUN_DIR")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the picture, .png, .svg or .pdf (curves.png)"
    )
    parser.set_defaults(command=plot)


def plot(arguments: argparse.Namespace) -> int:
    """Draw the curves of the runs in one picture."""
    from fedzo.plots.figures import check_keys, draw_curves
    from fedzo.runs.history import read_runs

    alone = arguments.runs[0] if len(arguments.runs) == 1 else Path()
    out = arguments.out or alone / "curves.png"
    runs = read_runs(arguments.runs)
    if arguments.label is not None:
        runs = dict(zip(_labels(arguments.label, len(runs)), runs.values(), strict=True))
    x, y = SHORT.get(arguments.x, arguments.x), arguments.y
    try:
        check_keys(runs, x, y)
    except InvalidValue as error:
        raise UsageError(f"--{error}", code="unknown-key") from error
    draw_to(out, lambda: draw_curves(runs, out, x, y, arguments.logx, arguments.logy))
    return 0


def _labels(given: list[str], runs: int) -> list[str]:
    """Return the labels; raise unless they differ, and there is one per run."""
    twice = len(set(given)) != len(given)
    if twice or len(given) != runs:
        reason = "two runs have the same name" if twice else f"{len(given)} names for {runs} runs"
        raise UsageError(f"--label {' '.join(given)}: {reason}", code="bad-labels")
    return given
