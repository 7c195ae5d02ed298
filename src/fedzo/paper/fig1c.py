"""Fig. 1c: the attack's loss over the air, the signal-to-noise ratio."""

from __future__ import annotations

from dataclasses import replace

from fedzo.paper.air import CURVES, FREE, NOISY
from fedzo.paper.attack import RATE, SETTING, paper, quick
from fedzo.paper.claims import Claim, falls, gap, growing_speed
from fedzo.paper.fig1b import STEPS
from fedzo.paper.figure import Figure, Panel
from fedzo.paper.thresholds import COMPARABLE_LOSS

FIGURE = Figure(
    name="fig1c",
    title="Fig. 1c: attack loss over the air, impact of SNR",
    about=f"{SETTING}. AirComp over Rayleigh fading: who has a good channel takes part.",
    curves=tuple(replace(curve, changes=(*curve.changes, *RATE)) for curve in CURVES),
    panels=(Panel("train_loss"),),
    claims=(
        Claim(
            "converges",
            "FedZO over the air converges at each SNR: the loss falls.",
            lambda runs: [falls(runs, label) for label in NOISY],
        ),
        Claim(
            "faster in SNR",
            "A greater SNR makes it faster.",
            lambda runs: growing_speed(runs, NOISY),
        ),
        Claim(
            "comparable",
            "At 0 dB it is comparable to the noise-free case.",
            lambda runs: [gap(runs, "SNR = 0 dB", FREE, COMPARABLE_LOSS)],
        ),
    ),
    # Quick: a round of all four is 4 x 26 devices x 20 steps x 2.7 ms, with five seeds 28 s.
    scales={
        "quick": quick(50, rounds=12, changes=(*STEPS, "algorithm.batch_size=1")),
        "paper": paper(50, STEPS),
    },
)
