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


def speedup(runs: Runs) -> list[Comparison]:
    """Compare neighbours: rounds to a loss, and the accuracy on the way."""
    labels = [fedzo(m) for m in DEVICES if fedzo(m) in runs]
    key = "test_accuracy"
    return growing_speed(runs, labels) + [
        Comparison(
            f"mean test accuracy over the rounds of {more} less that of {fewer}",
            average(runs, more, key) - average(runs, fewer, key),
            low=0,
        )
        for fewer, more in pairwise(labels)
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
            "speed-up in M",
            "With more devices in a round FedZO is faster, in training loss (fewer rounds to the "
            "same loss) and in test accuracy (higher in the mean over rounds).",
            speedup,
            reason="In accuracy the speed-up is plain. The loss goes by the number and length "
            "of the steps, which M does not change: more devices make it smoother, and "
            "faster by 1 or 2 %.",
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
