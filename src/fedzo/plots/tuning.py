"""A picture of tuning: the score of each trial against each parameter."""

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from fedzo.core.style import COLOURS, dress
from fedzo.errors import UsageError


def draw_trials(
    params: Sequence[Mapping[str, Any]], scores: Sequence[float], out: str | os.PathLike[str]
) -> None:
    """Draw one panel per parameter; later trials are darker, and the best has a ring.

    Parameters
    ----------
    params
        The parameters of each trial; a trial may lack some of them.
    scores
        The score of each trial, lower is better.
    out
        The file to write; its ending gives the format.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "trials.svg")
    >>> draw_trials([{"rate": 0.1, "kernel": "rbf"}, {"rate": 1e-4}], [0.5, 0.7], path)
    >>> "rate" in path.read_text()
    True
    """
    from matplotlib.figure import Figure

    shown = [(p, s) for p, s in zip(params, scores, strict=True) if math.isfinite(s)]
    if not shown:
        raise UsageError("there is no finite score to draw", code="nothing-to-draw")
    names = list(dict.fromkeys(name for trial, _ in shown for name in trial))
    columns = min(len(names), 4)
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows + 0.4), dpi=150, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    figure.suptitle(
        f"{len(shown)} trials: later ones are darker, a ring marks the best", fontsize=10
    )
    best = min(score for _, score in shown)
    for axis, name in zip(axes, names, strict=False):
        having = [(k, t[name], s) for k, (t, s) in enumerate(shown) if name in t]
        numbers = all(isinstance(v, Real) and not isinstance(v, bool) for _, v, _ in having)
        values: list[Any] = [v if numbers else str(v) for _, v, _ in having]
        found = [s for *_, s in having]
        axis.scatter(values, found, c=[k for k, *_ in having], cmap="Blues", vmin=-len(shown), s=18)
        leads = [v for v, s in zip(values, found, strict=True) if s == best]
        ring = {"markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.6}
        axis.plot(leads, [best] * len(leads), "o", color=COLOURS[1], **ring)
        if numbers and min(values) > 0 and max(values) > 50 * min(values):
            axis.set_xscale("log")
        dress(axis, x=name, y="score" if axis in axes[::columns] else "")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    figure.savefig(Path(out))
