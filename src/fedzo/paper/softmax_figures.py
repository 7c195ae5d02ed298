"""Softmax regression: Fig. 3, 4 and 5, larger learning rates, and the cost of a loss."""

import math
from itertools import pairwise

from fedzo.paper import claims
from fedzo.paper.claims import (
    Claim,
    Comparison,
    Runs,
    ahead,
    all_fall,
    average,
    faster_each,
    gap,
    ours,
    speed,
)
from fedzo.paper.figure import Curve, Figure, Panel, Scale, air_curves, curves_by

SETTING = "Softmax regression on Fashion-MNIST; each device has a few labels only"
BESIDE = "On the right FedZO alone by its queries: FedAvg asks for gradients."
# One local step of one device takes about 0.35 ms on one core, all else is small.
SCALES = {
    "quick": Scale("softmax", rounds=60, seeds=5, points=20),
    "paper": Scale("softmax", 300, seeds=5, changes={"problem": {"data": "fashion-mnist"}}),
}
PANELS = (Panel("train_loss", title="(a)"), Panel("test_accuracy", title="(b)"))

STEPS = (5, 10, 20, 50)
FEDZO = {h: f"FedZO, H = {h}" for h in STEPS}
FEDAVG = {h: f"FedAvg, H = {h}" for h in STEPS}
DEVICES = {m: f"FedZO, M = {m}" for m in (5, 10, 25, 50)}
ALL_DEVICES = "FedAvg, M = 50"


def by_queries(labels: dict[int, str]) -> Panel:
    """Return the panel of the losses by queries."""
    return Panel("train_loss", x="queries", log_x=True, curves=tuple(labels.values()))


def comparable(
    runs: Runs, one: str, other: str, accuracy: float = claims.COMPARABLE_ACCURACY
) -> list[Comparison]:
    """Compare the last losses and test accuracies of two curves, which must be close."""
    return [
        gap(runs, one, other, claims.COMPARABLE_LOSS),
        ahead(runs, one, other, "test_accuracy", -accuracy, accuracy),
    ]


FIG3 = Figure(
    name="fig3",
    title="Fig. 3: softmax regression, impact of H",
    about=f"{SETTING}. {BESIDE}",
    curves=(
        *curves_by("local_steps", FEDZO, participants=20),
        *curves_by("local_steps", FEDAVG, dashed=True, name="fedavg", participants=20),
    ),
    panels=(*PANELS, by_queries(FEDZO)),
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
        ours(
            "no worse",
            "FedZO with H = 20 is at least as good as FedAvg with H = 5: faster, and the last test "
            "accuracy not below it by what is comparable.",
            lambda runs: [
                speed(runs, FEDZO[20], FEDAVG[5]),
                ahead(runs, FEDZO[20], FEDAVG[5], "test_accuracy", low=-claims.COMPARABLE_ACCURACY),
            ],
        ),
        faster_each(
            "faster in H",
            "More local steps make FedZO faster (speed-up in H, section III).",
            FEDZO.values(),
        ),
    ),
    scales=SCALES,
)


def more_accurate(runs: Runs) -> list[Comparison]:
    """Compare mean accuracies over the rounds: all curves end at the same accuracy."""
    return [
        Comparison(
            f"mean test accuracy over the rounds of {more} less that of {fewer}",
            average(runs, more, "test_accuracy") - average(runs, fewer, "test_accuracy"),
            low=0,
        )
        for fewer, more in pairwise(DEVICES.values())
    ]


FIG4 = Figure(
    name="fig4",
    title="Fig. 4: softmax regression, impact of M",
    about=f"{SETTING}. {BESIDE}",
    curves=(
        *curves_by("participants", DEVICES),
        Curve(ALL_DEVICES, {"algorithm": {"name": "fedavg", "participants": 50}}, 3, dashed=True),
    ),
    panels=(*PANELS, by_queries(DEVICES)),
    claims=(
        faster_each(
            "speed-up in loss",
            "With more devices in a round FedZO is faster in training loss.",
            DEVICES.values(),
            reason="At this η the noise of an estimate costs hardly any rounds: FedAvg, which has "
            "none, is as fast (figure 'rates'), so there is little to gain by averaging over more "
            "devices.",
        ),
        Claim(
            "speed-up in accuracy",
            "With more devices in a round FedZO is faster in test accuracy: higher in the mean "
            "over the rounds.",
            more_accurate,
        ),
        Claim(
            "comparable",
            "FedZO with M = 50 is comparable to FedAvg with M = 50.",
            lambda runs: comparable(runs, DEVICES[50], ALL_DEVICES),
        ),
    ),
    scales=SCALES,
)

