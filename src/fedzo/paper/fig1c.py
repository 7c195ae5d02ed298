"""Fig. 1c: the loss of the attack over the air for several signal-to-noise ratios.

This file also holds the curves over the air, which differ in the receiver's noise.
"""

from collections.abc import Mapping

from fedzo.paper.claims import COMPARABLE_LOSS, Claim, falls, gap, growing_speed
from fedzo.paper.fig1a import RATE, SETTING
from fedzo.paper.fig1b import SCALES
from fedzo.paper.figure import Curve, Figure, Panel

NOISY = ("SNR = -10 dB", "SNR = -5 dB", "SNR = 0 dB")
FREE = "noise-free"  # with the same channels, and so the same participants


def air_curves(algorithm: Mapping[str, float]) -> tuple[Curve, ...]:
    """Return a curve per SNR, and one without noise."""
    uplink = {"name": "aircomp", "h_min": 0.8}
    noise = dict(zip((*NOISY, FREE), (-10, -5, 0, float("inf")), strict=True))
    return tuple(
        Curve(
            label,
            {"uplink": {**uplink, "snr_db": snr}, "algorithm": algorithm},
            colour=i,
            dashed=label == FREE,
        )
        for i, (label, snr) in enumerate(noise.items())
    )


FIGURE = Figure(
    name="fig1c",
    title="Fig. 1c: attack loss over the air, impact of SNR",
    about=f"{SETTING}. AirComp over Rayleigh fading: the devices with a good channel take part.",
    curves=air_curves(RATE),
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
    scales=SCALES,  # quick: 4 x 26 devices x 20 steps x 2.7 ms per round, with five seeds 28 s
)
