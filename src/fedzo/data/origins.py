"""Where data sets can be downloaded from: folders on the web; see also :mod:`fedzo.data.packages`.

pooch downloads, checks and puts in place what is a file of the data set; an archive is
downloaded to a temporary folder, and only its checked files are kept. A file has its name only
once it is whole and right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Protocol

from fedzo.core.progress import LiveLine
from fedzo.data.reading import Edition, File, decompressed
from fedzo.errors import DataUnavailable, first_line

_TIMEOUT = 20.0  # seconds that a server may be silent


class Origin(Protocol):
    """Where the files can be downloaded from."""

    def fetch(self, folder: Path, files: Sequence[File]) -> None:
        """Put the files that a folder lacks into it; raise with the address and the reason."""


@dataclass(frozen=True)
class WebFolder:
    """A folder on the web with an edition's archive, or with each file, ``.gz`` after its name.

    Attributes
    ----------
    url
        Its address.
    variable
        The environment variable that may name a mirror.
    edition
        What its archive has; None: there is no archive.
    """

    url: str
    variable: str
    edition: Edition | None = None

    def fetch(self, folder: Path, files: Sequence[File]) -> None:
        """Download what is missing or damaged, and leave what is not."""
        base = (os.environ.get(self.variable) or self.url).rstrip("/")
        if self.edition:
            with named(url := f"{base}/{self.edition.archive}"):
                keep(folder, files, self.edition, lambda path: _download(url, path))
            return
        for file in files:
            with named(url := f"{base}/{file.name}.gz"):
                _retrieve(url, folder, file)


@contextmanager
def named(address: str) -> Iterator[None]:
    """Put the address before the reason why a download failed, in a line."""
    try:
        yield
    except DataUnavailable as problem:
        raise DataUnavailable(f"{address}: {problem}") from None
    except (OSError, ValueError) as problem:
        reason: Exception = problem  # which requests and urllib3 wrap several times
        while isinstance(reason.__context__, Exception):
            reason = reason.__context__
        raise DataUnavailable(f"{address}: {first_line(reason)}") from None


def _retrieve(url: str, folder: Path, file: File) -> None:
    """Have pooch put a file into a folder unless it is there; its checksum is of the content."""
    import pooch

    def download(url: str, path: str, _: object) -> None:
        with TemporaryFile(dir=folder) as packed:
            _download(url, packed)
            packed.seek(0)
            Path(path).write_bytes(decompressed(packed, file.size))

    pooch.get_logger().setLevel("WARNING")  # it reports what _Progress reports already
    path = pooch.retrieve(url, file.sha256, file.name, folder, downloader=download)
    Path(path).chmod(0o644)  # pooch's temporary files are for their owner only


def keep(
    folder: Path, files: Sequence[File], edition: Edition, fetch: Callable[[Path], None]
) -> None:
    """Have an archive put into a temporary folder, and keep the files it holds."""
    with TemporaryDirectory(prefix=".", dir=folder) as temporary:
        archive = Path(temporary, edition.archive)
        fetch(archive)
        try:
            contents = edition.read(archive, files)
        except DataUnavailable as problem:
            raise DataUnavailable(str(problem).removeprefix(f"{archive}: ")) from None
        for file, content in zip(files, contents, strict=True):
            part = Path(temporary, file.name)
            part.write_bytes(content)
            part.replace(folder / file.name)


def _download(url: str, target: Any) -> None:
    """Write what lies at the address into a path or an open file, and tell how far it has come."""
    import pooch

    progress = _Progress(url)
    fetch = pooch.HTTPDownloader(
        progress,
        chunk_size=1 << 16,
        timeout=_TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        # It would leave the connection of an error page open.
        hooks={"response": lambda response, **_: None if response.ok else response.close()},
    )
    try:
        fetch(url, target, None)
    finally:
        progress.close()


class _Progress:
    """A bar on standard error if that is a terminal, and a line elsewhere; pooch calls it."""

    def __init__(self, url: str) -> None:
        self.url, self.done, self.total = url, 0, 0
        self.line = LiveLine(sys.stderr)

    def update(self, size: int) -> None:
        if not self.line.live and not self.done:
            self.line.write(f"fetching {self.url} ({self.total / 1e6:.1f} MB)\n")
        self.done = min(self.done + size, self.total or sys.maxsize)
        if self.line.live:
            share = self.done / self.total if self.total else 0.0
            bar = f"{self.url.rpartition('/')[2]:28} {'█' * int(30 * share):░<30}"
            self.line.rewrite(f"{bar} {self.done / 1e6:5.1f} MB")

    def reset(self) -> None:
        """Stay: at the end pooch empties a bar and fills it at once."""

    def close(self) -> None:
        if self.line.live and self.done:
            self.line.write("\n")
        self.line.live = False
