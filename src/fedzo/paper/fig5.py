"""Fig. 5: softmax regression over the air, the signal-to-noise ratio."""

from __future__ import annotations

from fedzo.paper.air import CURVES, FREE, NOISY
from fedzo.paper.claims import Claim, Comparison, Runs, falls, gap, growing_speed
from fedzo.paper.figure import Figure, Panel
from fedzo.paper.softmax import SCALES, accuracy_gap


def performs_well(runs: Runs) -> list[Comparison]:
    """Compare -5 and 0 dB with no noise at all."""
    return [
        comparison
        for label in ("SNR = -5 dB", "SNR = 0 dB")
        for comparison in (gap(runs, label, FREE, 0.05), accuracy_gap(runs, label, FREE))
    ]


FIGURE = Figure(
    name="fig5",
    title="Fig. 5: softmax regression over the air, impact of SNR (N = 50, H = 5)",
    about="AirComp, Rayleigh fading, h_min = 0.8, b1 = 25, b2 = 20, η = μ = 0.001.",
    curves=CURVES,
    panels=(Panel("train_loss", title="(a)"), Panel("test_accuracy", title="(b)")),
    claims=(
        Claim(
            "converges",
            "FedZO over the air converges at each SNR: the loss ends at least 10 % below where it "
            "began.",
            lambda runs: [falls(runs, label, least=0.1) for label in NOISY],
        ),
        Claim(
            "faster in SNR",
            "A greater SNR makes it faster: fewer rounds to the same loss.",
            lambda runs: growing_speed(runs, NOISY),
            reason="At -10 dB the receiver's noise is 0.8 of an update's length (noise_to_update), "
            "but spread evenly over 7850 numbers and new in each round: with η = 0.001 it changes "
            "the rounds to a loss by less than 1 %.",
        ),
        Claim(
            "performs well",
            "It performs well at -5 and 0 dB: the last training loss within 5 % of the "
            "noise-free one, the last test accuracy within 2 points.",
            performs_well,
        ),
    ),
    scales=SCALES,
)
