"""Figures that are not in the paper: another victim, step sizes, and the cost of a loss."""

import math
from dataclasses import replace
from functools import partial

import numpy as np

from fedzo.paper import claims, fig1a, fig2, fig3
from fedzo.paper.claims import Claim, Comparison, Runs, ahead, last, speed
from fedzo.paper.fig1a import DZOPA, ZONE_S
from fedzo.paper.fig3 import SCALES, SETTING, comparable
from fedzo.paper.figure import Curve, Figure, Panel, Points

_claim = partial(Claim, by="fedzo")

# Fig. 1a and Fig. 2 against the kind of network that the paper attacks. It is not shipped:
# `tools/train_victim.py carlini` trains it. A query takes five times as long as one of the shipped
# network.

_CARLINI = {"problem": {"devices": 10, "model": "cifar10-carlini"}}

VICTIM = Figure(
    name="victim",
    title="Fig. 1a and Fig. 2 again: the attack on the network of Carlini and Wagner",
    about=f"{fig1a.SETTING}, against the kind of network that the paper attacks. {fig1a.READING}",
    curves=fig1a.CURVES,
    panels=(Panel("train_loss"), Panel(fig2.SUCCESS), Panel("distortion_l2_mean")),
    claims=tuple(
        replace(claim, by="fedzo") for claim in (*fig1a.FIGURE.claims, *fig2.FIGURE.claims)
    ),
    scales=fig1a.scales(_CARLINI, rounds=12),
)

# The attack with the step size of each algorithm from a small grid.

_FEDZO = fig1a.FEDZO[5]
_PRINTED = {_FEDZO: 0.001, DZOPA: 0.005, ZONE_S: 0.002}
_RATES = (0.001, 0.002, 0.005, 0.01, 0.02)
_GRIDS = {_FEDZO: _RATES[:3], DZOPA: _RATES[1:], ZONE_S: _RATES[1:]}


def _by_step(name: str, rate: float) -> str:
    """Return the label of a curve, that of Fig. 1a at the printed step size."""
    return name if rate == _PRINTED[name] else f"{name}, step {rate:g}"


def _step_curve(name: str, rate: float, colour: int) -> Curve:
    """Return runs at a step size, which is η, and 1/ρ for ZONE-S."""
    label = _by_step(name, rate)
    if name == DZOPA:
        return fig1a.dzopa(label, colour, rate)
    if name == ZONE_S:
        return fig1a.zone_s(label, "sum", colour, penalty=round(1 / rate))
    algorithm = {"local_steps": 5, "learning_rate": rate, "smoothing": 0.001}
    return Curve(label, {"algorithm": algorithm}, colour)


_STEPS = {name: {_by_step(name, rate): rate for rate in grid} for name, grid in _GRIDS.items()}


def _at_their_best(runs: Runs) -> list[Comparison]:
    """Compare the last losses, each algorithm at the best step size of its grid."""
    best = {name: min(grid, key=lambda k: last(runs, k).mean()) for name, grid in _STEPS.items()}
    return [ahead(runs, best[other], best[_FEDZO], "train_loss") for other in (DZOPA, ZONE_S)]


BASELINES = Figure(
    name="baselines",
    title="Step sizes: the attack by FedZO and by its baselines",
    about=f"{fig1a.SETTING}. Each algorithm with step sizes from a grid, which is η, and 1/ρ for "
    "ZONE-S; points are means over the second half of the rounds. Which algorithm looks best "
    "depends on them, and on whether one asks for loss or success.",
    curves=tuple(
        _step_curve(name, rate, i) for i, (name, grid) in enumerate(_GRIDS.items()) for rate in grid
    ),
    panels=(
        Points("train_loss", "step size", _STEPS, log_y=False),
        Points("attack_success", "step size", _STEPS, log_y=False),
        Panel("train_loss", x="queries", log_x=True, curves=(_FEDZO, DZOPA, ZONE_S)),
    ),
    claims=(
        _claim(
            "each at its best",
            "With each algorithm at the step size of its grid that ends at the least loss, FedZO "
            "with H = 5 still ends below DZOPA and ZONE-S.",
            _at_their_best,
        ),
        _claim(
            "DZOPA by queries",
            "At equal queries DZOPA is ahead of FedZO with H = 5, both as printed: it takes fewer "
            "queries to the same loss.",
            lambda runs: [speed(runs, DZOPA, _FEDZO, cost="queries")],
        ),
        _claim(
            "ranking by step size",
            "The ranking by success depends on the step size: DZOPA with 0.02 succeeds more often "
            "than as printed, and more often than FedZO with H = 5.",
            lambda runs: [
                ahead(runs, _by_step(DZOPA, 0.02), other, "attack_success")
                for other in (_FEDZO, DZOPA)
            ],
        ),
    ),
    scales=fig1a.SCALES,
)

