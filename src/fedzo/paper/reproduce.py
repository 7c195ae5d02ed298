"""Reproduce figures: do their runs, draw them, and judge the claims about them.

A run is identified by its resolved configuration. Its folder is
``runs/<config>-<hash>/seed-<n>``, as ``fedzo run --seeds`` leaves it. A run that exists is not done
again, whether it comes from another figure or from before a kill.
"""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedzo._version import __version__
from fedzo.config.experiment import Experiment, Tables
from fedzo.config.jobs import Report, Run, RunsFailed, do, missing
from fedzo.core.files import as_toml, read_json, write_atomic
from fedzo.core.machine import cores
from fedzo.errors import UsageError
from fedzo.paper import FIGURES
from fedzo.paper.claims import Claim, Comparison, Verdict, explain, judge, verdicts
from fedzo.paper.figure import Figure, axes_of, differences_of, settings_of, title_of
from fedzo.plots.figures import draw
from fedzo.plots.interval import rounded
from fedzo.plots.series import columns, finals
from fedzo.runs.store import RunFolder


def reproduce(
    figures: Sequence[Figure],
    scale: str,
    out: Path,
    seeds: int | None = None,
    workers: int | None = None,
    report: Report = lambda *_: None,
) -> dict[str, list[dict[str, Any]]]:
    """Do the missing runs of figures, draw the figures, and judge their claims.

    Parameters
    ----------
    figures
        The figures to reproduce.
    scale
        ``quick`` or ``paper``.
    out
        The folder for all files: ``<figure>.png``, ``.svg`` and ``.json``, ``claims.md`` and the
        runs.
    seeds
        The number of seeds; that of the scale by default.
    workers
        The number of runs at a time; the number of cores by default.
    report
        Called with the share of the work done, the number of runs done and of all runs.

    Returns
    -------
    dict
        The judged claims of each figure.
    """
    plans = [Plan(each, scale, out, seeds) for each in figures]
    RunFolder(out).claim()
    runs = [run for plan in plans for seeds_ in plan.runs.values() for run in seeds_]
    if failed := do(runs, workers or cores(), report):
        raise RunsFailed(failed)
    judged = {plan.figure.name: plan.write() for plan in plans}
    write_atomic(out / "claims.md", markdown(figures_in(out)).encode())
    return judged


def seconds_left(
    figures: Sequence[Figure], scale: str, out: Path, seeds: int | None = None
) -> float:
    """Return the estimated seconds of the missing runs on the cores of this machine."""
    plans = [Plan(each, scale, out, seeds) for each in figures]
    runs = missing(run for plan in plans for each in plan.runs.values() for run in each)
    longest = max((run.work for run in runs), default=0.0)
    return max(longest, sum(run.work for run in runs) / cores())


