"""Table I and the theorems: measured rates against the predicted ones, with known constants."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedzo.paper.claims import EXPONENT, RATE, Claim, Comparison, Runs, final_level
from fedzo.paper.figure import Curve, Figure, Panel, Points, Scale
from fedzo.problems import Quadratic
from fedzo.theory import Constants, Setting, bound, corollary, limit

COUNTS = (1, 2, 4, 8)
ROUNDS = 400
PROBLEM: Mapping[str, Any] = {"dim": 20, "devices": 8, "condition": 1.0, "dissimilarity": 0.0}
BASE = Setting(8, 20, ROUNDS, participants=1, directions=20)  # b1 = 1, and H = 1 unless varied
GRADIENT = "gradient_norm_squared"
BOUNDED = "at the largest η that theorem 1 allows"
DZOPA, ZO_SGD = "DZOPA, N = 8", "ZO-SGD"
LAW = "√(d/(MHTb1b2))"

STEPS = {f"H = {h}, M = 1": float(h) for h in COUNTS}
DEVICES = {f"H = 1, M = {m}": float(m) for m in COUNTS}


def curve(
    label: str, setting: Setting, colour: int, name: str = "fedzo", eta: float | None = None
) -> Curve:
    """Return runs with the corollary's μ for a setting, and its η unless ``eta`` is given."""
    rate, mu = corollary(setting)
    algorithm = {"name": name, "learning_rate": rate if eta is None else eta, "smoothing": mu}
    algorithm |= {"batch_size": 1, "directions": 20}
    if name == "fedzo":
        algorithm |= {"local_steps": setting.local_steps, "participants": setting.meeting}
    return Curve(label, {"algorithm": algorithm}, colour)


FULL = replace(BASE, participants=8, local_steps=4)


def constants(seed: int) -> Constants:
    """Return the constants of the problem of a seed."""
    return Constants(**Quadratic(**PROBLEM, seed=seed).constants())


ETA = limit(constants(0), FULL).value  # the largest that theorem 1 allows: L is the same for all


def bound_after(rounds: int, seed: int) -> float:
    """Return the bound of theorem 1 after a number of rounds at ``ETA``."""
    setting = replace(FULL, rounds=rounds)
    return bound(constants(seed), setting, ETA, corollary(FULL).smoothing).value


BOUND = {
    float(t): bound_after(t, seed=0)
    for t in np.unique(np.geomspace(20, ROUNDS, 20).astype(int)).tolist()
}


def slope(runs: Runs, at: Mapping[str, float]) -> Comparison:
    """Measure the exponent of the squared gradient: the slope of a line on log scales."""
    levels = np.log([[final_level(h, GRADIENT) for h in runs[label]] for label in at])
    exponents = np.polyfit(np.log(list(at.values())), levels, 1)[0]
    return Comparison(
        "exponent of the squared gradient", exponents, -0.5 - EXPONENT, -0.5 + EXPONENT
    )


def under_bound(runs: Runs) -> list[Comparison]:
    """Compare the least squared gradient of each seed with the bound of theorem 1."""
    shares = [
        min(record[GRADIENT] for record in history) / bound_after(ROUNDS, seed)
        for seed, history in enumerate(runs[BOUNDED])
    ]
    return [Comparison("least squared gradient over the bound", np.array(shares), high=1)]


def against(runs: Runs, other: str, ratio: float) -> Comparison:
    """Compare the final levels of another algorithm and FedZO with the ratio of their rates."""
    pairs = zip(runs[other], runs["H = 8, M = 8"], strict=True)
    seen = np.array(
        [final_level(theirs, GRADIENT) / final_level(ours, GRADIENT) for theirs, ours in pairs]
    )
    what = f"squared gradient of {other} over FedZO's, N = H = 8, in units of {ratio:.3g}"
    return Comparison(what, seen / ratio, *RATE)


def half_law(at: Mapping[str, float]) -> Mapping[float, float]:
    """Return the line of slope -1/2 through the order of the corollary at one."""
    return {x: math.sqrt(BASE.dim / (ROUNDS * BASE.directions * x)) for x in at.values()}


TABLE1 = Figure(
    name="table1",
    title="Table I and theorem 1: measured on a quadratic whose constants are known",
    about="Devices are alike. η and μ are those of the corollaries, and on the right the largest η "
    "that theorem 1 allows, whose bound is drawn for the first seed. On the left squared gradients "
    "are means over the second half of the rounds.",
    curves=(
        *(curve(f"H = {h}, M = 1", replace(BASE, local_steps=h), 0) for h in COUNTS),
        *(curve(f"H = 1, M = {m}", replace(BASE, participants=m), 0) for m in COUNTS[1:]),
        curve("H = 8, M = 8", replace(BASE, participants=8, local_steps=8), 1),
        curve(DZOPA, replace(BASE, participants=8), 2, "dzopa"),
        curve(ZO_SGD, BASE, 3, "zo_sgd"),
        curve(BOUNDED, FULL, 0, eta=ETA),
    ),
    panels=(
        Points(GRADIENT, "local steps H", {"M = 1": STEPS}, lines={LAW: half_law(STEPS)}),
        Points(GRADIENT, "devices M", {"H = 1": DEVICES}, lines={LAW: half_law(DEVICES)}),
        Panel(GRADIENT, title="theorem 1", curves=(BOUNDED,), lines={"bound": BOUND}),
    ),
    claims=(
        Claim(
            "speed-up in H",
            "Linear speed-up in H (corollaries 1 and 2): the squared gradient falls as H^(-1/2).",
            lambda runs: [slope(runs, STEPS)],
        ),
        Claim(
            "speed-up in M",
            "Linear speed-up in M (corollaries 1 and 2): the squared gradient falls as M^(-1/2).",
            lambda runs: [slope(runs, DEVICES)],
        ),
        Claim(
            "bound",
            "Theorem 1 (with the terms that hold, see docs/theory.md): at the largest η that it "
            "allows the least squared gradient is below its bound.",
            under_bound,
        ),
        Claim(
            "rates",
            "Table I: with N = H = 8 FedZO settles √H times lower than DZOPA and √(NH) times lower "
            "than ZO-SGD.",
            lambda runs: [against(runs, DZOPA, math.sqrt(8)), against(runs, ZO_SGD, 8.0)],
        ),
    ),
    scales={
        name: Scale("quadratic", ROUNDS, seeds, changes={"problem": PROBLEM}, points=100)
        for name, seeds in (("quick", 5), ("paper", 20))
    },
)

FIGURES = (TABLE1,)
