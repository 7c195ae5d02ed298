"""Fig. 4: softmax regression, the number of devices in a round M, against FedAvg."""

from __future__ import annotations

from itertools import pairwise

from fedzo.paper.claims import Claim, Comparison, Runs, average, growing_speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, SETTING, comparable

DEVICES = (5, 10, 25, 50)
FEDAVG = "FedAvg, M = 50"


def fedzo(m: int) -> str:
    """Return the label of FedZO's curve."""
    return f"FedZO, M = {m}"


def more_accurate(runs: Runs) -> list[Comparison]:
    """Compare the accuracies of neighbours on the way: all end at the same."""
    return [
        Comparison(
            f"mean test accuracy over the rounds of {more} less that of {fewer}",
            average(runs, more, "test_accuracy") - average(runs, fewer, "test_accuracy"),
            low=0,
        )
        for fewer, more in pairwise(map(fedzo, DEVICES))
    ]


FIGURE = Figure(
    name="fig4",
    title="Fig. 4: softmax regression, impact of M",
    about=f"{SETTING}. On the right FedZO alone by its queries: FedAvg asks for gradients.",
    curves=(
        *(
            Curve(fedzo(m), (f"algorithm.participants={m}",), colour=i)
            for i, m in enumerate(DEVICES)
        ),
        Curve(
            FEDAVG,
            ("algorithm.name=fedavg", "algorithm.participants=50"),
            colour=len(DEVICES) - 1,
            dashed=True,
        ),
    ),
    panels=(
        Panel("train_loss", title="(a)"),
        Panel("test_accuracy", title="(b)"),
        Panel("train_loss", x="queries", log_x=True, curves=tuple(map(fedzo, DEVICES))),
    ),
    claims=(
        Claim(
            "speed-up in loss",
            "With more devices in a round FedZO is faster in training loss.",
            lambda runs: growing_speed(runs, [fedzo(m) for m in DEVICES]),
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
            lambda runs: comparable(runs, fedzo(50), FEDAVG),
        ),
    ),
    scales=SCALES,
)
