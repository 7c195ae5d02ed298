"""Fig. 2: the success rate of the attack, in the runs of Fig. 1a."""

from fedzo.paper.claims import Claim, ahead
from fedzo.paper.fig1a import CURVES, DZOPA, FEDZO, READING, SCALES, SETTING, ZONE_S
from fedzo.paper.figure import Figure, Panel

SUCCESS = "attack_success"

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
            lambda runs: [
                ahead(runs, FEDZO[h], other, SUCCESS) for h in (20, 50) for other in (ZONE_S, DZOPA)
            ],
        ),
        Claim(
            "ZONE-S above H = 5",
            "With H = 5 ZONE-S succeeds more often than FedZO, at a higher loss.",
            lambda runs: [ahead(runs, ZONE_S, FEDZO[5], key) for key in (SUCCESS, "train_loss")],
        ),
        Claim(
            "ZONE-S distorts",
            "That is because the perturbation of ZONE-S brings a larger distortion.",
            lambda runs: [ahead(runs, ZONE_S, FEDZO[5], "distortion_l2_mean")],
        ),
    ),
    scales=SCALES,
)
