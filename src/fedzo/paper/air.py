"""What the figures over the air share: their curves, which differ in the receiver's noise."""

from __future__ import annotations

from fedzo.paper.figure import Curve

NOISY = ("SNR = -10 dB", "SNR = -5 dB", "SNR = 0 dB")
FREE = "noise-free"  # with the same channels, and so the same participants

CURVES = tuple(
    Curve(
        label,
        ("uplink.name=aircomp", f"uplink.snr_db={snr}", "uplink.h_min=0.8"),
        colour=i,
        dashed=label == FREE,
    )
    for i, (label, snr) in enumerate(zip((*NOISY, FREE), (-10, -5, 0, "inf"), strict=True))
)
