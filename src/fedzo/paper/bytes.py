"""A figure of our own: what is sent up, by three uplinks."""

from __future__ import annotations

import numpy as np

from fedzo.paper.claims import Claim, Comparison, Runs, last, speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES

IDEAL, SEEDS, AIR = "ideal", "seeds and scalars", "over the air, 0 dB"
DIM, STEPS, DIRECTIONS = 7850, 5, 20


def same_for_fewer_bytes(runs: Runs) -> list[Comparison]:
    """Compare seeds with the ideal uplink: the same losses, d / (H b2) times fewer numbers."""
    differences = [
        max(abs(a["train_loss"] - b["train_loss"]) for a, b in zip(one, other, strict=True))
        for one, other in zip(runs[SEEDS], runs[IDEAL], strict=True)
    ]
    ratio = last(runs, IDEAL, "uplink_bytes") / last(runs, SEEDS, "uplink_bytes")
    return [
        Comparison("largest difference of two losses", np.array(differences), high=1e-12),
        Comparison("bytes up, ideal over seeds", ratio, low=0.9 * DIM / (STEPS * DIRECTIONS)),
    ]


def channel(runs: Runs) -> list[Comparison]:
    """Compare AirComp with devices that send one after another."""
    return [speed(runs, AIR, IDEAL, low=10, cost="channel_uses")]


FIGURE = Figure(
    name="bytes",
    title="Loss against what is sent up: softmax regression, FedZO (N = 50, H = 5)",
    about="M = 20; over the air who has a good channel takes part, about 26. d = 7850, H b2 = 100. "
    "A channel use carries one number.",
    curves=(
        Curve(IDEAL, ("algorithm.participants=20",), colour=0),
        Curve(SEEDS, ("algorithm.participants=20", "uplink.kind=seeds"), colour=1),
        Curve(AIR, ("uplink.kind=aircomp", "uplink.snr_db=0", "uplink.h_min=0.8"), colour=2),
    ),
    panels=(
        Panel("train_loss", x="uplink_bytes", log_x=True, curves=(IDEAL, SEEDS)),
        Panel("train_loss", x="channel_uses", log_x=True),
    ),
    claims=(
        Claim(
            "seeds",
            "Seeds and scalars give the same losses as the ideal uplink, to rounding (1e-12), for "
            "d / (H b2) = 78 times fewer bytes (70 with what a message needs beside).",
            same_for_fewer_bytes,
            by="fedzo",
        ),
        Claim(
            "channel uses",
            "Over the air at 0 dB the same loss takes at least 10 times fewer channel uses than "
            "one device after another.",
            channel,
            by="fedzo",
        ),
    ),
    scales=SCALES,
)
