"""Fig. 1c: the attack's loss over the air, the signal-to-noise ratio."""

from __future__ import annotations

from fedzo.paper.air import CURVES, FREE, NOISY
from fedzo.paper.attack import SETTING, paper, quick
from fedzo.paper.claims import Claim, falls, gap, growing_speed
from fedzo.paper.figure import Figure, Panel

FIGURE = Figure(
    name="fig1c",
    title="Fig. 1c: attack loss over the air, impact of SNR (N = 50, H = 20)",
    about=f"{SETTING}; AirComp, Rayleigh fading, h_min = 0.8.",
    curves=CURVES,
    panels=(Panel("train_loss"),),
    claims=(
        Claim(
            "converges",
            "FedZO over the air converges at each SNR: the loss falls.",
            lambda runs: [falls(runs, label) for label in NOISY],
        ),
        Claim(
            "faster in SNR",
            "A greater SNR makes it faster: fewer rounds to the same loss.",
            lambda runs: growing_speed(runs, NOISY),
        ),
        Claim(
            "comparable",
            "At 0 dB it is comparable to the noise-free case: the last loss within 5 %.",
            lambda runs: [gap(runs, "SNR = 0 dB", FREE, 0.05)],
            reason="At the quick scale, with b1 = 2 and b2 = 10, seeds differ by more than the "
            "5 % that is asked about: it takes more of them to tell.",
        ),
    ),
    # Quick: a round of all four is 4 x 26 devices x 5 steps x 6 ms, with three seeds 9 s.
    scales={
        "quick": quick(50, rounds=40, changes=("algorithm.local_steps=5",), about="H = 5"),
        "paper": paper(50, ("algorithm.local_steps=20",)),
    },
)
