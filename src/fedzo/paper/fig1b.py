"""Fig. 1b: the attack's loss, the number of devices in a round M."""

from __future__ import annotations

from fedzo.paper.attack import RATE, SETTING, paper, quick
from fedzo.paper.claims import Claim, falls, growing_speed
from fedzo.paper.figure import Curve, Figure, Panel

DEVICES = (5, 10, 25, 50)
STEPS = ("algorithm.local_steps=20",)


def fedzo(m: int) -> str:
    """Return a curve's label."""
    return f"M = {m}"


FIGURE = Figure(
    name="fig1b",
    title="Fig. 1b: attack loss, impact of M",
    about=f"{SETTING}. On the right the same runs by what they asked for.",
    curves=tuple(
        Curve(fedzo(m), (f"algorithm.participants={m}", *RATE), colour=i)
        for i, m in enumerate(DEVICES)
    ),
    panels=(Panel("train_loss"), Panel("train_loss", x="queries", log_x=True)),
    claims=(
        Claim(
            "loss falls",
            "FedZO reduces the attack loss for each M.",
            lambda runs: [falls(runs, fedzo(m)) for m in DEVICES],
        ),
        Claim(
            "faster in M",
            "More devices in a round make it faster.",
            lambda runs: growing_speed(runs, [fedzo(m) for m in DEVICES]),
        ),
    ),
    # Quick: a round of all four M is 90 devices x 20 steps x 2.7 ms, with five seeds 24 s. In the
    # first hundred steps the loss hardly falls at this η, so rounds keep all of the paper's H.
    scales={
        "quick": quick(50, rounds=12, changes=(*STEPS, "algorithm.batch_size=1")),
        "paper": paper(50, STEPS),
    },
)
