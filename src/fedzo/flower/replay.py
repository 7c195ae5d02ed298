"""Describe a run so that nodes can replay it, and cache the states that they reach."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedzo.algorithms.compose import Replay
from fedzo.core.files import as_toml, unfinished, writing
from fedzo.core.random import check_seed
from fedzo.core.tasks import Task
from fedzo.core.types import Array
from fedzo.errors import FedzoError
from fedzo.flower.errors import ErrorCode, Rejected
from fedzo.flower.schema import LONGEST_TEXT, read_json, take
from fedzo.runs.registry import describe_parts, make_parts, names_of
from fedzo.runs.store import flatten

_MOST_RUNS = 2  # per node, so that a server cannot fill the disk
_SUFFIX = ".state"


@dataclass(frozen=True)
class RunSpec(Replay):
    """A replay that can be described to a node; ``dtype`` is the model's precision."""

    dtype: str

    @cached_property
    def text(self) -> str:
        """The spec as JSON, which a node receives once."""
        parts = as_toml(describe_parts(self.algorithm, self.uplink))
        plain = {"seed": self.seed, "devices": self.devices, "dtype": self.dtype}
        return json.dumps({**parts, **plain}, separators=(",", ":"))

    @cached_property
    def can_be_sent(self) -> bool:
        """Whether all parts are fedzo's, so that every node knows them by name."""
        parts = describe_parts(self.algorithm, self.uplink)
        names = (*names_of(parts["uplink"]), parts.get("server", {}).get("name", "mean"))
        return ":" not in "".join(names) and len(self.text) <= LONGEST_TEXT

    @classmethod
    def read(cls, text: str, known: Mapping[str, Any]) -> RunSpec:
        """Return the spec of a text. It can name known parts only: nothing is imported for it."""
        try:
            plain = read_json(text)
            tables = {table: plain.pop(table) for table in ("algorithm", "uplink")}
            tables["server"] = plain.pop("server", {})
            algorithm, uplink, _ = make_parts(tables, known)
            check_seed("seed", plain["seed"])
            return cls(
                algorithm,
                uplink,
                seed=take(plain, "seed", int),
                devices=take(plain, "devices", int),
                dtype={"float32": "float32", "float64": "float64"}[take(plain, "dtype", str)],
            )
        except (ValueError, AttributeError, KeyError, TypeError, FedzoError) as error:
            text = f"this node does not know a part of the run: {error}"
            raise Rejected(ErrorCode.UNKNOWN_ALGORITHM, text) from error

    def task(self, t: int, state: Any) -> Task:
        """Return the task of the devices in round t."""
        x = state.x
        tasks = self.composed.round(t, state, self.setting(x))
        task = next(tasks)
        tasks.close()
        return task


def flower_home() -> Path:
    """Return the folder of Flower's own files: ``FLWR_HOME``, or ``.flwr`` in the user's home."""
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")


class CachedState(NamedTuple):
    """A state on a node's disk."""

    round: int
    spec: str  # the text of the run's spec
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class StateCache:
    """The latest state of each of a node's last two runs, in files on the node's disk.

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
    CachedState(round=3, spec='{}', arrays=(array([0., 1.]), array([1.])))
    """

    folder: Path
    owner: str

    def put(self, run: str, round: int, spec: str, state: object) -> None:
        """Replace the state of a run, atomically."""
        path, arrays = self._path(run), flatten(state)
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in unfinished(path):  # after a kill while writing
            left.unlink(missing_ok=True)
        head = {"round": round, "spec": spec, "arrays": len(arrays)}
        with writing(path) as file:
            file.write(json.dumps(head).encode() + b"\n")
            for array in arrays:
                np.save(file, array, allow_pickle=False)
        own = self.folder.glob(f"*-{self.owner}{_SUFFIX}")
        for old in sorted(own, key=lambda path: os.stat(path).st_mtime_ns)[:-_MOST_RUNS]:
            old.unlink(missing_ok=True)

    def get(self, run: str) -> CachedState | None:
        """Return the state of a run, or None if there is no readable file."""
        try:
            with self._path(run).open("rb") as file:
                head = json.loads(file.readline())
                arrays = tuple(np.load(file, allow_pickle=False) for _ in range(head["arrays"]))
            return CachedState(head["round"], head["spec"], arrays)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, run: str) -> Path:
        return self.folder / f"{run}-{self.owner}{_SUFFIX}"
