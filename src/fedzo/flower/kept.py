"""What a node keeps of the runs that it follows: a file each, on its own disk."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedzo.core.files import unfinished, writing
from fedzo.flower.following import Kept
from fedzo.runs.store import flatten

_MOST = 2  # runs whose state is kept: a server cannot fill the disk
_SUFFIX = ".state"


@dataclass(frozen=True)
class Shelf:
    """The states of a node, the latest of each of its last runs.

    Parameters
    ----------
    folder : Path
        Where they are, made where it is not there.
    owner : str
        Whose they are, where nodes share a folder.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> shelf = Shelf(Path(mkdtemp()), "node-1")
    >>> shelf.put("run7", 3, "{}", (np.arange(2.0), (np.ones(1),)))
    >>> shelf.get("run7")
    Kept(round=3, text='{}', arrays=(array([0., 1.]), array([1.])))
    >>> shelf.round("run7"), shelf.round("run8")
    (3, -1)
    """

    folder: Path
    owner: str

    def put(self, run: str, round: int, text: str, state: object) -> None:
        """Keep a state, in place of the one before; in one step, so that a kill leaves either."""
        path, arrays = self._path(run), flatten(state)
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in unfinished(path):  # by a kill in the midst of writing
            left.unlink(missing_ok=True)
        head = {"round": round, "text": text, "arrays": len(arrays)}
        with writing(path) as file:
            file.write(json.dumps(head).encode() + b"\n")
            for array in arrays:
                np.save(file, array, allow_pickle=False)
        for old in self._oldest_first()[:-_MOST]:
            old.unlink(missing_ok=True)

    def get(self, run: str) -> Kept | None:
        """Return what is kept of a run; None: nothing that can be read."""
        try:
            with self._path(run).open("rb") as file:
                head = json.loads(file.readline())
                arrays = tuple(np.load(file, allow_pickle=False) for _ in range(head["arrays"]))
            return Kept(head["round"], head["text"], arrays)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def round(self, run: str) -> int:
        """Return the round of what is kept of a run, -1 for nothing."""
        try:
            with self._path(run).open("rb") as file:
                return int(json.loads(file.readline())["round"])
        except (OSError, ValueError, KeyError, TypeError):
            return -1

    def _path(self, run: str) -> Path:
        return self.folder / f"{run}-{self.owner}{_SUFFIX}"

    def _oldest_first(self) -> list[Path]:
        own = self.folder.glob(f"*-{self.owner}{_SUFFIX}")
        return sorted(own, key=lambda path: os.stat(path).st_mtime_ns)
