"""What the frozen part of a language model makes of texts, kept in a file for the next run."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedzo.core.progress import LiveLine, show
from fedzo.data.fetching import cache_folder
from fedzo.errors import FedzoWarning
from fedzo.models.language import Prepared, UpperLayers

Tensor = Any

MOST = 8 << 30  # bytes of the files in the cache: the ones used longest ago give way


def prepare(
    upper: UpperLayers, folder: Path, texts: Sequence[str], longest: int, read: int
) -> list[Prepared]:
    """Return the texts as ``upper.prepare`` does, from the cache's file if there is one.

    The file is mapped, not read: memory holds what the system has room for. Standard error
    says what is being done, and on a terminal how long it will take.
    """
    path = cache_folder("prepared") / f"{_name(upper, folder, texts, longest, read)}.pt"
    if not path.exists():
        show(
            f"fedzo: running the frozen part of the model on {len(texts):,} texts, once; "
            f"what it makes is kept in {path.parent}"
        )
        found = _compute(upper, texts, longest, read)
        try:
            _write(path, found)
        except OSError as error:  # a full disk: what was made serves this run
            warnings.warn(f"not kept for the next run: {error}", FedzoWarning, stacklevel=2)
            return found
    return _read(path)


def _compute(upper: UpperLayers, texts: Sequence[str], longest: int, read: int) -> list[Prepared]:
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little to pad
    found: dict[int, Prepared] = {}
    began, characters, done = time.monotonic(), sum(map(len, texts)), 0
    line = LiveLine(sys.stderr)
    for first in range(0, len(order), 32):
        some = order[first : first + 32]
        found |= zip(some, upper.prepare([texts[i] for i in some], longest, read), strict=True)
        done += sum(len(texts[i]) for i in some)
        left = (time.monotonic() - began) * (characters / max(1, done) - 1)
        if line.live:
            line.rewrite(f"{len(found):,} of {len(texts):,} texts, {left:.0f} s left")
    line.close()
    return [found[i] for i in range(len(texts))]


def _name(upper: UpperLayers, folder: Path, texts: Sequence[str], longest: int, read: int) -> str:
    """Return a name that another model, cut, text or length does not have."""
    files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir())
    settings = (str(folder.resolve()), files, len(upper.module.layers), longest, read, list(texts))
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:32]


def _write(path: Path, prepared: Sequence[Prepared]) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "hidden": torch.cat([one.hidden for one in prepared]),
        "tokens": torch.tensor([len(one.hidden) for one in prepared]),
        "keys": torch.cat([one.keys.reshape(-1) for one in prepared]),
        "shapes": torch.tensor([one.keys.shape for one in prepared]),
    }
    _make_room(path.parent, sum(part.nbytes for part in content.values()))
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        torch.save(content, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _read(path: Path) -> list[Prepared]:
    import torch

    path.touch()  # used now
    content = torch.load(path, mmap=True, weights_only=True)
    hidden = content["hidden"].split(content["tokens"].tolist())
    shapes = content["shapes"]
    keys = content["keys"].split(shapes.prod(1).tolist())
    return [
        Prepared(one, numbers.view(*shape))
        for one, numbers, shape in zip(hidden, keys, shapes.tolist(), strict=True)
    ]


def _make_room(folder: Path, wanted: int) -> None:
    """Delete the files that were used longest ago, until so many bytes fit in."""
    files = sorted(folder.glob("*.pt"), key=lambda path: path.stat().st_mtime)
    total = wanted + sum(path.stat().st_size for path in files)
    for path in files:
        if total <= MOST:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
