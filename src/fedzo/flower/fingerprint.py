"""What two machines must have in common before one believes the other."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import numpy as np

from fedzo.core.estimator import Estimator
from fedzo.core.objective import Objective, is_plain, name_of
from fedzo.core.random import Draws, Stream


def agreed_settings(objective: Objective, own: Collection[str] = ()) -> dict[str, Any]:
    """Return what all nodes of a federation must have in common: never data, never a path.

    These are the problem's name, its dimension, how many devices there are, and the numbers and
    words that it was made with, but for those settings that are each node's ``own``.

    >>> from fedzo.problems import Quadratic
    >>> settings = agreed_settings(Quadratic(dim=3, devices=2), own=["gradient_noise"])
    >>> settings["problem"], settings["dim"], "gradient_noise" in settings
    ('fedzo.problems.quadratic:Quadratic', 3, False)
    """
    made = {k: v for k, v in objective.factory_kwargs.items() if k not in own}
    return {
        **{k: v for k, v in made.items() if is_plain(v) and not _is_path(v)},
        **{k: name_of(v) for k, v in made.items() if callable(v)},
        "problem": objective.factory,
        "dim": objective.dim,
        "devices": objective.devices,
    }


def _is_path(value: object) -> bool:
    return isinstance(value, str) and (os.sep in value or "\\" in value)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return sixteen letters that differ where settings do.

    >>> fingerprint({"a": 1, "b": 2.0}) == fingerprint({"b": 2.0, "a": 1})
    True
    """
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def directions_checksum() -> str:
    """Return a checksum of the numbers that this machine draws at one fixed address.

    If two machines differ in it (another version of fedzo), an update that the server rebuilds from
    coefficients is not the device's own.

    >>> len(directions_checksum())
    16
    """
    total = hashlib.sha256()
    at = Draws(seed=2022, stream=Stream.DIRECTIONS, round=7, device=3)
    for dtype in (np.float32, np.float64):
        coefficients = np.linspace(-1, 1, 14, dtype=dtype).reshape(2, 7)
        for kind in ("sphere", "rademacher"):
            made = np.asarray(Estimator(1e-3, 7, kind).update(2500, at, coefficients), dtype)
            total.update(made.astype(made.dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()[:16]
