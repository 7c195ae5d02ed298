"""Fig. 1a: the attack's loss, the number of local steps H, against DZOPA and ZONE-S."""

from __future__ import annotations

from fedzo.paper.attack import SETTING, paper, quick
from fedzo.paper.claims import Claim, Comparison, Runs, ahead, falls, growing_speed, speed
from fedzo.paper.figure import Curve, Figure, Panel

STEPS = (5, 10, 20, 50)
DZOPA, ZONE_S = "DZOPA", "ZONE-S"


def fedzo(h: int) -> str:
    """Return the label of FedZO's curve."""
    return f"FedZO, H = {h}"


def beats_baselines(runs: Runs) -> list[Comparison]:
    """Compare the losses at the end."""
    return [ahead(runs, other, fedzo(5), "train_loss") for other in (DZOPA, ZONE_S)]


CURVES = (
    *(
        Curve(
            fedzo(h),
            (
                f"algorithm.local_steps={h}",
                "algorithm.learning_rate=0.001",
                "algorithm.smoothing=0.001",
            ),
            colour=i,
        )
        for i, h in enumerate(STEPS)
    ),
    Curve(
        DZOPA,
        ("algorithm.name=dzopa", "algorithm.learning_rate=0.005", "algorithm.smoothing=0.001"),
        colour=4,
        dashed=True,
    ),
    Curve(
        ZONE_S,
        ("algorithm.name=zone_s", "algorithm.penalty=500", "algorithm.smoothing=0.001"),
        colour=5,
        dashed=True,
    ),
)
# Quick: a round of all four H is 85 steps x 10 devices x 6 ms, with three seeds 15 s of one core.
SCALES = {"quick": quick(10, rounds=40), "paper": paper(10)}

FIGURE = Figure(
    name="fig1a",
    title="Fig. 1a: attack loss, impact of H (N = M = 10)",
    about=f"{SETTING}; DZOPA with η = 0.005, ZONE-S with ρ = 500.",
    curves=CURVES,
    panels=(Panel("train_loss"),),
    claims=(
        Claim(
            "loss falls",
            "FedZO reduces the attack loss for each H.",
            lambda runs: [falls(runs, fedzo(h)) for h in STEPS],
        ),
        Claim(
            "faster in H",
            "More local steps make it faster: fewer rounds to the same loss.",
            lambda runs: growing_speed(runs, [fedzo(h) for h in STEPS]),
        ),
        Claim(
            "beats the baselines",
            "FedZO beats DZOPA and ZONE-S even with H = 5: it ends at a lower loss.",
            beats_baselines,
        ),
        Claim(
            "much faster",
            "With many local steps it is much faster than both: with H = 50 they take at least "
            "twice the rounds.",
            lambda runs: [speed(runs, fedzo(50), other, low=2) for other in (DZOPA, ZONE_S)],
        ),
    ),
    scales=SCALES,
)
