"""Where compiled kernels are kept: numba's own places, or a temporary one where it has none."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import numba

from fedzo.core.telling import tell


def ensure_cache() -> None:
    """Give numba a temporary folder for its cache, if it could write to none of its own.

    An account without a home that runs what another one has installed has no such place, and
    numba would refuse to compile. The folder is private and goes with the process, so nobody else
    can put code into it.
    """
    if numba.config.CACHE_DIR or _writable(Path(__file__).parent / "__pycache__"):
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if _writable(Path(cache) / "numba"):
        return
    folder = tempfile.mkdtemp(prefix="fedzo-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = folder
    os.environ.setdefault("MPLCONFIGDIR", folder)  # or Matplotlib says at length what is said here
    tell("fedzo: no place to keep compiled code: each start will take some seconds longer")


def _writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, or the folder itself."""
    while not os.path.exists(folder):
        if folder.parent == folder:
            return False
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK)
