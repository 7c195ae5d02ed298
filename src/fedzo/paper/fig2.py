"""Fig. 2: how often the attack succeeds; the runs are those of Fig. 1a."""

from __future__ import annotations

from fedzo.paper.attack import SETTING
from fedzo.paper.claims import Claim, Comparison, Runs, ahead
from fedzo.paper.fig1a import CURVES, DZOPA, READING, SCALES, ZONE_S, fedzo
from fedzo.paper.figure import Figure, Panel

SUCCESS = "attack_success"


def above_baselines(runs: Runs) -> list[Comparison]:
    """Compare the success at the end, for H above 10."""
    return [ahead(runs, fedzo(h), other, SUCCESS) for h in (20, 50) for other in (ZONE_S, DZOPA)]


FIGURE = Figure(
    name="fig2",
    title="Fig. 2: attack success, impact of H",
    about=f"{SETTING}: the runs of Fig. 1a. {READING}",
    curves=CURVES,
    panels=(Panel(SUCCESS), Panel("distortion_l2_mean")),
    claims=(
        Claim(
            "above the baselines",
            "With H above 10 FedZO succeeds more often than ZONE-S and DZOPA.",
            above_baselines,
        ),
        Claim(
            "ZONE-S above H = 5",
            "With H = 5 ZONE-S succeeds more often than FedZO, at a higher loss.",
            lambda runs: [
                ahead(runs, ZONE_S, fedzo(5), SUCCESS),
                ahead(runs, ZONE_S, fedzo(5), "train_loss"),
            ],
        ),
        Claim(
            "ZONE-S distorts",
            "That is because the perturbation of ZONE-S brings a larger distortion.",
            lambda runs: [ahead(runs, ZONE_S, fedzo(5), "distortion_l2_mean")],
        ),
    ),
    scales=SCALES,
)
