"""Finding, checking and downloading, on two small made-up files and a real server."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedzo.data import origins
from fedzo.data.fetching import Source, cache_folder, find, obtain
from fedzo.data.origins import WebFolder
from fedzo.data.reading import File
from fedzo.errors import DataUnavailable

Serve = Callable[[type[BaseHTTPRequestHandler]], str]

IMAGES = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(9000))
CONTENT = {"images": IMAGES, "labels": bytes(range(200))}  # the first is more than one piece
NOBODY = "http://127.0.0.1:9"  # listens there
FILES = tuple(File(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in CONTENT.items())


def source(url: str | None = None, *places: Path) -> Source:
    """Return the two files' source; nothing here decodes them."""
    return Source(
        "made-up",
        "",
        FILES,
        decode=lambda: None,
        installed=places,
        origins=(WebFolder(url, "FEDZO_MADE_UP_URL"),) if url else (),
        advice=("sing", "or dance"),
    )


def write(folder: Path, *, compressed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENT.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def answer(reply: bytes, length: int) -> type[BaseHTTPRequestHandler]:
    """Send the same bytes whatever is asked for, under a length that may be a lie."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args: Any) -> None:
            pass

    return Answer


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---- where the cache is


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("FEDZO_CACHE", "~/big")
    assert cache_folder("d") == Path("/home/ann/big/d")
    monkeypatch.setenv("FEDZO_CACHE", "")
    assert cache_folder("d") == Path("/xdg/fedzo/d")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("d") == Path("/home/ann/.cache/fedzo/d")


# ---- a folder that the user names


@pytest.mark.parametrize("compressed", [True, False])
def test_named_folder_is_read(tmp_path: Path, compressed: bool) -> None:
    folder = write(tmp_path / "mine", compressed=compressed)
    where, contents = obtain(source(), folder)
    assert where == folder
    assert contents == list(CONTENT.values())


def test_named_folder_comes_before_all_else(tmp_path: Path, cache: Path) -> None:
    write(cache / "made-up")
    folder = write(tmp_path / "mine")
    assert obtain(source(NOBODY, cache), str(folder))[0] == folder


@pytest.mark.parametrize("folder", [None, ""])
def test_no_folder_is_no_folder(cache: Path, folder: str | None) -> None:
    write(cache / "made-up")
    assert obtain(source(NOBODY), folder)[0] == cache / "made-up"


def test_named_folder_without_the_files_is_refused(tmp_path: Path, cache: Path) -> None:
    write(cache / "made-up")  # would do, but the user asked for another
    folder = write(tmp_path / "mine")
    (folder / "labels.gz").unlink()
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(NOBODY), folder)
    assert str(caught.value) == f"made-up: {folder}: does not have images, labels"
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(NOBODY), tmp_path / "nowhere")
    assert str(caught.value) == f"made-up: {tmp_path}/nowhere: No such file or directory"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a" * 300, "File name too long"),
        ("images", "Not a directory"),
        ("a\0b", "embedded null byte"),
    ],
)
def test_named_folder_that_cannot_be(tmp_path: Path, name: str, reason: str) -> None:
    write(tmp_path, compressed=False)
    with pytest.raises(DataUnavailable, match=f": {reason}$"):
        obtain(source(), tmp_path / name)


def test_a_cache_that_may_not_be_read_has_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.stat", denied)
    monkeypatch.setattr("os.listdir", denied)
    assert find(source(NOBODY)) is None
    with pytest.raises(DataUnavailable, match=f"{cache}/made-up: Permission denied"):
        obtain(source(), cache / "made-up")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


OTHER = IMAGES[:-1] + b"x"
PACKED = gzip.compress(IMAGES)
BAD = bytearray(PACKED)
BAD[len(BAD) // 2] ^= 0xFF
OTHER_SUM = f"damaged: expected SHA-256 {sha256(IMAGES)}, got {sha256(OTHER)}"
DAMAGE = {  # how: the file, its bytes, what must be said
    "short": ("images", IMAGES[:-7], "damaged: expected 288,000 bytes, got 287,993"),
    "long": ("images", IMAGES + b"x", "damaged: expected 288,000 bytes, got 288,001"),
    "other bytes": ("images", OTHER, OTHER_SUM),
    "nothing": ("images.gz", b"", "damaged: expected 288,000 bytes, got 0"),
    "not gzip": ("images.gz", b"<html>", "damaged: expected 288,000 bytes, got 6"),
    "gzip of far too much": (
        "images.gz",
        gzip.compress(bytes(10_000_000)),
        "damaged: has more than 576,000 bytes",
    ),
    "gzip that was cut short": (
        "images.gz",
        PACKED[:100_000],
        "cannot be read: Compressed file ended before the end-of-stream marker",
    ),
    "a bad byte within": (  # stored, not deflated, by gzip: it is the CRC that notices
        "images.gz",
        bytes(BAD),
        "cannot be read: CRC check failed",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_file_is_named(tmp_path: Path, how: str) -> None:
    name, content, complaint = DAMAGE[how]
    folder = write(tmp_path, compressed=name.endswith(".gz"))
    (folder / name).write_bytes(content)
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(), folder)
    assert re.match(rf"made-up: {folder}: images(\.gz)?: {re.escape(complaint)}", str(caught.value))
    assert "\n" not in str(caught.value)


def test_content_counts_and_not_who_compressed_it(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "images.gz").write_bytes(gzip.compress(IMAGES, 1, mtime=7))
    (folder / "labels.gz").write_bytes(CONTENT["labels"])  # not compressed at all
    assert obtain(source(), folder)[1] == list(CONTENT.values())


# ---- the places, one after the other


def test_damage_in_one_place_is_made_good_in_the_next(tmp_path: Path, cache: Path) -> None:
    (write(cache / "made-up") / "images.gz").write_bytes(b"")
    system = write(tmp_path / "system")
    where, contents = obtain(source(NOBODY, system))
    assert where == system
    assert contents == list(CONTENT.values())


def test_find_goes_by_names(tmp_path: Path, cache: Path) -> None:
    system = tmp_path / "system"
    assert find(source(NOBODY, system)) is None
    write(system, compressed=False)
    assert find(source(NOBODY, system)) == system
    write(cache / "made-up")
    assert find(source(NOBODY, system)) == cache / "made-up"
    assert find(source(None, system)) == system  # what is never downloaded is not in the cache


# ---- the download


def test_download_fills_the_cache_with_what_it_lacks(
    tmp_path: Path,
    cache: Path,
    serve_folder: Callable[[Path], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = serve_folder(write(tmp_path / "served"))
    where, contents = obtain(source(url))
    assert where == cache / "made-up"
    assert contents == list(CONTENT.values())
    assert left_in(where) == ["images", "labels"]
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in where.iterdir())
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"fetching {url}/images.gz (0.3 MB)"
    assert second == f"fetching {url}/labels.gz (0.0 MB)"

    (where / "images").write_bytes(b"")
    assert obtain(source(url))[1] == list(CONTENT.values())
    assert capsys.readouterr().err.splitlines() == [first]  # the whole one is kept

    assert obtain(source(NOBODY))[1] == list(CONTENT.values())


@pytest.mark.parametrize("compressed", [True, False])
def test_download_replaces_a_damaged_file(
    tmp_path: Path, cache: Path, serve_folder: Callable[[Path], str], compressed: bool
) -> None:
    folder = write(cache / "made-up", compressed=compressed)
    (folder / ("images.gz" if compressed else "images")).write_bytes(b"")
    url = serve_folder(write(tmp_path / "served"))
    assert obtain(source(url))[1] == list(CONTENT.values())


def test_environment_names_a_mirror(
    tmp_path: Path, serve_folder: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDZO_MADE_UP_URL", serve_folder(write(tmp_path / "served")) + "/")
    assert obtain(source(NOBODY))[1] == list(CONTENT.values())


def test_terminal_gets_a_bar(
    tmp_path: Path, serve_folder: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    obtain(source(serve_folder(write(tmp_path / "served"))))
    images, labels, end = terminal.getvalue().split("\n")
    start, *bars = images.split("\r")
    assert start == ""
    assert [bar.count("█") for bar in bars] == [6, 13, 20, 27, 30, 30]  # 64 KiB of 288 kB at a time
    assert bars[-1] == f"{'images.gz':28} {'█' * 30}   0.3 MB"
    assert set(labels.split("\r")) == {"", f"{'labels.gz':28} {'█' * 30}   0.0 MB"}
    assert end == ""


def why(url: str) -> str:
    """Return why a download failed; there must be nothing left of it."""
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(url))
    assert left_in(cache_folder("made-up")) == []
    _, _, reason, *_ = str(caught.value).splitlines()
    return reason.removeprefix(f"  {url}/images.gz: ")


def test_server_that_truncates(serve: Serve) -> None:
    assert why(serve(answer(PACKED[:150_000], len(PACKED)))).startswith("IncompleteRead(150000 ")


def test_server_that_has_it_not(tmp_path: Path, serve_folder: Callable[[Path], str]) -> None:
    url = serve_folder(tmp_path)
    assert why(url) == f"404 Client Error: File not found for url: {url}/images.gz"


def test_server_with_wrong_bytes(serve: Serve) -> None:
    packed = gzip.compress(OTHER)
    reason = why(serve(answer(packed, len(packed))))
    assert reason.startswith("SHA256 hash of downloaded file (images) does not match the known")
    assert f"expected {sha256(IMAGES)} but got {sha256(OTHER)}" in reason


def test_server_that_sends_a_web_page(serve: Serve) -> None:
    page = b"<html>pay for your room</html>"
    assert "does not match" in why(serve(answer(page, len(page))))


def test_server_that_sends_a_bomb(serve: Serve) -> None:
    bomb = gzip.compress(bytes(10_000_000))
    assert why(serve(answer(bomb, len(bomb)))) == "damaged: has more than 288,000 bytes"


def test_server_that_is_silent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given_up.wait(60)

    monkeypatch.setattr(origins, "_TIMEOUT", 0.1)
    assert why(serve(Silent)) == "timed out"
    given_up.set()


def test_address_that_is_none() -> None:
    assert why("http:/nothing").startswith("Invalid URL 'http:/nothing/images.gz'")


def test_the_cache_is_locked_while_it_is_filled(cache: Path) -> None:
    class Locked:
        def fetch(self, folder: Path, _: object) -> None:
            with (cache / ".made-up.lock").open("w") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write(folder)

    assert obtain(replace(source(NOBODY), origins=(Locked(),)))[1] == list(CONTENT.values())


def test_what_another_process_downloaded_is_not_downloaded_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is done when the lock is free; nobody listens at the address."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: write(cache / "made-up"))
    assert obtain(source(NOBODY))[1] == list(CONTENT.values())


def test_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    with pytest.raises(DataUnavailable, match=f"Not a directory: '{cache}/made-up'"):
        obtain(source(NOBODY))


def test_all_that_was_tried_is_told(tmp_path: Path, cache: Path) -> None:
    system, gone = write(tmp_path / "system"), tmp_path / "gone"
    (system / "labels.gz").unlink()
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(NOBODY, system, gone))
    lines = str(caught.value).splitlines()
    assert lines.pop(4) == f"  {NOBODY}/images.gz: [Errno 111] Connection refused"
    assert lines == [
        "made-up could not be found or downloaded; tried:",
        f"  {cache}/made-up: No such file or directory",
        f"  {system}: does not have images, labels",
        f"  {gone}: No such file or directory",
        "what to do:",
        "  sing",
        "  or dance",
    ]
