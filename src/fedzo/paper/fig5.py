"""Fig. 5: softmax regression over the air, the signal-to-noise ratio."""

from __future__ import annotations

from fedzo.paper.air import CURVES, FREE, NOISY
from fedzo.paper.claims import Claim, Comparison, Runs, falls, growing_speed
from fedzo.paper.figure import Figure, Panel
from fedzo.paper.softmax import SCALES, SETTING, comparable
from fedzo.paper.thresholds import CONVERGED


def performs_well(runs: Runs) -> list[Comparison]:
    """Compare -5 and 0 dB with no noise at all."""
    return [c for label in ("SNR = -5 dB", "SNR = 0 dB") for c in comparable(runs, label, FREE)]


FIGURE = Figure(
    name="fig5",
    title="Fig. 5: softmax regression over the air, impact of SNR",
    about=f"{SETTING}. AirComp over Rayleigh fading: who has a good channel takes part. On the "
    "right the length of the receiver's noise over that of the update that it comes with.",
    curves=CURVES,
    panels=(
        Panel("train_loss", title="(a)"),
        Panel("test_accuracy", title="(b)"),
        Panel("noise_to_update", curves=NOISY),
    ),
    claims=(
        Claim(
            "converges",
            "FedZO over the air converges at each SNR.",
            lambda runs: [falls(runs, label, least=CONVERGED) for label in NOISY],
        ),
        Claim(
            "faster in SNR",
            "A greater SNR makes it faster.",
            lambda runs: growing_speed(runs, NOISY),
            reason="At this η the receiver's noise (on the right) changes the rounds to a loss by "
            "no more than the intervals say.",
        ),
        Claim(
            "performs well",
            "It performs well at -5 and 0 dB: comparable to the noise-free case.",
            performs_well,
        ),
    ),
    scales=SCALES,
)
