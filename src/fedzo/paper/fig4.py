"""Fig. 4: softmax regression for several numbers of devices per round M, with FedAvg."""

from itertools import pairwise

from fedzo.paper.claims import Claim, Comparison, Runs, average, growing_speed
from fedzo.paper.fig3 import PANELS, SCALES, SETTING, comparable
from fedzo.paper.figure import Curve, Figure, Panel

FEDZO = {m: f"FedZO, M = {m}" for m in (5, 10, 25, 50)}
FEDAVG = "FedAvg, M = 50"


def more_accurate(runs: Runs) -> list[Comparison]:
    """Compare mean accuracies over the rounds: all curves end at the same accuracy."""
    return [
        Comparison(
            f"mean test accuracy over the rounds of {more} less that of {fewer}",
            average(runs, more, "test_accuracy") - average(runs, fewer, "test_accuracy"),
            low=0,
        )
        for fewer, more in pairwise(FEDZO.values())
    ]


FIGURE = Figure(
    name="fig4",
    title="Fig. 4: softmax regression, impact of M",
    about=f"{SETTING}. On the right FedZO alone by its queries: FedAvg asks for gradients.",
    curves=(
        *(
            Curve(label, {"algorithm": {"participants": m}}, colour=i)
            for i, (m, label) in enumerate(FEDZO.items())
        ),
        Curve(FEDAVG, {"algorithm": {"name": "fedavg", "participants": 50}}, colour=3, dashed=True),
    ),
    panels=(*PANELS, Panel("train_loss", x="queries", log_x=True, curves=tuple(FEDZO.values()))),
    claims=(
        Claim(
            "speed-up in loss",
            "With more devices in a round FedZO is faster in training loss.",
            lambda runs: growing_speed(runs, FEDZO.values()),
            reason="At this η the noise of an estimate costs hardly any rounds: FedAvg, which has "
            "none, is as fast (figure 'rates'), so there is little to gain by averaging over more "
            "devices.",
        ),
        Claim(
            "speed-up in accuracy",
            "With more devices in a round FedZO is faster in test accuracy: higher in the mean "
            "over the rounds.",
            more_accurate,
        ),
        Claim(
            "comparable",
            "FedZO with M = 50 is comparable to FedAvg with M = 50.",
            lambda runs: comparable(runs, FEDZO[50], FEDAVG),
        ),
    ),
    scales=SCALES,
)
