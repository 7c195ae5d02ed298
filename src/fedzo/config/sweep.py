"""Sweeps: run one configuration with every combination of some settings, and report the best.

Runs go side by side in worker processes and keep their run folders. An interrupted sweep resumes
where it stopped, and a sweep with more values or seeds reuses the runs that exist.
"""

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedzo.config.experiment import Changes, Experiment, merge_changes
from fedzo.config.jobs import Report, Run, do
from fedzo.core.files import as_toml, read_toml, typed, write_atomic
from fedzo.core.machine import cores
from fedzo.core.objective import Objective
from fedzo.core.progress import aligned
from fedzo.core.style import COLOURS
from fedzo.errors import Failure, UsageError
from fedzo.plots import series
from fedzo.plots.figures import draw
from fedzo.plots.interval import Interval, interval
from fedzo.plots.series import Runs, finite
from fedzo.runs.store import RunFolder

MOST = 100_000  # runs; each has a folder
SHOWN = 8  # curves in one picture, those of the best settings
AWAY = 10  # a final value above this many times the first one is not drawn: it hides the others


@dataclass(frozen=True, eq=False)
class Setting:
    """One combination of values, its experiment, and a run per seed."""

    values: Mapping[str, Any]
    experiment: Experiment
    runs: Sequence[Run]

    @property
    def label(self) -> str:
        """The values in few characters.

        >>> Setting({"algorithm.local_steps": 5, "uplink.name": "seeds"}, None, ()).label
        'local_steps=5, uplink=seeds'
        """
        return ", ".join(_pairs(self.values))


def values_of(grid: str) -> tuple[str, list[Any]]:
    """Parse an argument of ``--grid``, ``table.key=a,b,c``.

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
        raise UsageError(f"--grid {grid}: must be table.key=a,b,c, {like}", code="bad-grid")
    line = typed(f"values = [{text}]", f"--grid {key}")
    # Bare words are strings.
    values = [word.strip() for word in text.split(",")] if line is None else line["values"]
    if len({str(value) for value in values}) != len(values):
        raise UsageError(f"--grid {grid}: names a value twice", code="bad-grid")
    return key, values


def settings_of(
    source: str, changes: Changes, grids: Sequence[str], seeds: int, out: Path
) -> list[Setting]:
    """Return every combination of the grids' values, each checked before anything runs."""
    read = [values_of(grid) for grid in grids]
    keys = [key for key, _ in read]
    if len(set(keys)) != len(keys):
        twice = max(keys, key=keys.count)
        raise UsageError(f"--grid: {twice} is given twice", code="bad-grid")
    many = seeds * math.prod(len(values) for _, values in read)
    if many > MOST:
        words = f"--grid: {many:,} runs, and a sweep has at most {MOST:,}"
        raise UsageError(words, code="bad-grid")
    found = []
    for values in itertools.product(*(values for _, values in read)):
        chosen = dict(zip(keys, values, strict=True))
        places = (key.partition(".")[::2] for key in keys)
        swept = [{table: {key: v}} for (table, key), v in zip(places, values, strict=True)]
        # One worker per run: runs go side by side, and the result does not depend on it.
        all_changes = merge_changes(changes, *swept, {"run": {"workers": 1}})
        experiment = Experiment.load(source, all_changes)
        folder = out / ",".join(_pairs(chosen)).replace("/", "_")
        first = experiment.options.seed
        runs = [
            Run(experiment.with_seed(seed), folder / f"seed-{seed}")
            for seed in range(first, first + seeds)
        ]
        found.append(Setting(chosen, experiment, runs))
    return found


def sweep(
    settings: Sequence[Setting], out: Path, report: Report = lambda *_: None
) -> tuple[Setting | None, str, dict[Path, Failure]]:
    """Do the missing runs, and write a table, a picture and the best setting.

    All combinations of parts are checked first: see :meth:`Experiment.check`.

    Returns
    -------
    tuple
        The best setting, which has the lowest final training loss in the mean over seeds (None if
        every setting has a failed or diverged run), the table as text, and the runs that failed.
        The files are ``sweep.csv``, ``sweep.png`` and ``best.toml`` in ``out``.

    Examples
    --------
    >>> import tempfile
    >>> out = Path(tempfile.mkdtemp())
    >>> grid = ["algorithm.learning_rate=0.001,0.01"]
    >>> small = {"run": {"rounds": 10}, "problem": {"dim": 5}}
    >>> best, table, failed = sweep(settings_of("quadratic", small, grid, 1, out), out)
    >>> best.label, Experiment.load(str(out / "best.toml")).algorithm.learning_rate
    ('learning_rate=0.01', 0.01)
    """
    _check_folders(settings)
    _check_parts(settings)
    RunFolder(out).claim()
    failed = do([run for setting in settings for run in setting.runs], cores(), report)
    histories = {
        s.label: [run.history() for run in s.runs if run.folder not in failed] for s in settings
    }
    losses = {s: _mean_loss(histories[s.label], len(s.runs)) for s in settings}
    best = min(settings, key=lambda setting: losses[setting])
    words = {
        s: [failed[r.folder].code.name.lower() if r.folder in failed else r.status for r in s.runs]
        for s in settings
    }
    chosen = best if math.isfinite(losses[best]) else None
    there = series.metrics(histories)
    keys = [key for key in (*series.METRICS, "queries") if key in there]
    rows = [
        _row(s, histories[s.label], keys)
        | {"status": " ".join(dict.fromkeys(words[s])), "best": int(s is chosen)}
        for s in settings
    ]
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomic(out / "sweep.csv", text.getvalue().encode())
    if chosen is not None:
        head = f"# {best.label}: the best of {len(settings)} settings by its last training loss."
        run = dict(best.experiment.tables["run"], workers=None)  # alone it may use all cores
        config = tomli_w.dumps(dict(as_toml(best.experiment.tables | {"run": run})))
        write_atomic(out / "best.toml", f"{head}\n\n{config}".encode())
        ran = [setting for setting in settings if histories[setting.label]]
        _draw(ran, {s.label: histories[s.label] for s in ran}, out / "sweep.png")
    return chosen, _as_text(rows), failed


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{_short(key)}={value}" for key, value in values.items()]