# Softmax regression at larger η, where the noise of estimates shows.

_SMALL, _LARGER = 0.001, (0.01, 0.05)


def _eta(name: str, rate: float) -> str:
    return f"{name}, η = {rate}"


def _lag(runs: Runs, rate: float, low: float = 1.0, high: float = math.inf) -> Comparison:
    """Compare FedAvg with FedZO, which must be slower, at a learning rate."""
    return speed(runs, _eta("FedAvg", rate), _eta("FedZO", rate), low, high)


RATES = Figure(
    name="rates",
    title="Larger learning rates: softmax regression, FedZO and FedAvg",
    about=f"{SETTING}. The least η is the paper's.",
    curves=tuple(
        Curve(
            _eta(name, rate),
            {"algorithm": {"name": name.lower(), "learning_rate": rate}},
            colour=i,
            dashed=name == "FedAvg",
        )
        for name in ("FedZO", "FedAvg")
        for i, rate in enumerate((_SMALL, *_LARGER))
    ),
    panels=(Panel("train_loss"), Panel("test_accuracy")),
    claims=(
        _claim(
            "coincide",
            "At the printed η FedZO and FedAvg coincide.",
            lambda runs: [_lag(runs, _SMALL, 1 / (1 + claims.COINCIDE), 1 / (1 - claims.COINCIDE))],
        ),
        _claim(
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
    return Curve(_steps(h, alike), changes, colour, dashed=alike, rounds=fig3.STEPS[0] / h)


QUERIES = Figure(
    name="queries",
    title="Loss against queries: softmax regression, FedZO",
    about=f"{SETTING}, except for two curves. H T is the same for all, and so are the queries.",
    curves=(
        *(_steps_curve(h, i) for i, h in enumerate(fig3.STEPS)),
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
                for h in fig3.STEPS[1:]
                for each in comparable(runs, _steps(h), _steps(5), claims.SAME_ACCURACY)
            ],
            reason="Devices with a few labels each drift apart before they meet, if the next claim "
            "holds: what is saved in rounds is not for free.",
        ),
        _claim(
            "same accuracy where devices are alike",
            "Where the devices are alike H = 50 does reach the accuracy of H = 5.",
            lambda runs: comparable(runs, _steps(50, True), _steps(5, True), claims.SAME_ACCURACY),
        ),
    ),
    scales=SCALES,
)

# The loss against the bytes and channel uses of three uplinks.

_IDEAL, _SEEDS, _AIR = "ideal", "seeds and scalars", "over the air, 0 dB"
_FEWER = 7850 / (5 * 20)  # d / (H b2)


def _same_for_fewer_bytes(runs: Runs) -> list[Comparison]:
    """Compare the seeds uplink with the ideal one: the same losses, fewer numbers."""
    differences = [
        max(abs(a["train_loss"] - b["train_loss"]) for a, b in zip(one, other, strict=True))
        for one, other in zip(runs[_SEEDS], runs[_IDEAL], strict=True)
    ]
    ratio = last(runs, _IDEAL, "uplink_bytes") / last(runs, _SEEDS, "uplink_bytes")
    return [
        Comparison(
            "largest difference of two losses", np.array(differences), high=claims.SAME_LOSS
        ),
        Comparison("bytes up, ideal over seeds", ratio, low=claims.OVERHEAD * _FEWER),
    ]


BYTES = Figure(
    name="bytes",
    title="Loss against the numbers sent up: softmax regression, FedZO",
    about=f"{SETTING}. Over the air the devices with a good channel take part. "
    "A channel use carries one number.",
    curves=(
        Curve(_IDEAL, {"algorithm": {"participants": 20}}, colour=0),
        Curve(_SEEDS, {"algorithm": {"participants": 20}, "uplink": {"name": "seeds"}}, colour=1),
        Curve(_AIR, {"uplink": {"name": "aircomp", "snr_db": 0, "h_min": 0.8}}, colour=2),
    ),
    panels=(
        Panel("train_loss", x="uplink_bytes", log_x=True, curves=(_IDEAL, _SEEDS)),
        Panel("train_loss", x="channel_uses", log_x=True),
    ),
    claims=(
        _claim(
            "seeds",
            "Seeds and scalars give the same losses as the ideal uplink, for d / (H b2) times "
            "fewer bytes.",
            _same_for_fewer_bytes,
        ),
        _claim(
            "channel uses",
            "Over the air at 0 dB the same loss takes many times fewer channel uses than one "
            "device after another.",
            lambda runs: [speed(runs, _AIR, _IDEAL, low=claims.FEWER_USES, cost="channel_uses")],
        ),
    ),
    scales=SCALES,
)

FIGURES = {f.name: f for f in (VICTIM, BASELINES, RATES, QUERIES, BYTES)}
