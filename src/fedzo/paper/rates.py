"""A figure of our own: softmax regression at larger η, where the noise of estimates shows."""

from __future__ import annotations

from fedzo.paper.claims import Claim, Comparison, Runs, speed
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, SETTING
from fedzo.paper.thresholds import COINCIDE

PRINTED, LARGER = 0.001, (0.01, 0.05)


def label(name: str, rate: float) -> str:
    """Return a curve's label."""
    return f"{name}, η = {rate}"


def coincide(runs: Runs) -> list[Comparison]:
    """Compare the two at the printed η."""
    fast, slow = label("FedAvg", PRINTED), label("FedZO", PRINTED)
    return [speed(runs, fast, slow, 1 / (1 + COINCIDE), 1 / (1 - COINCIDE))]


FIGURE = Figure(
    name="rates",
    title="Larger learning rates: softmax regression, FedZO and FedAvg",
    about=f"{SETTING}. The least η is the paper's.",
    curves=tuple(
        Curve(
            label(name, rate),
            (f"algorithm.name={name.lower()}", f"algorithm.learning_rate={rate}"),
            colour=i,
            dashed=name == "FedAvg",
        )
        for name in ("FedZO", "FedAvg")
        for i, rate in enumerate((PRINTED, *LARGER))
    ),
    panels=(Panel("train_loss"), Panel("test_accuracy")),
    claims=(
        Claim(
            "coincide",
            "At the printed η FedZO and FedAvg coincide.",
            coincide,
            by="fedzo",
        ),
        Claim(
            "trails",
            "At larger η FedZO is slower than FedAvg, as the paper says of the printed one.",
            lambda runs: [
                speed(runs, label("FedAvg", rate), label("FedZO", rate)) for rate in LARGER
            ],
            by="fedzo",
        ),
    ),
    scales=SCALES,
)
