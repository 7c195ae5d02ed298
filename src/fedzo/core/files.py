"""Files that are replaced in one step: a kill leaves the old content or the new, never half."""

from __future__ import annotations

import os
from pathlib import Path

from fedzo.errors import FedzoError

UNFINISHED = ".part"  # how the name of a file ends that is still being written


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file in one step: whoever reads it finds the old content or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise FedzoError(f"cannot write {path}: {error.strerror}") from error
