"""Curves of runs: the loss and the problem's own metrics, against rounds or what they cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedzo.errors import InvalidValue, UsageError, nearest, one_of
from fedzo.plots.figures import draw
from fedzo.plots.series import Runs, axes_of_runs, metrics


def draw_curves(
    runs: Runs,
    out: str | os.PathLike[str],
    x: str = "round",
    y: Sequence[str] | None = None,
    log_x: bool = False,
    log_y: bool | None = None,
) -> None:
    """Draw one curve for each label, with mean and band where it has several seeds.

    Parameters
    ----------
    runs
        The histories of a label's seeds, each the records of a ``history.jsonl``.
    out
        The picture's file; its ending says the format.
    x, y
        Keys of the records: what is shown, and against what. By default the loss and the
        well-known metrics that are there.
    log_x, log_y
        Whether the axes are logarithmic; y is by default where it spans decades.

    Examples
    --------
    >>> import tempfile
    >>> history = [{"round": t, "train_loss": 0.5**t, "queries": 20 * t} for t in range(5)]
    >>> path = Path(tempfile.mkdtemp(), "loss.svg")
    >>> draw_curves({"a run": [history]}, path, x="queries", log_y=True)
    >>> "queries, all devices" in path.read_text()
    True
    """
    check_keys(runs, x, y)
    told = {_with_seeds(label, len(seeds)): seeds for label, seeds in runs.items()}
    axes = axes_of_runs(told, x, y, log_x)
    if not any(panel["series"] for panel in axes):
        raise UsageError("there is no finite number to draw")
    if log_y is not None:
        axes = [panel | {"log_y": log_y} for panel in axes]
    draw(axes, Path(out))


def check_keys(runs: Runs, x: str, y: Sequence[str] | None = None) -> None:
    """Raise unless some run has these numbers.

    >>> check_keys({"a": [[{"round": 0, "train_loss": 1.0}]]}, "round", ["train_los"])
    Traceback (most recent call last):
    fedzo.errors.InvalidValue: y = 'train_los': must be ... (did you mean 'train_loss'?)
    """
    keys = metrics(runs)
    for axis, key in (("x", x), *(("y", key) for key in y or ())):
        if key not in keys:
            raise InvalidValue(axis, key, one_of(keys) + nearest(key, keys))


def _with_seeds(label: str, seeds: int) -> str:
    return f"{label}, mean and range of {seeds} seeds" if seeds > 1 else label
