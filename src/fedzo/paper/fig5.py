"""Fig. 5: softmax regression over the air for several signal-to-noise ratios."""

from fedzo.paper.claims import CONVERGED, Claim, falls, growing_speed
from fedzo.paper.fig1c import FREE, NOISY, air_curves
from fedzo.paper.fig3 import PANELS, SCALES, SETTING, comparable
from fedzo.paper.figure import Figure, Panel

FIGURE = Figure(
    name="fig5",
    title="Fig. 5: softmax regression over the air, impact of SNR",
    about=f"{SETTING}. AirComp over Rayleigh fading: the devices with a good channel take part. On "
    "the right the norm of the receiver's noise over the norm of the update.",
    curves=air_curves({}),
    panels=(*PANELS, Panel("noise_to_update", curves=NOISY)),
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
            lambda runs: [c for label in NOISY[1:] for c in comparable(runs, label, FREE)],
        ),
    ),
    scales=SCALES,
)
