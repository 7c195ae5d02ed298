"""Files: written in one step, so that a kill leaves the old or the new; TOML and JSON read."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedzo.errors import CannotWrite, UsageError, first_line

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
    with _reading(path, "TOML"):
        return tomllib.loads(path.read_text(encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; one that cannot be read is refused in one line."""
    with _reading(path, "JSON"):
        return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def _reading(path: Path, form: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # another form, not UTF-8, a number of thousands of digits
        raise UsageError(f"{path} is not a {form} file: {_fault(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply") from error


def typed(toml: str, said: str) -> dict[str, Any] | None:
    """Return a line of TOML that somebody typed a part of; None if that is not TOML: a bare word.

    ``said`` names it in the message about what nobody can have meant.

    >>> typed("value = 0.1", "--set run.seed"), typed("value = ideal", "--set uplink.name")
    ({'value': 0.1}, None)
    >>> typed("value = " + "1" * 5000, "--set run.seed")
    Traceback (most recent call last):
    fedzo.errors.UsageError: --set run.seed: it has a number of more than 4,300 digits
    """
    try:
        return tomllib.loads(toml)
    except tomllib.TOMLDecodeError:
        return None
    except ValueError as error:
        raise UsageError(f"{said}: {_fault(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{said}: the value is nested too deeply") from error


def _fault(error: ValueError) -> str:
    """Return in words for people why a text cannot be read."""
    text = first_line(error)
    return "it has a number of more than 4,300 digits" if text.startswith("Exceeds") else text
