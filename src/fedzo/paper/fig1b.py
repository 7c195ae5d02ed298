"""Fig. 1b: the attack's loss, the number of devices in a round M."""

from __future__ import annotations

from fedzo.paper.attack import SETTING, paper, quick
from fedzo.paper.claims import Claim, falls, growing_speed
from fedzo.paper.figure import Curve, Figure, Panel

DEVICES = (5, 10, 25, 50)


def fedzo(m: int) -> str:
    """Return a curve's label."""
    return f"M = {m}"


FIGURE = Figure(
    name="fig1b",
    title="Fig. 1b: attack loss, impact of M (N = 50, H = 20)",
    about=f"{SETTING}.",
    curves=tuple(
        Curve(fedzo(m), (f"algorithm.participants={m}",), colour=i) for i, m in enumerate(DEVICES)
    ),
    panels=(Panel("train_loss"),),
    claims=(
        Claim(
            "loss falls",
            "FedZO reduces the attack loss for each M.",
            lambda runs: [falls(runs, fedzo(m)) for m in DEVICES],
            reason="At the quick scale an estimate has b1 = 2 and b2 = 10: over five devices its "
            "noise is nearly as large as what it gains, and seeds differ in which wins.",
        ),
        Claim(
            "faster in M",
            "More devices in a round make it faster: fewer rounds to the same loss.",
            lambda runs: growing_speed(runs, [fedzo(m) for m in DEVICES]),
        ),
    ),
    # Quick: a round of all four M is 90 devices x 5 steps x 6 ms, with three seeds 8 s.
    scales={
        "quick": quick(50, rounds=60, changes=("algorithm.local_steps=5",), about="H = 5"),
        "paper": paper(50, ("algorithm.local_steps=20",)),
    },
)
