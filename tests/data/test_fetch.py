"""Finding, checking and downloading, on two small made-up files and a real server."""

from __future__ import annotations

import gzip
import hashlib
import io
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedzo.data import download
from fedzo.data.fetch import Source, cache_folder, find, obtain
from fedzo.data.forms import File
from fedzo.data.suppliers import WebFiles
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
        places=places,
        suppliers=(WebFiles(url, "FEDZO_MADE_UP_URL"),) if url else (),
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
    assert str(caught.value) == f"made-up: {folder}: has no labels (nor with .gz)"
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(NOBODY), tmp_path / "nowhere")
    assert str(caught.value) == f"made-up: {tmp_path}/nowhere: there is no such folder"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


OTHER = IMAGES[:-1] + b"x"
BAD = bytearray(gzip.compress(IMAGES))
BAD[len(BAD) // 2] ^= 0xFF
DAMAGE = {  # how: the file, its bytes, what must be said
    "short": ("images", IMAGES[:-7], "damaged: expected 288,000 bytes of content, got 287,993"),
    "long": ("images", IMAGES + b"x", "damaged: expected 288,000 bytes of content, got more"),
    "other bytes": (
        "images",
        OTHER,
        f"damaged: expected content of SHA-256 {sha256(IMAGES)}, got {sha256(OTHER)}",
    ),
    "gzip of too little, without its trailer": (
        "images.gz",
        gzip.compress(IMAGES[:100_000])[:-8],
        "damaged: expected 288,000 bytes of content, got 100,000",
    ),
    "nothing": ("images.gz", b"", "damaged: expected 288,000 bytes of content, got 0"),
    "gzip of far too much": (
        "images.gz",
        gzip.compress(bytes(10_000_000)),
        "damaged: expected 288,000 bytes of content, got more",
    ),
    "not gzip": (
        "images.gz",
        IMAGES,
        f"cannot be read: Not a gzipped file ({IMAGES[:2]!r})",
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
    assert str(caught.value).startswith(f"made-up: {folder}/{name}: {complaint}")
    assert "\n" not in str(caught.value)


def test_truncated_gzip_says_how_much_there_was(tmp_path: Path) -> None:
    folder = write(tmp_path)
    packed = (folder / "images.gz").read_bytes()
    (folder / "images.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(), folder)
    there_was = int(str(caught.value).rpartition(" ")[2].replace(",", ""))
    assert 140_000 < there_was < 148_000  # half of what does not compress


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
    assert left_in(where) == ["images.gz", "labels.gz"]
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"fetching {url}/images.gz (0.3 MB)"
    assert second == f"fetching {url}/labels.gz (0.0 MB)"

    (where / "images.gz").write_bytes(b"")
    assert obtain(source(url))[1] == list(CONTENT.values())
    assert capsys.readouterr().err.splitlines() == [first]  # the whole one is kept

    assert obtain(source(NOBODY))[1] == list(CONTENT.values())


def test_download_heals_a_damaged_plain_file(
    tmp_path: Path, cache: Path, serve_folder: Callable[[Path], str]
) -> None:
    (write(cache / "made-up", compressed=False) / "images").write_bytes(b"")
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
    assert [bar.count("█") for bar in bars] == [6, 13, 20, 27, 30]  # 64 KiB at a time, of 288 kB
    assert bars[-1] == f"{'images.gz':28} {'█' * 30}   0.3 MB"
    assert labels == f"\r{'labels.gz':28} {'█' * 30}   0.0 MB"
    assert end == ""


def why(url: str) -> str:
    """Return why a download failed; there must be nothing left of it."""
    with pytest.raises(DataUnavailable) as caught:
        obtain(source(url))
    assert left_in(cache_folder("made-up")) == []
    _, _, reason, *_ = str(caught.value).splitlines()
    return reason.removeprefix(f"  {url}/images.gz: ")


def test_server_that_truncates(serve: Serve) -> None:
    packed = gzip.compress(IMAGES)
    start, _, got = why(serve(answer(packed[:150_000], len(packed)))).rpartition(" ")
    assert start == "damaged: expected 288,000 bytes of content, got"
    assert 140_000 < int(got.replace(",", "")) < 150_000


def test_server_that_has_it_not(tmp_path: Path, serve_folder: Callable[[Path], str]) -> None:
    assert why(serve_folder(tmp_path)) == "HTTP Error 404: File not found"


def test_server_with_wrong_bytes(serve: Serve) -> None:
    packed = gzip.compress(OTHER)
    complaint = f"damaged: expected content of SHA-256 {sha256(IMAGES)}, got {sha256(OTHER)}"
    assert why(serve(answer(packed, len(packed)))) == complaint


def test_server_that_sends_a_web_page(serve: Serve) -> None:
    page = b"<html>pay for your room</html>"
    assert why(serve(answer(page, len(page)))) == "cannot be read: Not a gzipped file (b'<h')"


def test_server_that_is_silent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(2.0)

    monkeypatch.setattr(download, "_TIMEOUT", 0.2)
    start = time.monotonic()
    assert why(serve(Silent)) == "timed out"
    assert time.monotonic() - start < 1.8


def test_address_that_is_none() -> None:
    assert why("not an address") == "unknown url type: 'not an address/images.gz'"


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
    assert lines.pop(4).startswith(f"  {NOBODY}/images.gz: <urlopen error ")
    assert lines == [
        "made-up cannot be had; tried:",
        f"  {cache}/made-up: there is no such folder",
        f"  {system}: has no labels (nor with .gz)",
        f"  {gone}: there is no such folder",
        "what to do:",
        "  sing",
        "  or dance",
    ]
