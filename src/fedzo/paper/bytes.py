"""A figure of our own: what is sent up, by three uplinks."""

from __future__ import annotations

import numpy as np

from fedzo.paper.claims import Claim, Comparison, Runs, last, speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, SETTING
from fedzo.paper.thresholds import FEWER_USES, OVERHEAD, SAME_LOSS

IDEAL, SEEDS, AIR = "ideal", "seeds and scalars", "over the air, 0 dB"
DIM, STEPS, DIRECTIONS = 7850, 5, 20
FEWER = DIM / (STEPS * DIRECTIONS)
# The server rebuilds every update from its coefficients, and ends the run where one is another.
BY_SEEDS = ("algorithm.participants=20", "uplink.name=seeds", "uplink.verify=true")


def same_for_fewer_bytes(runs: Runs) -> list[Comparison]:
    """Compare what is rebuilt from seeds with the ideal uplink: the same losses, fewer numbers."""
    differences = [
        max(abs(a["train_loss"] - b["train_loss"]) for a, b in zip(one, other, strict=True))
        for one, other in zip(runs[SEEDS], runs[IDEAL], strict=True)
    ]
    ratio = last(runs, IDEAL, "uplink_bytes") / last(runs, SEEDS, "uplink_bytes")
    return [
        Comparison("largest difference of two losses", np.array(differences), high=SAME_LOSS),
        Comparison("bytes up, ideal over seeds", ratio, low=OVERHEAD * FEWER),
    ]


def channel(runs: Runs) -> list[Comparison]:
    """Compare AirComp with devices that send one after another."""
    return [speed(runs, AIR, IDEAL, low=FEWER_USES, cost="channel_uses")]


FIGURE = Figure(
    name="bytes",
    title="Loss against what is sent up: softmax regression, FedZO",
    about=f"{SETTING}. By seeds every update is rebuilt from its coefficients. Over the air who "
    "has a good channel takes part. A channel use carries one number.",
    curves=(
        Curve(IDEAL, ("algorithm.participants=20",), colour=0),
        Curve(SEEDS, BY_SEEDS, colour=1),
        Curve(AIR, ("uplink.name=aircomp", "uplink.snr_db=0", "uplink.h_min=0.8"), colour=2),
    ),
    panels=(
        Panel("train_loss", x="uplink_bytes", log_x=True, curves=(IDEAL, SEEDS)),
        Panel("train_loss", x="channel_uses", log_x=True),
    ),
    claims=(
        Claim(
            "seeds",
            "Seeds and scalars give the same losses as the ideal uplink, for d / (H b2) times "
            "fewer bytes.",
            same_for_fewer_bytes,
            by="fedzo",
        ),
        Claim(
            "channel uses",
            "Over the air at 0 dB the same loss takes many times fewer channel uses than one "
            "device after another.",
            channel,
            by="fedzo",
        ),
    ),
    scales=SCALES,
)
