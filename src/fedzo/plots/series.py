"""The numbers of a picture: curves over seeds, their axes, and the final values.

The picture for print and the interactive page draw the same numbers on the same scales.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedzo.core.style import COLOURS
from fedzo.core.types import Array
from fedzo.errors import is_number
from fedzo.plots.interval import interval

History = Sequence[Mapping[str, Any]]
Runs = Mapping[str, Sequence[History]]  # the history of each seed, by label

COSTS = (  # keys for the x axis
    "round", "queries", "uplink_bytes", "channel_uses", "energy", "seconds_on_air", "joules",
    "seconds",
)  # fmt: skip
METRICS = ("train_loss", "test_accuracy", "attack_success", "distortion_l2_mean", "optimality_gap")
WIRELESS = ("noise_to_update", "energy", "participants", "channel_uses")
DISTANCES = ("optimality_gap", "gradient_norm_squared")  # their minimum is zero

_LABELS = {
    "round": "communication round",
    "train_loss": "training loss, all devices",
    "test_accuracy": "test accuracy",
    "attack_success": "attack success rate",
    "heldout_success": "success on images held out",
    "distortion_l2_mean": "mean distortion, L2",
    "queries": "queries, all devices",
    "uplink_bytes": "bytes sent up, all devices",
    "downlink_bytes": "bytes sent down, all devices",
    "optimality_gap": "f(x) - f*",
    "gradient_norm_squared": "|∇f(x)|²",
    "noise_to_update": "receiver's noise over the update",
    "energy": "energy so far, in budgets of a round",
    "seconds_on_air": "time on air so far, in seconds",
    "joules": "energy of all devices so far, in joules",
    "energy_max": "largest energy of a device, of its budget",
    "participants": "devices in the round",
}


def axis_label(key: str) -> str:
    """Return the axis label of a key of a history.

    >>> axis_label("train_loss"), axis_label("my_own")
    ('training loss, all devices', 'my own')
    """
    return _LABELS.get(key, key.replace("_", " "))


def axes(
    x: str, y: str, series: Sequence[Mapping[str, Any]], title: str = "", log_x: bool = False
) -> dict[str, Any]:
    """Return one pair of axes for two keys of a history, ``y`` logarithmic if it spans decades."""
    labels = axis_label(x), axis_label(y)
    return labelled_axes(*labels, series, title, log_x, logarithmic(y, series), [x, y])


def labelled_axes(
    x: str,
    y: str,
    series: Sequence[Mapping[str, Any]],
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    keys: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return one pair of axes with the given labels."""
    shown = {"title": title, "x": x, "y": y, "log_x": log_x, "log_y": log_y, "keys": keys}
    return shown | {"series": list(series)}


