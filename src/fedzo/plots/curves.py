"""Curves of runs: loss and the problem's own metric against rounds."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedzo.core.files import write_atomic

Array = NDArray[Any]
Histories = Sequence[Sequence[Mapping[str, Any]]]  # the records of one seed after another

# Okabe & Ito's colours: told apart by the colour-blind too, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_TITLES = {
    "train_loss": "training loss, all devices",
    "test_accuracy": "test accuracy",
    "optimality_gap": "f(x) - f*",
    "attack_success": "attack success rate",
}


def draw_curves(runs: Mapping[str, Histories], out: str | os.PathLike[str]) -> None:
    """Draw one curve for each label, with mean and band where it has several seeds.

    Parameters
    ----------
    runs
        The histories of a label's seeds, each the records of a ``history.jsonl``.
    out
        The picture's file; its ending says the format.
    """
    from matplotlib.figure import Figure

    keys = ["train_loss", *_metrics(runs)]
    figure = Figure(figsize=(5 * len(keys), 3.6), dpi=150, layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        for i, (name, histories) in enumerate(runs.items()):
            if not all(key in record for history in histories for record in history):
                continue
            rounds, curves = _align(histories, key)
            colour, style = COLOURS[i % len(COLOURS)], "-" if i < len(COLOURS) else "--"
            seeds = f", mean and range of {len(curves)} seeds" if len(curves) > 1 else ""
            line = {"marker": "." if len(rounds) == 1 else None, "color": colour, "lw": 1.8}
            axes.plot(rounds, curves.mean(axis=0), style, label=name + seeds, **line)
            if len(curves) > 1:
                low, high = curves.min(axis=0), curves.max(axis=0)
                axes.fill_between(rounds, low, high, color=colour, alpha=0.2, lw=0)
        drawn = [line.get_ydata() for line in axes.lines]
        if key == "optimality_gap" or (key == "train_loss" and _spans_decades(drawn)):
            axes.set_yscale("log")
        axes.set(xlabel="communication round", ylabel=_TITLES.get(key, key.replace("_", " ")))
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    if len(runs) > 1 or any(len(seeds) > 1 for seeds in runs.values()):
        figure.axes[0].legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(out).suffix[1:] or "png")
    write_atomic(Path(out), picture.getvalue())


def _metrics(runs: Mapping[str, Histories]) -> list[str]:
    """Return what to draw beside the loss: the well-known metrics that some run has."""
    known = ("test_accuracy", "optimality_gap", "attack_success")
    return [key for key in known if any(key in seeds[0][0] for seeds in runs.values())]


def _spans_decades(curves: Sequence[Any]) -> bool:
    """Tell whether a linear axis would show the ends of the curves as one flat line."""
    values = np.concatenate([np.ravel(curve) for curve in curves])
    return bool(values.min() > 0 and values.max() > 100 * values.min())


def _align(histories: Histories, key: str) -> tuple[Array, Array]:
    """Return rounds that all seeds have, and one curve for each seed."""
    tables = [{record["round"]: record[key] for record in history} for history in histories]
    rounds = sorted(set.intersection(*(set(table) for table in tables)))
    curves = np.array([[table[r] for r in rounds] for table in tables])
    return np.array(rounds), curves.clip(-1e99, 1e99)  # matplotlib fails near the largest floats