def _short(key: str) -> str:
    """Return a key without its table; the table of a ``name``."""
    table, _, name = key.partition(".")
    return table if name == "name" else name


def _ends(seeds: Sequence[Sequence[Mapping[str, Any]]], key: str) -> list[float]:
    """Return the final value of each seed; it is not finite if the run diverged."""
    ends = (history[-1].get(key) for history in seeds)
    return [math.nan if end is None else float(end) for end in ends]


def _mean_loss(seeds: Sequence[Sequence[Mapping[str, Any]]], count: int) -> float:
    """Return the mean final loss of a setting, infinite if a seed failed or diverged."""
    mean = float(np.mean(_ends(seeds, "train_loss"))) if len(seeds) == count else math.inf
    return math.inf if math.isnan(mean) else mean


def _check_parts(settings: Sequence[Setting]) -> None:
    """Raise if the parts of a setting do not fit together; make each problem once."""
    made: dict[str, Objective] = {}
    for setting in settings:
        tables = setting.experiment.tables
        key = repr((tables["problem"], tables["run"]["data_seed"]))
        if key not in made:
            made = {key: setting.experiment.problem()}  # one at a time in memory
        setting.experiment.check(made[key])


def _check_folders(settings: Sequence[Setting]) -> None:
    """Raise if a folder holds a run of another configuration."""
    for run in (run for setting in settings for run in setting.runs):
        path = RunFolder(run.folder).config
        if not path.exists():
            continue
        with suppress(OSError, ValueError):
            if read_toml(path) == as_toml(run.experiment.tables):
                continue
        words = f"{run.folder} holds a run of another configuration: choose another --out"
        raise UsageError(words, code="other-configuration")


def _row(setting: Setting, seeds: Sequence[series.History], keys: Sequence[str]) -> dict[str, Any]:
    """Return the values of a setting, and per metric its mean, interval and number of seeds.

    The numbers are over the seeds in which the metric ended finite. A cell is empty if there is no
    such number.
    """
    row = dict(setting.values)
    for key in keys:
        ends = [end for end in _ends(seeds, key) if math.isfinite(end)]
        found = interval(ends) if ends else Interval(math.nan, math.nan, math.nan)
        numbers = {f"{key}_{part}": value for part, value in found._asdict().items()}
        row |= {name: value if math.isfinite(value) else "" for name, value in numbers.items()}
        row[f"{key}_n"] = len(ends)
    return row


def _as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows for a terminal: values, means and status."""
    shown = [name for name in rows[0] if not name.endswith(("_low", "_high", "_n", "best"))]
    headings = [name.removesuffix("_mean") for name in shown]
    return "\n".join(aligned([headings, *([_cell(row[name]) for name in shown] for row in rows)]))


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if 1e4 <= value < 1e12 else f"{value:.4g}"


def _draw(settings: Sequence[Setting], histories: Runs, out: Path) -> None:
    """Draw the final values against the settings, and the curves of the best settings."""
    ordered = sorted(histories, key=lambda label: min(_ends(histories[label], "train_loss")))
    shown = {label: s for label, s in histories.items() if label in ordered[:SHOWN]}
    # If the minimum is known, the distance from it shows more than the loss does.
    known = all("optimality_gap" in seed[0] for seeds in histories.values() for seed in seeds)
    key = "optimality_gap" if known else "train_loss"
    axes = _axes_of_ends(settings, histories, key) + series.axes_of_runs(shown, y=[key])
    asked = [seeds[0][-1].get("queries", 0) for seeds in shown.values()]
    if max(asked) > min(asked):  # the order by rounds may differ from the order by queries
        log_x = min(q for q in asked if q) * 10 <= max(asked)
        axes += series.axes_of_runs(shown, x="queries", y=[key], log_x=log_x)
    draw(axes, out, title="Loss by setting")


def _axes_of_ends(settings: Sequence[Setting], histories: Runs, shown: str) -> list[dict[str, Any]]:
    """Return axes of the final values against the first numeric key, with a line per other value.

    Without a numeric key there are none.
    """
    swept = list(settings[0].values)
    key = next((k for k in swept if all(finite(s.values[k]) for s in settings)), None)
    if key is None:
        return []
    lines: dict[str, dict[float, list[float]]] = {}
    for setting in settings:
        seeds = histories[setting.label]
        start = max(float(history[0][shown]) for history in seeds)
        ends = _ends(seeds, shown)
        if all(end <= AWAY * abs(start) for end in ends):  # False for NaN
            rest = {k: v for k, v in setting.values.items() if k != key}
            lines.setdefault(", ".join(_pairs(rest)), {})[float(setting.values[key])] = ends
    drawn = []
    for i, (line, points) in enumerate(lines.items()):
        where = sorted(points)
        values = np.array([points[x] for x in where]).T
        drawn.append(series.series_of(line, np.array(where), values, i % len(COLOURS), False))
    every = [x for points in lines.values() for x in points]
    log_x = bool(every) and 0 < 10 * min(every) <= max(every)
    last, log_y = f"last {series.axis_label(shown)}", series.logarithmic(shown, drawn)
    return [series.labelled_axes(_short(key), last, drawn, log_x=log_x, log_y=log_y)]
