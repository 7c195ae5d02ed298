"""Files written in one step, so that a kill leaves the old or the new one; TOML and JSON."""

import errno
import io
import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from fedzo.errors import CannotWrite, UsageError, first_line

UNFINISHED = ".fedzo-part"  # the suffix of a file that is still being written
Config = Mapping[str, Mapping[str, Any]]  # the tables of a configuration


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, so that a power cut cannot undo a rename."""
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
    """Write a file's buffered content to the disk, if there is such a file."""
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError:
        return
    except OSError as error:
        raise CannotWrite(path, error) from error


def unfinished(path: Path) -> list[Path]:
    """Return the temporary files of :func:`writing` that a kill has left beside a file."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}{re.escape(UNFINISHED)}")
    return [other for other in path.parent.iterdir() if name.fullmatch(other.name)]


def append(path: Path, text: str) -> None:
    """Add lines to a file; raise CannotWrite, which names it, if that fails."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotWrite(path, error) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file in one step: a reader sees the old content or the new, never half of it."""
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces ``path`` in one step once it is complete.

    A link stays, and its target is replaced. Only a regular file is replaced: the content for a
    device, a pipe or a socket is written into it.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            content = io.BytesIO()
            yield content
            _write_into(target, content.getvalue())
            return
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}{UNFINISHED}")
        try:
            with beside.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
            sync_folder(target.parent)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(path, error) from error


def _write_into(path: Path, content: bytes) -> None:
    """Write to something other than a regular file; fail if nobody reads a pipe."""
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def in_file(x: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array in a temporary file, which takes no memory of the process.

    >>> in_file(np.arange(3.0)).tolist()
    [0.0, 1.0, 2.0]
    """
    with TemporaryFile() as file:
        np.asarray(x).tofile(file)
        file.flush()
        return np.memmap(file, x.dtype, "r", shape=x.shape)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; raise UsageError if it cannot be read."""
    with _reading(path, "TOML"):
        return tomllib.loads(path.read_text(encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise UsageError if it cannot be read."""
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


def as_toml(config: Config) -> Config:
    """Return a configuration as TOML can express it: what a reader of the file gets.

    TOML has no null, so None and values of other types are omitted, which means the default.

    >>> as_toml({"algorithm": {"directions": np.int64(3), "participants": None, "sizes": (1, 2)}})
    {'algorithm': {'directions': 3, 'sizes': [1, 2]}}
    """
    return {table: _as_toml(keys) for table, keys in config.items()}


def _as_toml(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        items = [_as_toml(v) for v in value]
        return None if None in items else items
    if isinstance(value, Mapping):
        return {str(k): p for k, v in value.items() if (p := _as_toml(v)) is not None}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, str | int | float | date | time) else None


def toml_text(config: Config) -> str:
    """Return a configuration as the text of a TOML file."""
    return tomli_w.dumps({table: dict(keys) for table, keys in config.items()})


def typed(toml: str, source: str) -> dict[str, Any] | None:
    """Parse a line of TOML that a user typed; return None if it is not TOML, as a bare word.

    ``source`` names the line in error messages.

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
        raise UsageError(f"{source}: {_fault(error)}") from error
    except RecursionError as error:
        raise UsageError(f"{source}: the value is nested too deeply") from error


def _fault(error: ValueError) -> str:
    """Return why a text cannot be parsed."""
    text = first_line(error)
    return "it has a number of more than 4,300 digits" if text.startswith("Exceeds") else text
