"""Read a data set's files from a folder, in any edition in which they were published.

A file is named and checked as it is once it is decompressed and decoded, so it does not
matter who compressed it, or in which edition it came.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os.path import isfile  # False where a folder may not be read; Path.is_file raises
from pathlib import Path
from typing import IO, NamedTuple

from fedzo.errors import DataUnavailable


class File(NamedTuple):
    """A file as it is when decompressed and decoded."""

    name: str
    size: int
    sha256: str

    def check(self, content: bytes) -> None:
        """Raise unless this is the file's content."""
        expected, got = f"{self.size:,} bytes", f"{len(content):,}"
        if len(content) == self.size:
            expected, got = f"SHA-256 {self.sha256}", hashlib.sha256(content).hexdigest()
        if got != expected.removeprefix("SHA-256 "):
            raise DataUnavailable(f"{self.name}: damaged: expected {expected}, got {got}")


def _unchanged(contents: list[bytes], _: Sequence[File]) -> Iterable[bytes]:
    return contents


@dataclass(frozen=True)
class Edition:
    """One form in which a data set was published.

    Attributes
    ----------
    names
        The files it consists of; each may have ``.gz`` after its name.
    decode
        Makes the data set's files of the contents of these, in the order of ``names``.
    archive
        The ``.tar.gz`` that has them, if any. It is read, never unpacked to the disk.
    folder
        The folder that they are in inside the archive.
    """

    names: tuple[str, ...]
    decode: Callable[[list[bytes], Sequence[File]], Iterable[bytes]] = _unchanged
    archive: str = ""
    folder: str = ""

    def __str__(self) -> str:
        names = self.names if len(self.names) <= 4 else (self.names[0], "...", self.names[-1])
        archive = f" or {self.archive}" if self.archive else ""
        return ", ".join(names) + archive

    def find(self, folder: Path) -> Iterator[Path]:
        """Yield what in a folder has all the files, going by names: a folder or the archive."""
        for inner in dict.fromkeys((folder, folder / self.folder)):
            if all(_stored(inner, name) for name in self.names):
                yield inner
        if self.archive and isfile(folder / self.archive):
            yield folder / self.archive

    def read(self, found: Path, files: Sequence[File]) -> list[bytes]:
        """Return the checked contents of the data set's files, from what :meth:`find` found."""
        limit = 2 * max(file.size for file in files)  # no edition needs more for a file
        try:
            members = self._unpacked(found, limit) if found.is_file() else self._read(found, limit)
            contents = list(self.decode(members, files))
            for file, content in zip(files, contents, strict=True):
                file.check(content)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as problem:
            raise DataUnavailable(f"{found}: cannot be read: {problem}") from None
        except DataUnavailable as problem:
            raise DataUnavailable(f"{found}: {problem}") from None
        return contents

    def _read(self, folder: Path, limit: int) -> list[bytes]:
        contents = []
        for name in self.names:
            path = _stored(folder, name)
            if path is None:
                raise DataUnavailable(f"{name} has disappeared")
            try:
                with path.open("rb") as stream:
                    contents.append(decompressed(stream, limit))
            except DataUnavailable as problem:
                raise DataUnavailable(f"{path.name}: {problem}") from None
        return contents

    def _unpacked(self, archive: Path, limit: int) -> list[bytes]:
        wanted = {f"{self.folder}/{name}": name for name in self.names}
        members: dict[str, bytes] = {}
        with tarfile.open(archive, "r|gz") as packed:
            for info in packed:
                name = wanted.get(info.name.removeprefix("./"))
                stream = packed.extractfile(info) if name and info.isreg() else None
                if name and stream:
                    if info.size > limit:
                        raise DataUnavailable(f"{name}: damaged: has {info.size:,} bytes")
                    members[name] = stream.read()
                if len(members) == len(wanted):
                    break  # so that nobody waits for what comes after
        for name in self.names:
            if name not in members:
                raise DataUnavailable(f"does not have {self.folder}/{name}")
        return [members[name] for name in self.names]


def decompressed(stream: IO[bytes], limit: int) -> bytes:
    """Return what an open file holds, decompressed if it is gzip, and close it.

    More than ``limit`` bytes are refused, however small the file is.
    """
    is_gzip = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    try:
        with gzip.open(stream) if is_gzip else stream as plain:
            content = plain.read(limit + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise DataUnavailable(f"cannot be read: {problem}") from None
    if len(content) > limit:
        raise DataUnavailable(f"damaged: has more than {limit:,} bytes")
    return content


def _stored(folder: Path, name: str) -> Path | None:
    # Plain first: a download puts the plain file beside a compressed one that is damaged.
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if isfile(path)), None)