def logarithmic(key: str, series: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the values span decades, which a linear axis would show as a flat line.

    >>> logarithmic("train_loss", [{"mean": [500.0, 1.0]}]), logarithmic("train_loss", [])
    (True, False)
    """
    values = [value for curve in series for value in curve["mean"]]
    positive = bool(values) and min(values) > 0
    return key in DISTANCES or (positive and max(values) > 100 * min(values))


def series(
    label: str, histories: Sequence[History], x: str, y: str, colour: int, dashed: bool = False
) -> dict[str, Any]:
    """Return a curve over the rounds that all seeds share: mean, least and greatest value.

    Examples
    --------
    >>> seeds = [[{"round": 0, "train_loss": 2.0}], [{"round": 0, "train_loss": 4.0}]]
    >>> drawn = series("H = 5", seeds, "round", "train_loss", colour=0)
    >>> drawn["x"], drawn["mean"], drawn["low"], drawn["high"]
    ([0.0], [3.0], [2.0], [4.0])
    """
    tables = [
        {r["round"]: (r[x], r[y]) for r in history if finite(r.get(x)) and finite(r.get(y))}
        for history in histories
    ]
    rounds = sorted(set.intersection(*(set(table) for table in tables)))
    points = np.array([[table[t] for t in rounds] for table in tables]).reshape(len(tables), -1, 2)
    return series_of(label, points[..., 0].mean(axis=0), points[..., 1], colour, dashed)


def series_of(label: str, x: Array, seeds: Array, colour: int, dashed: bool) -> dict[str, Any]:
    """Return a curve from the values of its seeds, shape (n_seeds, n_points)."""
    seeds = np.clip(seeds, -1e99, 1e99)  # matplotlib fails near the largest floats
    drawn = {"x": x, "mean": seeds.mean(axis=0), "low": seeds.min(axis=0)}
    drawn["high"] = seeds.max(axis=0)
    numbers = {key: [float(f"{v:.7g}") for v in values] for key, values in drawn.items()}
    return {"label": label, "colour": colour, "dashed": dashed, "seeds": len(seeds), **numbers}


def axes_of_runs(
    runs: Runs, x: str = "round", y: Sequence[str] | None = None, log_x: bool = False
) -> list[dict[str, Any]]:
    """Return one pair of axes per metric, with a curve for each label that has the metric.

    By default ``y`` is the well-known metrics that some run has, and for runs over the air the
    energy, noise and channel uses.
    """
    keys = metrics(runs)
    if y is None:
        wireless = WIRELESS if "energy" in keys else ()
        y = [key for key in (*METRICS, *wireless) if key in keys and key != x]
    return [axes(x, key, _curves(runs, x, key), log_x=log_x) for key in y]


def metrics(runs: Runs) -> list[str]:
    """Return the keys that are finite numbers in some record, in the order of the records.

    >>> metrics({"a": [[{"round": 0, "train_loss": 1.0, "dropped": []}]]})
    ['round', 'train_loss']
    """
    records = (r for seeds in runs.values() for history in seeds for r in history)
    return list(dict.fromkeys(key for record in records for key in record if finite(record[key])))


def columns(runs: Runs) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return for each label all metrics over the rounds that its seeds share.

    Examples
    --------
    >>> seeds = [[{"round": 0, "loss": 2.0}, {"round": 5, "loss": 1.0}]]
    >>> columns({"a": seeds})["a"]["loss"]
    {'round': [0.0, 5.0], 'mean': [2.0, 1.0], 'low': [2.0, 1.0], 'high': [2.0, 1.0]}
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for label, seeds in runs.items():
        drawn = {key: series(label, seeds, "round", key, 0) for key in metrics({label: seeds})}
        names = {"round": "x", "mean": "mean", "low": "low", "high": "high"}
        found[label] = {key: {n: s[k] for n, k in names.items()} for key, s in drawn.items()}
    return found


def finals(runs: Runs) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return for each label the final metrics: mean over seeds and 95 % interval of the mean.

    Examples
    --------
    >>> seeds = [[{"round": 9, "loss": v}] for v in (1.0, 2.0, 3.0)]
    >>> finals({"a": seeds})["a"]["loss"]
    {'mean': 2.0, 'low': -0.484138, 'high': 4.48414}
    """
    found = {}
    for label, seeds in runs.items():
        ends = [history[-1] for history in seeds]
        keys = [key for key in metrics({label: seeds}) if all(finite(e.get(key)) for e in ends)]
        found[label] = {key: interval([e[key] for e in ends]).rounded() for key in keys}
    return found


def covered(panel: Mapping[str, Any]) -> list[int]:
    """Return for each curve of a panel how many later curves cover it.

    A curve covers another if it has more than half of the other's points, and if they differ there
    by less than a hundredth of the panel's height.

    Examples
    --------
    >>> curve = {"x": [0.0, 1.0], "mean": [0.0, 1.0]}
    >>> other = curve | {"mean": [1.0, 0.0]}
    >>> covered({"log_x": False, "log_y": False, "series": [curve, curve, other]})
    [1, 0, 0]
    """
    curves: list[dict[float, float]] = []
    for curve in panel["series"]:
        points: Iterable[tuple[float, float]] = zip(curve["x"], curve["mean"], strict=True)
        if panel["log_y"]:
            points = ((x, math.log(y)) for x, y in points if y > 0)
        # A log axis cannot show a start at zero queries.
        curves.append({x: y for x, y in points if x > 0 or not panel["log_x"]})
    every = [y for curve in curves for y in curve.values()] or [0.0]
    near = 0.01 * (max(every) - min(every))

    def on(upper: dict[float, float], lower: dict[float, float]) -> bool:
        both = upper.keys() & lower.keys()
        return 2 * len(both) > len(lower) and all(abs(upper[x] - lower[x]) <= near for x in both)

    return [sum(on(upper, c) for upper in curves[i + 1 :]) for i, c in enumerate(curves)]


def _curves(runs: Runs, x: str, y: str) -> list[dict[str, Any]]:
    drawn = (
        series(label, seeds, x, y, i % len(COLOURS), i >= len(COLOURS))
        for i, (label, seeds) in enumerate(runs.items())
    )
    return [curve for curve in drawn if curve["x"]]


def finite(value: Any) -> bool:
    """Return whether a value is a finite number, and no truth value.

    >>> finite(1), finite(float("nan")), finite(True)
    (True, False, False)
    """
    return not isinstance(value, bool) and is_number(value)
