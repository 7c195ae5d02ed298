"""Copy what lies at an address into a file, and tell how far it has come."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

_PIECE = 1 << 16  # bytes handled at a time
_TIMEOUT = 20.0  # seconds that a server may be silent


def download(url: str, target: Path) -> None:
    """Write what lies at the address into a file.

    There is a bar on standard error if that is a terminal, and a line elsewhere. Raises
    OSError, ValueError or HTTPException, which tell why and not of what.
    """
    from urllib.request import urlopen

    with urlopen(url, timeout=_TIMEOUT) as response, target.open("wb") as out:
        total = int(response.headers.get("Content-Length", 0))
        _copy(response, out, url, total)


def _copy(response: IO[bytes], out: IO[bytes], url: str, total: int) -> None:
    terminal = sys.stderr.isatty()
    if not terminal:
        size = f" ({total / 1e6:.1f} MB)" if total else ""
        print(f"fetching {url}{size}", file=sys.stderr)
    done = 0
    try:
        while piece := response.read(_PIECE):
            done += out.write(piece)
            if terminal:
                print("\r" + _bar(url, done, total), end="", file=sys.stderr, flush=True)
    finally:
        if terminal:
            print(file=sys.stderr)


def _bar(url: str, done: int, total: int) -> str:
    share = min(done / total, 1.0) if total else 0.0
    return f"{url.rpartition('/')[2]:28} {'█' * int(30 * share):░<30} {done / 1e6:5.1f} MB"
