"""Fig. 4: softmax regression, the number of devices in a round M, against FedAvg."""

from __future__ import annotations

from itertools import pairwise

from fedzo.paper.claims import Claim, Comparison, Runs, average, gap, growing_speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, accuracy_gap

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
    title="Fig. 4: softmax regression, impact of M (N = 50, H = 5)",
    about="Fashion-MNIST, two shards of sorted labels a device, b1 = 25, b2 = 20, η = μ = 0.001.",
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
    panels=(Panel("train_loss", title="(a)"), Panel("test_accuracy", title="(b)")),
    claims=(
        Claim(
            "speed-up in loss",
            "With more devices in a round FedZO is faster in training loss: fewer rounds to the "
            "same loss.",
            lambda runs: growing_speed(runs, [fedzo(m) for m in DEVICES]),
            reason="The loss goes by the number and length of the steps, which M does not "
            "change: more devices make it smoother, and hardly faster.",
        ),
        Claim(
            "speed-up in accuracy",
            "With more devices in a round FedZO is faster in test accuracy: higher in the mean "
            "over the rounds.",
            more_accurate,
        ),
        Claim(
            "comparable",
            "FedZO with M = 50 is comparable to FedAvg with M = 50: the last training loss within "
            "5 %, the last test accuracy within 2 points.",
            lambda runs: [
                gap(runs, fedzo(50), FEDAVG, 0.05),
                accuracy_gap(runs, fedzo(50), FEDAVG),
            ],
        ),
    ),
    scales=SCALES,
)
