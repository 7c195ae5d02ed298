"""How a folder may hold a data set's files, and the check that every byte of them is right.

A file is named and checked as it is once it is decompressed and decoded, so it does not
matter who compressed it, or in which of its forms a data set was published.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from fedzo.errors import DataUnavailable

Content = bytes | bytearray

_PIECE = 1 << 16  # bytes handled at a time


class File(NamedTuple):
    """A file as it is when decompressed and decoded."""

    name: str
    size: int
    sha256: str


class Form(Protocol):
    """A way in which a folder may hold the files."""

    def missing(self, folder: Path, files: Sequence[File]) -> str:
        """Return what the folder has not, going by names only; empty if it has all."""

    def read(self, folder: Path, files: Sequence[File]) -> list[Content]:
        """Return the checked contents; complain naming the culprit."""


def check(content: Content, file: File) -> None:
    """Raise unless this is the file's content; complain without its name."""
    if len(content) != file.size:
        got = "more" if len(content) > file.size else f"{len(content):,}"
        raise DataUnavailable(f"damaged: expected {file.size:,} bytes of content, got {got}")
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DataUnavailable(f"damaged: expected content of SHA-256 {file.sha256}, got {digest}")


@dataclass(frozen=True)
class Files:
    """The files themselves, each as it is or with ``.gz`` after its name."""

    subfolder: str = ""

    def missing(self, folder: Path, files: Sequence[File]) -> str:
        """Return the names of the files that are not there."""
        if self.subfolder and not (folder / self.subfolder).is_dir():
            return self.subfolder
        inner = folder / self.subfolder
        absent = [str(Path(self.subfolder, f.name)) for f in files if _path(inner, f) is None]
        return f"{_listed(absent)} (nor with .gz)" if absent else ""

    def read(self, folder: Path, files: Sequence[File]) -> list[Content]:
        """Return the checked contents."""
        return [self.read_one(folder / self.subfolder, file) for file in files]

    @staticmethod
    def read_one(folder: Path, file: File) -> Content:
        """Return the checked content of one of the files."""
        path = _path(folder, file)
        if path is None:
            raise DataUnavailable(f"{folder}: has no {file.name} (nor with .gz)")
        try:
            return read_file(path, file)
        except DataUnavailable as problem:
            raise DataUnavailable(f"{path}: {problem}") from None


class Layout(NamedTuple):
    """Other files of the same content.

    Attributes
    ----------
    names
        What they are called.
    decode
        Makes the contents of what they hold, given in the order of ``names``; complains
        without a file's name.
    """

    names: tuple[str, ...]
    decode: Callable[[list[bytes], Sequence[File]], Iterable[Content]]

    def contents(self, members: dict[str, bytes], files: Sequence[File]) -> list[Content]:
        """Return the checked contents."""
        contents = list(self.decode([members[name] for name in self.names], files))
        for content, file in zip(contents, files, strict=True):
            try:
                check(content, file)
            except DataUnavailable as problem:
                raise DataUnavailable(f"{file.name}: {problem}") from None
        return contents


@dataclass(frozen=True)
class Converted:
    """A folder of other files of the same content."""

    subfolder: str
    layout: Layout

    def missing(self, folder: Path, files: Sequence[File]) -> str:
        """Return the names of the files that are not there."""
        if self.subfolder and not (folder / self.subfolder).is_dir():
            return self.subfolder
        paths = [Path(self.subfolder, name) for name in self.layout.names]
        return _listed([str(path) for path in paths if not (folder / path).is_file()])

    def read(self, folder: Path, files: Sequence[File]) -> list[Content]:
        """Return the checked contents, decoded."""
        inner = folder / self.subfolder
        try:
            members = {name: _read(inner / name, _limit(files)) for name in self.layout.names}
            return self.layout.contents(members, files)
        except DataUnavailable as problem:
            raise DataUnavailable(f"{inner}: {problem}") from None


@dataclass(frozen=True)
class Archive:
    """A ``.tar.gz`` with a folder ``inside`` it. It is read, never unpacked to the disk."""

    name: str
    inside: str
    layout: Layout

    def missing(self, folder: Path, files: Sequence[File]) -> str:
        """Return the archive's name if it is not there."""
        return "" if (folder / self.name).is_file() else self.name

    def read(self, folder: Path, files: Sequence[File]) -> list[Content]:
        """Return the checked contents, decoded."""
        path = folder / self.name
        try:
            return self.unpack(path, files)
        except DataUnavailable as problem:
            raise DataUnavailable(f"{path}: {problem}") from None

    def unpack(self, path: Path, files: Sequence[File]) -> list[Content]:
        """Return the checked contents, decoded; complain without the archive's name."""
        try:
            members = self._members(path, _limit(files))
        except (tarfile.TarError, OSError, EOFError, zlib.error) as problem:
            raise DataUnavailable(f"cannot be read: {problem}") from None
        if absent := [name for name in self.layout.names if name not in members]:
            raise DataUnavailable(f"has no {_listed(absent)} in {self.inside}")
        return self.layout.contents(members, files)

    def _members(self, path: Path, limit: int) -> dict[str, bytes]:
        wanted = {f"{self.inside}/{name}": name for name in self.layout.names}
        members: dict[str, bytes] = {}
        with tarfile.open(path, "r|gz") as archive:
            for info in archive:
                name = wanted.get(info.name.removeprefix("./"))
                stream = archive.extractfile(info) if name and info.isreg() else None
                if name and stream:
                    if info.size > limit:
                        raise DataUnavailable(f"damaged: {info.name} has {info.size:,} bytes")
                    members[name] = stream.read()
                if len(members) == len(wanted):
                    break  # so that nobody waits for what comes after
        return members


def read_file(path: Path, file: File) -> Content:
    """Read, decompress and check a file; complain without its name."""
    content = bytearray()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            while len(content) <= file.size and (piece := stream.read1(_PIECE)):
                content += piece
    except EOFError:
        pass  # a gzip stream that was cut short: the size tells
    except (OSError, zlib.error) as problem:
        raise DataUnavailable(f"cannot be read: {problem}") from None
    check(content, file)
    return content


def _path(folder: Path, file: File) -> Path | None:
    # Compressed first: what a download puts beside a damaged file is then what is read.
    candidates = (folder / f"{file.name}.gz", folder / file.name)
    return next((path for path in candidates if path.is_file()), None)


def _limit(files: Sequence[File]) -> int:
    """Return how many bytes a file in another form may have: there is no need for more."""
    return 2 * max(file.size for file in files)


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as problem:
        raise DataUnavailable(f"cannot be read: {problem}") from None
    if len(content) > limit:
        raise DataUnavailable(f"damaged: {path.name} has more than {limit:,} bytes")
    return content


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 4 else (names[0], "...", names[-1]))
