"""One HTML page of a reproduction, or of a folder of runs: nothing else is needed to read it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedzo.core.files import read_json, write_atomic
from fedzo.errors import UsageError
from fedzo.paper.reproduce import environment, figures_in
from fedzo.paper.runs_report import figures_of_runs
from fedzo.paper.thresholds import MEANING
from fedzo.plots.page import page

PICTURES = ("images.png", "attack.png")  # what an attack's run leaves to look at
ROOM = 3_000_000  # bytes for pictures: a page is one to mail


def write_report(folder: Path) -> Path:
    """Write ``report.html`` for the figures reproduced in a folder, or for the runs in it.

    Returns
    -------
    Path
        The page.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    figures = figures_in(folder)
    title = "Reproduction" if figures else f"Runs in {folder.resolve().name}"
    figures = figures or figures_of_runs(folder)
    if not figures:
        raise UsageError(f"{folder} holds neither reproduced figures nor runs")
    for figure, pictures in zip(figures, _pictures(folder, figures), strict=True):
        figure["pictures"] = pictures
    content = {"title": title, "figures": figures, "environment": environment()}
    content["thresholds"] = MEANING
    out = folder / "report.html"
    write_atomic(out, page(content).encode())
    return out


def _pictures(folder: Path, figures: Sequence[Mapping[str, Any]]) -> list[list[dict[str, str]]]:
    """Return for each figure the pictures that its curves' first seeds have left."""
    room, shown, found = ROOM, set(), []
    for figure in figures:
        pictures = []
        for label, where in figure["folders"].items():
            run = folder / where
            for path in (p for name in PICTURES for p in sorted(run.glob(f"**/{name}"))[:1]):
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
    """Return what an attack's report says in a line, for the picture of the report."""
    numbers = picture.with_suffix(".json")
    found = read_json(numbers) if numbers.exists() else {}
    return f": {found['summary']}" if isinstance(found, dict) and "summary" in found else ""
