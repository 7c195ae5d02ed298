"""A figure of our own: the number of directions b2, at a fixed number of queries."""

from __future__ import annotations

from fedzo.paper.claims import Claim, gap
from fedzo.paper.figure import Curve, Figure, Panel
from fedzo.paper.softmax import SCALES, SETTING
from fedzo.paper.thresholds import COMPARABLE_LOSS

DIRECTIONS = (5, 10, 20, 50, 100)


def label(b2: int) -> str:
    """Return a curve's label."""
    return f"b2 = {b2}"


FIGURE = Figure(
    name="directions",
    title="Directions or rounds: softmax regression, FedZO",
    about=f"{SETTING}. Rounds are in proportion to 1/(b2 + 1), so all spend the same queries; the "
    "learning rate is in proportion to b2, as the noise of an estimate allows while b2 is far "
    "below d.",
    curves=tuple(
        Curve(
            label(b2),
            (f"algorithm.directions={b2}", f"algorithm.learning_rate={0.001 * b2 / 20}"),
            colour=i,
            rounds=21 / (b2 + 1),
        )
        for i, b2 in enumerate(DIRECTIONS)
    ),
    panels=(Panel("train_loss", x="queries"), Panel("train_loss", x="round", log_x=True)),
    claims=(
        Claim(
            "a query is a query",
            "With η in proportion to b2 it does not matter to the queries whether they go into "
            "directions or rounds: the last training loss is comparable to that at b2 = 20.",
            lambda runs: [
                gap(runs, label(b2), label(20), COMPARABLE_LOSS) for b2 in DIRECTIONS if b2 != 20
            ],
            by="fedzo",
        ),
    ),
    scales=SCALES,
)
