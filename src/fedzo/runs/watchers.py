"""Watchers of a run: the one here draws the curves when the run has ended."""

from __future__ import annotations

from fedzo.runs.folder import RunFolder
from fedzo.runs.history import read_history
from fedzo.runs.result import Progress


class Curves:
    """Draws ``curves.png`` from the history when the run has ended."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def __call__(self, progress: Progress) -> None:
        """Never stop the run."""

    def close(self) -> None:
        """Draw, if anything was evaluated."""
        from fedzo.plots.figures import draw_curves

        if history := list(read_history(self.folder.history)):
            draw_curves({self.folder.path.name: [history]}, self.folder.curves)
