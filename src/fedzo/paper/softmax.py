"""What the softmax figures share: their two scales, and the numbers behind their words."""

from __future__ import annotations

from fedzo.paper.claims import Comparison, Runs, ahead
from fedzo.paper.figure import Scale

SLOWER = 1.25  # "slightly slower": at most this many times the rounds

# One local step of one device takes about 0.35 ms on one core, all else is small.
SCALES = {
    "quick": Scale(
        "softmax",
        rounds=100,
        seeds=5,
        points=25,
        about="4,000 of the 60,000 training images",
    ),
    "paper": Scale(
        "softmax",
        rounds=300,
        seeds=5,
        changes=("problem.data=fashion-mnist",),
    ),
}


def accuracy_gap(runs: Runs, one: str, other: str, within: float = 0.02) -> Comparison:
    """Compare test accuracies, which must be close."""
    return ahead(runs, one, other, "test_accuracy", -within, within)
