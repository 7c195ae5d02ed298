"""A figure of our own: what a query buys, for different H."""

from __future__ import annotations

from fedzo.paper.claims import Claim, Comparison, Runs, gap
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, SETTING, accuracy_gap
from fedzo.paper.thresholds import COMPARABLE_LOSS, SAME_ACCURACY

STEPS = (5, 10, 20, 50)


def label(h: int, alike: bool = False) -> str:
    """Return a curve's label."""
    return f"H = {h}{', devices alike' if alike else ''}"


def same_accuracy(runs: Runs, one: str, other: str) -> list[Comparison]:
    """Compare two H at the end of equally many local steps."""
    return [
        gap(runs, one, other, COMPARABLE_LOSS),
        accuracy_gap(runs, one, other, SAME_ACCURACY),
    ]


def curve(h: int, colour: int, alike: bool = False) -> Curve:
    """Return runs with H T fixed, on devices that differ or on such as are alike."""
    changes = (f"algorithm.local_steps={h}", *(("problem.partition=iid",) if alike else ()))
    return Curve(label(h, alike), changes, colour, dashed=alike, rounds=STEPS[0] / h)


FIGURE = Figure(
    name="queries",
    title="Loss against queries: softmax regression, FedZO",
    about=f"{SETTING}, but for two curves. H T is the same for all, and so are the queries.",
    curves=(
        *(curve(h, i) for i, h in enumerate(STEPS)),
        curve(5, 0, alike=True),
        curve(50, 3, alike=True),
    ),
    panels=(
        Panel("train_loss", x="queries"),
        Panel("test_accuracy", x="queries"),
        Panel("train_loss", x="round"),
    ),
    claims=(
        Claim(
            "same accuracy",
            "With H T and η fixed, H can be raised and T lowered to reach the same accuracy "
            "(remark 2), that of H = 5.",
            lambda runs: [c for h in STEPS[1:] for c in same_accuracy(runs, label(h), label(5))],
            reason="Devices with a few labels each drift apart before they meet, if the next claim "
            "holds: what is saved in rounds is not for free.",
        ),
        Claim(
            "same accuracy where devices are alike",
            "Where the devices are alike H = 50 does reach the accuracy of H = 5.",
            lambda runs: same_accuracy(runs, label(50, alike=True), label(5, alike=True)),
            by="fedzo",
        ),
    ),
    scales=SCALES,
)
