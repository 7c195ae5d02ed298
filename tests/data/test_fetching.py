"""Finding, checking and downloading, on two small made-up files and a real server."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import lzma
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedzo.data import fetching
from fedzo.data.fetching import Edition, File, Source, cache_folder, find, obtain
from fedzo.errors import DataUnavailable
from raising import fails

Serve = Callable[[type[BaseHTTPRequestHandler]], str]

IMAGES = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(9000))
CONTENT = {"images": IMAGES, "labels": bytes(range(200))}  # the first is more than one piece
NOBODY = "http://127.0.0.1:9"  # listens there
FILES = tuple(File(n, len(c), hashlib.sha256(c).hexdigest()) for n, c in CONTENT.items())


def source(url: str | None = None, *places: Path) -> Source:
    """Return the two files' source; nothing here decodes them."""
    edition = Edition(tuple(CONTENT), url=url or "", mirror="FEDZO_MADE_UP_URL")
    advice = ("sing", "or dance")
    return Source("made-up", "", FILES, (edition,), installed=places, advice=advice)


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
    with fails("data-missing") as caught:
        obtain(source(NOBODY), folder)
    assert str(folder) in str(caught.value)
    with fails("data-unreadable") as caught:
        obtain(source(NOBODY), tmp_path / "nowhere")
    assert f"{tmp_path}/nowhere" in str(caught.value)


@pytest.mark.parametrize("name", ["a" * 300, "images", "a\0b"])
def test_named_folder_that_cannot_be(tmp_path: Path, name: str) -> None:
    write(tmp_path, compressed=False)
    with fails("data-unreadable"):
        obtain(source(), tmp_path / name)


def test_a_cache_that_may_not_be_read_has_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.stat", denied)
    monkeypatch.setattr("os.listdir", denied)
    assert find(source(NOBODY)) is None
    with fails("data-unreadable"):
        obtain(source(), cache / "made-up")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


OTHER = IMAGES[:-1] + b"x"
PACKED = gzip.compress(IMAGES)
BAD = bytearray(PACKED)
BAD[len(BAD) // 2] ^= 0xFF
DAMAGE = {  # how: the file, its bytes, the code, the numbers in the message
    "short": ("images", IMAGES[:-7], "data-damaged", ("288,000", "287,993")),
    "long": ("images", IMAGES + b"x", "data-damaged", ("288,000", "288,001")),
    "other bytes": ("images", OTHER, "data-damaged", (sha256(IMAGES), sha256(OTHER))),
    "nothing": ("images.gz", b"", "data-damaged", ("288,000", "0")),
    "not gzip": ("images.gz", b"<html>", "data-damaged", ("288,000", "6")),
    "gzip of far too much": (
        "images.gz",
        gzip.compress(bytes(10_000_000)),
        "data-damaged",
        ("576,000",),
    ),
    "xz that was cut short": ("images.xz", lzma.compress(IMAGES)[:100_000], "data-unreadable", ()),
    "xz of far too much": (
        "images.xz",
        lzma.compress(bytes(10_000_000)),
        "data-damaged",
        ("more than 576,000",),
    ),
    "gzip that was cut short": ("images.gz", PACKED[:100_000], "data-unreadable", ()),
    # Stored, not deflated, by gzip: the CRC differs.
    "a bad byte within": ("images.gz", bytes(BAD), "data-unreadable", ()),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_file_is_named(tmp_path: Path, how: str) -> None:
    name, content, code, numbers = DAMAGE[how]
    folder = write(tmp_path, compressed="." in name)
    if name.endswith(".xz"):
        (folder / "images.gz").unlink()
    (folder / name).write_bytes(content)
    with fails(code) as caught:
        obtain(source(), folder)
    assert str(caught.value).startswith(f"made-up: {folder}: images")
    assert all(number in str(caught.value) for number in numbers)
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
    assert first == f"fetching {url}/images.gz"
    assert second == f"fetching {url}/labels.gz"

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


@pytest.mark.parametrize("tqdm", [True, False])
def test_terminal_gets_a_bar_if_tqdm_is_there(
    tmp_path: Path,
    serve_folder: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    tqdm: bool,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    if tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setattr(fetching, "find_spec", lambda _name: None)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    url = serve_folder(write(tmp_path / "served"))
    obtain(source(url))
    assert f"fetching {url}/images.gz\n" in terminal.getvalue()
    assert ("100%" in terminal.getvalue()) == tqdm


def why(url: str) -> str:
    """Return why a download failed; there must be nothing left of it."""
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(url))
    assert left_in(cache_folder("made-up")) == []
    _, _, reason, *_ = str(caught.value).splitlines()
    assert f"{url}/images.gz: " in reason
    return reason


def test_server_that_truncates(serve: Serve) -> None:
    assert "IncompleteRead(150000 " in why(serve(answer(PACKED[:150_000], len(PACKED))))


def test_server_that_has_it_not(tmp_path: Path, serve_folder: Callable[[Path], str]) -> None:
    url = serve_folder(tmp_path)
    assert "404" in why(url)


def test_server_with_wrong_bytes(serve: Serve) -> None:
    packed = gzip.compress(OTHER)
    reason = why(serve(answer(packed, len(packed))))
    assert sha256(IMAGES) in reason
    assert sha256(OTHER) in reason


def test_server_that_sends_a_web_page(serve: Serve) -> None:
    page = b"<html>pay for your room</html>"
    assert "288,000 bytes" in why(serve(answer(page, len(page))))


def test_server_that_sends_a_bomb(serve: Serve) -> None:
    bomb = gzip.compress(bytes(10_000_000))
    assert "more than 288,000 bytes" in why(serve(answer(bomb, len(bomb))))


def test_server_that_is_silent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given_up.wait(60)

    monkeypatch.setattr(fetching, "_TIMEOUT", 0.1)
    assert "timed out" in why(serve(Silent))
    given_up.set()


def test_address_that_is_none() -> None:
    assert "Invalid URL" in why("http:/nothing")


def test_the_cache_is_locked_while_it_is_filled(cache: Path) -> None:
    class Locked(Edition):
        def fetch(self, folder: Path, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
            with (cache / ".made-up.lock").open("w") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return zip(files, CONTENT.values(), strict=True)

    locked = replace(source(), editions=(Locked(tuple(CONTENT), url=NOBODY),))
    assert obtain(locked)[1] == list(CONTENT.values())


def test_a_system_without_locks_downloads(
    tmp_path: Path, serve_folder: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve_folder(write(tmp_path / "served"))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert obtain(source(url))[1] == list(CONTENT.values())


def test_what_another_process_downloaded_is_not_downloaded_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is done when the lock is free; nobody listens at the address."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: write(cache / "made-up"))
    assert obtain(source(NOBODY))[1] == list(CONTENT.values())


def test_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where a folder should be")
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(NOBODY))
    assert f"{cache}/made-up" in str(caught.value)


def test_all_that_was_tried_is_told(tmp_path: Path, cache: Path) -> None:
    system, gone = write(tmp_path / "system"), tmp_path / "gone"
    (system / "labels.gz").unlink()
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(NOBODY, system, gone))
    _, *tried, _, sing, dance = str(caught.value).splitlines()
    places = (f"{cache}/made-up", system, gone, f"{NOBODY}/images.gz")
    for line, place in zip(tried, places, strict=True):
        assert line.startswith(f"  {place}: ")
    assert (sing, dance) == ("  sing", "  or dance")
