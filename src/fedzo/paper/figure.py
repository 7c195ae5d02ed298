"""Figures: the runs that they show, their axes, and captions made from the runs' configurations.

A title or caption never repeats a setting by hand, so it cannot differ from what was run.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from fedzo.config.experiment import Changes, Experiment, Tables, merge_changes
from fedzo.paper.claims import Claim, Runs, final_level
from fedzo.plots.series import axes, axis_label, labelled_axes, series, series_of

Lines = Mapping[str, Mapping[float, float]]  # y by x, by label
Settings = dict[str, Any]  # by symbol


@dataclass(frozen=True)
class Scale:
    """The size of a figure's runs: the paper's size, or a smaller one to try.

    About ``points`` rounds of each run are evaluated.
    """

    config: str
    rounds: int
    seeds: int
    changes: Changes = field(default_factory=dict)
    points: int = 30


@dataclass(frozen=True)
class Curve:
    """One curve: how its runs differ from the configuration of the scale.

    ``rounds`` is in units of the scale's rounds, to compare runs at equal cost instead of equal
    rounds. Curves of the same ``colour`` have the same marker.
    """

    label: str
    changes: Changes = field(default_factory=dict)
    colour: int = 0
    dashed: bool = False
    rounds: float = 1.0

    def experiment(self, scale: Scale) -> Experiment:
        """Return the configuration of the curve's runs, with seed 0.

        Examples
        --------
        >>> scale = Scale("quadratic", rounds=200, seeds=3, points=20)
        >>> curve = Curve("H = 2", {"algorithm": {"local_steps": 2}}, rounds=0.5)
        >>> curve.experiment(scale).options.rounds
        100
        """
        rounds = max(1, round(self.rounds * scale.rounds))
        every = max(1, rounds // scale.points)
        # One worker per run: runs go side by side, and the result does not depend on it.
        run = {"rounds": rounds, "evaluate_every": every, "checkpoint_every": -(-rounds // 20)}
        run |= {"workers": 1, "seed": 0}
        return Experiment.load(
            scale.config, merge_changes(scale.changes, self.changes, {"run": run})
        )


def curves_by(
    key: str, labels: Mapping[Any, str], dashed: bool = False, **settings: Any
) -> tuple[Curve, ...]:
    """Return a curve per value of a key of [algorithm], given its label, with further settings.

    >>> curves_by("local_steps", {5: "H = 5"}, participants=20)[0].changes
    {'algorithm': {'participants': 20, 'local_steps': 5}}
    """
    return tuple(
        Curve(label, {"algorithm": {**settings, key: value}}, colour=i, dashed=dashed)
        for i, (value, label) in enumerate(labels.items())
    )


def air_curves(algorithm: Mapping[str, float]) -> tuple[Curve, ...]:
    """Return a curve over the air per SNR, and one without noise but with the same channels."""
    labels = {f"SNR = {snr} dB": snr for snr in (-10, -5, 0)} | {"noise-free": math.inf}
    uplink = {"name": "aircomp", "h_min": 0.8}
    return tuple(
        Curve(
            label,
            {"uplink": {**uplink, "snr_db": snr}, "algorithm": algorithm},
            colour=i,
            dashed=snr == math.inf,
        )
        for i, (label, snr) in enumerate(labels.items())
    )


@dataclass(frozen=True)
class Panel:
    """Axes with ``curves`` (all by default), mean and range over seeds, and computed ``lines``."""

    y: str
    x: str = "round"
    title: str = ""
    log_x: bool = False
    curves: Sequence[str] | None = None
    lines: Lines = field(default_factory=dict)


@dataclass(frozen=True)
class Points:
    """Axes with a point per curve: its final level against a setting.

    The final level is the mean over the second half of the rounds. ``at`` has the lines that join
    points, and for each line the x of its curves.
    """

    y: str
    x: str
    at: Mapping[str, Mapping[str, float]]
    lines: Lines = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, or an extra one.

    ``title`` and ``about`` contain no settings; these come from the configurations.
    """

    name: str
    title: str
    about: str
    curves: tuple[Curve, ...]
    panels: tuple[Panel | Points, ...]
    claims: tuple[Claim, ...]
    scales: Mapping[str, Scale]

    def tables(self, scale: str) -> dict[str, Tables]:
        """Return the resolved configuration of each curve, with seed 0."""
        return {c.label: c.experiment(self.scales[scale]).tables for c in self.curves}


