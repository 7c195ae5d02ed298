"""Checkpoints: all that a run needs to resume exactly, in one file with a checksum."""

from __future__ import annotations

import hashlib
import io
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedzo.core.capabilities import Best
from fedzo.errors import UsageError
from fedzo.runs.tables import Config, as_text

Array = NDArray[Any]

FORMAT = 2  # another number if what is in a checkpoint is no longer read as it was


class Checkpoint(NamedTuple):
    """Enough to resume exactly: no generator has a state that would have to be kept."""

    round: int
    state: tuple[Array, ...]
    totals: Mapping[str, Any]  # queries, bytes and the like so far
    spent: int  # queries that the problem's own meter had counted
    best: Best
    last: Mapping[str, Any]  # what the last round told of itself
    left_out: list[dict[str, Any]]  # who was left out since the last evaluation
    seconds: float
    config: Config
    start: str  # a fingerprint of x0
    records: int  # of the history, on schedule
    digest: str  # of these records

    def packed(self) -> bytes:
        """Return the checkpoint as a file, sealed by a checksum over all of its fields."""
        best = self.best._asdict()
        arrays: dict[str, Any] = {f"state_{i}": a for i, a in enumerate(self.state)}
        arrays["best"] = best.pop("x")
        meta = self._asdict() | {"config": as_text(self.config), "best": best}
        del meta["state"]
        text = json.dumps(meta)
        seal = np.array(_checksum(text, arrays))
        file = io.BytesIO()
        np.savez(file, format=np.array(FORMAT), meta=np.array(text), seal=seal, **arrays)
        return file.getvalue()

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Return the checkpoint of a file; one that is damaged is refused."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            text = str(arrays.pop("meta"))
            _check_format(path, int(arrays.pop("format", 1)))  # the first had no number there
            seal = str(arrays.pop("seal"))
            if seal != _checksum(text, arrays):
                raise ValueError("the checksum is another one")
            meta = json.loads(text)
            meta["config"] = tomllib.loads(meta["config"])
            meta["best"] = Best(arrays.pop("best"), **meta["best"])
            state = tuple(arrays[f"state_{i}"] for i in range(len(arrays)))
            return cls(state=state, **meta)
        except UsageError:
            raise
        except Exception as error:  # a zip file can be wrong in more ways than one can list
            raise UsageError(f"{path} is damaged and cannot be resumed") from error


def _checksum(text: str, arrays: Mapping[str, Array]) -> str:
    """Return a checksum over all fields of a checkpoint, their names, types and shapes."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _check_format(path: Path, found: int) -> None:
    if found != FORMAT:
        raise UsageError(
            f"{path} has format {found}, and this fedzo reads format {FORMAT}: "
            "resume with the fedzo that wrote it"
        )
