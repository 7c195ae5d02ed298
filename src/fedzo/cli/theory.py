"""``fedzo theory``: apply the theorems to a configuration.

Prints the limits of the learning rate, the bound on the gradient, and better settings.

Examples::

    fedzo theory quadratic
    fedzo theory softmax --estimate 200000
    fedzo theory softmax --constants L=2,gap=2.3,sigma_g=1,sigma_h=0.5
"""

import argparse
from typing import Any

from fedzo.cli.common import add_config, add_parser, load
from fedzo.errors import UsageError


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_parser(commands, "theory", __doc__)
    add_config(parser)
    known = parser.add_mutually_exclusive_group()
    known.add_argument(
        "--estimate",
        type=int,
        nargs="?",
        const=500_000,
        metavar="QUERIES",
        help="measure the constants with at most QUERIES queries",
    )
    known.add_argument("--constants", metavar="L=...,gap=...", help="give the constants")
    parser.set_defaults(command=theory)


def theory(arguments: argparse.Namespace) -> int:
    """Print bounds, limits and advice."""
    from fedzo.core.capabilities import HasConstants
    from fedzo.theory import Constants, Estimate, estimate, report

    experiment = load(arguments)
    objective = experiment.problem()
    known = objective.capability(HasConstants)
    constants: Constants | Estimate
    if arguments.constants is not None:
        constants = Constants.parse(arguments.constants)
    elif arguments.estimate is not None:
        seed = experiment.options.seed
        constants = estimate(objective, queries=arguments.estimate, seed=seed)
    elif known is not None:
        constants = Constants(**known.constants())
    else:
        raise UsageError(
            f"{arguments.config}: the problem's constants are not known; measure them with "
            "--estimate, or give them with --constants L=...,gap=...",
            code="unknown-constants",
        )
    found = report(
        experiment.algorithm,
        constants,
        devices=objective.devices,
        dim=objective.dim,
        rounds=experiment.options.rounds,
        uplink=experiment.uplink,
        seed=experiment.options.seed,
    )
    print(found.text())
    return 0
