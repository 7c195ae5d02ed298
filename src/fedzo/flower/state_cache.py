"""The states of runs that a node replays, in files on the node's disk."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedzo.core.files import unfinished, writing
from fedzo.flower.following import Kept
from fedzo.runs.store import flatten

_MOST = 2  # runs per node, so that a server cannot fill the disk
_SUFFIX = ".state"


@dataclass(frozen=True)
class StateCache:
    """The latest state of each of a node's last two runs.

    Parameters
    ----------
    folder : Path
        The folder of the files. It is created if it does not exist.
    owner : str
        The node's name, because nodes may share a folder.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> cache = StateCache(Path(mkdtemp()), "node-1")
    >>> cache.put("run7", 3, "{}", (np.arange(2.0), (np.ones(1),)))
    >>> cache.get("run7")
    Kept(round=3, text='{}', arrays=(array([0., 1.]), array([1.])))
    """

    folder: Path
    owner: str

    def put(self, run: str, round: int, text: str, state: object) -> None:
        """Replace the state of a run, atomically."""
        path, arrays = self._path(run), flatten(state)
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in unfinished(path):  # after a kill while writing
            left.unlink(missing_ok=True)
        head = {"round": round, "text": text, "arrays": len(arrays)}
        with writing(path) as file:
            file.write(json.dumps(head).encode() + b"\n")
            for array in arrays:
                np.save(file, array, allow_pickle=False)
        own = self.folder.glob(f"*-{self.owner}{_SUFFIX}")
        for old in sorted(own, key=lambda path: os.stat(path).st_mtime_ns)[:-_MOST]:
            old.unlink(missing_ok=True)

    def get(self, run: str) -> Kept | None:
        """Return the state of a run, or None if there is no readable file."""
        try:
            with self._path(run).open("rb") as file:
                head = json.loads(file.readline())
                arrays = tuple(np.load(file, allow_pickle=False) for _ in range(head["arrays"]))
            return Kept(head["round"], head["text"], arrays)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, run: str) -> Path:
        return self.folder / f"{run}-{self.owner}{_SUFFIX}"
