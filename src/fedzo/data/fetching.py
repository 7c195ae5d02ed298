"""Find a data set on this machine, or have it downloaded into the cache."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedzo.data.origins import Origin
from fedzo.data.reading import Edition, File
from fedzo.errors import DataUnavailable


def _as_they_are(*contents: bytes) -> tuple[bytes, ...]:
    return contents


@dataclass(frozen=True)
class Source:
    """Where the files of a data set may be, and what to make of them.

    Attributes
    ----------
    about
        What it is, in a line.
    files
        What it consists of.
    decode
        Makes the data set of the files' contents, given in the order of ``files``; by default
        it is the contents themselves.
    editions
        The forms in which a folder may have the files; none: as they are.
    installed
        Folders in which it may be without fedzo having put it there.
    origins
        Where to download it from, the best first; none: it is never in the cache.
    advice
        What to do where it cannot be found, a line each.
    """

    name: str
    about: str
    files: tuple[File, ...]
    decode: Callable[..., Any] = _as_they_are
    editions: tuple[Edition, ...] = ()
    installed: tuple[Path, ...] = ()
    origins: tuple[Origin, ...] = ()
    advice: tuple[str, ...] = ()

    def folders(self) -> tuple[Path, ...]:
        """Return where to look, in this order."""
        return (cache_folder(self.name), *self.installed) if self.origins else self.installed

    def found(self, folder: Path) -> Iterator[tuple[Edition, Path]]:
        """Yield each edition that a folder has, and where, going by names only."""
        for edition in self._editions():
            for path in edition.find(folder):
                yield edition, path

    def read(self, folder: Path) -> list[bytes]:
        """Return the checked contents of the files, from the first edition that is whole."""
        try:
            os.listdir(folder)
        except (OSError, ValueError) as problem:
            raise DataUnavailable(f"{folder}: {getattr(problem, 'strerror', problem)}") from None
        damaged = []
        for edition, path in self.found(folder):
            try:
                return edition.read(path, self.files)
            except DataUnavailable as problem:
                damaged.append(str(problem))
        wanted = "; nor ".join(map(str, self._editions()))
        raise DataUnavailable("; ".join(damaged) or f"{folder}: does not have {wanted}")

    def _editions(self) -> tuple[Edition, ...]:
        return self.editions or (Edition(tuple(file.name for file in self.files)),)


def cache_folder(name: str) -> Path:
    """Return where a downloaded data set is kept.

    That is a folder of its name in ``$FEDZO_CACHE``, or else in ``fedzo`` in the user's
    cache, ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if ours := os.environ.get("FEDZO_CACHE"):
        return Path(ours).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedzo" / name


def find(source: Source) -> Path | None:
    """Return the first folder that has all the files in some edition, by their names only."""
    return next((folder for folder in source.folders() if any(source.found(folder))), None)


def obtain(
    source: Source, folder: str | os.PathLike[str] | None = None
) -> tuple[Path, list[bytes]]:
    """Return the checked contents of a data set's files, and the folder they are in.

    Parameters
    ----------
    source
        The data set.
    folder
        The only folder to look in. None or empty: the cache, the folders where it is usually
        installed, then a download into the cache; what is damaged in one is sought in the next.

    Raises
    ------
    DataUnavailable
        Naming the file and what is wrong with it, or each place tried and why it failed.
    """
    if folder:
        named = Path(folder).expanduser()
        try:
            return named, source.read(named)
        except DataUnavailable as problem:
            raise DataUnavailable(f"{source.name}: {problem}") from None
    tried = []
    for place in source.folders():
        try:
            return place, source.read(place)
        except DataUnavailable as problem:
            tried.append(str(problem))
    cache = cache_folder(source.name)
    for origin in source.origins:
        try:
            with _locked(cache):
                # Another process may have filled it while this one waited for the lock.
                with suppress(DataUnavailable):
                    return cache, source.read(cache)
                origin.fetch(cache, source.files)
                return cache, source.read(cache)
        except OSError as problem:
            tried.append(f"{cache}: {problem}")
        except DataUnavailable as problem:
            tried.append(str(problem))
    raise DataUnavailable(
        "\n  ".join([f"{source.name} could not be found or downloaded; tried:", *tried])
        + "\n  ".join(["\nwhat to do:", *source.advice])
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time fill a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks: two may download, no harm done
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