# Axes.


def axes_of(figure: Figure, runs: Runs) -> list[dict[str, Any]]:
    """Return the axes of a figure with all their numbers, ready for JSON.

    The picture for print and the interactive report both draw these numbers.
    """
    return [
        _points(panel, runs) if isinstance(panel, Points) else _panel(panel, figure.curves, runs)
        for panel in figure.panels
    ]


def _panel(panel: Panel, curves: Sequence[Curve], runs: Runs) -> dict[str, Any]:
    shown = [c for c in curves if panel.curves is None or c.label in panel.curves]
    drawn = [series(c.label, runs[c.label], panel.x, panel.y, c.colour, c.dashed) for c in shown]
    return axes(panel.x, panel.y, drawn + _lines(panel, len(drawn)), panel.title, panel.log_x)


def _points(panel: Points, runs: Runs) -> dict[str, Any]:
    drawn = []
    for i, (line, at) in enumerate(panel.at.items()):
        shown = [label for label in runs if label in at]
        seeds = np.array([[final_level(h, panel.y) for h in runs[label]] for label in shown])
        finite = np.isfinite(seeds).all(axis=1)  # a curve that diverged has no level
        x = np.array([at[label] for label in shown])[finite]
        drawn.append(series_of(line, x, seeds[finite].T, i, False))
    drawn += _lines(panel, len(drawn))
    return labelled_axes(panel.x, axis_label(panel.y), drawn, log_x=True, log_y=True)


def _lines(panel: Panel | Points, first: int) -> list[dict[str, Any]]:
    """Return the computed lines, with colours from ``first``."""
    return [
        series_of(label, np.array(list(line)), np.array([list(line.values())]), first + i, True)
        for i, (label, line) in enumerate(panel.lines.items())
    ]


# Captions.

# The symbols of the paper, and their table and key in a configuration.
SYMBOLS = {
    "model": ("problem", "model"),
    "margin": ("problem", "margin"),
    "data": ("problem", "data"),
    "partition": ("problem", "partition"),
    "d": ("problem", "dim"),
    "N": ("problem", "devices"),
    "M": ("algorithm", "participants"),
    "H": ("algorithm", "local_steps"),
    "c": ("problem", "c"),
    "b1": ("algorithm", "batch_size"),
    "b2": ("algorithm", "directions"),
    "η": ("algorithm", "learning_rate"),
    "μ": ("algorithm", "smoothing"),
    "ρ": ("algorithm", "penalty"),
    "SNR": ("uplink", "snr_db"),
    "h_min": ("uplink", "h_min"),
    "T": ("run", "rounds"),
}
IN_TITLE = ("N", "M", "H")
NAMES = {
    "fedzo": "FedZO",
    "fedavg": "FedAvg",
    "dzopa": "DZOPA",
    "zone_s": "ZONE-S",
    "zo_sgd": "ZO-SGD",
}


def symbols_of(tables: Tables) -> Settings:
    """Return the settings of one configuration by symbol, without those that it does not have.

    M is N if all devices take part. Over the air there is no M: the channel selects the devices.

    Examples
    --------
    >>> tables = Experiment.load("softmax", {"algorithm": {"participants": 7}}).tables
    >>> found = symbols_of(tables)
    >>> found["N"], found["M"], found["b1"], found["η"], "ρ" in found
    (50, 7, 25, 0.001, False)
    """
    found = {s: tables[table][key] for s, (table, key) in SYMBOLS.items() if key in tables[table]}
    if tables["uplink"]["name"] in ("aircomp", "aircomp_seeds"):
        found.pop("M", None)
    elif "M" in found and found["M"] is None:
        found["M"] = found["N"]
    return {symbol: value for symbol, value in found.items() if value is not None}


def title_of(text: str, curves: Mapping[str, Tables]) -> str:
    """Return a title with the numbers of devices and steps that all curves share.

    Examples
    --------
    >>> few = Experiment.load("softmax", {"algorithm": {"participants": 5}}).tables
    >>> many = Experiment.load("softmax", {"algorithm": {"participants": 50}}).tables
    >>> title_of("Impact of M", {"M = 5": few, "M = 50": many})
    'Impact of M (N = 50, H = 5)'
    """
    shared = _shared({label: symbols_of(tables) for label, tables in curves.items()})
    numbers = ", ".join(f"{s} = {_short(shared[s])}" for s in IN_TITLE if s in shared)
    return f"{text} ({numbers})" if numbers else text


