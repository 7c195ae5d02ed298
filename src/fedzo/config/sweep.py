"""Sweeps: one configuration with every combination of some settings, and which is the best.

Runs go side by side in processes and are kept as run folders, so a sweep that was stopped resumes
where it was, and one with more values or seeds keeps the runs that are there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedzo.config.experiment import Experiment
from fedzo.config.jobs import Report, Run, do
from fedzo.core.files import as_toml, read_toml, typed, write_atomic
from fedzo.core.machine import cores
from fedzo.errors import UsageError
from fedzo.plots.figures import draw
from fedzo.plots.interval import interval
from fedzo.plots.series import (
    METRICS,
    axes_of_runs,
    finals,
    labelled_axes,
    logarithmic,
    metrics,
    series_of,
)
from fedzo.plots.style import COLOURS, name
from fedzo.runs.store import RunFolder

MOST = 100_000  # runs, each of which has a folder of its own
SHOWN = 8  # curves in one picture; of more settings the best
AWAY = 10  # times where it began: such an end would leave no room for the others


@dataclass(frozen=True)
class Setting:
    """One combination: what is set, its experiment, and a run for each seed."""

    values: Mapping[str, Any]
    experiment: Experiment
    runs: Sequence[Run]

    @property
    def label(self) -> str:
        """The values in few characters.

        >>> Setting({"algorithm.local_steps": 5, "uplink.name": "seeds"}, None, ()).label
        'local_steps=5, uplink=seeds'
        """
        return ", ".join(f"{short(key)}={value}" for key, value in self.values.items())

    def ends(self, key: str = "train_loss") -> list[float]:
        """Return what each seed's run ended at; not a finite number where it diverged."""
        return [float(run.history()[-1][key]) for run in self.runs]


def short(key: str) -> str:
    """Return a setting's key without its table, or the table of a ``name``.

    >>> short("algorithm.local_steps"), short("uplink.name")
    ('local_steps', 'uplink')
    """
    table, _, name = key.partition(".")
    return table if name == "name" else name


def values_of(grid: str) -> tuple[str, list[Any]]:
    """Read ``table.key=a,b,c``.

    Examples
    --------
    >>> values_of("algorithm.learning_rate=0.1,1e-2"), values_of("uplink.name=ideal,seeds")
    (('algorithm.learning_rate', [0.1, 0.01]), ('uplink.name', ['ideal', 'seeds']))
    >>> values_of("learning_rate")
    Traceback (most recent call last):
    fedzo.errors.UsageError: --grid learning_rate: must be table.key=a,b,c, like ...
    """
    key, equals, text = (part.strip() for part in grid.partition("="))
    if not (equals and text and all(key.partition("."))):
        like = "like algorithm.learning_rate=0.001,0.01"
        raise UsageError(f"--grid {grid}: must be table.key=a,b,c, {like}")
    line = typed(f"values = [{text}]", f"--grid {key}")
    # Bare words are strings.
    values = [word.strip() for word in text.split(",")] if line is None else line["values"]
    if len({str(value) for value in values}) != len(values):
        raise UsageError(f"--grid {grid}: names a value twice")
    return key, values


def settings_of(
    source: str, overrides: Sequence[str], grids: Sequence[str], seeds: int, out: Path
) -> list[Setting]:
    """Return every combination of the grids' values, all of them checked before anything runs."""
    read = [values_of(grid) for grid in grids]
    keys = [key for key, _ in read]
    if len(set(keys)) != len(keys):
        raise UsageError(f"--grid: {max(keys, key=keys.count)} is given twice")
    many = seeds * math.prod(len(values) for _, values in read)
    if many > MOST:
        raise UsageError(f"--grid: {many:,} runs, and a sweep has at most {MOST:,}")
    found = []
    for values in itertools.product(*(values for _, values in read)):
        chosen = dict(zip(keys, values, strict=True))
        changes = [f"{key}={_toml(value)}" for key, value in chosen.items()]
        # One worker: runs go side by side, and the result does not depend on it.
        experiment = Experiment.load(source, [*overrides, *changes, "run.workers=1"])
        named = [f"{short(key)}={value}" for key, value in chosen.items()]
        folder = out / ",".join(named).replace("/", "_")
        first = experiment.options.seed
        runs = [
            Run(experiment.with_seed(seed), folder / f"seed-{seed}")
            for seed in range(first, first + seeds)
        ]
        found.append(Setting(chosen, experiment, runs))
    return found


