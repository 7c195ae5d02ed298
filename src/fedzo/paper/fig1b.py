"""Fig. 1b: the loss of the attack for several numbers of devices per round M."""

from fedzo.paper.claims import Claim, falls, growing_speed
from fedzo.paper.fig1a import RATE, SETTING, scales
from fedzo.paper.figure import Curve, Figure, Panel

LABELS = {m: f"M = {m}" for m in (5, 10, 25, 50)}
# Quick: a round of all four M is 90 devices x 20 steps x 2.7 ms, with five seeds 24 s. In the first
# hundred steps the loss hardly falls at this η, so rounds keep all of the paper's H.
_CHANGES = {"problem": {"devices": 50}, "algorithm": {"local_steps": 20}}
SCALES = scales(_CHANGES, rounds=12, batch_size=1)

FIGURE = Figure(
    name="fig1b",
    title="Fig. 1b: attack loss, impact of M",
    about=f"{SETTING}. On the right the same runs by their queries.",
    curves=tuple(
        Curve(label, {"algorithm": {"participants": m, **RATE}}, colour=i)
        for i, (m, label) in enumerate(LABELS.items())
    ),
    panels=(Panel("train_loss"), Panel("train_loss", x="queries", log_x=True)),
    claims=(
        Claim(
            "loss falls",
            "FedZO reduces the attack loss for each M.",
            lambda runs: [falls(runs, label) for label in LABELS.values()],
        ),
        Claim(
            "faster in M",
            "More devices in a round make it faster.",
            lambda runs: growing_speed(runs, LABELS.values()),
        ),
    ),
    scales=SCALES,
)
