"""A figure of our own: the attack with each algorithm's step size from a small grid."""

from __future__ import annotations

from fedzo.paper.attack import SETTING
from fedzo.paper.claims import Claim, Comparison, Runs, ahead, last, speed
from fedzo.paper.fig1a import DZOPA, SCALES, ZONE_S, dzopa, fedzo, zone_s
from fedzo.paper.figure import Curve, Figure, Panel, Points

FEDZO = fedzo(5)
RATES = (0.001, 0.002, 0.005, 0.01, 0.02)  # of FedZO the first three, of the others the last four
PRINTED = {FEDZO: 0.001, DZOPA: 0.005, ZONE_S: 0.002}


def label(name: str, rate: float) -> str:
    """Return a curve's label; at the printed step size it is Fig. 1a's."""
    return name if rate == PRINTED[name] else f"{name}, step {rate:g}"


def curve(name: str, rate: float, colour: int) -> Curve:
    """Return runs at a step size: η, and of ZONE-S 1/ρ."""
    if name == DZOPA:
        return dzopa(label(name, rate), colour, rate)
    if name == ZONE_S:
        return zone_s(label(name, rate), "sum", colour, penalty=round(1 / rate))
    changes = ("algorithm.local_steps=5", f"algorithm.learning_rate={rate}")
    return Curve(label(name, rate), (*changes, "algorithm.smoothing=0.001"), colour)


GRIDS = {FEDZO: RATES[:3], DZOPA: RATES[1:], ZONE_S: RATES[1:]}
STEPS = {name: {label(name, rate): rate for rate in grid} for name, grid in GRIDS.items()}
BOLD = label(DZOPA, 0.02)


def ranking(runs: Runs) -> list[Comparison]:
    """Compare success where DZOPA is at its boldest and where it is as printed."""
    return [
        ahead(runs, BOLD, FEDZO, "attack_success"),
        ahead(runs, BOLD, DZOPA, "attack_success"),
    ]


def at_their_best(runs: Runs) -> list[Comparison]:
    """Compare the losses at the end, each algorithm with the step size of its grid that is best."""
    best = {name: min(grid, key=lambda k: last(runs, k).mean()) for name, grid in STEPS.items()}
    return [ahead(runs, best[other], best[FEDZO], "train_loss") for other in (DZOPA, ZONE_S)]


FIGURE = Figure(
    name="baselines",
    title="Step sizes: the attack by FedZO and by its baselines",
    about=f"{SETTING}. Each algorithm with step sizes from a grid, which is η, and 1/ρ for ZONE-S; "
    "points are means over the second half of the rounds. Which algorithm looks best depends on "
    "them, and on whether one asks for loss or success.",
    curves=tuple(
        curve(name, rate, i) for i, (name, grid) in enumerate(GRIDS.items()) for rate in grid
    ),
    panels=(
        Points("train_loss", "step size", STEPS, log_y=False),
        Points("attack_success", "step size", STEPS, log_y=False),
        Panel("train_loss", x="queries", log_x=True, curves=(FEDZO, DZOPA, ZONE_S)),
    ),
    claims=(
        Claim(
            "each at its best",
            "With each algorithm at the step size of its grid that ends at the least loss, FedZO "
            "with H = 5 still ends below DZOPA and ZONE-S.",
            at_their_best,
            by="fedzo",
        ),
        Claim(
            "DZOPA by queries",
            "At equal queries DZOPA is ahead of FedZO with H = 5, both as printed: it takes fewer "
            "queries to the same loss.",
            lambda runs: [speed(runs, DZOPA, FEDZO, cost="queries")],
            by="fedzo",
        ),
        Claim(
            "ranking by step size",
            "The ranking by success depends on the step size: DZOPA with 0.02 succeeds more often "
            "than as printed, and more often than FedZO with H = 5.",
            ranking,
            by="fedzo",
        ),
    ),
    scales=SCALES,
)
