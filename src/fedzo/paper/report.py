"""Write the HTML report of a reproduction, or of a folder of runs: one page with everything."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedzo.core.files import read_json, read_toml, write_atomic
from fedzo.errors import UsageError
from fedzo.paper.claims import MEANING
from fedzo.paper.reproduce import environment, figures_in
from fedzo.plots.page import page
from fedzo.plots.series import axes_of_runs, columns, finals
from fedzo.runs.history import read_history
from fedzo.runs.store import RunFolder

PICTURE = "images.png"  # written by the runs of attacks
ROOM = 3_000_000  # bytes for pictures: a page should fit into a mail


def write_report(folder: Path) -> Path:
    """Write ``report.html`` for the figures reproduced in a folder, or for the runs in it.

    Returns
    -------
    Path
        The page.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", code="no-folder")
    figures = figures_in(folder)
    title = "Figures of the paper, and their claims"
    if not figures:
        figures = figures_of_runs(folder)
        count = sum(len(figure["folders"]) for figure in figures)
        title = f"{count} run{'s' * (count != 1)} in the folder {folder.resolve().name}"
    if not figures:
        words = f"{folder} holds neither reproduced figures nor runs"
        raise UsageError(words, code="nothing-to-report")
    for figure, pictures in zip(figures, _pictures(folder, figures), strict=True):
        figure["pictures"] = pictures
    content = {"title": title, "figures": figures, "environment": environment()}
    content["thresholds"] = MEANING
    out = folder / "report.html"
    write_atomic(out, page(content).encode())
    return out


def _pictures(folder: Path, figures: Sequence[Mapping[str, Any]]) -> list[list[dict[str, str]]]:
    """Return for each figure the pictures of its curves' first seeds."""
    room, shown, found = ROOM, set(), []
    for figure in figures:
        pictures = []
        for label, where in figure["folders"].items():
            run = folder / where
            for path in sorted(run.glob(f"**/{PICTURE}"))[:1]:
                size = path.stat().st_size * 4 // 3
                if path in shown or size > room:
                    continue
                shown.add(path)
                room -= size
                code = base64.b64encode(path.read_bytes()).decode()
                caption = label + _summary(path)
                pictures.append({"label": caption, "source": f"data:image/png;base64,{code}"})
        found.append(pictures)
    return found


def _summary(picture: Path) -> str:
    """Return the summary line of an attack's report, for the caption of its picture."""
    numbers = picture.with_suffix(".json")
    found = read_json(numbers) if numbers.exists() else {}
    return f": {found['summary']}" if isinstance(found, dict) and "summary" in found else ""


def figures_of_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a figure per problem of the runs under a folder.

    Folders ``seed-*`` are one curve, mean and range.
    """
    problems: dict[str, dict[str, list[Path]]] = {}
    for history in sorted(folder.rglob("history.jsonl")):
        run = history.parent
        whole = run.parent if run.name.startswith("seed-") else run
        label = str(whole.relative_to(folder)) if whole != folder else folder.resolve().name
        if next(read_history(history), None) is not None:
            problems.setdefault(_problem(run), {}).setdefault(label, []).append(run)
    return [_figure(problem, runs, folder) for problem, runs in problems.items()]


def _text(run: Path) -> str:
    path = RunFolder(run).config
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _problem(run: Path) -> str:
    path = RunFolder(run).config
    problem = read_toml(path).get("problem") if path.exists() else None
    name = str(problem.get("name", "runs")) if isinstance(problem, dict) else "runs"
    return name.rpartition(":")[2]  # of module:Class the name that a person chose


def _figure(problem: str, runs: dict[str, list[Path]], folder: Path) -> dict[str, Any]:
    histories = {
        label: [list(read_history(RunFolder(path).history)) for path in paths]
        for label, paths in runs.items()
    }
    return {
        "name": problem,
        "title": problem,
        "about": "",
        "caption": "Mean and range where there are several seeds",
        "axes": axes_of_runs(histories),
        "columns": columns(histories),
        "finals": finals(histories),
        "claims": [],
        "folders": {label: str(paths[0].relative_to(folder)) for label, paths in runs.items()},
        "configs": {label: _text(paths[0]) for label, paths in runs.items()},
        "seconds": round(sum(h[-1].get("seconds") or 0 for s in histories.values() for h in s)),
        "environment": {},  # runs do not record theirs
    }
