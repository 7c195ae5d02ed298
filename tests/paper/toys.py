"""A figure small enough to be reproduced in a test; run as a script, it is."""

import sys
from pathlib import Path

from fedzo.paper.claims import Claim, falls, speed
from fedzo.paper.figure import Curve, Figure, Panel, Points, Scale
from fedzo.paper.reproduce import reproduce

SLOW, FAST, LOST = "H = 1", "H = 5", "η = 1e160"
TINY = {"dim": 10, "devices": 12}


def toy(rounds=30, seeds=3, lost=False):
    curves = [
        Curve(SLOW, {"algorithm": {"local_steps": 1}}, colour=0),
        Curve(FAST, {"algorithm": {"local_steps": 5}}, colour=1, dashed=True),
    ]
    if lost:
        curves.append(Curve(LOST, {"algorithm": {"learning_rate": 1e160}}, colour=2))
    return Figure(
        name="table1",  # a name that readers of the folder know
        title="A toy",
        about="For tests.",
        curves=tuple(curves),
        panels=(
            Panel("train_loss"),
            Panel("optimality_gap", x="queries", curves=(FAST,)),
            Points("optimality_gap", "local steps H", {"measured": {SLOW: 1.0, FAST: 5.0}}),
        ),
        claims=(
            Claim("falls", "The loss falls.", lambda runs: [falls(runs, SLOW)]),
            Claim(
                "slower",
                "More steps are slower.",
                lambda runs: [speed(runs, SLOW, FAST)],
                reason="They are not.",
            ),
        ),
        scales={
            "tiny": Scale("quadratic", rounds, seeds, {"problem": TINY}, points=10),
            "paper": Scale("quadratic", rounds=400, seeds=5, changes={"problem": {"devices": 12}}),
        },
    )


def tell(_share, done, runs):
    print(done, runs, flush=True)


if __name__ == "__main__":
    reproduce([toy(int(sys.argv[2]))], "tiny", Path(sys.argv[1]), workers=2, report=tell)
