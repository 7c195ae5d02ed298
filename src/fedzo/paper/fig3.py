"""Fig. 3: softmax regression for several numbers of local steps H, with FedAvg.

This file also holds what the softmax figures share: their scales, and when two curves are
comparable.
"""

from fedzo.paper import claims
from fedzo.paper.claims import Claim, Comparison, Runs, ahead, gap, growing_speed, speed
from fedzo.paper.figure import Curve, Figure, Panel, Scale

SETTING = "Softmax regression on Fashion-MNIST; each device has a few labels only"
# One local step of one device takes about 0.35 ms on one core, all else is small.
SCALES = {
    "quick": Scale("softmax", rounds=60, seeds=5, points=20),
    "paper": Scale("softmax", 300, seeds=5, changes={"problem": {"data": "fashion-mnist"}}),
}
PANELS = (Panel("train_loss", title="(a)"), Panel("test_accuracy", title="(b)"))

STEPS = (5, 10, 20, 50)
FEDZO = {h: f"FedZO, H = {h}" for h in STEPS}
FEDAVG = {h: f"FedAvg, H = {h}" for h in STEPS}


def comparable(
    runs: Runs, one: str, other: str, accuracy: float = claims.COMPARABLE_ACCURACY
) -> list[Comparison]:
    """Compare the last losses and test accuracies of two curves, which must be close."""
    return [
        gap(runs, one, other, claims.COMPARABLE_LOSS),
        ahead(runs, one, other, "test_accuracy", -accuracy, accuracy),
    ]


FIGURE = Figure(
    name="fig3",
    title="Fig. 3: softmax regression, impact of H",
    about=f"{SETTING}. On the right FedZO alone by its queries: FedAvg asks for gradients.",
    curves=tuple(
        Curve(
            labels[h],
            {"algorithm": {"name": name, "local_steps": h, "participants": 20}},
            colour=i,
            dashed=name == "fedavg",
        )
        for name, labels in (("fedzo", FEDZO), ("fedavg", FEDAVG))
        for i, h in enumerate(STEPS)
    ),
    panels=(*PANELS, Panel("train_loss", x="queries", log_x=True, curves=tuple(FEDZO.values()))),
    claims=(
        Claim(
            "slightly slower",
            "At equal H FedZO converges slightly slower than FedAvg.",
            lambda runs: [speed(runs, FEDAVG[h], FEDZO[h], 1.0, claims.SLIGHTLY) for h in STEPS],
            reason="At the printed η the two coincide; the figure 'rates' measures larger ones.",
        ),
        Claim(
            "comparable",
            "FedZO with H = 20 is comparable to FedAvg with H = 5.",
            lambda runs: comparable(runs, FEDZO[20], FEDAVG[5]),
            reason="It takes four times as many steps per round, of the same length, and so it is "
            "not comparable but ahead, if the next claim holds.",
        ),
        Claim(
            "no worse",
            "FedZO with H = 20 is at least as good as FedAvg with H = 5: faster, and the last test "
            "accuracy not below it by what is comparable.",
            lambda runs: [
                speed(runs, FEDZO[20], FEDAVG[5]),
                ahead(runs, FEDZO[20], FEDAVG[5], "test_accuracy", low=-claims.COMPARABLE_ACCURACY),
            ],
            by="fedzo",
        ),
        Claim(
            "faster in H",
            "More local steps make FedZO faster (speed-up in H, section III).",
            lambda runs: growing_speed(runs, FEDZO.values()),
        ),
    ),
    scales=SCALES,
)
