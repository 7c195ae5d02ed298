from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from small_cifar10 import NOBODY, SMALL

from fedzo import data
from fedzo.data import registry
from fedzo.data.fetching import cache_folder
from fedzo.data.images import FASHION_MNIST

Serve = Callable[[Callable[..., BaseHTTPRequestHandler]], str]
CIFAR10 = Path(os.environ.get("FEDZO_CIFAR10") or cache_folder("cifar10"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test away from the user's cache and proxy."""
    monkeypatch.setenv("FEDZO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"


@pytest.fixture
def debian() -> Path:
    folder = FASHION_MNIST.installed[0]
    if not folder.is_dir():
        pytest.skip(f"needs the Debian package dataset-fashion-mnist in {folder}")
    return folder


@pytest.fixture(scope="session")
def cifar10_folder() -> Path:
    if not CIFAR10.is_dir():
        pytest.skip(f"needs CIFAR-10 in {CIFAR10} (fedzo data get cifar10) or in $FEDZO_CIFAR10")
    return CIFAR10


@pytest.fixture(scope="session")
def real_cifar10(cifar10_folder: Path) -> data.Dataset:
    return data.load("cifar10", cifar10_folder)


@pytest.fixture
def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``cifar10`` be the small one, and nothing be reached but what a test sets up."""
    monkeypatch.setitem(registry.IMAGES, "cifar10", SMALL)
    monkeypatch.setenv("FEDZO_CIFAR10_URL", NOBODY)
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a web server on a free port with a handler; return its address."""
    with ExitStack() as at_the_end:

        def start(handler: Callable[..., BaseHTTPRequestHandler]) -> str:
            server = at_the_end.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            server.daemon_threads = True
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            at_the_end.callback(thread.join)
            at_the_end.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


@pytest.fixture
def serve_folder(serve: Serve) -> Callable[[Path], str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    return lambda folder: serve(partial(Quiet, directory=str(folder)))
