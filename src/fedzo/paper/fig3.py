"""Fig. 3: softmax regression, the number of local steps H, against FedAvg."""

from __future__ import annotations

from fedzo.paper.claims import Claim, Comparison, Runs, ahead, gap, growing_speed, speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, SLOWER, accuracy_gap

STEPS = (5, 10, 20, 50)


def fedzo(h: int) -> str:
    """Return the label of FedZO's curve."""
    return f"FedZO, H = {h}"


def fedavg(h: int) -> str:
    """Return the label of FedAvg's curve."""
    return f"FedAvg, H = {h}"


def slightly_slower(runs: Runs) -> list[Comparison]:
    """Compare the two at equal H: FedAvg must be the faster, and not by much."""
    return [speed(runs, fedavg(h), fedzo(h), 1.0, SLOWER) for h in STEPS]


def as_good_with_more_steps(runs: Runs) -> list[Comparison]:
    """Compare FedZO with H = 20 and FedAvg with H = 5."""
    return [gap(runs, fedzo(20), fedavg(5), 0.05), accuracy_gap(runs, fedzo(20), fedavg(5))]


def no_worse_with_more_steps(runs: Runs) -> list[Comparison]:
    """Compare them again, the better it is the better."""
    return [
        speed(runs, fedzo(20), fedavg(5)),
        ahead(runs, fedzo(20), fedavg(5), "test_accuracy", low=-0.02),
    ]


FIGURE = Figure(
    name="fig3",
    title="Fig. 3: softmax regression, impact of H (N = 50, M = 20)",
    about="Fashion-MNIST, two shards of sorted labels a device, b1 = 25, b2 = 20, η = μ = 0.001.",
    curves=tuple(
        Curve(
            label(h),
            (f"algorithm.name={name}", f"algorithm.local_steps={h}", "algorithm.participants=20"),
            colour=i,
            dashed=name == "fedavg",
        )
        for name, label in (("fedzo", fedzo), ("fedavg", fedavg))
        for i, h in enumerate(STEPS)
    ),
    panels=(Panel("train_loss", title="(a)"), Panel("test_accuracy", title="(b)")),
    claims=(
        Claim(
            "slightly slower",
            "At equal H FedZO converges slightly slower than FedAvg: to the same training loss it "
            f"takes more rounds, and at most {SLOWER} times as many.",
            slightly_slower,
            reason="The difference is below 1 %, about as small as its own error: while η is this "
            "small, the noise of an estimate averages out over steps and devices.",
        ),
        Claim(
            "comparable",
            "FedZO with H = 20 is comparable to FedAvg with H = 5: the last training loss within "
            "5 %, the last test accuracy within 2 points.",
            as_good_with_more_steps,
            reason="FedZO is ahead: it takes four times the steps a round, of the same length, and "
            "at equal H it is as fast as FedAvg to within 1 %.",
        ),
        Claim(
            "no worse",
            "FedZO with H = 20 is at least as good as FedAvg with H = 5: no slower in rounds, "
            "and the last test accuracy no more than 2 points below.",
            no_worse_with_more_steps,
            by="fedzo",
        ),
        Claim(
            "faster in H",
            "More local steps make FedZO faster in rounds (speed-up in H, section III).",
            lambda runs: growing_speed(runs, [fedzo(h) for h in STEPS]),
        ),
    ),
    scales=SCALES,
)
