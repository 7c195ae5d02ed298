"""Find a data set's files, check every byte of them, and download what is nowhere here.

A file is named and checked as it is when decompressed, so it may lie in a folder as it is
or with ``.gz`` after its name, and it does not matter who compressed it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, NamedTuple

from fedzo.data.dataset import Dataset
from fedzo.errors import DataUnavailable

_PIECE = 1 << 16  # bytes handled at a time
_TIMEOUT = 20.0  # seconds that a server may be silent


class File(NamedTuple):
    """A file as it is when decompressed."""

    name: str
    size: int
    sha256: str


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
        Makes the data set of the files' contents, given in the order of ``files``.
    places
        Folders in which it may lie without fedzo having put it there.
    url
        The folder to download from, each file with ``.gz`` after its name; None: nowhere.
        The environment variable ``FEDZO_<NAME>_URL`` names a mirror.
    advice
        What to do where it cannot be had, a line each.
    """

    name: str
    about: str
    files: tuple[File, ...]
    decode: Callable[..., Dataset]
    places: tuple[Path, ...]
    url: str | None = None
    advice: tuple[str, ...] = ()


def cache_folder(name: str) -> Path:
    """Return where a downloaded data set is kept.

    That is a folder of its name in ``$FEDZO_CACHE``, or else in ``fedzo`` in the user's
    cache, ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if ours := os.environ.get("FEDZO_CACHE"):
        return Path(ours).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedzo" / name


def find(source: Source) -> Path | None:
    """Return the first folder that has all the files, by their names only."""
    return next((p for p in _places(source) if not _missing(p, source)), None)


def obtain(
    source: Source, folder: str | os.PathLike[str] | None = None
) -> tuple[Path, list[bytearray]]:
    """Return the checked contents of a data set's files, and the folder they are in.

    Parameters
    ----------
    source
        The data set.
    folder
        The only place to look in. None or empty: the cache, the places where it is usually
        installed, then a download into the cache; what is damaged in one is sought in the next.

    Raises
    ------
    DataUnavailable
        Naming the file and what is wrong with it, or each place tried and why it failed.
    """
    if folder:
        named = Path(folder).expanduser()
        try:
            return named, _read_all(named, source)
        except DataUnavailable as problem:
            raise DataUnavailable(f"{source.name}: {problem}") from None
    tried = []
    for place in _places(source):
        try:
            return place, _read_all(place, source)
        except DataUnavailable as problem:
            tried.append(str(problem))
    if source.url:
        place = cache_folder(source.name)
        try:
            _download(source, place)
            return place, _read_all(place, source)
        except DataUnavailable as problem:
            tried.append(str(problem))
    raise DataUnavailable(
        "\n  ".join([f"{source.name} cannot be had; tried:", *tried])
        + "\n  ".join(["\nwhat to do:", *source.advice])
    )


def _places(source: Source) -> tuple[Path, ...]:
    return (cache_folder(source.name), *source.places) if source.url else source.places


def _path(folder: Path, file: File) -> Path | None:
    # Compressed first: what a download puts beside a damaged file is then what is read.
    candidates = (folder / f"{file.name}.gz", folder / file.name)
    return next((path for path in candidates if path.is_file()), None)


def _missing(folder: Path, source: Source) -> list[str]:
    return [file.name for file in source.files if _path(folder, file) is None]


def _read_all(folder: Path, source: Source) -> list[bytearray]:
    if not folder.is_dir():
        raise DataUnavailable(f"{folder}: there is no such folder")
    if missing := _missing(folder, source):
        raise DataUnavailable(f"{folder}: has no {', '.join(missing)} (nor with .gz)")
    return [_read(folder, file) for file in source.files]


def _read(folder: Path, file: File) -> bytearray:
    path = _path(folder, file)
    if path is None:
        raise DataUnavailable(f"{folder}: has no {file.name} (nor with .gz)")
    try:
        return _content(path, file)
    except DataUnavailable as problem:
        raise DataUnavailable(f"{path}: {problem}") from None


def _content(path: Path, file: File) -> bytearray:
    """Read, decompress and check a file in one go; complain without its name."""
    content, digest = bytearray(), hashlib.sha256()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            while len(content) <= file.size and (piece := stream.read1(_PIECE)):
                digest.update(piece)
                content += piece
    except EOFError:
        pass  # a gzip stream that was cut short: the size tells
    except (OSError, zlib.error) as problem:
        raise DataUnavailable(f"cannot be read: {problem}") from None
    if len(content) != file.size:
        got = "more" if len(content) > file.size else f"{len(content):,}"
        raise DataUnavailable(f"damaged: expected {file.size:,} bytes of content, got {got}")
    if digest.hexdigest() != file.sha256:
        raise DataUnavailable(
            f"damaged: expected content of SHA-256 {file.sha256}, got {digest.hexdigest()}"
        )
    return content


def _download(source: Source, folder: Path) -> None:
    """Put into the folder what it does not have, or has only damaged."""
    base = os.environ.get(f"FEDZO_{source.name.upper().replace('-', '_')}_URL") or source.url
    for file in source.files:
        with suppress(DataUnavailable):
            _read(folder, file)
            continue
        url = f"{str(base).rstrip('/')}/{file.name}.gz"
        try:
            _fetch(url, folder / f"{file.name}.gz", file)
        except (OSError, HTTPException, ValueError, DataUnavailable) as problem:
            raise DataUnavailable(f"{url}: {problem}") from None


def _fetch(url: str, target: Path, file: File) -> None:
    """Download a file; it has its name only once it is whole and right."""
    from urllib.request import urlopen

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        with urlopen(url, timeout=_TIMEOUT) as response, part.open("wb") as out:
            total = int(response.headers.get("Content-Length", 0))
            _copy(response, out, url, total)
        _content(part, file)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _copy(response: IO[bytes], out: IO[bytes], url: str, total: int) -> None:
    """Copy and say so on standard error: a bar on a terminal, a line elsewhere."""
    terminal = sys.stderr.isatty()
    if not terminal:
        size = f" ({total / 1e6:.1f} MB)" if total else ""
        print(f"fetching {url}{size}", file=sys.stderr)
    done = 0
    try:
        while piece := response.read(_PIECE):
            done += out.write(piece)
            if terminal:
                print("\r" + _bar(url, done, total), end="", file=sys.stderr, flush=True)
    finally:
        if terminal:
            print(file=sys.stderr)


def _bar(url: str, done: int, total: int) -> str:
    share = min(done / total, 1.0) if total else 0.0
    return f"{url.rpartition('/')[2]:28} {'█' * int(30 * share):░<30} {done / 1e6:5.1f} MB"