def run_of(experiment: Experiment, seed: int, out: Path) -> Run:
    """Return the run of an experiment with a seed, in its folder under ``out``.

    The seed is that of the data, too, so that seeds differ in their split. The version of fedzo is
    part of the folder's name, so that runs of another version are not reused.

    Examples
    --------
    >>> experiment = Experiment.load("quadratic", {"run": {"rounds": 20}})
    >>> run = run_of(experiment, 3, Path("reproduction"))
    >>> folder = run.folder
    >>> folder.parts[:2], folder.parts[2].rpartition("-")[0], folder.name
    (('reproduction', 'runs'), 'quadratic', 'seed-3')
    >>> run_of(experiment, 4, Path("reproduction")).folder.parent == folder.parent
    True
    >>> run.experiment.options.seed, run.experiment.options.data_seed
    (3, 3)
    """
    known = as_toml(experiment.with_seed(0).tables)
    text = json.dumps([__version__, known], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = out / "runs" / f"{experiment.name}-{digest}" / f"seed-{seed}"
    data_seed = experiment.options.data_seed + seed
    settings = experiment.tables["run"] | {"seed": seed, "data_seed": data_seed}
    tables = as_toml(experiment.tables | {"run": settings})
    return Run(Experiment.resolve(tables, experiment.name), folder)


class Plan:
    """A figure at a scale, with the runs that it needs; ``seeds`` is the scale's by default."""

    def __init__(self, figure: Figure, scale: str, out: Path, seeds: int | None = None) -> None:
        self.figure, self.scale, self.out = figure, scale, out
        self.size = figure.scales[scale]
        self.seeds = self.size.seeds if seeds is None else seeds
        tables: dict[str, Tables] = {}
        self.runs: dict[str, list[Run]] = {}
        for curve in figure.curves:
            experiment = curve.experiment(self.size)
            tables[curve.label] = experiment.tables
            self.runs[curve.label] = [run_of(experiment, s, out) for s in range(self.seeds)]
        self.title = title_of(figure.title, tables)
        self.settings = settings_of(tables)
        self.about = f"{figure.about} {self.settings}."
        less = differences_of(tables, figure.tables("paper"))
        other = f", which differs from the paper's (in brackets) in {less}" if less else ""
        many = f"{self.seeds} seeds (mean, least and greatest)" if self.seeds > 1 else "1 seed"
        self.caption = f"{scale} scale{other}; {many}, each with its own split"

    def write(self) -> list[dict[str, Any]]:
        """Draw the figure, write the numbers for a report, and return the judged claims."""
        histories = {label: [run.history() for run in runs] for label, runs in self.runs.items()}
        drawn = axes_of(self.figure, histories)
        pictures = [self.out / f"{self.figure.name}.{ending}" for ending in ("png", "svg")]
        draw(drawn, *pictures, title=self.title, caption=self.caption)
        claims = [self._row(claim, claim.measure(histories)) for claim in self.figure.claims]
        folders = {
            label: str(runs[0].folder.parent.relative_to(self.out))
            for label, runs in self.runs.items()
        }
        content = {
            "name": self.figure.name,
            "title": self.title,
            "about": self.about,
            "settings": self.settings,
            "caption": self.caption,
            "axes": drawn,
            "columns": columns(histories),
            "finals": finals(histories),
            "claims": claims,
            "folders": folders,
            "configs": {label: runs[0].config() for label, runs in self.runs.items()},
            "seconds": round(sum(h[-1]["seconds"] for seeds in histories.values() for h in seeds)),
            "environment": environment(),
        }
        text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
        write_atomic(self.out / f"{self.figure.name}.json", text.encode())
        return claims

    def _row(self, claim: Claim, comparisons: Sequence[Comparison]) -> dict[str, Any]:
        """Return a judged claim, as in the figure's JSON file."""
        verdict, each = judge(comparisons), verdicts(comparisons)
        reason = "" if verdict == Verdict.HOLDS else claim.reason
        return {
            "name": claim.name,
            "by": claim.by,
            "text": claim.text,
            "verdict": verdict.value,
            "scale": self.scale,
            "rounds": self.size.rounds,
            "seeds": self.seeds,
            "measured": [_measured(c, v) for c, v in zip(comparisons, each, strict=True)],
            "reason": f"{explain(comparisons)} {reason}".strip(),
        }


def _measured(comparison: Comparison, verdict: Verdict) -> dict[str, Any]:
    return {
        "what": comparison.what,
        **comparison.interval.rounded(),
        "claimed": [rounded(comparison.low), rounded(comparison.high)],
        "verdict": verdict.value,
    }


def environment() -> dict[str, str]:
    """Return the versions and the machine that the runs are made with.

    >>> environment()["fedzo"] == __version__
    True
    """
    packages = {name: version(name) for name in ("numpy", "numba", "matplotlib")}
    return {
        "fedzo": __version__,
        "python": platform.python_version(),
        **packages,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(cores()),
        "date": datetime.now(UTC).date().isoformat(),
    }


def figures_in(out: Path) -> list[dict[str, Any]]:
    """Return the reproduced figures in a folder, in the order of ``FIGURES``."""
    found = []
    for name in FIGURES:
        path = out / f"{name}.json"
        if path.exists():
            figure = read_json(path)
            if not _is_figure(figure):
                words = f"{path} is damaged: it does not describe a figure"
                raise UsageError(words, code="damaged-figure")
            found.append(figure)
    return found


def _is_figure(figure: Any) -> bool:
    """Return whether all keys are there that the report and the table of claims use."""
    if not isinstance(figure, dict):
        return False
    folders, claims = figure.get("folders"), figure.get("claims")
    return (
        isinstance(figure.get("name"), str)
        and isinstance(folders, dict)
        and all(isinstance(folder, str) for folder in folders.values())
        and isinstance(claims, list)
        and all(isinstance(claim, dict) and claim.keys() >= _CLAIM for claim in claims)
    )


def overview(found: Sequence[Mapping[str, Any]]) -> str:
    """Count the claims of each figure by verdict and scale, as a Markdown table.

    Examples
    --------
    >>> claim = {"verdict": "holds", "scale": "quick", "seeds": 5}
    >>> print(overview([{"name": "fig3", "claims": [claim, claim | {"verdict": "cannot tell"}]}]))
    | figure | scale | seeds | holds | no effect above 1 % | does not hold | cannot tell |
    | --- | --- | --- | --- | --- | --- | --- |
    | fig3 | quick | 5 | 1 | 0 | 0 | 1 |
    | all | quick | | 1 | 0 | 0 | 1 |
    """
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    claims = [(each["name"], claim) for each in found for claim in each["claims"]]
    for name, claim in sorted(claims, key=lambda pair: str(pair[1]["scale"])):
        for row in ((name, claim["scale"], str(claim["seeds"])), ("all", claim["scale"], "")):
            counts.setdefault(row, Counter())[claim["verdict"]] += 1
    rows = sorted(counts.items(), key=lambda item: item[0][0] == "all")
    cells = [(*row, *(str(count[verdict]) for verdict in Verdict)) for row, count in rows]
    return table(("figure", "scale", "seeds", *(v.value for v in Verdict)), cells)


def markdown(found: Sequence[Mapping[str, Any]]) -> str:
    r"""Return the claims as Markdown: an overview, and a table of all claims.

    Examples
    --------
    >>> measured = {"what": "speed-up", "mean": 2.0, "low": 1.9, "high": 2.1}
    >>> claim = {"text": "Faster.", "by": "paper", "verdict": "holds", "seeds": 3, "reason": ""}
    >>> claim |= {"measured": [measured], "scale": "quick"}
    >>> print(markdown([{"name": "fig3", "claims": [claim]}]).partition("\n\n")[2])
    | figure | claim | measured, mean [95 % interval] | seeds | verdict |
    | --- | --- | --- | --- | --- |
    | fig3 | Faster. | speed-up: 2 [1.9, 2.1] | 3 | **holds** |
    """
    rows = [(each["name"], *cells(claim)) for each in found for claim in each["claims"]]
    return overview(found) + "\n\n" + table(("figure", *HEADINGS), rows)


_CLAIM = {"text", "by", "measured", "seeds", "scale", "verdict", "reason"}  # of a judged claim
HEADINGS = ("claim", "measured, mean [95 % interval]", "seeds", "verdict")


def cells(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a judged claim as a row under ``HEADINGS``."""
    own = "" if claim["by"] == "paper" else " (ours)"
    measured = "<br>".join(f"{m['what']}: {words(m)}" for m in claim["measured"])
    verdict = f"**{claim['verdict']}** {claim['reason']}".strip()
    return claim["text"] + own, measured, str(claim["seeds"]), verdict


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def words(measured: Mapping[str, Any]) -> str:
    """Return a mean and its interval in words.

    >>> words({"mean": 2.0, "low": None, "high": None})
    '2 [one seed: no interval]'
    """
    if measured["mean"] is None:
        return "not finite (never reached, or diverged)"
    within = "one seed: no interval"
    if measured["low"] is not None:
        within = f"{measured['low']:.4g}, {measured['high']:.4g}"
    return f"{measured['mean']:.4g} [{within}]"
