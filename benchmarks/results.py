"""Results of many runs: each is computed once, kept in a file, and summed up over its seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Kept:
    """A function's results by its arguments, a line each in a file, so that a killed table resumes.

    Examples
    --------
    >>> double = Kept(lambda name, number: 2 * number, None)
    >>> double("a", 3), double("a", 3)
    (6, 6)
    """

    def __init__(self, compute: Callable[..., Any], file: Path | None) -> None:
        self._compute, self._file = compute, file
        self._known: dict[str, Any] = {}
        if file is not None and file.exists():
            self._known = dict(json.loads(line) for line in file.read_text().splitlines())

    def __call__(self, *case: Any) -> Any:
        key = json.dumps(case)
        if key not in self._known:
            self._known[key] = self._compute(*case)
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]


def percent(shares: Sequence[float]) -> str:
    """Return the mean of some shares and their span.

    >>> percent([0.25, 0.5, 0.75])
    '50.0 (25.0 to 75.0)'
    """
    all_of_100 = 100 * np.array(shares)
    return f"{all_of_100.mean():.1f} ({all_of_100.min():.1f} to {all_of_100.max():.1f})"
