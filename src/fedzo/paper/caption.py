"""What a figure's runs were set to, in words that are made of their resolved configurations.

No title, caption or list of what is smaller is written by hand, so none can say what was not run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

Tables = Mapping[str, Mapping[str, Any]]
Settings = dict[str, Any]  # by symbol, in the order in which they are told

# The symbols of the paper, and where a configuration has them.
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


def settings_of(tables: Tables) -> Settings:
    """Return what one configuration is set to, by symbol; what it has not is left out.

    M is N where all take part. Over the air it is the channel that says who does.

    Examples
    --------
    >>> from fedzo.config.experiment import Experiment
    >>> tables = Experiment.load("softmax", ["algorithm.participants=7"]).tables
    >>> found = settings_of(tables)
    >>> found["N"], found["M"], found["b1"], found["η"], "ρ" in found
    (50, 7, 25, 0.001, False)
    """
    found = {
        symbol: tables[table][key]
        for symbol, (table, key) in SYMBOLS.items()
        if key in tables[table]
    }
    if tables["uplink"]["name"] == "aircomp":
        found.pop("M", None)
    elif "M" in found and found["M"] is None:
        found["M"] = found["N"]
    return {symbol: value for symbol, value in found.items() if value is not None}


def title(text: str, curves: Mapping[str, Tables]) -> str:
    """Return a title with the numbers of devices and steps that all curves share.

    Examples
    --------
    >>> from fedzo.config.experiment import Experiment
    >>> few = Experiment.load("softmax", ["algorithm.participants=5"]).tables
    >>> all_of_them = Experiment.load("softmax", ["algorithm.participants=50"]).tables
    >>> title("Impact of M", {"M = 5": few, "M = 50": all_of_them})
    'Impact of M (N = 50, H = 5)'
    """
    shared = _shared({label: settings_of(tables) for label, tables in curves.items()})
    told = ", ".join(f"{s} = {word(shared[s])}" for s in IN_TITLE if s in shared)
    return f"{text} ({told})" if told else text


def settings(curves: Mapping[str, Tables]) -> str:
    r"""Return what curves are set to: what they share, then by whom what they do not.

    What a curve's own label says is not said again.

    Examples
    --------
    >>> from fedzo.config.experiment import Experiment
    >>> change = ["algorithm.name=fedavg", "algorithm.learning_rate=0.1"]
    >>> curves = {"A": Experiment.load("quadratic").tables}
    >>> curves["B"] = Experiment.load("quadratic", change).tables
    >>> print(settings(curves).replace(". ", ".\n"))
    d = 100, N = 20, M = 10, H = 5, b1 = 5, b2 = 10, μ = 0.001, T = 200.
    η: 0.01 (FedZO), 0.1 (FedAvg)
    """
    each = {label: settings_of(tables) for label, tables in curves.items()}
    shared = _shared(each)
    parts = [", ".join(f"{symbol} = {_long(symbol, value)}" for symbol, value in shared.items())]
    for symbol in SYMBOLS:
        having = {label: s[symbol] for label, s in each.items() if symbol in s}
        told = {label: v for label, v in having.items() if f"{symbol} = " not in label}
        if symbol not in shared and told:
            names = {label: NAMES[curves[label]["algorithm"]["name"]] for label in told}
            parts.append(f"{symbol}: {_by_whom(told, names if told == having else {})}")
    return ". ".join(part for part in parts if part)


def smaller(curves: Mapping[str, Tables], paper: Mapping[str, Tables]) -> str:
    """Return in what runs differ from the paper's scale, whose values are in brackets.

    Examples
    --------
    >>> from fedzo.config.experiment import Experiment
    >>> ours = Experiment.load("softmax", ["run.rounds=80"]).tables
    >>> theirs = Experiment.load("softmax", ["problem.data=fashion-mnist"]).tables
    >>> smaller({"H = 5": ours}, {"H = 5": theirs})
    'data = fashion-mnist-mini (fashion-mnist), T = 80 (300)'
    """
    pairs: dict[str, dict[str, str]] = {}
    for label, tables in curves.items():
        ours, theirs = settings_of(tables), settings_of(paper[label])
        for symbol in SYMBOLS:
            if ours.get(symbol) != theirs.get(symbol):
                told = f"{word(ours[symbol])} ({word(theirs[symbol])})"
                pairs.setdefault(symbol, {})[label] = told
    return ", ".join(
        f"{symbol} = {' or '.join(dict.fromkeys(told.values()))}" for symbol, told in pairs.items()
    )


def word(value: Any) -> str:
    """Return a setting in few characters.

    >>> word(0.001), word(500.0), word(0.035355339), word("deer"), word(float("inf"))
    ('0.001', '500', '0.03536', 'deer', '∞')
    """
    return f"{value:.4g}".replace("inf", "∞") if isinstance(value, float) else str(value)


def _shared(each: Mapping[str, Settings]) -> Settings:
    """Return the settings in which all agree that have them."""
    found: dict[str, list[Any]] = {}
    for symbol in SYMBOLS:
        found[symbol] = [s[symbol] for s in each.values() if symbol in s]
    return {symbol: v[0] for symbol, v in found.items() if v and all(x == v[0] for x in v)}


def _by_whom(told: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return values and in brackets whose, by the names of groups that are of one mind."""
    groups: dict[str, set[Any]] = {}
    for label, value in told.items():
        groups.setdefault(names.get(label, label), set()).add(value)
    values: dict[Any, dict[str, None]] = {}  # whose, each once and in order
    for label, value in told.items():
        name = names.get(label, label)
        values.setdefault(value, {})[name if len(groups[name]) == 1 else label] = None
    return ", ".join(f"{word(value)} ({'; '.join(whose)})" for value, whose in values.items())


def _long(symbol: str, value: Any) -> str:
    return f"{value}{_accuracy(value)}" if symbol == "model" else word(value)


def _accuracy(model: str) -> str:
    """Return what a model that ships is able to, from its card."""
    card = files("fedzo.models") / "files" / f"{model}.json"
    if not card.is_file():
        return ""
    accuracy = json.loads(card.read_text(encoding="utf-8"))["test_accuracy"]
    return f" (test accuracy {100 * accuracy:.1f} %)"
