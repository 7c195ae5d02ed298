"""Fig. 1a: the loss of the attack for several numbers of local steps H, with DZOPA and ZONE-S.

This file also holds what the attack figures share: step sizes, scales and their cost. A query is a
forward pass, about 0.3 ms of one core. A local step makes b1 (b2 + 1) queries: 0.15 s in the
paper's setting, 5 ms at the quick scale.
"""

from fedzo.config.experiment import Changes, merge_changes
from fedzo.paper.claims import MUCH, Claim, ahead, falls, growing_speed, speed
from fedzo.paper.figure import Curve, Figure, Panel, Scale

RATE = {"learning_rate": 0.001, "smoothing": 0.001}  # the paper's, for FedZO
SETTING = "A universal perturbation of CIFAR-10's deer"

STEPS = (5, 10, 20, 50)
FEDZO = {h: f"FedZO, H = {h}" for h in STEPS}
DZOPA = "DZOPA"
ZONE_S, ZONE_S_MEAN = "ZONE-S, sum", "ZONE-S, mean"
READING = (
    "ZONE-S is shown for both readings of its ρ. As published it minimises the sum of the devices' "
    "losses, and the claims are judged on that; with their mean its steps are N times shorter."
)


def scales(changes: Changes, rounds: int, batch_size: int = 2) -> dict[str, Scale]:
    """Return the paper's scale, and one of minutes: fewer samples, directions and rounds."""
    quick = {"algorithm": {"batch_size": batch_size, "directions": 8}}
    paper = {"algorithm": {"batch_size": 25, "directions": 20}}
    return {
        "quick": Scale("attack", rounds, 5, merge_changes(quick, changes), points=12),
        "paper": Scale("attack-cifar10", 100, 5, merge_changes(paper, changes)),
    }


def zone_s(label: str, normalisation: str, colour: int, penalty: float = 500) -> Curve:
    """Return a curve of ZONE-S, which minimises the sum of the devices' losses or their mean."""
    algorithm = {"name": "zone_s", "penalty": penalty, "smoothing": 0.001}
    algorithm["normalisation"] = normalisation
    return Curve(label, {"algorithm": algorithm}, colour, dashed=True)


def dzopa(label: str, colour: int, rate: float = 0.005) -> Curve:
    """Return a curve of DZOPA."""
    algorithm = {"name": "dzopa", "learning_rate": rate, "smoothing": 0.001}
    return Curve(label, {"algorithm": algorithm}, colour, dashed=True)


CURVES = (
    *(
        Curve(label, {"algorithm": {"local_steps": h, **RATE}}, colour=i)
        for i, (h, label) in enumerate(FEDZO.items())
    ),
    dzopa(DZOPA, 4),
    zone_s(ZONE_S, "sum", 5),
    zone_s(ZONE_S_MEAN, "mean", 6),
)
# Quick: a round of all four H is 85 steps x 10 devices x 5 ms, with five seeds 23 s of one core.
SCALES = scales({"problem": {"devices": 10}}, rounds=30)

FIGURE = Figure(
    name="fig1a",
    title="Fig. 1a: attack loss, impact of H",
    about=f"{SETTING}. {READING} On the right the same runs by their queries: a round of FedZO "
    "makes H times as many queries as a round of DZOPA.",
    curves=CURVES,
    panels=(Panel("train_loss"), Panel("train_loss", x="queries", log_x=True)),
    claims=(
        Claim(
            "loss falls",
            "FedZO reduces the attack loss for each H.",
            lambda runs: [falls(runs, label) for label in FEDZO.values()],
        ),
        Claim(
            "faster in H",
            "More local steps make it faster.",
            lambda runs: growing_speed(runs, FEDZO.values()),
        ),
        Claim(
            "beats the baselines",
            "FedZO beats DZOPA and ZONE-S even with H = 5: it ends at a lower loss.",
            lambda runs: [ahead(runs, other, FEDZO[5], "train_loss") for other in (DZOPA, ZONE_S)],
        ),
        Claim(
            "much faster",
            "With many local steps, H = 50, it is much faster than both.",
            lambda runs: [speed(runs, FEDZO[50], other, low=MUCH) for other in (DZOPA, ZONE_S)],
        ),
    ),
    scales=SCALES,
)
