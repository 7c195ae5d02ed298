"""Files: written in one step, so that a kill leaves the old content or the new; TOML read."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedzo.errors import CannotWrite, UsageError

UNFINISHED = ".part"  # how the name of a file ends that is still being written


def sync_folder(folder: Path) -> None:
    """Have a folder's entries on the disk, so that a power cut cannot undo a rename."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a system that does not open folders
        return
    try:
        os.fsync(handle)
    except OSError:  # a file system that does not sync them
        pass
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Have what was written to a file on the disk, if there is such a file."""
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotWrite(path, error) from error


def unfinished(path: Path) -> list[Path]:
    """Return what a kill in the midst of writing a file has left beside it."""
    return list(path.parent.glob(f".{path.name}.*{UNFINISHED}"))


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader finds the old content or the new, never half of it."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes another one's place when it is whole, in one step."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        try:
            with beside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
            sync_folder(path.parent)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(path, error) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; one that cannot be read is refused in one line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # not TOML, not UTF-8, a number of thousands of digits
        raise UsageError(f"{path} is not a TOML file: {toml_fault(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply") from error


def toml_fault(error: ValueError) -> str:
    """Return in words for people why a text is not TOML.

    >>> toml_fault(ValueError("Exceeds the limit (4300 digits) for integer string conversion"))
    'it has a number of more than 4,300 digits'
    """
    text = str(error)
    return "it has a number of more than 4,300 digits" if text.startswith("Exceeds") else text
