"""What the softmax figures share: their two scales, and how they compare."""

from __future__ import annotations

from fedzo.paper.claims import Comparison, Runs, ahead, gap
from fedzo.paper.figure import Scale
from fedzo.paper.thresholds import COMPARABLE_ACCURACY, COMPARABLE_LOSS

SETTING = "Softmax regression on Fashion-MNIST; each device has a few labels only"

# One local step of one device takes about 0.35 ms on one core, all else is small.
SCALES = {
    "quick": Scale("softmax", rounds=60, seeds=5, points=20),
    "paper": Scale("softmax", rounds=300, seeds=5, changes=("problem.data=fashion-mnist",)),
}


def accuracy_gap(
    runs: Runs, one: str, other: str, within: float = COMPARABLE_ACCURACY
) -> Comparison:
    """Compare test accuracies, which must be close."""
    return ahead(runs, one, other, "test_accuracy", -within, within)


def comparable(runs: Runs, one: str, other: str) -> list[Comparison]:
    """Compare losses and accuracies at the end."""
    return [gap(runs, one, other, COMPARABLE_LOSS), accuracy_gap(runs, one, other)]