def sweep(
    settings: Sequence[Setting], out: Path, report: Report = lambda *_: None
) -> tuple[Setting, str]:
    """Do what is missing of the runs; write table, picture and the best setting.

    Returns
    -------
    tuple
        The best setting, that of the least last training loss in the mean over seeds, and the
        table as text. The files are ``sweep.csv``, ``sweep.png`` and ``best.toml`` in ``out``.

    Examples
    --------
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp())
    >>> grid = ["algorithm.learning_rate=0.001,0.01"]
    >>> small = ["run.rounds=10", "problem.dim=5"]
    >>> best, table = sweep(settings_of("quadratic", small, grid, 1, out), out)
    >>> best.label, Experiment.load(str(out / "best.toml")).algorithm.learning_rate
    ('learning_rate=0.01', 0.01)
    """
    _check_folders(settings)
    RunFolder(out).claim()
    do([run for setting in settings for run in setting.runs], cores(), report)
    means = {id(setting): interval(setting.ends()).mean for setting in settings}
    # A mean that is not a number has runs that diverged in it.
    best = min(settings, key=lambda s: math.inf if math.isnan(means[id(s)]) else means[id(s)])
    rows = _rows(settings, best)
    text = "\n".join(",".join(_quoted(cell) for cell in row) for row in rows)
    write_atomic(out / "sweep.csv", (text + "\n").encode())
    head = f"# {best.label}: the best of {len(settings)} settings by its last training loss.\n\n"
    run = dict(best.experiment.tables["run"], workers=None)  # alone it may have all cores
    config = tomli_w.dumps(dict(as_toml(best.experiment.tables | {"run": run})))
    write_atomic(out / "best.toml", (head + config).encode())
    _draw(settings, out / "sweep.png")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return best, "\n".join(line.rstrip() for line in lines)


def _toml(value: Any) -> str:
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _check_folders(settings: Sequence[Setting]) -> None:
    """Raise where a folder holds another run than would be done there."""
    for run in (run for setting in settings for run in setting.runs):
        path = RunFolder(run.folder).config
        if not path.exists():
            continue
        try:
            same = read_toml(path) == as_toml(run.experiment.tables)
        except (OSError, ValueError):
            same = False
        if not same:
            raise UsageError(
                f"{run.folder} holds a run of another configuration: choose another --out"
            )


def _rows(settings: Sequence[Setting], best: Setting) -> list[list[str]]:
    """Return the table: what was set, and what the runs ended at."""
    histories = {setting.label: [run.history() for run in setting.runs] for setting in settings}
    there = metrics(histories)
    keys = [key for key in (*METRICS, "queries") if key in there]
    ends = finals(histories)
    swept = list(settings[0].values)
    rows = [[*swept, *keys, ""]]
    for setting in settings:
        values = [str(value) for value in setting.values.values()]
        cells = [_words(ends[setting.label].get(key)) for key in keys]
        rows.append([*values, *cells, "best" if setting is best else ""])
    return rows


def _words(end: Mapping[str, float | None] | None) -> str:
    if end is None:
        return "diverged"
    within = "" if end["low"] is None else f" [{end['low']:.4g}, {end['high']:.4g}]"
    return f"{end['mean']:.4g}{within}"


def _quoted(cell: str) -> str:
    return f'"{cell}"' if "," in cell else cell


def _draw(settings: Sequence[Setting], out: Path) -> None:
    """Draw what the runs ended at against what was set, and their curves."""
    ordered = sorted(settings, key=lambda s: min(s.ends()))[:SHOWN]
    shown = [setting for setting in settings if setting in ordered]
    histories = {setting.label: [run.history() for run in setting.runs] for setting in shown}
    # Where the minimum is known, the distance from it shows more than the loss does.
    key = "optimality_gap" if "optimality_gap" in metrics(histories) else "train_loss"
    axes = [_ends(settings, key), *axes_of_runs(histories, y=[key])]
    asked = [seeds[0][-1].get("queries", 0) for seeds in histories.values()]
    if max(asked) > min(asked):  # what is ahead by rounds may not be so by queries
        log_x = min(q for q in asked if q) * 10 <= max(asked)
        axes += axes_of_runs(histories, x="queries", y=[key], log_x=log_x)
    draw(axes, out, title="Where the settings end")


def _ends(settings: Sequence[Setting], shown: str) -> dict[str, Any]:
    """Return axes of the last values against the first key of numbers, a line for the rest."""
    swept = settings[0].values
    key = next((k for k in swept if all(_number(s.values[k]) for s in settings)), None)
    lines: dict[str, list[tuple[float, list[float]]]] = {}
    for place, setting in enumerate(settings):
        others = ((short(k), v) for k, v in setting.values.items() if k != key)
        rest = ", ".join(f"{k}={v}" for k, v in others) if key else ""
        ends = setting.ends(shown)
        start = max(float(run.history()[0][shown]) for run in setting.runs)
        if all(end <= AWAY * abs(start) for end in ends):  # not so where one is not a number
            where = float(place if key is None else setting.values[key])
            lines.setdefault(rest, []).append((where, ends))
    drawn = []
    for i, (line, points) in enumerate(lines.items()):
        points.sort(key=lambda point: point[0])
        x = np.array([point[0] for point in points])
        seeds = np.array([point[1] for point in points]).T
        drawn.append(series_of(line, x, seeds, i % len(COLOURS), False))
    if key is None:  # words: a point for each of them, and no line between
        names = ["\n".join(map(str, setting.values.values())) for setting in settings]
        label = ", ".join(short(k) for k in swept)
        log_y = logarithmic(shown, drawn)
        return labelled_axes(label, f"last {name(shown)}", drawn, log_y=log_y) | {"names": names}
    every = [x for curve in drawn for x in curve["x"]]
    log_x = bool(every) and min(every) > 0 and max(every) >= 10 * min(every)
    log_y = logarithmic(shown, drawn)
    label = short(key)
    return labelled_axes(label, f"last {name(shown)}", drawn, log_x=log_x, log_y=log_y)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