def settings_of(curves: Mapping[str, Tables]) -> str:
    r"""Return the settings of curves in words: first the shared ones, then the others by curve.

    A setting in the label of a curve is not repeated.

    Examples
    --------
    >>> change = {"algorithm": {"name": "fedavg", "learning_rate": 0.1}}
    >>> curves = {"A": Experiment.load("quadratic").tables}
    >>> curves["B"] = Experiment.load("quadratic", change).tables
    >>> print(settings_of(curves).replace(". ", ".\n"))
    d = 100, N = 20, M = 10, H = 5, b1 = 5, b2 = 10, μ = 0.001, T = 200.
    η: 0.01 (FedZO), 0.1 (FedAvg)
    """
    each = {label: symbols_of(tables) for label, tables in curves.items()}
    shared = _shared(each)
    parts = [", ".join(f"{s} = {_short(v)}{_accuracy(s, v)}" for s, v in shared.items())]
    for symbol in SYMBOLS:
        having = {label: s[symbol] for label, s in each.items() if symbol in s}
        listed = {label: v for label, v in having.items() if f"{symbol} = " not in label}
        if symbol not in shared and listed:
            names = {label: NAMES[curves[label]["algorithm"]["name"]] for label in listed}
            parts.append(f"{symbol}: {_by_curve(listed, names if listed == having else {})}")
    return ". ".join(part for part in parts if part)


def differences_of(curves: Mapping[str, Tables], paper: Mapping[str, Tables]) -> str:
    """Return the settings that differ from the paper's scale, with the paper's in brackets.

    Examples
    --------
    >>> ours = Experiment.load("softmax", {"run": {"rounds": 80}}).tables
    >>> theirs = Experiment.load("softmax", {"problem": {"data": "fashion-mnist"}}).tables
    >>> differences_of({"H = 5": ours}, {"H = 5": theirs})
    'data = fashion-mnist-mini (fashion-mnist), T = 80 (300)'
    """
    pairs: dict[str, dict[str, None]] = {}  # each pair once, in order
    for label, tables in curves.items():
        ours, theirs = symbols_of(tables), symbols_of(paper[label])
        for symbol in SYMBOLS:
            if ours.get(symbol) != theirs.get(symbol):
                pair = f"{_short(ours[symbol])} ({_short(theirs[symbol])})"
                pairs.setdefault(symbol, {})[pair] = None
    return ", ".join(f"{s} = {' or '.join(pairs[s])}" for s in pairs)


def _short(value: Any) -> str:
    """Return a setting in few characters: 0.001, 500, 0.03536, deer, ∞."""
    return f"{value:.4g}".replace("inf", "∞") if isinstance(value, float) else str(value)


def _shared(each: Mapping[str, Settings]) -> Settings:
    """Return the settings that have one value in all curves that have them."""
    having = {symbol: [s[symbol] for s in each.values() if symbol in s] for symbol in SYMBOLS}
    return {s: v[0] for s, v in having.items() if v and all(value == v[0] for value in v)}


def _by_curve(values: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return values with their curves in brackets, by the name of the group if it has one value."""
    groups: dict[str, set[Any]] = {}
    for label, value in values.items():
        groups.setdefault(names.get(label, label), set()).add(value)
    curves: dict[Any, dict[str, None]] = {}  # each name once, in order
    for label, value in values.items():
        name = names.get(label, label)
        curves.setdefault(value, {})[name if len(groups[name]) == 1 else label] = None
    return ", ".join(f"{_short(value)} ({'; '.join(whose)})" for value, whose in curves.items())


def _accuracy(symbol: str, value: Any) -> str:
    """Return the test accuracy of a shipped model, from its card."""
    card = files("fedzo.models") / "files" / f"{value}.json"
    if symbol != "model" or not card.is_file():
        return ""
    accuracy = json.loads(card.read_text(encoding="utf-8"))["test_accuracy"]
    return f" (test accuracy {100 * accuracy:.1f} %)"
