"""``fedzo sweep``: try every combination of some settings.

The runs are side by side in processes. Runs that DIR already holds are not repeated, so the same
command resumes an interrupted sweep. DIR/sweep.csv and sweep.png show the results; best.toml is the
setting with the lowest final training loss.

Examples::

    fedzo sweep quadratic --grid algorithm.learning_rate=0.005,0.01,0.02
    fedzo sweep softmax --set uplink.name=aircomp --grid uplink.snr_db=-5,0,5
"""

import argparse
import shlex
from pathlib import Path
from typing import Any

from fedzo.cli.common import BatchProgress, add_config, add_parser, check_seeds, say


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "sweep", __doc__)
    add_config(parser)
    parser.add_argument(
        "--grid",
        action="append",
        required=True,
        metavar="TABLE.KEY=A,B,C",
        help="the values of a setting; several times for every combination",
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="K", help="number of seeds (1)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the results go (sweeps/CONFIG)"
    )
    parser.set_defaults(command=sweep, resumes=True)


def sweep(arguments: argparse.Namespace) -> int:
    """Do the runs, and print the results."""
    from fedzo.config.experiment import parse_overrides
    from fedzo.config.jobs import RunsFailed
    from fedzo.config.sweep import settings_of
    from fedzo.config.sweep import sweep as run_settings
    from fedzo.runs.callbacks import Interrupts

    check_seeds(arguments.seeds)
    out = arguments.out or Path("sweeps") / Path(arguments.config).stem
    changes = parse_overrides(arguments.set)
    settings = settings_of(arguments.config, changes, arguments.grid, arguments.seeds, out)
    with BatchProgress() as progress, Interrupts():
        best, table, failed = run_settings(settings, out, progress)
    say(table)
    say(f"{out}/: sweep.csv" + " sweep.png best.toml" * (best is not None))
    if best is not None:
        say(f"the best: {best.label}; {shlex.join(['fedzo', 'run', str(out / 'best.toml')])}")
    if failed:
        raise RunsFailed(failed)
    return 0
