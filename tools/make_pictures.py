"""Draw those pictures of docs/choose.md that no sweep draws, from small runs on what ships.

python tools/make_pictures.py            # all of them
python tools/make_pictures.py uplink     # one: see PICTURES
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

import fedzo
from fedzo import data
from fedzo.core.estimator import Estimator
from fedzo.core.random import Draws, Stream
from fedzo.plots.style import COLOURS
from fedzo.problems.function import FunctionObjective
from fedzo.problems.quadratic import Quadratic
from fedzo.problems.softmax import softmax

FOLDER = Path(__file__).parents[1] / "docs" / "images"
# Smaller than the paper's setting, so that a run takes a second or two.
SOFTMAX: dict[str, Any] = {"batch_size": 10, "participants": 5}


def algorithm() -> Figure:
    """Every algorithm that ships, by rounds and by queries."""
    ways = {
        "FedZO, H = 5": fedzo.FedZO(**SOFTMAX),
        "FedZO, H = 1": fedzo.FedZO(**SOFTMAX, local_steps=1),
        "DZOPA": fedzo.DZOPA(batch_size=10, learning_rate=0.001),
        "ZONE-S": fedzo.ZoneS(batch_size=10, penalty=50.0),
        "ZO-SGD, pooled data": fedzo.ZOSGD(batch_size=10),
        "FedAvg, gradients": fedzo.FedAvg(**SOFTMAX),
    }
    runs = {name: on_softmax(way) for name, way in ways.items()}
    figure, (left, right) = panels("communication round", "queries (FedAvg: none)")
    curves(left, runs, "round")
    curves(
        right, {name: run for name, run in runs.items() if name != "FedAvg, gradients"}, "queries"
    )
    right.set_xscale("log")
    right.get_legend().remove()  # the left one serves both
    return figure


def uplink() -> Figure:
    """Compare what noise over the air does, and what each uplink takes of the channel."""
    way = fedzo.FedZO(**SOFTMAX)
    air = {f"over the air, {snr:g} dB": fedzo.AirComp(snr_db=snr) for snr in (0, -20, -30)}
    runs = {name: on_softmax(way, link) for name, link in air.items()}
    runs["ideal, M = 5"] = on_softmax(way)
    runs["seeds, M = 5"] = on_softmax(way, fedzo.Seeds())
    figure, (left, right) = panels("communication round", "channel uses (symbols)")
    curves(left, runs, "round", styles={"seeds, M = 5": ":"})
    curves(right, runs, "channel_uses", styles={"seeds, M = 5": ":"})
    right.set_xscale("log")
    right.get_legend().remove()  # the left one serves both
    return figure


def batches() -> Figure:
    """Spend the same number of queries on samples or on directions."""
    figure, both = panels("queries", "queries")
    for axes, noise in zip(both, (0.5, 5.0), strict=True):
        runs = {}
        for b1, b2 in ((50, 1), (10, 9), (1, 99)):  # b1 (b2 + 1) = 100 queries an estimate
            way = fedzo.FedZO(learning_rate=0.1, batch_size=b1, directions=b2, local_steps=1)
            runs[f"b1 = {b1}, b2 = {b2}"] = on_quadratic(way, noise, rounds=150)
        curves(axes, runs, "queries", key="optimality_gap", log=True)
        axes.set_title(f"gradient noise σ_g = {noise:g}", fontsize=10)
        axes.xaxis.set_major_formatter(EngFormatter())
    return figure


def smoothing() -> Figure:
    """How wrong measured slopes are, by μ, for a model that computes in float64 or float32."""
    figure, both = panels("smoothing μ", "smoothing μ")
    sizes = np.geomspace(1e-9, 10, 21)
    for axes, dtype in zip(both, (np.float64, np.float32), strict=True):
        for colour, difference in zip(COLOURS, ("forward", "central"), strict=False):
            errors = [slope_error(mu, difference, dtype) for mu in sizes]
            axes.loglog(sizes, errors, "o-", color=colour, label=difference, lw=1.6, ms=4)
        told(axes, "relative error of the slopes")
        axes.set_title(f"model in {np.dtype(dtype).name}", fontsize=10)
        axes.set_ylim(1e-12, 1e2)
    return figure


def slope_error(mu: float, difference: str, dtype: Any, directions: int = 20) -> float:
    """Return how far slopes of softmax regression along directions are from the exact ones."""
    inputs = data.load("fashion-mnist-mini").train_inputs[:25].astype(dtype) / dtype(255)
    x = (0.05 * np.random.default_rng(0).normal(size=7840)).astype(dtype)

    def loss(point: Any, device: int) -> float:  # all labels are 0
        logits = inputs @ point.reshape(10, 784).T
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[:, 0]))

    estimator = Estimator(mu, directions, "sphere", difference)
    frame = estimator.frame(x.size, x.dtype)
    objective, at = FunctionObjective(loss, x.size, 1), Draws(0, Stream.DIRECTIONS)
    found, _ = estimator.estimate(objective, x, 1, frame, at)
    wide = inputs.astype(np.float64)
    powers = np.exp(wide @ x.reshape(10, 784).T.astype(np.float64))
    chances = powers / powers.sum(axis=1, keepdims=True) - np.eye(10)[0]
    slopes = frame.vectors().astype(np.float64) @ (chances.T @ wide / len(wide)).ravel()
    exact = x.size / directions * frame.scales * slopes  # as eq. (2) weighs them
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


PICTURES: Mapping[str, Callable[[], Figure]] = {
    draw.__name__: draw for draw in (algorithm, uplink, batches, smoothing)
}


@cache
def on_softmax(
    way: Any, link: Any = None, partition: str = "shards", rounds: int = 60
) -> list[dict[str, Any]]:
    """Return the history of a run of `fedzo run softmax`, by another algorithm or uplink."""
    problem = softmax(devices=20, partition=partition)
    return fedzo.minimize(problem, algorithm=way, uplink=link, rounds=rounds).history


def on_quadratic(way: Any, noise: float = 1.0, rounds: int = 30) -> list[dict[str, Any]]:
    """Return the history of a run on a quadratic of 30 numbers and 5 devices."""
    problem = Quadratic(dim=30, devices=5, gradient_noise=noise)
    run = fedzo.minimize(problem, algorithm=way, rounds=rounds, evaluate_every=5)
    return run.history


def panels(*xlabels: str) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with a panel for each label."""
    figure = Figure(figsize=(8.4, 3.3), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(xlabels))
    for each, label in zip(axes, xlabels, strict=True):
        each.set_xlabel(label)
    return figure, axes


def curves(
    axes: Axes,
    runs: Mapping[str, list[dict[str, Any]]],
    by: str,
    key: str = "train_loss",
    log: bool = False,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Draw one metric of each run against rounds, queries or channel uses."""
    for colour, (name, history) in zip(COLOURS, runs.items(), strict=False):
        points = [(record[by], record[key]) for record in history if record[by] or by == "round"]
        style = (styles or {}).get(name, "-")
        axes.plot(*zip(*points, strict=True), style, color=colour, label=name, lw=1.8)
    if log:
        axes.set_yscale("log")
    told(axes, "training loss, all devices" if key == "train_loss" else "f(x) - f*")


def told(axes: Axes, ylabel: str) -> None:
    """Finish a panel."""
    axes.set_ylabel(ylabel)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def main(names: Sequence[str]) -> None:
    """Draw the pictures of these names, all by default."""
    for name in names or PICTURES:
        if name not in PICTURES:
            sys.exit(f"no picture {name!r}: there are {', '.join(PICTURES)}")
        PICTURES[name]().savefig(FOLDER / f"choose-{name.replace('_', '-')}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