AIR = air_curves({})
*NOISY, FREE = (curve.label for curve in AIR)
FIG5 = Figure(
    name="fig5",
    title="Fig. 5: softmax regression over the air, impact of SNR",
    about=f"{SETTING}. AirComp over Rayleigh fading: the devices with a good channel take part. On "
    "the right the norm of the receiver's noise over the norm of the update.",
    curves=AIR,
    panels=(*PANELS, Panel("noise_to_update", curves=NOISY)),
    claims=(
        all_fall("converges", "FedZO over the air converges at each SNR.", NOISY, claims.CONVERGED),
        faster_each(
            "faster in SNR",
            "A greater SNR makes it faster.",
            NOISY,
            reason="At this η the receiver's noise (on the right) changes the rounds to a loss by "
            "no more than the intervals say.",
        ),
        Claim(
            "performs well",
            "It performs well at -5 and 0 dB: comparable to the noise-free case.",
            lambda runs: [c for label in NOISY[1:] for c in comparable(runs, label, FREE)],
        ),
    ),
    scales=SCALES,
)

# Larger η, where the noise of estimates shows.

_SMALL, *_LARGER = _ETAS = (0.001, 0.01, 0.05)
_ZO, _AVG = ({r: f"{name}, η = {r}" for r in _ETAS} for name in ("FedZO", "FedAvg"))


def _lag(runs: Runs, rate: float, low: float = 1.0, high: float = math.inf) -> Comparison:
    """Compare FedAvg with FedZO, which must be slower, at a learning rate."""
    return speed(runs, _AVG[rate], _ZO[rate], low, high)


RATES = Figure(
    name="rates",
    title="Larger learning rates: softmax regression, FedZO and FedAvg",
    about=f"{SETTING}. The least η is the paper's.",
    curves=(
        *curves_by("learning_rate", _ZO),
        *curves_by("learning_rate", _AVG, dashed=True, name="fedavg"),
    ),
    panels=(Panel("train_loss"), Panel("test_accuracy")),
    claims=(
        ours(
            "coincide",
            "At the printed η FedZO and FedAvg coincide.",
            lambda runs: [_lag(runs, _SMALL, 1 / (1 + claims.COINCIDE), 1 / (1 - claims.COINCIDE))],
        ),
        ours(
            "trails",
            "At larger η FedZO is slower than FedAvg, as the paper says of the printed one.",
            lambda runs: [_lag(runs, rate) for rate in _LARGER],
        ),
    ),
    scales=SCALES,
)

# The loss against queries for several H, with H T fixed.


def _steps(h: int, alike: bool = False) -> str:
    return f"H = {h}{', devices alike' if alike else ''}"


def _steps_curve(h: int, colour: int, alike: bool = False) -> Curve:
    """Return runs with H T fixed, on devices with different or with similar data."""
    changes: dict[str, dict[str, object]] = {"algorithm": {"local_steps": h}}
    if alike:
        changes["problem"] = {"partition": "iid"}
    return Curve(_steps(h, alike), changes, colour, dashed=alike, rounds=STEPS[0] / h)


QUERIES = Figure(
    name="queries",
    title="Loss against queries: softmax regression, FedZO",
    about=f"{SETTING}, except for two curves. H T is the same for all, and so are the queries.",
    curves=(
        *(_steps_curve(h, i) for i, h in enumerate(STEPS)),
        _steps_curve(5, 0, alike=True),
        _steps_curve(50, 3, alike=True),
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
            lambda runs: [
                each
                for h in STEPS[1:]
                for each in comparable(runs, _steps(h), _steps(5), claims.SAME_ACCURACY)
            ],
            reason="Devices with a few labels each drift apart before they meet, if the next claim "
            "holds: what is saved in rounds is not for free.",
        ),
        ours(
            "same accuracy where devices are alike",
            "Where the devices are alike H = 50 does reach the accuracy of H = 5.",
            lambda runs: comparable(runs, _steps(50, True), _steps(5, True), claims.SAME_ACCURACY),
        ),
    ),
    scales=SCALES,
)

FIGURES = (FIG3, FIG4, FIG5, RATES, QUERIES)
