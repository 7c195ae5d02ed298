"""Fig. 1a: the attack's loss, the number of local steps H, against DZOPA and ZONE-S."""

from __future__ import annotations

from fedzo.paper.attack import RATE, SETTING, paper, quick
from fedzo.paper.claims import Claim, Comparison, Runs, ahead, falls, growing_speed, speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.thresholds import MUCH

STEPS = (5, 10, 20, 50)
DZOPA = "DZOPA"
ZONE_S, ZONE_S_MEAN = "ZONE-S, sum", "ZONE-S, mean"
READING = (
    "ZONE-S is shown for both readings of its ρ. As published it minimises the sum of the devices' "
    "losses, and the claims are judged on that; with their mean its steps are N times shorter."
)


def fedzo(h: int) -> str:
    """Return the label of FedZO's curve."""
    return f"FedZO, H = {h}"


def zone_s(label: str, normalisation: str, colour: int, penalty: float = 500) -> Curve:
    """Return a curve of ZONE-S, which minimises the sum of the devices' losses or their mean."""
    changes = ("algorithm.name=zone_s", f"algorithm.penalty={penalty}", "algorithm.smoothing=0.001")
    reading = f"algorithm.normalisation={normalisation}"
    return Curve(label, (*changes, reading), colour, dashed=True)


def dzopa(label: str, colour: int, rate: float = 0.005) -> Curve:
    """Return a curve of DZOPA."""
    changes = ("algorithm.name=dzopa", f"algorithm.learning_rate={rate}")
    return Curve(label, (*changes, "algorithm.smoothing=0.001"), colour, dashed=True)


def beats_baselines(runs: Runs) -> list[Comparison]:
    """Compare the losses at the end."""
    return [ahead(runs, other, fedzo(5), "train_loss") for other in (DZOPA, ZONE_S)]


CURVES = (
    *(
        Curve(fedzo(h), (f"algorithm.local_steps={h}", *RATE), colour=i)
        for i, h in enumerate(STEPS)
    ),
    dzopa(DZOPA, 4),
    zone_s(ZONE_S, "sum", 5),
    zone_s(ZONE_S_MEAN, "mean", 6),
)
# Quick: a round of all four H is 85 steps x 10 devices x 5 ms, with five seeds 23 s of one core.
SCALES = {"quick": quick(10, rounds=30), "paper": paper(10)}

FIGURE = Figure(
    name="fig1a",
    title="Fig. 1a: attack loss, impact of H",
    about=f"{SETTING}. {READING} On the right the same runs by what they asked for: a round of "
    "FedZO asks for H times as much as one of DZOPA.",
    curves=CURVES,
    panels=(Panel("train_loss"), Panel("train_loss", x="queries", log_x=True)),
    claims=(
        Claim(
            "loss falls",
            "FedZO reduces the attack loss for each H.",
            lambda runs: [falls(runs, fedzo(h)) for h in STEPS],
        ),
        Claim(
            "faster in H",
            "More local steps make it faster.",
            lambda runs: growing_speed(runs, [fedzo(h) for h in STEPS]),
        ),
        Claim(
            "beats the baselines",
            "FedZO beats DZOPA and ZONE-S even with H = 5: it ends at a lower loss.",
            beats_baselines,
        ),
        Claim(
            "much faster",
            "With many local steps, H = 50, it is much faster than both.",
            lambda runs: [speed(runs, fedzo(50), other, low=MUCH) for other in (DZOPA, ZONE_S)],
        ),
    ),
    scales=SCALES,
)
